"""A frozen base held in 4 bits: an adapter is trained beside it as before, in less memory."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from host.files.local_settings import LearnerSettings, Settings
from node.trainer.adapters.four_bits import hold_in_four_bits
from node.trainer.adapters.network import network_of
from node.trainer.adapters.table import base_name
from node.trainer.setup import TrainerSetup
from protocol.errors import UserError
from shoal.doctor.probes import wish_for
from tests.support.adapter_project import adapter_genesis
from tests.support.base_folder import base_folder
from tests.support.tiny_project import INNER, configure

CPU = torch.device("cpu")


def needs_it():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("four-bits")


@pytest.fixture(scope="module")
def genesis(place):
    return adapter_genesis(place, base_folder(place / "model"), base_dtype="f32")


def quantised_by_hand(weight):
    """NF4 as the paper has it: blocks of 64, each scaled by its largest value."""
    bnb = pytest.importorskip("bitsandbytes")
    codes, state = bnb.functional.quantize_4bit(
        weight, quant_type="nf4", blocksize=64, compress_statistics=True
    )
    return bnb.functional.dequantize_4bit(codes, state)


def test_linear_layers_of_the_base_are_held_so_and_nothing_else(place, genesis):
    needs_it()
    plain = network_of(genesis, place / "cache")
    held = copy.deepcopy(plain)
    count = hold_in_four_bits(held, CPU)
    named, before = dict(held.named_parameters()), dict(plain.named_parameters())
    packed = {name for name, one in named.items() if one.dtype == torch.uint8}
    assert count == len(packed) == 14, "seven in each of two layers"
    assert all("_proj.base_layer.weight" in name for name in packed)
    for name in packed:
        assert named[name].numel() * 2 == before[name].numel()
        assert not named[name].requires_grad
    for name in named.keys() - packed:
        assert torch.equal(named[name], before[name])
        assert named[name].requires_grad == (base_name(name) is None)


def test_it_does_what_the_model_with_these_values_does(place, genesis):
    needs_it()
    held = network_of(genesis, place / "cache")
    twin = copy.deepcopy(held)
    hold_in_four_bits(held, CPU)
    with torch.no_grad():
        for path, module in twin.named_modules():
            if isinstance(module, nn.Linear) and path.endswith("_proj.base_layer"):
                module.weight.copy_(quantised_by_hand(module.weight))
    ids = torch.randint(0, 250, (3, 20), generator=torch.Generator().manual_seed(2))
    ours, theirs = held(input_ids=ids).logits, twin(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    grads = dict(held.named_parameters())
    compared = 0
    for name, one in twin.named_parameters():
        if one.requires_grad:
            torch.testing.assert_close(grads[name].grad, one.grad, rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared == 28


def test_a_trainer_holds_its_base_so_and_learns(place, genesis):
    needs_it()
    loops = {}
    for in_4_bits in (False, True):
        wanted = configure(genesis, place, base_in_4_bits=in_4_bits, micro_batch=4)
        setup = TrainerSetup(wanted)
        setup.loop.reader.append(((0, 60),))
        losses = [setup.loop.step().loss for _ in range(25)]
        assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05
        loops[in_4_bits] = losses
    assert loops[True] != loops[False]
    assert loops[True][0] == pytest.approx(loops[False][0], rel=0.1)


def test_without_the_package_it_is_said_what_to_install(place, genesis, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"pip install 'shoal-train\[4bit\]'"):
        hold_in_four_bits(network_of(genesis, place / "cache"), CPU)


def test_doctor_tries_the_machine_the_way_it_will_train(genesis):
    settings = Settings(learner=LearnerSettings(base_in_4_bits=True))
    wish = wish_for(genesis.model, INNER, 32, settings, genesis)
    assert wish.base_in_4_bits
    assert not wish_for(genesis.model, INNER, 32, Settings(), genesis).base_in_4_bits


@pytest.mark.slow
def test_importing_an_adapter_s_library_says_nothing_of_kernels_that_nobody_asked_for():
    """`peft` imports bitsandbytes, whose warning would stand in front of what a model writes."""
    done = subprocess.run(
        [sys.executable, "-c", "import node.trainer, peft"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
