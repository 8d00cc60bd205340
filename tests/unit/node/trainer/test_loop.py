from __future__ import annotations

import contextlib
import math
import socket

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

from node.trainer.failures import StepAbandoned, TrainerFailure, failure_of
from node.trainer.files import read_fragments
from node.trainer.link import messages
from node.trainer.link.endpoint import TrainerEnd
from node.trainer.loop import (
    WARMUP_FLOOR_FRAC,
    learning_rate,
)
from node.trainer.model import build_model, describe_model, initial_weights, layout_of
from node.trainer.objective import cross_entropy_sum
from node.trainer.session import Session
from node.trainer.setup import THREAD_VARIABLES, TrainerSetup
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from node.trainer.text.tokenizer import ByteVocabulary
from node.trainer.tools import alone
from protocol.errors import InternalError
from protocol.project import (
    Charter,
    LimitSpec,
    OuterSpec,
    RoundSpec,
    Voter,
    encode,
    project_id,
)
from tests.support.choices import first
from tests.support.tiny_loop import GENESIS, Repeating, make_loop, weights_of
from tests.support.tiny_project import INNER, configure, tiny_genesis


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices only lose time to a thread pool, all the more on a busy machine."""
    torch.set_num_threads(1)


class Counting:
    """Blocks of four sequences of eight tokens, each filled with 10 * position + its number."""

    def sequences(self, position):
        return np.repeat(10 * position + np.arange(4)[:, None], 9, axis=1)


def firsts(batch):
    return batch[:, 0].tolist()


def test_sequences_come_in_the_order_of_the_leases():
    reader = BlockReader(Counting(), block_sequences=4)
    reader.append(((5, 7), (2, 3)), 3)
    assert reader.available == 9
    assert firsts(reader.take(2)) == [53, 60]
    assert (reader.position, reader.sequence) == (6, 1)
    assert firsts(reader.take(3)) == [61, 62, 63]
    assert (reader.position, reader.sequence) == (6, 4)
    reader.append(((8, 9),))
    assert firsts(reader.take(6)) == [20, 21, 22, 23, 80, 81]
    assert (reader.position, reader.sequence, reader.available) == (8, 2, 2)


def test_dropped_blocks_are_not_read():
    reader = BlockReader(Counting(), block_sequences=4)
    reader.append(((0, 3),))
    reader.take(1)
    reader.clear()
    assert reader.available == 0
    reader.append(((7, 8),), 2)
    assert firsts(reader.take(2)) == [72, 73]


def test_a_resumed_block_that_was_finished_is_skipped():
    reader = BlockReader(Counting(), block_sequences=4)
    reader.append(((0, 2),), 4)
    assert reader.available == 4
    assert firsts(reader.take(1)) == [10]


@pytest.mark.parametrize(("ranges", "start"), [(((3, 3),), 0), (((3, 4),), 5)])
def test_impossible_leases_are_refused(ranges, start):
    with pytest.raises(InternalError):
        BlockReader(Counting(), block_sequences=4).append(ranges, start)


def test_the_learning_rate_rises_falls_and_ramps():
    def rate(progress, local_step=1_000):
        return learning_rate(INNER, progress=progress, local_step=local_step) / INNER.learning_rate

    assert rate(0.0) == pytest.approx(WARMUP_FLOOR_FRAC)
    assert rate(0.05) == pytest.approx((1 + WARMUP_FLOOR_FRAC) / 2)
    assert rate(0.1) == pytest.approx(1.0)
    assert rate(0.55) == pytest.approx(0.55)
    assert rate(1.0) == pytest.approx(0.1)
    assert [rate(0.1, step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    none = msgspec.structs.replace(INNER, warmup_frac=0.0, fresh_moment_steps=0)
    assert learning_rate(none, progress=0.0, local_step=0) == none.learning_rate
    full = msgspec.structs.replace(INNER, warmup_frac=1.0)
    assert learning_rate(full, progress=1.0, local_step=9) == full.learning_rate


def test_the_learning_rate_may_stay_and_fall_at_the_end():
    stable = msgspec.structs.replace(INNER, schedule="wsd", decay_frac=0.25)

    def rate(progress, inner=stable):
        return learning_rate(inner, progress=progress, local_step=99) / INNER.learning_rate

    assert rate(0.05) == pytest.approx((1 + WARMUP_FLOOR_FRAC) / 2)
    assert [rate(at) for at in (0.1, 0.5, 0.75)] == pytest.approx([1.0, 1.0, 1.0])
    assert rate(0.875) == pytest.approx(0.55)
    assert rate(1.0) == rate(1.5) == pytest.approx(0.1)
    all_of_it = msgspec.structs.replace(stable, decay_frac=1.0, final_learning_rate_frac=0.0)
    assert rate(0.75, all_of_it) == pytest.approx(0.25)


def test_every_step_counts_the_same_tokens_and_learns():
    loop = make_loop()
    loop.progress = 0.1
    losses = [loop.step().loss for _ in range(25)]
    assert loop.local_step == 25
    assert loop.tokens_total == 25 * 4 * 32
    assert losses[0] == pytest.approx(math.log(257), abs=0.5)
    assert losses[-1] < losses[0] - 0.5


def test_a_step_needs_a_whole_batch():
    inner = msgspec.structs.replace(INNER, batch_sequences=3)
    loop = make_loop(inner=inner, blocks=1)
    assert loop.can_step
    loop.step()
    assert not loop.can_step
    loop.reader.append(((9, 10),))
    assert loop.can_step
    loop.step()
    assert (loop.reader.position, loop.reader.sequence) == (9, 2)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_micro_batches_add_up_to_the_whole_batch(micro_batch):
    whole, split = make_loop(), make_loop(micro_batch=micro_batch)
    first, second = whole.step(), split.step()
    assert split.trainer.micro_batch == micro_batch
    assert second.loss == pytest.approx(first.loss, rel=1e-5)
    torch.testing.assert_close(weights_of(split), weights_of(whole), rtol=1e-3, atol=2e-5)


def test_the_same_start_gives_the_same_bits():
    first, second = make_loop(), make_loop()
    for _ in range(3):
        assert first.step().loss == second.step().loss
    assert torch.equal(weights_of(first), weights_of(second))


def test_norms_and_biases_do_not_decay():
    def no_gradient(model, sequences):
        return 0.0 * sum(one.sum() for one in model.parameters())

    loop = make_loop(loss_sum=no_gradient)
    before = {name: one.detach().clone() for name, one in loop.trainer.model.named_parameters()}
    loop.step()
    for name, one in loop.trainer.model.named_parameters():
        assert torch.equal(one, before[name]) == (one.dim() == 1), name


def test_gradients_that_are_not_finite_leave_the_weights_alone():
    def exploding(model, sequences):
        return cross_entropy_sum(model, sequences) * math.inf

    loop = make_loop(loss_sum=exploding)
    before = weights_of(loop)
    assert math.isnan(loop.step().loss)
    assert torch.equal(weights_of(loop), before)
    assert loop.local_step == 1


def test_gradients_are_clipped_together(monkeypatch):
    norms = []
    loop = make_loop(loss_sum=lambda model, piece: 1e4 * cross_entropy_sum(model, piece))
    clip = loop.trainer.accelerator.clip_grad_norm_

    def spy(parameters, bound):
        found = clip(parameters, bound)
        norms.append(
            sum(float((one.grad**2).sum()) for one in loop.trainer.model.parameters()) ** 0.5
        )
        return found

    monkeypatch.setattr(loop.trainer.accelerator, "clip_grad_norm_", spy)
    loop.step()
    assert norms == [pytest.approx(INNER.grad_norm_max, rel=1e-3)]


@pytest.mark.parametrize(
    "error",
    first(
        1,
        [
            torch.OutOfMemoryError("CUDA out of memory"),
            MemoryError(),
            RuntimeError("HIP out of memory"),
        ],
    ),
)
def test_out_of_memory_in_a_step_is_told_as_such(error):
    def too_big(model, sequences):
        raise error

    loop = make_loop(loss_sum=too_big)
    with pytest.raises(type(error)) as raised:
        loop.step()
    failed = failure_of(raised.value)
    assert failed.kind == "oom"
    assert "micro-batch" in failed.message


def test_evaluation_is_of_the_given_weights_and_touches_nothing():
    layout = layout_of(GENESIS)
    values = np.concatenate(initial_weights(GENESIS))
    heldout = Repeating().sequences(77)
    loop = make_loop(seed=5)
    loop.step()
    before, stream = weights_of(loop), torch.get_rng_state()
    loss = loop.evaluate(heldout, layout=layout, values=values)
    assert torch.equal(weights_of(loop), before)
    assert torch.equal(torch.get_rng_state(), stream)
    assert loop.trainer.model.training
    fresh = build_model(GENESIS.model, seed=GENESIS.seed)
    expected = cross_entropy_sum(fresh, torch.from_numpy(heldout)).item() / (4 * 32)
    assert loss == pytest.approx(expected, rel=1e-5)
    undisturbed = make_loop(seed=5)
    undisturbed.step()
    assert undisturbed.step().loss == loop.step().loss


def test_training_alone_is_the_same_loop_without_a_swarm(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")  # Put back afterwards.
    genesis = tiny_genesis(tmp_path)
    charter = Charter(
        project=project_id(encode(genesis)),
        revision=0,
        voters=(Voter(bytes(32), "syncer", 1),),
        banned=(),
        inner=INNER,
        outer=OuterSpec(0.7, 0.5, 10.0),
        rounds=RoundSpec(8, 2, 1, 0.9, 0.5, 5.0, 5.0, "overwrite", "int4", "int4"),
        limits=LimitSpec(10**6, 8, 10, 16, 60.0, 4),
    )
    (tmp_path / "genesis").write_bytes(encode(genesis))
    (tmp_path / "charter").write_bytes(encode(charter))
    out = tmp_path / "result.json"
    files = {"genesis": "genesis", "charter": "charter", "data-cache": "cache", "json": out.name}
    files |= {"out-weights": "trained"}
    given = [word for key, name in files.items() for word in (f"--{key}", str(tmp_path / name))]
    assert alone.main([*given, "--steps", "30", "--device", "cpu"]) == 0
    result = msgspec.json.decode(out.read_bytes(), type=alone.AloneResult)
    assert (result.steps, result.tokens) == (30, 30 * 4 * 32)
    assert result.eval_loss < math.log(257) - 1.0

    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=tmp_path / "cache")
    loop = make_loop(corpus, block_sequences=6)
    for step in range(30):
        loop.progress = step / 30
        loop.step()
    trained = np.concatenate(read_fragments(tmp_path / "trained", layout_of(genesis)))
    with loop.other(layout_of(genesis), trained) as other:
        copied = torch.cat([one.detach().flatten() for one in other.tensors().values()])
    assert torch.equal(copied, weights_of(loop))


def test_text_longer_than_the_model_is_generated_up_to_its_positions(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    config = {"vocab_size": 257, "n_positions": 64, "n_embd": 48, "n_layer": 1, "n_head": 2}
    genesis = msgspec.structs.replace(
        tiny_genesis(tmp_path), model=describe_model("GPT2LMHeadModel", config)
    )
    shop = TrainerSetup(configure(genesis, tmp_path))
    before = torch.get_rng_state()
    texts = {
        shop.generate("x" * 200, tokens, seed=seed, temperature=0.8, values=None)
        for tokens, seed in ((500, 1), (500, 1), (1, 1), (500, 2))
    }
    assert len(texts) == 3
    assert torch.equal(torch.get_rng_state(), before)


def run_session(genesis, folder, *commands):
    """What a trainer says to commands that all wait from the start, until it ends or fails."""
    ours, theirs = socket.socketpair()
    end = TrainerEnd(theirs)
    for command in (configure(genesis, folder), *commands):
        ours.sendall(messages.frame(command))
    try:
        Session(end).run()
    finally:
        end.close()
        ours.close()


@pytest.mark.slow
def test_commands_that_make_no_sense_end_the_session(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    genesis = tiny_genesis(tmp_path)
    run_session(genesis, tmp_path, messages.Quit())
    for command, words in (
        (messages.Begin(), r"fragments \[0, 1, 2\]"),
        (messages.Assign(1, 0, 5, 8), "no slot 5"),
        (messages.CaptureMoments(1, 0, 5, 8), "no slot 5"),
        (messages.InstallMoments(1, 0, 5, 8), "no slot 5"),
        (configure(genesis, tmp_path), "Configure makes no sense"),
        (messages.Blocks(((3, 3),)), "no range"),
    ):
        with pytest.raises(InternalError, match=words):
            run_session(genesis, tmp_path, command)
    monkeypatch.setattr(ByteVocabulary, "size", 258)
    with pytest.raises(TrainerFailure, match="258 tokens") as raised:
        run_session(genesis, tmp_path)
    assert raised.value.kind == "model"


def test_training_alone_explains_what_the_user_can_fix(tmp_path, capsys):
    files = {"genesis": "g", "charter": "c", "data-cache": "d", "json": "j"}
    given = [word for key, name in files.items() for word in (f"--{key}", str(tmp_path / name))]
    assert alone.main([*given, "--steps", "1"]) == 2
    assert "not a readable genesis file" in capsys.readouterr().err


def test_a_copy_without_other_weights_has_those_in_training():
    loop = make_loop()
    loop.step()
    with loop.other(layout_of(GENESIS), None) as other:
        copied = torch.cat([one.detach().flatten() for one in other.tensors().values()])
        assert torch.equal(copied, weights_of(loop))
        assert not other.model.training


def test_an_abandoned_step_never_was():
    def after(give_up_at):
        torch.manual_seed(7)
        loop = make_loop(micro_batch=1)
        for module in loop.trainer.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda _, __, out: functional.dropout(out, 0.1))
                break
        called = []

        def between(work_s):
            called.append(work_s)
            if len(called) == give_up_at:
                raise StepAbandoned
            return 0.0

        losses = []
        while len(losses) < 4:
            with contextlib.suppress(StepAbandoned):
                losses.append(loop.step(between).loss)
        assert all(one >= 0.0 for one in called)
        return losses, weights_of(loop), loop.reader.available, loop.tokens_total

    calm, disturbed = after(None), after(5)
    assert calm[0] == disturbed[0]
    assert torch.equal(calm[1], disturbed[1])
    assert calm[2:] == disturbed[2:]


def test_a_local_step_amid_a_measurement_is_the_one_that_it_would_have_been():
    def after(is_measured):
        loop = make_loop(micro_batch=1)
        for module in loop.trainer.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda _, __, out: torch.dropout(out, 0.1, True))
        torch.manual_seed(3)
        losses = [loop.step().loss]
        if is_measured:
            values = np.concatenate(initial_weights(GENESIS))
            loop.evaluate(
                Repeating().sequences(2),
                layout=layout_of(GENESIS),
                values=values,
                worked=lambda _: losses.append(loop.step_amid().loss),
            )
        while len(losses) < 6:
            losses.append(loop.step().loss)
        return losses[:6], weights_of(loop)

    calm, measured = after(is_measured=False), after(is_measured=True)
    assert calm[0] == measured[0]
    assert torch.equal(calm[1], measured[1])


def test_rest_within_a_step_is_no_work():
    loop = make_loop(micro_batch=1)
    assert loop.step(lambda _: 100.0).work_s < 0.0  # 300 s of rest that took no time.


def test_an_evaluation_of_a_wrecked_model_says_so_and_does_not_fail():
    layout = layout_of(GENESIS)
    values = np.nan * np.concatenate(initial_weights(GENESIS))
    loss = make_loop().evaluate(Repeating().sequences(77), layout=layout, values=values)
    assert math.isnan(loss)


def test_an_evaluation_may_be_cut_short():
    loop = make_loop(micro_batch=1)
    values = np.concatenate(initial_weights(GENESIS))

    def worked(_):
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        loop.evaluate(
            Repeating().sequences(1), layout=layout_of(GENESIS), values=values, worked=worked
        )
