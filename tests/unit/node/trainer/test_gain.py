"""What a push does to the loss of two texts, measured by a trainer."""

from __future__ import annotations

import socket

import msgspec
import numpy as np
import pytest
import torch

from node.trainer import duty, memory_limits
from node.trainer.failures import StepAbandoned
from node.trainer.gain import LOSS_MAX, Change, NotFinite, measure_gain
from node.trainer.link import messages
from node.trainer.link.endpoint import BlockingEnd, TrainerEnd
from node.trainer.link.shared_memory import Slot
from node.trainer.model import FragmentView, initial_weights, layout_of
from node.trainer.session import Session
from node.trainer.setup import THREAD_VARIABLES
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader, read_places
from protocol.errors import InternalError
from protocol.messages import SequencePlace
from tests.support.tiny_loop import GENESIS, make_loop, weights_of
from tests.support.tiny_project import BLOCK_SEQUENCES, configure, tiny_genesis

LAYOUT = layout_of(GENESIS)
OWN, OTHER = range(4), range(500, 508)
"""Positions that a push was trained on, and others."""


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices only lose time to a thread pool, all the more on a busy machine."""
    torch.set_num_threads(1)


class Noise:
    """Text that can only be learnt by heart."""

    def sequences(self, position):
        return np.random.default_rng(position).integers(0, 257, size=(4, 33))


def text(positions, source=None):
    return np.concatenate([(source or Noise()).sequences(at) for at in positions])


def copies(loop):
    return FragmentView(loop.trainer.model, LAYOUT).copies()


def measure(loop, values, change, *texts, worked=lambda _: None):
    return measure_gain(loop, LAYOUT, np.concatenate(values), change, texts, worked)


def trained():
    """A loop, its fragments before it read `OWN`, and after."""
    loop = make_loop(Noise(), blocks=len(OWN))
    before = copies(loop)
    while loop.can_step:
        loop.progress = 0.1
        loop.step()
    return loop, before, copies(loop)


@pytest.mark.parametrize("fragment", range(GENESIS.fragments))
def test_a_push_lowers_the_loss_of_its_own_text_more_than_that_of_other_text(fragment):
    loop = make_loop(Noise(), blocks=len(OWN))
    before = copies(loop)
    for _ in range(6):
        loop.reader.go_to(((OWN[0], OWN[-1] + 1, 0),), 0, 0)
        while loop.can_step:
            loop.progress = 0.1
            loop.step()
    after = copies(loop)
    own, other = measure(loop, before, Change(fragment, after[fragment]), text(OWN), text(OTHER))
    assert own.sequences == 16
    assert other.sequences == 32
    error = (own.deviation**2 / own.sequences + other.deviation**2 / other.sequences) ** 0.5
    assert own.mean > other.mean + 3 * error
    assert own.mean > 0


def test_a_push_of_nothing_has_a_gain_of_exactly_nothing():
    loop, before, _ = trained()
    for fragment, values in enumerate(before):
        for gain in measure(loop, before, Change(fragment, values - 0.0), text(OWN), text(OTHER)):
            assert (gain.mean, gain.deviation) == (0.0, 0.0)


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_loss_and_gain_are_those_of_two_evaluations(micro_batch):
    loop, before, after = trained()
    loop.trainer.micro_batch = micro_batch
    pushed = [after[0], *before[1:]]
    change = Change(0, after[0])
    for gain, positions in zip(
        measure(loop, before, change, text(OWN), text(OTHER)), (OWN, OTHER), strict=True
    ):
        without, with_push = (
            loop.evaluate(text(positions), layout=LAYOUT, values=np.concatenate(values))
            for values in (before, pushed)
        )
        assert gain.loss == pytest.approx(without, rel=1e-5)
        assert gain.mean == pytest.approx(without - with_push, abs=2e-6)
        each = [
            loop.evaluate(one[None], layout=LAYOUT, values=np.concatenate(before))
            - loop.evaluate(one[None], layout=LAYOUT, values=np.concatenate(pushed))
            for one in text(positions)
        ]
        assert gain.deviation == pytest.approx(np.std(each), abs=1e-5)


def test_training_goes_on_as_if_nothing_had_been_measured():
    probed, calm = make_loop(), make_loop()
    for loop in (probed, calm):
        loop.step()
    stream, mark = torch.get_rng_state(), probed.reader.mark()
    values = copies(probed)
    measure(probed, values, Change(1, values[1] + np.float32(0.1)), text(OWN), text(OTHER))
    assert torch.equal(torch.get_rng_state(), stream)
    assert probed.reader.mark() == mark
    assert probed.trainer.model.training
    assert probed.step().loss == calm.step().loss
    assert torch.equal(weights_of(probed), weights_of(calm))


def test_a_push_that_ruins_the_model_has_a_bounded_gain():
    loop, before, _ = trained()
    for ruin in (np.inf, np.nan, 1e38):
        (gain,) = measure(loop, before, Change(0, np.full_like(before[0], ruin)), text(OWN))
        assert -LOSS_MAX <= gain.mean <= 0.0
        assert np.isfinite(gain.deviation)
        if np.isnan(ruin):
            assert gain.mean == pytest.approx(gain.loss - LOSS_MAX)


def test_a_model_without_a_loss_has_no_gain():
    loop, before, _ = trained()
    broken = [np.full_like(before[0], np.nan), *before[1:]]
    with pytest.raises(NotFinite):
        measure(loop, broken, Change(0, before[0]), text(OWN))


def test_it_tells_of_every_micro_batch_and_may_be_cut_short():
    loop, before, _ = trained()
    loop.trainer.micro_batch = 3
    told = []
    measure(loop, before, Change(0, before[0]), text(range(2)), worked=told.append)
    assert len(told) == 2 * 3
    assert all(seconds >= 0.0 for seconds in told)

    def stop(_):
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        measure(loop, before, Change(0, before[0]), text(OWN), worked=stop)


# Text at any place.


def test_any_place_is_read_in_the_order_asked_for():
    places = [(7, 1), (3, 0), (7, 3), (3, 2), (7, 1)]
    found = read_places(Noise(), places)
    for row, (position, sequence) in zip(found, places, strict=True):
        np.testing.assert_array_equal(row, Noise().sequences(position)[sequence])


def test_a_block_is_cut_once():
    class Counting(Noise):
        cut = 0

        def sequences(self, position):
            self.cut += 1
            return super().sequences(position)

    source = Counting()
    read_places(source, [(9, 0), (2, 1), (9, 3), (2, 0)])
    assert source.cut == 2
    with pytest.raises(InternalError):
        read_places(source, [(0, 4)])


def test_places_of_real_text_are_what_whoever_leased_them_reads(tmp_path):
    genesis = tiny_genesis(tmp_path)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=tmp_path / "cache")
    far = genesis.data.blocks + 3
    for position in (0, genesis.data.blocks - 1, far):
        reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
        reader.append(((position, position + 1),))
        places = [(position, at) for at in range(BLOCK_SEQUENCES)]
        np.testing.assert_array_equal(read_places(corpus, places), reader.take(BLOCK_SEQUENCES))


# As a command.


def places(positions):
    return tuple(SequencePlace(at, number) for at in positions for number in range(4))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")  # Put back afterwards.
    return tmp_path


class Ending(TrainerEnd):
    """Hears `Quit` once it has said so much; local steps do not count."""

    def __init__(self, end, daemon, events):
        super().__init__(end)
        self.daemon, self.left = daemon, events

    def send(self, message):
        super().send(message)
        self.left -= not isinstance(message, messages.Stepped)
        if not self.left:
            self.daemon.sendall(messages.frame(messages.Quit()))


class Commands:
    """What a trainer says to commands that all wait from the start."""

    def __init__(self, genesis, folder):
        self.genesis, self.folder = genesis, folder
        self.weights = initial_weights(genesis)
        self.slots = []

    def slot(self, identity, values):
        slot = Slot.create(identity, values.size)
        slot.values[:] = values
        self.slots.append(slot)
        return slot

    def measure(self, fragment, changed, own=range(2), other=range(8, 10)):
        values = np.concatenate([*self.weights, changed])
        self.probed = self.slot(99, values)
        return messages.MeasureGain(7, 99, values.size, fragment, places(own), places(other))

    def begun(self):
        """What makes it train."""
        slots = [self.slot(10 + at, values) for at, values in enumerate(self.weights)]
        given = [messages.Assign(at, at, 10 + at, slot.numel) for at, slot in enumerate(slots)]
        return *given, messages.Blocks(((0, 40),)), messages.Begin()

    def run(self, *commands, **changes):
        ours, theirs = socket.socketpair()
        end = Ending(theirs, ours, 1 + sum(hasattr(one, "job") for one in commands))
        hear = BlockingEnd(ours, messages.EVENTS)
        ours.sendall(messages.frame(configure(self.genesis, self.folder, micro_batch=1, **changes)))
        for slot in self.slots:
            socket.send_fds(
                ours,
                [messages.frame(messages.OfferSlot(slot.identity, slot.numel))],
                [slot.descriptor],
            )
        for command in commands:
            ours.sendall(messages.frame(command))
        try:
            Session(end).run()
        finally:
            end.close()
        heard = []
        try:
            while True:
                heard.append(hear.receive(0.0))
        except messages.LinkClosed:
            return heard
        finally:
            hear.close()
            for slot in self.slots:
                slot.close()


def test_a_trainer_measures_what_it_is_told_to(folder):
    genesis = tiny_genesis(folder)
    one = Commands(genesis, folder)
    changed = one.weights[1] + np.float32(0.01)
    changed[one.weights[1] == 0.0] = 0.0
    _, told = one.run(one.measure(1, changed))
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    loop = make_loop(corpus, micro_batch=1)
    texts = [
        read_places(corpus, [(one.position, one.sequence) for one in places(positions)])
        for positions in (range(2), range(8, 10))
    ]
    expected = measure(loop, one.weights, Change(1, changed), *texts)
    assert (told.job, told.trouble) == (7, None)
    assert (told.own, told.other) == expected
    assert told.own.mean != 0.0


def test_a_capture_does_not_wait_until_a_gain_is_measured(folder):
    """Nor does what is delivered or fed; what is no less work waits for its turn."""
    genesis = tiny_genesis(folder)
    one = Commands(genesis, folder)
    local = one.slot(1, one.weights[0])
    captured = one.slot(2, np.zeros_like(one.weights[0]))
    heard = one.run(
        one.measure(0, one.weights[0]),
        messages.Assign(1, 0, 1, local.numel),
        messages.Blocks(((0, 1),)),
        messages.Snapshot(2, 0, 2, captured.numel),
        messages.Generate(3, "the quiet", 2),
        messages.Snapshot(4, 0, 2, captured.numel),
    )
    kinds = [(type(event), getattr(event, "job", None)) for event in heard]
    assert kinds == [
        (messages.Ready, None),
        (messages.Done, 1),
        (messages.Done, 2),
        (messages.GainMeasured, 7),
        (messages.Generated, 3),
        (messages.Done, 4),
    ]
    assert (heard[3].own.mean, heard[3].trouble) == (0.0, None)


@pytest.mark.parametrize("kind", [messages.GainMeasured, messages.Evaluated])
def test_local_steps_take_turns_with_a_measurement(folder, monkeypatch, kind):
    monkeypatch.setattr(duty, "BURST_S", 0.0)
    genesis = tiny_genesis(folder)
    one = Commands(genesis, folder)
    measure = one.measure(0, one.weights[0])
    if kind is messages.Evaluated:
        whole = one.slot(98, np.concatenate(one.weights))
        measure = messages.Evaluate(7, 98, whole.numel, 4)
    heard = one.run(*one.begun(), measure)
    kinds = [type(event) for event in heard]
    assert messages.Stepped in kinds[: kinds.index(kind)]
    steps = [event for event in heard if isinstance(event, messages.Stepped)]
    assert [event.local_step for event in steps] == list(range(1, len(steps) + 1))
    assert steps[0].measured_s > 0.0


def test_without_room_for_both_local_steps_wait(folder, monkeypatch):
    monkeypatch.setattr(duty, "BURST_S", 0.0)
    genesis = tiny_genesis(folder)
    one = Commands(genesis, folder)
    monkeypatch.setattr(memory_limits, "limit_host_memory", lambda *_, **__: None)
    commands = (*one.begun(), one.measure(0, one.weights[0]))
    heard = one.run(*commands, ram_bytes_max=1 << 40)
    kinds = [type(event) for event in heard]
    assert messages.Stepped not in kinds[: kinds.index(messages.GainMeasured)]


def test_a_pause_cuts_it_short(folder):
    one = Commands(tiny_genesis(folder), folder)
    _, told = one.run(one.measure(0, one.weights[0]), messages.Pause())
    assert (told.own, told.other, told.trouble) == (None, None, "paused")


def test_a_host_whose_text_differs_measures_nothing(folder):
    genesis = tiny_genesis(folder)
    other = msgspec.structs.replace(genesis.data, digest=bytes(32))
    one = Commands(msgspec.structs.replace(genesis, data=other), folder)
    _, told = one.run(one.measure(0, one.weights[0]))
    assert (told.own, told.trouble) == (None, "other text")


def test_a_device_that_is_too_small_costs_the_probe_and_not_the_trainer(folder, monkeypatch):
    def too_big(model, sequences):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("node.trainer.objective.cross_entropy_means", too_big)
    one = Commands(tiny_genesis(folder), folder)
    _, told, text = one.run(one.measure(0, one.weights[0]), messages.Generate(3, "the quiet", 2))
    assert told.trouble == "no memory"
    assert isinstance(text, messages.Generated)


def test_a_device_that_is_too_small_costs_the_sample_and_not_the_trainer(folder, monkeypatch):
    def too_big(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("node.trainer.setup.TrainerSetup.generate", too_big)
    one = Commands(tiny_genesis(folder), folder)
    _, text, told = one.run(messages.Generate(3, "the quiet", 2), one.measure(0, one.weights[0]))
    assert text.text == ""
    assert told.trouble is None


def test_another_error_is_no_shortage(folder, monkeypatch):
    def broken(model, sequences):
        raise RuntimeError("a bug")

    monkeypatch.setattr("node.trainer.objective.cross_entropy_means", broken)
    one = Commands(tiny_genesis(folder), folder)
    with pytest.raises(RuntimeError, match="a bug"):
        one.run(one.measure(0, one.weights[0]))
