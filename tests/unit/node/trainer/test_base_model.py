from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from node.trainer import base_model
from node.trainer.base_source import find_base
from node.trainer.files import read_fragments
from node.trainer.model import FragmentView, build_model, describe_model, layout_of
from node.trainer.text.corpus import open_corpus
from node.trainer.tools import initialise
from node.trainer.tools.score import heldout_loss
from protocol import first_weights
from protocol.errors import UserError
from protocol.fragments import build_layout
from protocol.log.records import StateDigests
from protocol.project import MergeRules, encode
from tests.support.base_folder import END_ID, VOCABULARY, base_folder, edit_config
from tests.support.tiny_project import FRAGMENTS, tiny_genesis


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("based")


@pytest.fixture(scope="module")
def folder(place):
    return base_folder(place / "model")


@pytest.fixture(scope="module")
def genesis(place, folder):
    plain = tiny_genesis(place)
    said = base_model.describe(folder)
    model = describe_model(said.architecture, said.config, MergeRules())
    layout = build_layout(model.tensors, plain.strategy, FRAGMENTS)
    base = base_model.pin(folder, model, layout, "folder:model")
    return msgspec.structs.replace(plain, model=model, base=base)


def plain_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def built(genesis, fragments):
    model = build_model(genesis.model, seed=1)
    view = FragmentView(model, layout_of(genesis))
    for index, values in enumerate(fragments):
        view.write(index, values)
    return model.eval()


def test_version_0_has_the_heldout_loss_of_the_published_model(genesis, folder, place):
    text = open_corpus(genesis.data, seed=genesis.seed, cache=place / "cache").heldout(16)
    ours = heldout_loss(built(genesis, base_model.first_weights(genesis, folder)), text)
    theirs = heldout_loss(plain_model(folder), text)
    drawn = heldout_loss(build_model(genesis.model, seed=1).eval(), text)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert abs(drawn - theirs) > 0.1


def test_the_configuration_is_taken_over_with_its_scaled_context(genesis, folder):
    said = base_model.describe(folder)
    assert said.architecture == "LlamaForCausalLM"
    assert said.dropped == ()
    scaling = said.config["rope_parameters"]
    assert isinstance(scaling, dict)
    assert scaling["rope_type"] == "llama3"
    assert said.config["eos_token_id"] == [END_ID]
    ids = torch.arange(60)[None]
    with torch.no_grad():
        ours = built(genesis, base_model.first_weights(genesis, folder))(input_ids=ids).logits
        assert torch.equal(ours, plain_model(folder)(input_ids=ids).logits)


def test_a_value_that_the_library_saves_under_another_name_is_taken_over(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 272}
    config = transformers.Qwen3MoeConfig(**sizes, num_experts=6, num_experts_per_tok=2)
    config.save_pretrained(tmp_path)
    assert "num_experts" not in json.loads((tmp_path / "config.json").read_text())
    said = base_model.describe(tmp_path)
    assert said.config["num_experts"] == 6
    assert "num_local_experts" not in said.dropped


def test_what_is_pinned_does_not_depend_on_how_the_files_are_cut_or_stored(genesis, tmp_path):
    whole = base_folder(tmp_path / "whole", shard_bytes=10**9)
    base = base_model.pin(whole, genesis.model, layout_of(genesis), "folder:model")
    assert base == genesis.base
    wide = tmp_path / "wide"
    plain_model(whole).save_pretrained(wide)
    base = base_model.pin(wide, genesis.model, layout_of(genesis), "folder:model")
    assert {one.stored for one in base.tensors} == {"F32"}
    assert {one.stored for one in genesis.base.tensors} == {"BF16"}
    assert base.states == genesis.base.states


def test_the_first_weights_are_those_that_the_project_names(genesis, folder, tmp_path):
    (tmp_path / "genesis").write_bytes(encode(genesis))
    out = tmp_path / "v0.safetensors"
    arguments = [str(tmp_path / "genesis"), str(out), "--from", str(folder)]
    assert initialise.main(arguments) == 0
    fragments = read_fragments(out, layout_of(genesis))
    assert len(fragments) == len(genesis.base.states)
    again = base_model.first_weights(genesis, folder)
    assert all(np.array_equal(a, b) for a, b in zip(fragments, again, strict=True))


def test_one_changed_byte_is_refused_by_the_name_of_its_tensor(genesis, tmp_path, capsys):
    changed = base_folder(tmp_path / "model")
    path = sorted(changed.glob("*.safetensors"))[-1]
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"The tensor model\.\S+ in .* is not the one"):
        base_model.first_weights(genesis, changed)
    (tmp_path / "genesis").write_bytes(encode(genesis))
    arguments = [str(tmp_path / "genesis"), str(tmp_path / "out"), "--from", str(changed)]
    assert initialise.main(arguments) == 2
    assert "is not the one that the project names" in capsys.readouterr().err


def test_a_base_model_that_is_not_here_says_what_to_do(genesis, tmp_path, capsys):
    (tmp_path / "genesis").write_bytes(encode(genesis))
    assert initialise.main([str(tmp_path / "genesis"), str(tmp_path / "out")]) == 2
    assert "copy the folder here: shoal syncer run --from FOLDER" in capsys.readouterr().err
    with pytest.raises(UserError, match="Put it back"):
        find_base("folder:model", tmp_path / "gone")


def test_a_model_whose_tensors_are_not_all_there_is_refused(genesis, tmp_path):
    lacking = base_folder(tmp_path / "model", shard_bytes=10**9)
    path = lacking / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 tensors.*model\.norm\.weight"):
        base_model.first_weights(genesis, lacking)


def test_values_that_are_no_numbers_are_refused(genesis, tmp_path):
    broken = base_folder(tmp_path / "model", shard_bytes=10**9)
    path = broken / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.norm\.weight .* no numbers"):
        base_model.pin(broken, genesis.model, layout_of(genesis), "folder:model")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "is quantised"),
        ({"model_type": "xlnet"}, "both directions"),
        ({"model_type": "my_own_model"}, "not supported"),
        ({"num_hidden_layers": 2**30}, "between 0 and 1024"),
        ({"hidden_act": "owner/kernels"}, "file or an address"),
    ],
)
def test_a_configuration_that_no_project_can_have_is_refused(changes, words, tmp_path):
    folder = base_folder(tmp_path / "model")
    edit_config(folder, **changes)
    with pytest.raises(UserError, match=words):
        base_model.describe(folder)


def test_code_that_lies_beside_the_weights_is_never_run(genesis, tmp_path):
    folder = base_folder(tmp_path / "model")
    (folder / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit_config(
        folder,
        auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"},
        custom_generate="modeling_evil.py",
    )
    said = base_model.describe(folder)
    assert set(said.dropped) == {"auto_map", "custom_generate"}
    base = base_model.pin(folder, genesis.model, layout_of(genesis), "folder:model")
    assert base == genesis.base
    assert not (tmp_path / "ran").exists()


def test_only_safetensors_are_opened(genesis, tmp_path):
    folder = base_folder(tmp_path / "model")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights as \.safetensors"):
        base_model.first_weights(genesis, folder)


def test_an_adapter_is_not_a_model(tmp_path):
    folder = base_folder(tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="merge_and_unload"):
        base_model.describe(folder)


def test_what_is_kept_beside_the_trained_tensors_must_be_as_a_new_model_has_it(tmp_path):
    values = {
        "vocab_size": 67,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }
    spec = describe_model("glm4_moe", values)
    model = build_model(spec, seed=1)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    model.save_pretrained(tmp_path / "new")
    layout = build_layout(spec.tensors, "balanced", 2)
    base_model.pin(tmp_path / "new", spec, layout, "folder:new")
    model.state_dict()[bias].add_(1.0)
    model.save_pretrained(tmp_path / "learned")
    with pytest.raises(UserError, match="e_score_correction_bias, which is not trained"):
        base_model.pin(tmp_path / "learned", spec, layout, "folder:learned")


def test_a_leader_with_other_first_weights_is_told_from_one_with_the_projects(genesis, place):
    named = [StateDigests(one.theta, one.momentum) for one in genesis.base.states]
    assert first_weights.trouble(genesis, dict(enumerate(named))) == ""
    assert first_weights.trouble(genesis, {2: named[2]}) == ""
    assert "fragment 1" in first_weights.trouble(genesis, {0: named[0], 1: named[0]})
    assert "fragment 3" in first_weights.trouble(genesis, {3: named[0]})
    assert first_weights.trouble(tiny_genesis(place), {0: named[1]}) == ""


def test_a_genesis_without_a_base_model_keeps_the_bytes_of_before(genesis, place):
    plain = tiny_genesis(place)
    assert len(msgspec.msgpack.decode(encode(plain))) == 8
    assert msgspec.msgpack.decode(encode(plain), type=type(plain)) == plain
    assert len(msgspec.msgpack.decode(encode(genesis))) == 9
    assert msgspec.msgpack.decode(encode(genesis), type=type(genesis)) == genesis


def test_a_configuration_file_is_read_within_bounds(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="cannot be read"):
        base_model.describe(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"a": "x" * (1 << 20)}))
    with pytest.raises(UserError, match="not the configuration"):
        base_model.describe(tmp_path)
    with pytest.raises(UserError, match="save_pretrained"):
        base_model.describe(tmp_path / "none")


def test_changed_values_must_leave_the_tensors_as_they_are(genesis, folder):
    said = base_model.describe(folder)
    wider = describe_model(said.architecture, {**said.config, "vocab_size": 300}, MergeRules())
    layout = build_layout(wider.tensors, "balanced", FRAGMENTS)
    with pytest.raises(UserError, match=r"embed_tokens|cannot be loaded"):
        base_model.pin(folder, wider, layout, "folder:model")
    assert said.config["vocab_size"] == VOCABULARY


def test_a_genesis_that_names_too_few_digests_is_refused(genesis, folder):
    short = msgspec.structs.replace(genesis.base, tensors=genesis.base.tensors[:-1])
    with pytest.raises(UserError, match="another number of digests"):
        base_model.first_weights(msgspec.structs.replace(genesis, base=short), folder)
