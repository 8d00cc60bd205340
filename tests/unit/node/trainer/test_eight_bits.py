"""AdamW with moments in 8 bits: a quarter of their memory, and the same training but for noise."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import pytest
import torch

from node.machine.moments import moments_numel
from node.trainer.builtin import builtin_loop
from node.trainer.loop import make_accelerator
from node.trainer.model import build_model, layout_of
from node.trainer.optimizers import EightBitAdamW, make_optimizer
from node.trainer.setup import TrainerSetup
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from node.trainer_client.tape import how_trained
from protocol.errors import UserError
from tests.support.tiny_project import BLOCK_SEQUENCES, INNER, configure, tiny_genesis

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "split"])
def shop(tmp_path_factory, request):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("project")
    genesis = tiny_genesis(folder, is_split=request.param)
    return genesis, open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")


def new_loop(shop, *, at=0, **options):
    genesis, corpus = shop
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    reader.append(((at, at + 200),))
    model = build_model(genesis.model, seed=genesis.seed)
    return builtin_loop(model, reader, INNER, accelerator=make_accelerator("cpu"), **options)


def moments_of(loop, layout):
    arrays = [np.full(moments_numel(fragment), np.nan, np.float32) for fragment in layout.fragments]
    for at, values in enumerate(arrays):
        loop.moments(layout).read(at, values)
    return arrays


def test_it_learns_as_with_32_bits_but_for_noise(shop):
    plain, ours = new_loop(shop), new_loop(shop, optimizer_in_8_bits=True)
    losses = np.array([[plain.step().loss, ours.step().loss] for _ in range(40)])
    before, after = losses[:5].mean(0), losses[-10:].mean(0)
    assert (after < before - 0.5).all()
    assert after[1] == pytest.approx(after[0], rel=0.02)
    assert not np.array_equal(losses[:, 0], losses[:, 1])


def test_moments_take_a_quarter_of_the_memory(shop):
    loop = new_loop(shop, optimizer_in_8_bits=True)
    loop.step()
    optimizer = loop.trainer.optimizer
    assert isinstance(optimizer, EightBitAdamW)
    large = [one for one in loop.trainer.model.parameters() if one.numel() >= 4096]
    plain, held = 0, 0
    for tensor in large:
        plain += 8 * tensor.numel()
        held += optimizer.bytes_of(tensor)
    assert plain > 300_000
    assert held < 0.27 * plain


def test_what_is_read_and_written_back_goes_on_as_before(shop):
    layout = layout_of(shop[0])
    donor = new_loop(shop, optimizer_in_8_bits=True)
    for _ in range(6):
        donor.step()
    other = new_loop(shop, optimizer_in_8_bits=True)
    for ours, theirs in zip(
        other.trainer.model.parameters(), donor.trainer.model.parameters(), strict=True
    ):
        ours.data.copy_(theirs.data)
    for at, values in enumerate(moments_of(donor, layout)):
        assert (values[2 * layout.fragments[at].numel :] == 6).all()
        other.moments(layout).write(at, values)
    for one, its in zip(moments_of(other, layout), moments_of(donor, layout), strict=True):
        # Rounded anew, few land a code further.
        assert np.mean(~np.isclose(one, its, rtol=0.02, atol=1e-6)) < 1e-3
    other.local_step = donor.local_step
    other.reader.go_to(*donor.reader.mark())
    losses = [(other.step().loss, donor.step().loss) for _ in range(3)]
    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-3)


def test_a_trainer_says_so_and_its_tape_is_of_a_class_of_its_own(shop, tmp_path):
    genesis, _ = shop
    ready = TrainerSetup(configure(genesis, tmp_path, optimizer_in_8_bits=True)).ready()
    assert ready.in_low_bits == ("moments in 8 bits",)
    assert how_trained(ready) == "moments in 8 bits, cpu"
    assert how_trained(TrainerSetup(configure(genesis, tmp_path)).ready()) == "cpu"


def test_muon_keeps_no_moments_so(shop):
    muon = msgspec.structs.replace(INNER, optimizer="muon")
    with pytest.raises(UserError, match=r"config unset learner\.optimizer_in_8_bits"):
        make_optimizer(torch.nn.Linear(4, 4), muon, in_8_bits=True)


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"pip install 'shoal-train\[8bit\]'"):
        make_optimizer(torch.nn.Linear(4, 4), INNER, in_8_bits=True)
