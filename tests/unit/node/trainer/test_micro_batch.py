from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from node.trainer import builtin, micro_batch
from node.trainer.failures import StepAbandoned
from node.trainer.micro_batch import FILE, KEPT_MAX, Fit, even, fit, recall, remember
from node.trainer.model import build_model, describe_model
from node.trainer.objective import cross_entropy_sum
from tests.support.tiny_loop import GENESIS, make_loop, weights_of
from tests.support.tiny_project import CONFIG, INNER

EIGHT = msgspec.structs.replace(INNER, batch_sequences=8)


class Narrow:
    """A device whose memory holds so many sequences, and says when that is too little."""

    def __init__(self, sequences):
        self.sequences = sequences
        self.seen = []

    def __call__(self, model, piece):
        self.seen.append(len(piece))
        if len(piece) > self.sequences:
            raise torch.OutOfMemoryError("out of memory")
        return cross_entropy_sum(model, piece)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def losses(one, steps=3):
    return [one.step().loss for _ in range(steps)]


def test_memory_that_runs_out_in_a_step_halves_the_micro_batch_and_loses_nothing():
    narrow = Narrow(2)
    short = make_loop(inner=EIGHT, loss_sum=narrow)
    given = make_loop(inner=EIGHT, micro_batch=2)
    assert losses(short) == losses(given)
    assert torch.equal(weights_of(short), weights_of(given))
    assert short.trainer.micro_batch == 2
    assert narrow.seen[:6] == [8, 4, 2, 2, 2, 2]
    assert short.take_adjustments() == (
        "memory ran out; the trainer continues with a micro-batch of 4",
        "memory ran out; the trainer continues with a micro-batch of 2",
    )
    assert short.take_adjustments() == ()


def test_one_sequence_that_does_not_fit_is_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError):
        make_loop(loss_sum=Narrow(0)).step()


class Holding:
    """A device that holds one sequence, if its activations are not kept."""

    def __init__(self):
        self.trainer = None

    def __call__(self, model, piece):
        if len(piece) > 1 or not self.trainer.is_checkpointed:
            raise torch.OutOfMemoryError("out of memory")
        return cross_entropy_sum(model, piece)


@pytest.mark.slow
def test_one_sequence_that_does_not_fit_is_tried_without_keeping_activations():
    holding = Holding()
    short = make_loop(inner=EIGHT, loss_sum=holding)
    holding.trainer = short.trainer
    given = make_loop(inner=EIGHT, micro_batch=1)
    assert losses(short) == losses(given)
    assert torch.equal(weights_of(short), weights_of(given)), "the same gradients"
    assert short.take_adjustments()[-1] == (
        "memory ran out; the trainer continues and computes activations again in the backward"
        " pass, to save memory"
    )
    assert not short.trainer.checkpoint_activations(), "it does already"


@pytest.mark.slow
def test_without_kept_activations_a_pass_takes_less_memory():
    deep = dict(CONFIG, num_hidden_layers=12)
    sizes = []
    for checkpointed in (False, True):
        model = build_model(describe_model("LlamaForCausalLM", deep), seed=1)
        one = make_loop(model=model)
        assert not checkpointed or one.trainer.checkpoint_activations()
        held: dict[int, int] = {}

        def keep(tensor, held=held):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            samples = torch.from_numpy(one.reader.take(4))
            loss = one.trainer.objective.lowered(one.trainer.model, samples)
        sizes.append(sum(held.values()))
        loss.backward()
    assert sizes[1] < 0.4 * sizes[0]


def test_a_model_that_cannot_keeps_its_activations():
    one = make_loop()
    one.trainer.model = torch.nn.Linear(2, 2)
    assert not one.trainer.checkpoint_activations()


def test_a_bug_in_a_step_is_no_reason_to_go_on():
    def broken(model, piece):
        raise RuntimeError("shapes differ")

    one = make_loop(loss_sum=broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        one.step()


@pytest.mark.slow
def test_a_pause_while_memory_runs_out_gives_the_step_up():
    one = make_loop(inner=EIGHT, loss_sum=Narrow(4))
    before = weights_of(one)

    def hold(work_s):
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        one.step(hold)
    assert torch.equal(weights_of(one), before)
    assert one.reader.position == 0


@pytest.mark.slow
def test_a_compiler_that_fails_is_left_out_and_told():
    class Broken:
        def __call__(self, *arguments, **named):
            raise RuntimeError("no compiler\nfound")

    one, plain = make_loop(), make_loop()
    one.trainer._forward = Broken()
    assert one.trainer.is_compiled
    assert losses(one) == losses(plain)
    assert not one.trainer.is_compiled
    assert one.take_adjustments() == (
        "torch.compile failed; continuing without it (no compiler found)",
    )


def test_a_dry_step_leaves_everything_as_it_was(tmp_path):
    dry, untouched = make_loop(inner=EIGHT), make_loop(inner=EIGHT)
    random = dry.random_state()
    assert fit(dry.trainer, GENESIS, folder=tmp_path, room_bytes=None, ranks=1) == 8
    assert dry.random_state() == random
    assert all(one.grad is None for one in dry.trainer.model.parameters())
    assert losses(dry) == losses(untouched)
    assert torch.equal(weights_of(dry), weights_of(untouched))


@pytest.mark.slow
def test_on_a_processor_what_a_sequence_takes_decides(monkeypatch, tmp_path):
    taken = {"VmRSS": 1000, "VmHWM": 1000}
    monkeypatch.setattr(micro_batch, "_kib", lambda name: taken[name])
    monkeypatch.setattr(micro_batch, "CLEAR_REFS", tmp_path / "none")
    one = make_loop(inner=EIGHT)
    weights = sum(each.nbytes for each in one.trainer.model.parameters())
    taken["VmHWM"] = 1000 + 100  # A sequence takes 100 bytes.
    for room, found in ((2 * weights + 1000 + 350, 3), (2 * weights + 1000 + 5000, 8), (1000, 1)):
        assert fit(one.trainer, GENESIS, folder=tmp_path, room_bytes=room, ranks=1) == found
    assert not (tmp_path / FILE).exists()


@pytest.mark.slow
def test_an_accelerator_is_tried_from_the_largest_down_and_remembered(monkeypatch, tmp_path):
    narrow = Narrow(3)
    one = make_loop(inner=EIGHT, loss_sum=narrow)
    one.trainer.device = torch.device(
        "meta"
    )  # Not the processor; the tensors stay there all the same.
    monkeypatch.setattr(
        builtin.BuiltinTrainer, "_pass", lambda self, text, tokens: narrow(self.model, text)
    )
    monkeypatch.setattr(f"{__name__}.cross_entropy_sum", lambda model, piece: 0.0)
    assert fit(one.trainer, GENESIS, folder=tmp_path, room_bytes=None, ranks=1) == 2
    assert narrow.seen == [8, 4, 2, 2]
    narrow.seen.clear()
    assert fit(one.trainer, GENESIS, folder=tmp_path, room_bytes=None, ranks=1) == 2
    assert narrow.seen == []
    other = msgspec.structs.replace(
        GENESIS, data=msgspec.structs.replace(GENESIS.data, sequence_tokens=16)
    )
    assert fit(one.trainer, other, folder=tmp_path, room_bytes=None, ranks=1) == 2
    assert narrow.seen != []


def test_on_a_processor_too_small_for_one_sequence_activations_are_not_kept(monkeypatch, tmp_path):
    one = make_loop(inner=EIGHT)
    taken = iter([0, 1000, 0, 100])
    monkeypatch.setattr(micro_batch, "_reset_peak", lambda: next(taken))
    monkeypatch.setattr(micro_batch, "_kib", lambda name: next(taken))
    weights = sum(parameter.nbytes for parameter in one.trainer.model.parameters())
    room = 500 + 2 * weights
    assert fit(one.trainer, GENESIS, folder=tmp_path, room_bytes=room, ranks=1) == 5
    assert one.trainer.is_checkpointed


class Library:
    """torch.cuda over a device on which a sequence takes so many bytes."""

    def __init__(self, each, free):
        self.each, self.free = each, free
        self.peak = 0

    def empty_cache(self):
        pass

    def reset_peak_memory_stats(self, device):
        self.peak = 0

    def memory_allocated(self, device):
        return 1000

    def max_memory_allocated(self, device):
        return 1000 + self.peak

    def mem_get_info(self, device):
        return self.free, 10_000

    def get_per_process_memory_fraction(self, device):
        return 0.5


class Together:
    """A trainer whose ranks hold the model together, as far as its fit is concerned."""

    device = torch.device("cuda")
    is_sharded = True

    def __init__(self, library, others):
        self.micro_batch = 8
        self.library, self.others = library, others
        self.passes = []
        self.saves_memory = False

    def rehearse(self, count):
        self.passes.append(count)
        self.library.peak = self.library.each // (10 if self.saves_memory else 1)

    def least(self, number):
        return min(number, self.others)

    def moments_bytes(self):
        return 1000

    def checkpoint_activations(self):
        is_news, self.saves_memory = not self.saves_memory, True
        return is_news

    def forget_gradients(self):
        pass


@pytest.mark.parametrize(
    ("each", "free", "others", "found", "is_checkpointed"),
    [
        (100, 3000, 8, 8, False),
        (400, 3000, 8, 4, False),  # 0.8 of what two moments of 500 bytes leave.
        (400, 9000, 8, 6, False),  # The owner's ceiling is lower.
        (400, 3000, 3, 3, False),
        (2000, 3000, 8, 8, True),
        (20_000, 3000, 8, 1, True),
    ],
)
def test_ranks_that_hold_a_model_together_compute_what_fits_on_all(
    monkeypatch, tmp_path, each, free, others, found, is_checkpointed
):
    library = Library(each, free)
    monkeypatch.setattr(torch, "cuda", library)
    one = Together(library, others)
    assert fit(one, GENESIS, folder=tmp_path, room_bytes=None, ranks=2) == found
    assert one.saves_memory is is_checkpointed
    assert set(one.passes) == {1}
    assert not (tmp_path / FILE).exists()


def test_the_newest_fits_are_kept_and_a_damaged_file_is_begun_anew(tmp_path):
    for at in range(KEPT_MAX + 3):
        remember(tmp_path, Fit(at, {"device": str(at)}))
    assert recall(tmp_path, {"device": "2"}) is None
    assert recall(tmp_path, {"device": "3"}) == 3
    (tmp_path / FILE).write_bytes(b"{")
    assert recall(tmp_path, {"device": "3"}) is None
    remember(tmp_path, Fit(5, {"device": "x"}))
    assert recall(tmp_path, {"device": "x"}) == 5


@pytest.mark.parametrize(("largest", "sequences", "wanted"), [(8, 8, 8), (5, 8, 4), (3, 8, 3)])
def test_pieces_are_as_even_as_they_can_be(largest, sequences, wanted):
    assert even(largest, sequences) == wanted
    assert np.ceil(sequences / wanted) == np.ceil(sequences / largest)
