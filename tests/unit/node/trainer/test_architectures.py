from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
import transformers

from node.trainer import architectures
from node.trainer.model import build_model, describe_model
from node.trainer.objective import next_token
from protocol.errors import UserError
from protocol.project import ModelSpec
from tests.support.tiny_project import CONFIG

LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

MORE = {
    "olmo2": CONFIG,
    "phi3": CONFIG | {"pad_token_id": 0, "head_dim": 24},
    "gemma2": CONFIG | {"head_dim": 24},
    "smollm3": CONFIG,
    "stablelm": CONFIG,
    "starcoder2": CONFIG,
    "granite": CONFIG,
    "opt": {
        "vocab_size": 257,
        "hidden_size": 48,
        "ffn_dim": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 48,
    },
    "bloom": {"vocab_size": 257, "hidden_size": 48, "n_layer": 2, "n_head": 2},
    "qwen3_moe": CONFIG
    | {"head_dim": 24, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
"""Of families that are built differently inside."""


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("model_type", sorted(MORE))
def test_a_decoder_of_the_registry_is_found_by_its_model_type(model_type):
    spec = describe_model(model_type, MORE[model_type])
    model = build_model(spec, seed=1)
    ids = torch.arange(6)[None]
    before = logits_of(model, ids)
    assert before.shape == (1, 6, 257)
    ids[0, -1] = 99
    after = logits_of(model, ids)
    torch.testing.assert_close(after[:, :-1], before[:, :-1])  # No position sees what follows it.
    assert not torch.allclose(after[:, -1], before[:, -1])


@pytest.mark.parametrize("model_type", ["llama", *sorted(MORE)])
def test_a_pass_in_bf16_says_what_one_in_f32_says_but_for_rounding(model_type):
    spec = describe_model(model_type, MORE.get(model_type, CONFIG))
    model = build_model(spec, seed=1).eval()  # Without dropout.
    samples = np.random.default_rng(0).integers(0, 250, (2, 24))
    objective = next_token(model, vocabulary=257, sequence_tokens=24)
    found = []
    for is_bf16 in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            loss = objective.lowered(model, torch.from_numpy(samples)) / objective.terms(samples)
        loss.backward()
        gradients = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        found.append((float(loss.detach()), torch.cat(gradients)))
    (exact, whole), (rounded, coarse) = found
    assert rounded == pytest.approx(exact, rel=1e-3)
    assert not torch.equal(coarse, whole), "nothing was done in bf16"
    assert float((coarse - whole).norm() / whole.norm()) < 0.05


def test_a_class_and_its_model_type_name_the_same_architecture():
    by_class, by_type = architectures.find("LlamaForCausalLM"), architectures.find("llama")
    assert (by_class.model, by_class.config) == (by_type.model, by_type.config)
    assert architectures.name_of(transformers.LlamaConfig()) == "LlamaForCausalLM"
    assert architectures.name_of(transformers.CONFIG_MAPPING["internlm3"]()) == "internlm3"


def test_the_longer_context_of_llama_3_gives_the_same_logits():
    spec = describe_model(
        "LlamaForCausalLM", CONFIG | {"rope_theta": 500_000.0, "rope_scaling": LLAMA_3}
    )
    model = build_model(spec, seed=1)
    config = transformers.LlamaConfig(
        **CONFIG,
        rope_parameters=LLAMA_3 | {"rope_theta": 500_000.0},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    plain = transformers.LlamaForCausalLM(config)
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(0, 257, (2, 64), generator=torch.Generator().manual_seed(3))
    assert torch.equal(logits_of(model, ids), logits_of(plain, ids))
    short = build_model(describe_model("LlamaForCausalLM", CONFIG), seed=1)
    assert not torch.allclose(logits_of(model, ids), logits_of(short, ids))


def test_tables_and_lists_of_a_configuration_survive_the_signed_form():
    values = CONFIG | {
        "rope_scaling": LLAMA_3,
        "eos_token_id": [1, 2],
        "rope_parameters": {"full": {"rope_type": "default", "long_factor": [1.0, 2]}},
    }
    spec = ModelSpec("LlamaForCausalLM", values, ())
    coded = msgspec.msgpack.encode(spec)
    assert msgspec.msgpack.decode(coded, type=ModelSpec) == spec
    too_deep = ModelSpec("LlamaForCausalLM", {"a": {"b": {"c": {"d": 1}}}}, ())  # type: ignore
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(too_deep), type=ModelSpec)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("BertLMHeadModel", "both directions"),
        ("bart", "one half of a model of two"),
        ("rwkv", "kernels"),
        ("gemma3", "several models"),
        ("PreTrainedModel", "not supported"),
        ("AutoModelForCausalLM", "not supported"),
        ("os.system", "not supported"),
    ],
)
def test_what_is_no_decoder_for_projects_is_refused_by_name(name, words):
    with pytest.raises(UserError, match=words):
        architectures.find(name)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_act": "owner/kernels"}, "file or an address"),
        ({"hidden_act": "https:evil"}, "file or an address"),
        ({"rope_scaling": {"rope_type": "../x"}}, "file or an address"),
        ({"quantization_config": {"quant_method": "awq"}}, "no configuration key"),
        ({"attn_implementation": "owner/kernels"}, "no configuration key"),
        ({"dtype": "float16"}, "no configuration key"),
        ({"return_dict": False}, "no configuration key"),
        ({"num_hidden_layers": 1025}, "between 0 and 1024"),
        ({"intermediate_size": 2**28 + 1}, "intermediate_size = "),
        ({"rope_theta": float("nan")}, "finite"),
        ({"eos_token_id": [1] * 1025}, "more than 1024"),
        ({"rope_scaling": {str(at): 1 for at in range(300)}}, "more than 256"),
    ],
)
def test_hostile_values_are_refused_before_anything_is_built(values, words):
    with pytest.raises(UserError, match=words):
        describe_model("LlamaForCausalLM", CONFIG | values)


def test_experts_count_like_layers():
    with pytest.raises(UserError, match="num_experts = 100000"):
        describe_model("qwen3_moe", MORE["qwen3_moe"] | {"num_experts": 100_000})


def test_layers_times_experts_are_bounded():
    many = {"num_experts": 1024, "num_hidden_layers": 1024}
    with pytest.raises(UserError, match="1,048,576"):
        describe_model("qwen3_moe", MORE["qwen3_moe"] | many)


def test_every_architecture_that_is_not_denied_is_in_the_registry():
    assert set(architectures.DENIED) <= set(architectures.registry())
    known = architectures.supported()
    assert {"llama", "qwen3_moe", "gemma2", "olmoe", "smollm3"} <= set(known)
    assert not {"bert", "t5", "rwkv"} & set(known)


@pytest.mark.slow
def test_kernels_of_the_hub_are_off_before_transformers_loads_a_model():
    code = (
        "from node.trainer import architectures; architectures.find('llama');"
        "from transformers.integrations import hub_kernels as theirs;"
        "import json; print(json.dumps(theirs._TRANSFORMERS_USE_HUB_KERNELS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "NO"
