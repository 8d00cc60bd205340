"""From a folder that transformers saved, over a signed project's bytes, to an exported folder."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
import transformers

from node.trainer import base_model
from node.trainer.model import describe_model
from node.trainer.tools.export import export_model
from protocol.fragments import build_layout
from protocol.project import Genesis, MergeRules, encode
from protocol.wire import decode
from tests.support.base_folder import SCALED
from tests.support.tiny_project import CONFIG, tiny_genesis

EXPERTS = CONFIG | {"num_experts_per_tok": 2, "head_dim": 24}
UNTIED = CONFIG | {"tie_word_embeddings": False}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 12,
    "long_factor": [2.0] * 12,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 32,
}
FORMER_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
GPT2 = {"vocab_size": 257, "n_embd": 48, "n_layer": 2, "n_head": 2, "n_positions": 64}

MODELS = {
    "tied": ("llama", CONFIG),
    "untied": ("llama", UNTIED),
    "context-of-llama-3": ("llama", UNTIED | {"rope_parameters": SCALED}),
    "yarn": ("qwen3", CONFIG | {"head_dim": 24, "rope_parameters": YARN}),
    "longrope": ("phi3", CONFIG | {"pad_token_id": 0, "rope_parameters": LONG}),
    "experts": (
        "qwen3_moe",
        EXPERTS | {"num_experts": 6, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.03},
    ),
    "experts-of-mixtral": ("mixtral", EXPERTS | {"num_local_experts": 4}),
    "kinds-of-layers": (
        "gemma3_text",
        CONFIG | {"head_dim": 24, "num_hidden_layers": 6, "sliding_window": 8},
    ),
    "gpt2": ("gpt2", GPT2),
}


def saved(folder, model_type, config):
    """A model with weights that no seed would draw, in a folder; its logits."""
    torch.manual_seed(5)
    known = transformers.CONFIG_MAPPING[model_type](**config)
    model = transformers.AutoModelForCausalLM.from_config(known)
    for one in model.parameters():
        one.data.mul_(1.5).add_(0.01)
    model.save_pretrained(folder)
    return logits_of(folder)


def logits_of(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(60)[None], use_cache=False).logits


def signed_from(place, folder):
    """The project that starts from a folder, as its bytes say it to another machine."""
    plain, said = tiny_genesis(place), base_model.describe(folder)
    model = describe_model(said.architecture, said.config, MergeRules())
    layout = build_layout(model.tensors, plain.strategy, plain.fragments)
    base = base_model.pin(folder, model, layout, "folder:model")
    genesis = msgspec.structs.replace(plain, model=model, base=base)
    return decode(encode(genesis), Genesis, bytes_max=1 << 22)


def came_back(place, folder):
    """The folder of version 0 that the project exports."""
    genesis = signed_from(place, folder)
    weights = base_model.first_weights(genesis, folder)
    export_model(genesis, weights, place / "exported", place / "cache")
    return place / "exported"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_as_it_was(tmp_path, name):
    folder = tmp_path / "model"
    before = saved(folder, *MODELS[name])
    out = came_back(tmp_path, folder)
    assert torch.equal(logits_of(out), before)
    was, now = (json.loads((one / "config.json").read_text()) for one in (folder, out))
    ours = ("bos_token_id", "dtype", "eos_token_id", "transformers_version", "use_cache")
    changed = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
    assert changed <= set(ours)


@pytest.mark.parametrize(
    ("model_type", "former"),
    [
        ("llama", {"rope_theta": 10_000.0, "rope_scaling": SCALED}),
        ("qwen3", {"rope_theta": 10_000.0, "rope_scaling": FORMER_YARN}),
        ("llama", {"rope_theta": 500_000.0}),
    ],
)
def test_a_scaled_context_in_its_former_spelling_counts(tmp_path, model_type, former):
    folder = tmp_path / "model"
    unscaled = saved(folder, model_type, CONFIG | {"head_dim": 24})
    path = folder / "config.json"
    said = json.loads(path.read_text())
    del said["rope_parameters"]
    path.write_text(json.dumps(said | former))
    before = logits_of(folder)
    assert not torch.equal(before, unscaled), "the spelling is not read any more"
    assert torch.equal(logits_of(came_back(tmp_path, folder)), before)
