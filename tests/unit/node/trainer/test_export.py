"""What an exported folder holds: dtype, logits, settings of a base model."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from node.trainer.base_model import first_weights
from node.trainer.model import FragmentView, build_model, layout_of
from node.trainer.tools.export import export_model, trained_model
from protocol.errors import UserError
from tests.support.base_folder import SAMPLING, base_folder, project_from
from tests.support.tiny_project import tiny_genesis

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 64]])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def folder(place):
    return base_folder(place / "published")


@pytest.fixture(scope="module")
def genesis(place, folder):
    return project_from(place, folder)


def loaded(out):
    return transformers.AutoModelForCausalLM.from_pretrained(out)


def tensors_in(out):
    found = {}
    for path in sorted(out.glob("*.safetensors")):
        found |= load_file(path)
    return found


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits.float()


def test_untrained_weights_come_out_as_the_files_that_went_in(genesis, folder, place, tmp_path):
    out = tmp_path / "out"
    export_model(genesis, first_weights(genesis, folder), out, place / "cache")
    published, written = tensors_in(folder), tensors_in(out)
    assert published.keys() == written.keys()
    for name, values in published.items():
        assert written[name].dtype == torch.bfloat16
        assert torch.equal(written[name], values), name
    assert loaded(out).dtype == torch.bfloat16


def test_generation_settings_come_out_byte_for_byte(genesis, folder, place, tmp_path):
    out = tmp_path / "out"
    export_model(genesis, first_weights(genesis, folder), out, place / "cache")
    name = "generation_config.json"
    assert (out / name).read_bytes() == (folder / name).read_bytes()
    settings = loaded(out).generation_config
    assert {key: getattr(settings, key) for key in SAMPLING} == SAMPLING


def test_a_base_model_without_settings_gets_none_that_are_invented(folder, place, tmp_path):
    bare = base_folder(tmp_path / "bare")
    (bare / "generation_config.json").unlink()
    genesis = project_from(tmp_path, bare)
    export_model(genesis, first_weights(genesis, bare), tmp_path / "out", tmp_path / "cache")
    before, after = loaded(bare).generation_config, loaded(tmp_path / "out").generation_config
    assert (after.temperature, after.do_sample) == (before.temperature, before.do_sample)
    assert after.eos_token_id == before.eos_token_id


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_logits_are_those_of_the_trained_weights(genesis, folder, place, tmp_path, dtype):
    weights = first_weights(genesis, folder)
    draw = np.random.default_rng(1)
    for values in weights:
        values *= 1 + draw.normal(0, 0.01, values.shape).astype(np.float32)
    export_model(genesis, weights, tmp_path / "out", place / "cache", dtype)
    model = loaded(tmp_path / "out")
    assert {one.dtype for one in model.parameters()} == {DTYPES[dtype]}
    wanted, found = logits(trained_model(genesis, weights)), logits(model.float())
    # The values are rounded once; f16 keeps 11 bits of them, bf16 8.
    bound = {"f32": 0.0, "bf16": 0.05, "f16": 0.005}[dtype]
    assert float((found - wanted).abs().max()) <= bound * float(wanted.abs().max())


def test_tensors_that_were_stored_otherwise_stay_so(genesis, folder, place, tmp_path):
    base = genesis.base
    norms = {at for at, one in enumerate(genesis.model.tensors) if "norm" in one.name}
    stored = tuple(
        msgspec.structs.replace(one, stored="F32") if at in norms else one
        for at, one in enumerate(base.tensors)
    )
    mixed = msgspec.structs.replace(genesis, base=msgspec.structs.replace(base, tensors=stored))
    export_model(mixed, first_weights(genesis, folder), tmp_path / "out", place / "cache")
    written = tensors_in(tmp_path / "out")
    assert {one.dtype for name, one in written.items() if "norm" in name} == {torch.float32}
    assert {one.dtype for name, one in written.items() if "norm" not in name} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_without_a_base_model_weights_are_f32(place, tmp_path):
    genesis = tiny_genesis(tmp_path)
    weights = FragmentView(build_model(genesis.model, seed=3), layout_of(genesis)).copies()
    export_model(genesis, weights, tmp_path / "out", tmp_path / "cache")
    model = loaded(tmp_path / "out")
    assert model.dtype == torch.float32
    assert torch.equal(logits(model), logits(trained_model(genesis, weights)))


def test_values_that_f16_cannot_hold_are_refused(genesis, folder, place, tmp_path):
    weights = first_weights(genesis, folder)
    weights[0] += np.float32(1e5)
    with pytest.raises(UserError, match=r"too large for f16. Use --dtype bf16"):
        export_model(genesis, weights, tmp_path / "out", place / "cache", "f16")
    assert not (tmp_path / "out").exists()
