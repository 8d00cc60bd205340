from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import transformers

from node.trainer.files import read_fragments, write_fragments
from node.trainer.model import (
    FragmentView,
    build_model,
    check_fits,
    describe_model,
    initial_weights,
    layout_of,
    tensor_specs,
    whole_tensors,
)
from node.trainer.text.tokenizer import ByteVocabulary
from node.trainer.tools import initialise
from node.trainer.tools.export import byte_tokenizer, export_model
from protocol.errors import InternalError, UserError
from protocol.project import MergeRules, encode
from tests.support.tiny_project import CONFIG, data_spec, tiny_genesis

SIX = (
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Of the first projects: what they say must go on to mean the same."""

GPT2 = {"vocab_size": 257, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 2}
NEOX = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}


@pytest.fixture(scope="module")
def genesis(tmp_path_factory):
    return tiny_genesis(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return tiny_genesis(tmp_path_factory.mktemp("split"), is_split=True)


def config_of(architecture):
    return {"GPT2LMHeadModel": GPT2, "GPTNeoXForCausalLM": NEOX}.get(architecture, CONFIG)


@pytest.mark.parametrize("architecture", SIX)
def test_the_first_architectures_are_built_as_transformers_builds_them(architecture):
    values = config_of(architecture)
    spec = describe_model(architecture, values)
    model = build_model(spec, seed=1)
    assert tensor_specs(model) == spec.tensors
    assert sum(one.numel for one in spec.tensors) == sum(p.numel() for p in model.parameters())
    kind = getattr(transformers, architecture)
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(1)
    plain = kind(kind.config_class(**tokens, **values, attn_implementation="sdpa")).float()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    ids = torch.arange(5)[None]
    logits = model.eval()(input_ids=ids, use_cache=False).logits
    assert torch.equal(logits, plain.eval()(input_ids=ids, use_cache=False).logits)
    assert logits.shape == (1, 5, 257)


def test_tables_are_merged_by_mean_and_the_rest_radially():
    tied = {one.name: one.rule for one in describe_model("LlamaForCausalLM", CONFIG).tensors}
    assert [name for name, rule in tied.items() if rule == "mean"] == ["model.embed_tokens.weight"]
    loose = describe_model("LlamaForCausalLM", CONFIG | {"tie_word_embeddings": False})
    assert {one.name for one in loose.tensors if one.rule == "mean"} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    gpt2 = describe_model("GPT2LMHeadModel", GPT2)
    assert {one.name for one in gpt2.tensors if one.rule == "mean"} == {
        "transformer.wte.weight",
        "transformer.wpe.weight",
    }


def test_a_project_says_how_each_class_of_tensor_is_merged_and_still_builds():
    rules = MergeRules(embeddings="rda", matrices="mean", vectors="rda")
    spec = describe_model("LlamaForCausalLM", CONFIG, rules)
    by_rule = {one.name: one.rule for one in spec.tensors}
    assert by_rule["model.embed_tokens.weight"] == "rda"
    assert by_rule["model.layers.0.self_attn.q_proj.weight"] == "mean"
    assert by_rule["model.layers.0.input_layernorm.weight"] == "rda"
    build_model(spec, seed=1)
    other = msgspec.structs.replace(spec, tensors=spec.tensors[1:])
    with pytest.raises(UserError, match="tensor table"):
        build_model(other, seed=1)


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        ("EvilForCausalLM", {}, "EvilForCausalLM.*LlamaForCausalLM"),
        ("LlamaForCausalLM", {"auto_map": "x"}, "auto_map.*hidden_size"),
        ("LlamaForCausalLM", {"_attn_implementation": "hub/kernel"}, "_attn_implementation"),
        ("LlamaForCausalLM", CONFIG | {"hidden_act": "evil"}, "evil"),
        ("LlamaForCausalLM", CONFIG | {"num_attention_heads": 5}, "attention heads"),
        ("LlamaForCausalLM", CONFIG | {"num_attention_heads": 0}, "zero"),
        ("LlamaForCausalLM", CONFIG | {"hidden_size": "wide"}, "hidden_size"),
        ("LlamaForCausalLM", CONFIG | {"hidden_size": -48}, "hidden_size = -48"),
        ("LlamaForCausalLM", CONFIG | {"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ],
)
def test_what_is_not_allowed_is_named(architecture, config, words):
    with pytest.raises(UserError, match=f"(?s){words}"):
        describe_model(architecture, config)


def test_a_foreign_tensor_table_is_refused(genesis):
    other = msgspec.structs.replace(genesis.model, tensors=genesis.model.tensors[:-1])
    with pytest.raises(UserError, match="tensor table"):
        build_model(other, seed=1)


def test_tokens_and_sequences_must_fit_the_model(genesis):
    check_fits(genesis.model, genesis.data, 257)
    with pytest.raises(UserError, match="258 tokens"):
        check_fits(genesis.model, genesis.data, 258)
    with pytest.raises(UserError, match=r"65 tokens.*64"):
        check_fits(genesis.model, data_spec("x", sequence_tokens=65), 257)


def test_fragments_survive_a_round_trip_and_padding_stays_zero(genesis):
    layout = layout_of(genesis)
    source = FragmentView(build_model(genesis.model, seed=1), layout)
    target = FragmentView(build_model(genesis.model, seed=2), layout)
    for fragment in layout.fragments:
        values = np.full(fragment.numel, np.nan, dtype=np.float32)
        source.read(fragment.index, values)
        for span in fragment.spans:
            assert not values[span.offset + span.numel : span.offset + span.padded].any()
        target.write(fragment.index, values)
        target.add(fragment.index, values)
        doubled = np.empty_like(values)
        target.read(fragment.index, doubled)
        np.testing.assert_array_equal(doubled, values + values)


def test_rows_of_a_split_table_survive_a_round_trip_and_make_the_whole(split):
    layout = layout_of(split)
    model = build_model(split.model, seed=1)
    parts = [span for cut in layout.fragments for span in cut.spans if span.start]
    assert {span.name for span in parts} == {"model.embed_tokens.weight"}
    values = FragmentView(model, layout).copies()
    whole = whole_tensors(layout, values)
    for name, tensor in model.named_parameters():
        np.testing.assert_array_equal(whole[name], tensor.detach().numpy())
    other = build_model(split.model, seed=2)
    FragmentView(other, layout).write_all(np.concatenate(values))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_blend_keeps_its_share_of_the_weights_and_one_of_nothing_replaces_them(genesis):
    layout = layout_of(genesis)
    target = FragmentView(build_model(genesis.model, seed=2), layout)
    for fragment in layout.fragments:
        former, values = (np.zeros(fragment.numel, np.float32) for _ in range(2))
        target.read(fragment.index, former)
        for span in fragment.spans:
            values[span.offset : span.offset + span.numel] = 3.0
        target.blend(fragment.index, values, 0.25)
        after = np.empty_like(values)
        target.read(fragment.index, after)
        np.testing.assert_allclose(after, 0.25 * former + 0.75 * values, rtol=0, atol=1e-6)
        target.blend(fragment.index, values, 0.0)
        target.read(fragment.index, after)
        np.testing.assert_array_equal(after, values)


def test_all_fragments_can_be_written_from_one_buffer(genesis):
    layout = layout_of(genesis)
    model = build_model(genesis.model, seed=3)
    FragmentView(model, layout).write_all(np.concatenate(initial_weights(genesis)))
    same = build_model(genesis.model, seed=genesis.seed)
    for ours, theirs in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_fragment_of_the_wrong_size_or_type_is_a_bug(genesis):
    view = FragmentView(build_model(genesis.model, seed=1), layout_of(genesis))
    with pytest.raises(InternalError, match="fragment 0 has"):
        view.write(0, np.zeros(5, dtype=np.float32))
    with pytest.raises(InternalError, match="float64"):
        view.read(0, np.zeros(view.numel(0)))
    with pytest.raises(InternalError, match="no fragment 3"):
        view.numel(3)
    with pytest.raises(InternalError, match="for a model of"):
        view.write_all(np.zeros(5, dtype=np.float32))


def test_initial_weights_follow_the_seed_and_leave_the_random_stream_alone(genesis):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again = initial_weights(genesis), initial_weights(genesis)
    other = initial_weights(msgspec.structs.replace(genesis, seed=12))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_initialiser_writes_what_the_seed_says(genesis, tmp_path, capsys):
    (tmp_path / "genesis").write_bytes(encode(genesis))
    out = tmp_path / "deep" / "v0.safetensors"
    assert initialise.main([str(tmp_path / "genesis"), str(out)]) == 0
    read = read_fragments(out, layout_of(genesis))
    assert all(np.array_equal(a, b) for a, b in zip(read, initial_weights(genesis), strict=True))
    assert initialise.main([str(tmp_path / "none"), str(out)]) == 2
    assert "none is not a readable genesis file" in capsys.readouterr().err


def test_fragments_of_another_layout_are_refused(genesis, tmp_path):
    path = tmp_path / "w.safetensors"
    write_fragments(initial_weights(genesis)[:-1], path)
    with pytest.raises(UserError, match="other fragments"):
        read_fragments(path, layout_of(genesis))
    path.write_bytes(b"junk")
    with pytest.raises(UserError, match="not a readable weight file"):
        read_fragments(path, layout_of(genesis))


def test_an_exported_model_is_loaded_by_the_usual_tools(genesis, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    fragments = initial_weights(genesis)
    for values in fragments:
        values *= np.float32(1.5)
    export_model(genesis, fragments, tmp_path / "out", tmp_path / "cache")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    view = FragmentView(model.float(), layout_of(genesis))
    for index, values in enumerate(fragments):
        loaded = np.empty_like(values)
        view.read(index, loaded)
        np.testing.assert_array_equal(loaded, values)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "def naïve(x):\n\treturn '日本'  # \x00\x7f 🐟 \n\n  "
    ids = tokenizer(text).input_ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == model.config.eos_token_id == 256


def test_the_exported_tokenizer_knows_every_byte():
    tokenizer, vocabulary = byte_tokenizer(), ByteVocabulary()
    text = "".join(map(chr, range(0x250))) + "\u2028 \ufeff \U0010ffff"
    assert tokenizer.encode(text).ids == vocabulary.encode([text])[0].tolist()
    assert vocabulary.decode(tokenizer.encode(text).ids) == text


def test_the_daemons_side_of_the_trainer_never_imports_torch():
    modules = "node.trainer_client.process, node.trainer.text.corpus"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[4]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
