from __future__ import annotations

import socket

import numpy as np
import pytest
import torch

from node.trainer import capture
from node.trainer.capture import Copies, copies_for
from node.trainer.link import messages
from node.trainer.link.endpoint import TrainerEnd
from node.trainer.link.shared_memory import Slot
from node.trainer.model import initial_weights
from node.trainer.session import Session
from node.trainer.setup import THREAD_VARIABLES
from tests.support.tiny_project import configure, tiny_genesis


class LateCopies:
    """As a device's: a copy is made as late as it may be."""

    def __init__(self):
        self.begun = []
        self.copied = []

    def read(self, view, fragment, slot, then):
        self.begun.append((lambda: view.read(fragment, slot.values), then))

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


def talk(genesis, folder, slots, commands):
    """What a trainer answers to commands that all wait from the start."""
    ours, theirs = socket.socketpair()
    end = TrainerEnd(theirs)
    ours.sendall(messages.frame(configure(genesis, folder)))
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


def test_the_processor_copies_at_once():
    assert type(copies_for(torch.device("cpu"))) is Copies
