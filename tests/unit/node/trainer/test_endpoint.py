from __future__ import annotations

import mmap
import os
import socket

import numpy as np
import pytest

from node.trainer.failures import TrainerFailure, failure_of
from node.trainer.link import messages
from node.trainer.link.endpoint import TrainerEnd
from node.trainer.link.shared_memory import Slot
from protocol.errors import InternalError, UserError
from protocol.messages import Gain, SequencePlace

LOOP_STATE = messages.LoopState(5, 640, 0.25, True, ((3, 5, 2),), 2, 6, b"random", b"device")

COMMANDS = [
    messages.Configure(
        b"genesis", b"inner", "/cache", 2, 4, 0.5, 3, "cpu", 10, "/text", 0.5, 1 << 30
    ),
    messages.OfferSlot(1, 128),
    messages.DropSlot(1),
    messages.Assign(7, 0, 1, 128, 0.5),
    messages.Add(8, 0, 1, 128),
    messages.Snapshot(9, 0, 1, 128),
    messages.CaptureMoments(4, 2, 1, 1000),
    messages.InstallMoments(5, 2, 1, 1000),
    messages.CutPart(6, 1, 3000),
    messages.RestorePart(7, 1, 3000, LOOP_STATE),
    messages.Suspend(6),
    messages.Restore(7, LOOP_STATE),
    messages.Blocks(((3, 5), (9, 10)), 2),
    messages.DropBlocks(),
    messages.SetProgress(0.25),
    messages.SetDuty(0.5),
    messages.Evaluate(10, 1, 256, 8),
    messages.MeasureGain(12, 1, 256, 0, (SequencePlace(3, 1),), (SequencePlace(9, 0),)),
    messages.Generate(11, "def ", 5),
    messages.Begin(),
    messages.Pause(),
    messages.Resume(),
    messages.Quit(),
]

EVENTS = [
    messages.Ready(bytes(32), "cpu", 5, 4, bytes(32), True, 100, 10, {"data": 0.5}),
    messages.Stepped(1, 128, 5.5, 0.2, 0.1, 3, 4, 1e-3),
    messages.Done(7, 1, 128, 0.1),
    messages.PartCut(6, LOOP_STATE),
    messages.Suspended(6, LOOP_STATE),
    messages.Evaluated(10, 5.0, 64, 0.1),
    messages.GainMeasured(12, Gain(5.0, 0.1, 0.2, 1), Gain(5.0, -0.1, 0.2, 1), 0.1),
    messages.Generated(11, "main"),
    messages.Adjusted(4, "memory ran out"),
    messages.Starved(1),
    messages.Failed("oom", "no memory"),
]


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    end = TrainerEnd(theirs)
    yield ours, end
    end.close()
    ours.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [1, 3, 1 << 16])
def test_every_message_survives_any_chunking(size):
    stream = b"".join(messages.frame(one) for one in [*COMMANDS, *EVENTS])
    reader, bodies = messages.FrameReader(), []
    for first in range(0, len(stream), size):
        reader.feed(stream[first : first + size], [])
        while (body := reader.next_frame()) is not None:
            bodies.append(body)
    split = len(COMMANDS)
    assert [messages.decode(messages.COMMANDS, body) for body in bodies[:split]] == COMMANDS
    assert [messages.decode(messages.EVENTS, body) for body in bodies[split:]] == EVENTS


def test_every_command_and_event_is_covered_here():
    assert {type(one) for one in COMMANDS} == set(messages.Command.__args__)
    assert {type(one) for one in EVENTS} == set(messages.Event.__args__)


def test_a_length_out_of_bounds_is_refused_before_anything_is_stored():
    reader = messages.FrameReader()
    reader.feed((messages.FRAME_BYTES_MAX + 1).to_bytes(4, "big"), [])
    with pytest.raises(InternalError, match="announced"):
        reader.next_frame()


def test_an_event_is_not_a_command():
    body = messages.frame(messages.Starved(1))[4:]
    with pytest.raises(InternalError, match="unknown message"):
        messages.decode(messages.COMMANDS, body)


def test_a_message_over_the_bound_is_not_sent():
    with pytest.raises(InternalError, match="too long"):
        messages.frame(messages.Failed("internal", "x" * (messages.FRAME_BYTES_MAX + 1)))


def test_both_ends_of_a_slot_see_the_same_values():
    ours = Slot.create(1, 300)
    theirs = Slot.attach(1, 300, os.dup(ours.descriptor))
    ours.values[:] = np.arange(300)
    assert theirs.values[299] == 299.0
    theirs.values[0] = 5.0
    assert ours.values[0] == 5.0
    ours.close()


def test_an_empty_slot_is_possible():
    slot = Slot.create(1, 0)
    assert slot.values.size == 0
    slot.close()


def test_neither_end_can_shrink_a_slot():
    slot = Slot.create(1, 10_000)
    with pytest.raises(PermissionError):
        os.ftruncate(slot.descriptor, mmap.PAGESIZE)
    slot.close()


def test_values_outlive_a_closed_slot_and_no_descriptor_stays_open():
    before = open_descriptors()
    slot = Slot.create(1, 16)
    values = slot.values
    slot.close()
    slot.close()
    values[3] = 1.0
    assert open_descriptors() <= before + 1  # The map itself holds one until it goes.
    del slot, values
    assert open_descriptors() == before


def test_a_slot_shorter_than_it_claims_is_refused():
    slot = Slot.create(1, 16)
    with pytest.raises(InternalError, match="64 bytes for 17 elements"):
        Slot.attach(1, 17, os.dup(slot.descriptor))
    slot.close()


def test_descriptors_arrive_with_the_frames_that_announce_them(ends):
    ours, end = ends
    slots = [Slot.create(number, 8) for number in range(3)]
    for slot in slots:
        slot.values[:] = slot.identity
        socket.send_fds(
            ours, [messages.frame(messages.OfferSlot(slot.identity, 8))], [slot.descriptor]
        )
        ours.sendall(messages.frame(messages.Begin()))
    for slot in slots:
        offer = end.receive(1.0)
        assert offer == messages.OfferSlot(slot.identity, 8)
        seen = Slot.attach(offer.slot, offer.numel, end.take_descriptor())
        assert seen.values[7] == slot.identity
        assert end.receive(1.0) == messages.Begin()
        slot.close()


def test_an_offer_without_a_descriptor_is_an_error(ends):
    ours, end = ends
    ours.sendall(messages.frame(messages.OfferSlot(1, 8)))
    end.receive(1.0)
    with pytest.raises(InternalError, match="without its descriptor"):
        end.take_descriptor()


def test_descriptors_that_nobody_took_are_closed(ends):
    ours, end = ends
    slot = Slot.create(1, 8)
    before = open_descriptors()
    socket.send_fds(ours, [messages.frame(messages.OfferSlot(1, 8))], [slot.descriptor])
    end.receive(1.0)
    assert open_descriptors() == before + 1
    end.close()
    assert open_descriptors() == before - 1  # The trainer's end is closed, too.
    slot.close()


def test_receive_returns_none_when_nothing_comes_in_time(ends):
    _, end = ends
    assert end.receive(0.0) is None


def test_a_closed_link_is_noticed_by_both_directions(ends):
    ours, end = ends
    ours.sendall(messages.frame(messages.Pause()))
    ours.close()
    assert end.receive(1.0) == messages.Pause()
    with pytest.raises(messages.LinkClosed):
        end.receive(None)
    with pytest.raises(messages.LinkClosed):
        end.send(messages.Starved(0))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("slot"), "oom"),
        (RuntimeError("MPS backend out of memory (used 9 GB)"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes"), "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (TrainerFailure("data", "no such file"), "data"),
        (InternalError("bug"), "internal"),
        (ValueError("out of memory"), "internal"),
        (UserError("late"), "internal"),
    ],
)
def test_the_kind_of_a_failure_follows_from_the_error(error, kind):
    failed = failure_of(error)
    assert failed.kind == kind
    assert str(error) in failed.message


def test_every_kind_has_an_exit_code_of_its_own():
    assert len(set(messages.EXIT_CODES.values())) == len(messages.EXIT_CODES)
    assert messages.EXIT_OK not in messages.EXIT_CODES.values()
