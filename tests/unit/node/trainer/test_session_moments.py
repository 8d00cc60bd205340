from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from node.machine.moments import check_moments, moments_numel
from node.trainer.builtin import builtin_loop
from node.trainer.loop import make_accelerator
from node.trainer.model import FragmentView, build_model, layout_of
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from protocol.errors import InternalError
from tests.support.tiny_project import BLOCK_SEQUENCES, INNER, tiny_genesis


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "split"])
def shop(tmp_path_factory, request):
    """Genesis, corpus and layout of a tiny project."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("project")
    genesis = tiny_genesis(folder, is_split=request.param)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    return genesis, corpus, layout_of(genesis)


def new_loop(shop, *, at=0, inner=INNER):
    genesis, corpus, _ = shop
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    reader.append(((at, at + 100),))
    model = build_model(genesis.model, seed=genesis.seed)
    return builtin_loop(model, reader, inner, accelerator=make_accelerator("cpu"))


def moments_of(loop, layout):
    arrays = [np.full(moments_numel(fragment), np.nan, np.float32) for fragment in layout.fragments]
    for at, values in enumerate(arrays):
        loop.moments(layout).read(at, values)
    return arrays


def copy_weights(source, target, layout):
    for fragment in layout.fragments:
        values = np.empty(fragment.numel, np.float32)
        FragmentView(source.trainer.model, layout).read(fragment.index, values)
        FragmentView(target.trainer.model, layout).write(fragment.index, values)


def weights_of(loop, layout):
    found = []
    for fragment in layout.fragments:
        found.append(np.empty(fragment.numel, np.float32))
        FragmentView(loop.trainer.model, layout).read(fragment.index, found[-1])
    return np.concatenate(found)


def test_an_optimizer_that_has_not_stepped_has_no_moments(shop):
    layout = shop[2]
    assert not np.concatenate(moments_of(new_loop(shop), layout)).any()


def test_real_moments_pass_the_check_and_count_their_steps(shop):
    layout = shop[2]
    loop = new_loop(shop)
    for steps in range(1, 6):
        loop.step()
        for fragment, values in zip(layout.fragments, moments_of(loop, layout), strict=True):
            check_moments(fragment, values, INNER)
            assert (values[2 * fragment.numel :] == steps).all()


def test_weights_and_moments_together_go_on_bit_for_bit(shop):
    layout = shop[2]
    donor = new_loop(shop)
    for _ in range(6):
        donor.step()
    other = new_loop(shop)
    copy_weights(donor, other, layout)
    for at, values in enumerate(moments_of(donor, layout)):
        other.moments(layout).write(at, values)
    other.is_seasoned = True
    other.reader = donor.reader
    batch = [donor.reader._source.sequences(90 + at)[:4] for at in range(3)]
    ends = []
    for loop in (donor, other):
        loop.local_step = INNER.fresh_moment_steps  # The donor is past its ramp as well.
        for one in batch:
            loop.reader.read = lambda pieces, one=one: one
            loop.step()
        ends.append(weights_of(loop, layout))
    np.testing.assert_array_equal(*ends)


def test_only_moments_are_taken_over_no_counter_and_no_ramp(shop):
    layout = shop[2]
    donor = new_loop(shop)
    for _ in range(6):
        donor.step()
    loop = new_loop(shop)
    fresh_rate = new_loop(shop).step().learning_rate
    for at, values in enumerate(moments_of(donor, layout)):
        loop.moments(layout).write(at, values)
    loop.is_seasoned = True
    assert (loop.local_step, loop.tokens_total) == (0, 0)
    assert loop.step().learning_rate == pytest.approx(fresh_rate * INNER.fresh_moment_steps)
    assert loop.local_step == 1
    assert moments_of(loop, layout)[0][-1] == 7


def test_moments_are_copies(shop):
    layout = shop[2]
    donor = new_loop(shop)
    donor.step()
    arrays = moments_of(donor, layout)
    loop = new_loop(shop)
    for at, values in enumerate(arrays):
        loop.moments(layout).write(at, values)
        values[:] = 0.0
    np.testing.assert_array_equal(
        np.concatenate(moments_of(loop, layout)), np.concatenate(moments_of(donor, layout))
    )


@pytest.mark.parametrize("fragment", [-1, 99])
def test_a_fragment_that_is_not_there_is_a_bug(shop, fragment):
    with pytest.raises(InternalError):
        new_loop(shop).moments(shop[2]).read(fragment, np.zeros(4, np.float32))


def test_another_length_is_a_bug(shop):
    layout = shop[2]
    values = np.zeros(moments_numel(layout.fragments[0]) - 1, np.float32)
    with pytest.raises(InternalError):
        new_loop(shop).moments(layout).write(0, values)


def test_the_ramp_can_be_switched_off_for_everybody(shop):
    inner = msgspec.structs.replace(INNER, fresh_moment_steps=0)
    assert new_loop(shop, inner=inner).step().learning_rate > new_loop(shop).step().learning_rate
