"""Muon beside AdamW, on a real model."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from node.machine.moments import moments_numel
from node.trainer.builtin import builtin_loop
from node.trainer.failures import TrainerFailure
from node.trainer.loop import make_accelerator
from node.trainer.model import FragmentView, build_model, describe_model, layout_of
from node.trainer.optimizers import MuonAndAdamW, make_optimizer
from node.trainer.setup import TrainerSetup
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from protocol.errors import UserError
from protocol.project import encode
from tests.support.tiny_project import BLOCK_SEQUENCES, CONFIG, INNER, configure, tiny_genesis

MUON = msgspec.structs.replace(INNER, optimizer="muon")

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("project")
    genesis = tiny_genesis(folder)
    return genesis, open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")


def new_loop(shop, inner=MUON, **options):
    genesis, corpus = shop
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    reader.append(((0, 100),))
    model = build_model(genesis.model, seed=genesis.seed)
    return builtin_loop(model, reader, inner, accelerator=make_accelerator("cpu"), **options)


def state_of(loop, layout):
    moments, weights = [], []
    for fragment in layout.fragments:
        moments.append(np.full(moments_numel(fragment), np.nan, np.float32))
        loop.moments(layout).read(fragment.index, moments[-1])
        weights.append(np.empty(fragment.numel, np.float32))
        FragmentView(loop.trainer.model, layout).read(fragment.index, weights[-1])
    return moments, weights


@pytest.mark.parametrize("is_tied", [True, False])
def test_muon_takes_the_hidden_matrices_and_adamw_everything_else(is_tied):
    spec = describe_model("LlamaForCausalLM", CONFIG | {"tie_word_embeddings": is_tied})
    model = build_model(spec, seed=1)
    both = make_optimizer(model, MUON)
    assert isinstance(both, MuonAndAdamW)
    names = {id(one): name for name, one in model.named_parameters()}
    in_muon = {names[id(one)] for group in both.muon.param_groups for one in group["params"]}
    in_adamw = {names[id(one)] for group in both.adamw.param_groups for one in group["params"]}
    assert in_muon | in_adamw == set(names.values())
    assert not in_muon & in_adamw
    assert in_muon == {name for name in names.values() if name.endswith("_proj.weight")}
    assert in_adamw >= {"model.embed_tokens.weight", "model.norm.weight"}
    assert ("lm_head.weight" in in_adamw) is not is_tied


@pytest.mark.slow
def test_muon_learns_and_the_same_start_gives_the_same_bits(shop):
    loops = [new_loop(shop), new_loop(shop)]
    for loop in loops:
        loop.progress = MUON.warmup_frac
    losses = [[loop.step().loss for _ in range(30)] for loop in loops]
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-5:]) < losses[0][0] - 1.0
    still = new_loop(shop, msgspec.structs.replace(MUON, learning_rate=0.0))
    assert np.mean([still.step().loss for _ in range(30)][-5:]) > losses[0][0] - 0.5


def test_the_schedule_and_the_clipping_reach_both(shop):
    loop = new_loop(shop)
    rate = loop.step().learning_rate
    assert {group["lr"] for group in loop.trainer.optimizer.param_groups} == {rate}
    assert all(one.grad is None for one in loop.trainer.model.parameters())


def test_weights_and_muons_momentum_together_go_on_bit_for_bit(shop):
    layout = layout_of(shop[0])
    donor = new_loop(shop)
    for _ in range(6):
        donor.step()
    other = new_loop(shop)
    for at, (moments, weights) in enumerate(zip(*state_of(donor, layout), strict=True)):
        other.moments(layout).write(at, moments)
        FragmentView(other.trainer.model, layout).write(at, weights)
    ends = []
    for loop in (donor, other):
        loop.local_step = INNER.fresh_moment_steps
        loop.reader = BlockReader(shop[1], block_sequences=BLOCK_SEQUENCES)
        loop.reader.append(((40, 60),))
        for _ in range(3):
            loop.step()
        ends.append(np.concatenate(state_of(loop, layout)[1]))
    np.testing.assert_array_equal(*ends)


def test_before_the_first_step_there_is_no_momentum_and_none_is_taken_over(shop):
    layout = layout_of(shop[0])
    moments, _ = state_of(new_loop(shop), layout)
    assert not np.concatenate(moments).any()
    loop = new_loop(shop)
    for at, values in enumerate(moments):
        loop.moments(layout).write(at, values)
    assert np.isfinite(loop.step().loss)


def test_a_torch_without_muon_is_told_what_to_install(shop, monkeypatch, tmp_path):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UserError, match=r"torch 2\.9 or newer"):
        new_loop(shop)
    asked = configure(shop[0], tmp_path, inner=encode(MUON))
    with pytest.raises(TrainerFailure, match="no Muon") as raised:
        TrainerSetup(asked)
    assert raised.value.kind == "model"


def test_a_model_without_hidden_matrices_is_told_to_take_adamw():
    with pytest.raises(UserError, match="no hidden matrices"):
        make_optimizer(torch.nn.Embedding(5, 4), MUON)


def test_strangers_momentum_cannot_be_judged():
    assert INNER.bounds_moments
    assert not MUON.bounds_moments
