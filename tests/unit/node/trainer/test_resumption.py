"""A trainer that goes on from a part does, bit for bit, what the one that was copied did."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from node.machine.moments import moments_numel
from node.trainer.builtin import builtin_loop
from node.trainer.loop import make_accelerator
from node.trainer.model import FragmentView, build_model, layout_of
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from tests.support.tiny_project import BLOCK_SEQUENCES, INNER, tiny_genesis

HAS_MUON = hasattr(torch.optim, "Muon")


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "split"])
def shop(tmp_path_factory, request):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("project")
    genesis = tiny_genesis(folder, is_split=request.param)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    return genesis, corpus, layout_of(genesis)


def new_loop(shop, inner, *, blocks):
    genesis, corpus, _ = shop
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    if blocks:
        reader.append(((0, 3), (7, 90)), 1)
    model = build_model(genesis.model, seed=genesis.seed)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, given, out: torch.dropout(out, 0.1, True))
    return builtin_loop(model, reader, inner, accelerator=make_accelerator("cpu"))


def copied(loop, layout):
    theta = [np.empty(one.numel, np.float32) for one in layout.fragments]
    moments = [np.empty(moments_numel(one), np.float32) for one in layout.fragments]
    for at in range(len(theta)):
        FragmentView(loop.trainer.model, layout).read(at, theta[at])
        loop.moments(layout).read(at, moments[at])
    return (
        theta,
        moments,
        (loop.local_step, loop.tokens_total, *loop.reader.mark(), *loop.random_state()),
    )


def given(loop, layout, part):
    theta, moments, state = part
    for at in range(len(theta)):
        FragmentView(loop.trainer.model, layout).write(at, theta[at])
        loop.moments(layout).write(at, moments[at])
    loop.local_step, loop.tokens_total, ranges, position, sequence, processor, device = state
    loop.reader.go_to(ranges, position, sequence)
    loop.set_random_state(processor, device)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_the_same_bits_follow(shop, optimizer, steps):
    if optimizer == "muon" and not HAS_MUON:
        pytest.skip("this torch has no Muon")
    layout = shop[2]
    inner = msgspec.structs.replace(INNER, optimizer=optimizer, fresh_moment_steps=4)
    torch.manual_seed(3)
    loop = new_loop(shop, inner, blocks=True)
    for _ in range(steps):
        loop.step()
    part = copied(loop, layout)
    losses = [loop.step().loss for _ in range(4)]
    first = copied(loop, layout)

    torch.manual_seed(99)
    other = new_loop(shop, inner, blocks=False)
    given(other, layout, part)
    assert (other.local_step, other.reader.mark()[0]) == (steps, part[2][2])
    assert [other.step().loss for _ in range(4)] == losses
    second = copied(other, layout)
    for one, two in zip(first[0] + first[1], second[0] + second[1], strict=True):
        assert one.tobytes() == two.tobytes()
    assert first[2] == second[2]


def test_another_random_stream_would_have_shown(shop):
    layout = shop[2]
    torch.manual_seed(3)
    loop = new_loop(shop, INNER, blocks=True)
    loop.step()
    part = copied(loop, layout)
    loss = loop.step().loss
    other = new_loop(shop, INNER, blocks=False)
    given(other, layout, part)
    torch.manual_seed(4)
    assert other.step().loss != loss
