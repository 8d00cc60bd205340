from __future__ import annotations

import socket
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from node.trainer import capture
from node.trainer.capture import Copies, SideStreamCopies, copies_for
from node.trainer.link import messages
from node.trainer.link.endpoint import TrainerEnd
from node.trainer.link.shared_memory import Slot
from node.trainer.model import FragmentView, build_model, initial_weights, layout_of
from node.trainer.session import Session
from node.trainer.setup import THREAD_VARIABLES
from tests.support.tiny_project import configure, tiny_genesis


class LateCopies:
    """As a device's: a copy is made as late as it may be."""

    def __init__(self):
        self.begun = []
        self.copied = []
        self.log = []

    def read(self, view, fragment, slot, then):
        self.begun.append((lambda: view.read(fragment, slot.values), then))

    def stage(self, slot):
        self.log.append(("staged", slot.identity))

    def write(self, slot, change, then):
        self.fence()
        self.log.append(("written", slot.identity))
        change(torch.from_numpy(slot.values.copy()))  # As from the device.
        self.copied.append(then)

    def fence(self):
        for copy, then in self.begun:
            copy()
            self.copied.append(then)
        self.begun = []

    def poll(self):
        pass

    def finish(self):
        self.fence()
        for then in self.copied:
            then()
        self.copied = []

    def forget(self, slot):
        self.finish()


@pytest.fixture
def late(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    copies = LateCopies()
    monkeypatch.setattr(capture, "copies_for", lambda device: copies)
    return copies


def talk(genesis, folder, slots, commands, **changes):
    """What a trainer answers to commands that all wait from the start."""
    ours, theirs = socket.socketpair()
    end = TrainerEnd(theirs)
    ours.sendall(messages.frame(configure(genesis, folder, **changes)))
    for slot in slots:
        frame = messages.frame(messages.OfferSlot(slot.identity, slot.numel))
        socket.send_fds(ours, [frame], [slot.descriptor])
    for command in commands:
        ours.sendall(messages.frame(command))
    try:
        Session(end).run()
    finally:
        end.close()
    reader = messages.FrameReader()
    while messages.read_into(reader, ours):
        pass
    ours.close()
    events = []
    while (body := reader.next_frame()) is not None:
        events.append(messages.decode(messages.EVENTS, body))
    return events


@pytest.fixture
def made(tmp_path):
    """A project, its weights, and a slot for each fragment with them; one more to copy into."""
    genesis = tiny_genesis(tmp_path)
    weights = initial_weights(genesis)
    slots = [Slot.create(at, values.size) for at, values in enumerate(weights)]
    for slot, values in zip(slots, weights, strict=True):
        slot.values[:] = values
    target = Slot.create(len(slots), slots[1].numel)
    yield genesis, weights, slots, target
    for slot in (*slots, target):
        slot.close()


def test_a_copy_shows_the_weights_as_they_were_at_its_boundary(late, made, tmp_path):
    genesis, weights, slots, target = made
    assigns = [messages.Assign(at, at, at, slot.numel) for at, slot in enumerate(slots)]
    events = talk(
        genesis,
        tmp_path,
        [*slots, target],
        [
            *assigns,
            messages.Blocks(((0, 1),)),
            messages.Begin(),
            messages.Snapshot(7, 1, target.identity, target.numel),
            messages.Add(8, 1, 1, slots[1].numel),
            messages.SetProgress(0.0),
            messages.Quit(),
        ],
    )
    assert [one.job for one in events if isinstance(one, messages.Done)] == [0, 1, 2, 7, 8]
    np.testing.assert_array_equal(target.values, weights[1])


def test_a_copy_is_told_with_its_own_step_before_the_step_that_hides_it(late, made, tmp_path):
    genesis, weights, slots, target = made
    assigns = [messages.Assign(at, at, at, slot.numel) for at, slot in enumerate(slots)]
    received = TrainerEnd.receive
    steps = []

    def receive(end, timeout_s):
        """The end comes only after a local step."""
        command = received(end, 0.0)
        if isinstance(command, messages.Quit) and not steps:
            steps.append(command)
            return None
        return steps.pop() if command is None and steps else command

    late_receive = pytest.MonkeyPatch()
    late_receive.setattr(TrainerEnd, "receive", receive)
    try:
        events = talk(
            genesis,
            tmp_path,
            [*slots, target],
            [
                *assigns,
                messages.Blocks(((0, 1),)),
                messages.Begin(),
                messages.Snapshot(7, 1, target.identity, target.numel),
                messages.Quit(),
            ],
        )
    finally:
        late_receive.undo()
    kinds = [type(one) for one in events]
    assert kinds[:6] == [
        messages.Ready,
        messages.Done,
        messages.Done,
        messages.Done,
        messages.Done,
        messages.Stepped,
    ]
    assert (events[4].job, events[4].local_step, events[5].local_step) == (7, 0, 1)
    assert (events[4].position, events[4].sequence) == (0, 0)
    assert (events[5].position, events[5].sequence) != (0, 0)
    np.testing.assert_array_equal(target.values, weights[1])


def test_a_delivery_is_answered_in_its_turn_and_shows_in_later_copies(late, made, tmp_path):
    genesis, weights, slots, target = made
    assigns = [messages.Assign(at, at, at, slot.numel) for at, slot in enumerate(slots)]
    events = talk(
        genesis,
        tmp_path,
        [*slots, target],
        [
            *assigns,
            messages.Blocks(((0, 1),)),
            messages.Begin(),
            messages.Snapshot(7, 1, target.identity, target.numel),
            messages.Add(8, 1, 1, slots[1].numel),
            messages.Assign(9, 1, 1, slots[1].numel, 0.25),
            messages.Snapshot(10, 1, target.identity, target.numel),
            messages.SetProgress(0.0),
            messages.Quit(),
        ],
    )
    assert [one.job for one in events if isinstance(one, messages.Done)] == [0, 1, 2, 7, 8, 9, 10]
    expected = np.float32(0.25) * (weights[1] + weights[1]) + np.float32(0.75) * weights[1]
    np.testing.assert_allclose(target.values, expected, rtol=1e-6)


def test_what_arrives_during_a_local_step_travels_before_its_boundary(late, made, tmp_path):
    genesis, _, slots, _ = made
    received, seen = TrainerEnd.receive, []

    def receive(end, timeout_s):
        """The second delivery comes in the middle of the first local step."""
        if seen and seen[0] is not None:
            command, seen[0] = seen[0], None
            return command
        command = received(end, 0.0)
        if isinstance(command, messages.Add) and not seen:
            seen.append(command)
            return None
        return command

    def glance(end, timeout_s):
        return seen[0] if seen and ("staged", 1) not in late.log else None

    patch = pytest.MonkeyPatch()
    patch.setattr(TrainerEnd, "receive", receive)
    patch.setattr(TrainerEnd, "glance", glance)
    assigns = [messages.Assign(at, at, at, slot.numel) for at, slot in enumerate(slots)]
    commands = [*assigns, messages.Blocks(((0, 1),)), messages.Begin()]
    commands += [messages.Add(8, 1, 1, slots[1].numel), messages.Quit()]
    try:
        events = talk(genesis, tmp_path, slots, commands, micro_batch=1)
    finally:
        patch.undo()
    assert late.log == [
        ("written", 0),
        ("written", 1),
        ("written", 2),
        ("staged", 1),
        ("written", 1),
    ]
    (step,) = [one.local_step for one in events if isinstance(one, messages.Stepped)]
    assert step == 1


def test_the_processor_copies_at_once():
    assert type(copies_for(torch.device("cpu"))) is Copies


class Stream:
    """A stream that only notes what is asked of it."""

    def __init__(self, log, name):
        self.log, self.name = log, name
        self.events = []

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        self.events.append(Event(self.log, self.name))
        return self.events[-1]


class Event:
    def __init__(self, log, name):
        self.log, self.name = log, name
        self.is_done = False

    def query(self):
        return self.is_done

    def synchronize(self):
        self.log.append(f"the program waits for {self.name}")
        self.is_done = True


class Cuda:
    """What `capture` uses of torch.cuda, over the processor's memory."""

    def __init__(self):
        self.log = []
        self.computing = Stream(self.log, "computing")
        self.copying = Stream(self.log, "copying")
        self.room = True

    def Stream(self, device):
        return self.copying

    def current_stream(self, device):
        return self.computing

    @contextmanager
    def stream(self, stream):
        if not self.room:
            raise torch.OutOfMemoryError("none left")
        yield

    def cudart(self):
        return self

    def cudaHostRegister(self, address, count, flags):
        self.log.append("locked")
        return 0

    def cudaHostUnregister(self, address):
        self.log.append("unlocked")


@pytest.fixture
def cuda(monkeypatch):
    stand_in = Cuda()
    monkeypatch.setattr(capture, "CUDA", stand_in)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: stand_in.log.append("kept")
    )
    return stand_in


@pytest.fixture
def slot():
    one = Slot.create(3, 5)
    one.values[:] = range(5)
    yield one
    one.close()


def test_staged_values_wait_on_the_device_until_their_turn(cuda, slot):
    copies, told = SideStreamCopies(torch.device("cpu")), []
    copies.stage(slot)
    slot.values[:] = -1.0  # What is written later is what lay there when it was staged.
    assert cuda.log == ["locked"]
    copies.write(slot, lambda values: cuda.log.append(values.tolist()), lambda: told.append(1))
    assert cuda.log[1:] == ["computing waits for copying", "kept", [0.0, 1.0, 2.0, 3.0, 4.0]]
    copies.poll()
    assert not told  # The slot may still be read.
    cuda.copying.events[0].is_done = True
    copies.poll()
    assert told == [1]


def test_what_was_not_staged_is_and_the_program_waits_for_nothing(cuda, slot):
    copies, found = SideStreamCopies(torch.device("cpu")), []
    for _ in range(2):
        copies.write(slot, lambda values: found.append(values.sum().item()), lambda: None)
        slot.values[:] += 1.0
    assert found == [10.0, 15.0]
    assert cuda.log.count("locked") == 1
    assert not any(one.startswith("the program") for one in cuda.log)


def test_answers_come_in_the_order_of_the_copies(cuda, slot):
    copies, told = SideStreamCopies(torch.device("cpu")), []
    view = SimpleNamespace(read=lambda fragment, out, non_blocking: None)
    copies.read(view, 0, slot, lambda: told.append("captured"))
    copies.write(slot, lambda values: None, lambda: told.append("delivered"))
    cuda.copying.events[1].is_done = True
    copies.poll()
    assert told == []
    copies.finish()
    assert told == ["captured", "delivered"]


def test_without_room_on_the_device_values_are_taken_from_the_slot(cuda, slot):
    copies, found, told = SideStreamCopies(torch.device("cpu")), [], []
    cuda.room = False
    copies.write(slot, found.append, lambda: told.append(1))
    assert found[0] is slot.values
    copies.finish()
    assert told == [1]


def test_memory_is_unlocked_once_nothing_reads_it(cuda, slot):
    copies = SideStreamCopies(torch.device("cpu"))
    copies.stage(slot)
    copies.forget(slot)
    assert cuda.log == ["locked", "the program waits for copying", "unlocked"]


def through(place, genesis, slot, target):
    """A fragment after three deliveries and a local step's move, as it was captured before it."""
    model = build_model(genesis.model, seed=3).to(place)
    view, copies, told = FragmentView(model, layout_of(genesis)), copies_for(place), []
    copies.stage(slot)
    copies.write(slot, lambda values: view.blend(1, values, 0.0), lambda: told.append(1))
    copies.write(slot, lambda values: view.blend(1, values, 0.25), lambda: told.append(2))
    copies.write(slot, lambda values: view.add(1, values), lambda: told.append(3))
    copies.read(view, 1, target, lambda: told.append(4))
    copies.fence()
    view.write(1, np.zeros_like(target.values))
    copies.finish()
    assert told == [1, 2, 3, 4]
    copies.forget(slot)
    copies.forget(target)
    return target.values.copy()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
def test_on_a_device_deliveries_and_copies_are_those_of_the_processor(made):
    genesis, _, slots, target = made
    places = (torch.device("cpu"), torch.device("cuda"))
    here, there = [through(place, genesis, slots[1], target) for place in places]
    np.testing.assert_allclose(there, here, rtol=1e-6)
