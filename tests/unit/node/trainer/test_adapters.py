"""Adapters beside a frozen base model: their table, first weights, training, and export."""

from __future__ import annotations

import copy
import json

import msgspec
import numpy as np
import peft
import pytest
import torch
import transformers

from host.files.held_base import HeldBase
from node.trainer import base_model
from node.trainer.adapters.draws import first_adapter, first_matrix
from node.trainer.adapters.network import network_of
from node.trainer.adapters.table import describe
from node.trainer.loop import learning_rate
from node.trainer.model import FragmentView, build_model, layout_of
from node.trainer.setup import TrainerSetup
from node.trainer.tools.export import export_model, trained_model
from node.trainer.tools.export_adapter import write_adapter
from node.trainer.tools.hold import hold
from node.trainer.tools.talk import Talk
from protocol.errors import UserError
from protocol.project import (
    AdapterSpec,
    FrozenTensor,
    Genesis,
    MergeRules,
    ModelSpec,
    encode,
)
from protocol.wire import decode
from tests.support.adapter_project import ADAPTER, adapter_genesis
from tests.support.base_folder import base_folder
from tests.support.tiny_project import INNER, configure

STEPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def folder(place):
    return base_folder(place / "model")


@pytest.fixture(scope="module")
def genesis(place, folder):
    return adapter_genesis(place, folder)


@pytest.fixture(scope="module")
def in_f32(place, folder):
    return adapter_genesis(place, folder, base_dtype="f32", targets=("q_proj", "down_proj"))


def bare(folder):
    said = base_model.describe(folder)
    return ModelSpec(said.architecture, said.config, ())


# What is pinned.


def test_only_the_adapters_matrices_are_in_the_swarm(genesis, folder):
    names = [one.name for one in genesis.model.tensors]
    assert all(".lora_A.default.weight" in one or ".lora_B.default.weight" in one for one in names)
    assert len(names) == 2 * 7 * 2, "two matrices beside seven layers in each of two blocks"
    whole = sum(
        one.numel()
        for one in transformers.LlamaForCausalLM(
            transformers.AutoConfig.from_pretrained(folder)
        ).parameters()
    )
    assert sum(one.numel for one in genesis.adapter.frozen) == whole
    assert genesis.adapter.held_bytes == 2 * whole
    assert len(genesis.base.tensors) == len(genesis.adapter.frozen)
    assert genesis.adapter.targets == (
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    )


def test_a_genesis_survives_its_bytes_and_one_without_an_adapter_has_none_of_them(genesis):
    assert decode(encode(genesis), Genesis, bytes_max=1 << 22) == genesis
    without = msgspec.structs.replace(genesis, adapter=None, tokenizer=None, base=None)
    assert decode(encode(without), Genesis, bytes_max=1 << 22) == without
    assert len(msgspec.msgpack.decode(encode(without))) == 8


def test_b_alone_is_in_the_swarm_if_that_is_all_that_is_trained(folder):
    both = describe(bare(folder), ADAPTER, MergeRules())
    only_b = describe(bare(folder), msgspec.structs.replace(ADAPTER, trains="b"), MergeRules())
    assert [one for one in both.tensors if ".lora_B." in one.name] == list(only_b.tensors)


def test_first_weights_are_peft_s_kind_and_the_same_bits_everywhere():
    drawn = first_matrix(11, "model.layers.0.q_proj.lora_A.default.weight", (4, 48))
    assert drawn.dtype == np.float32
    assert np.abs(drawn).max() <= 48**-0.5
    assert np.std(drawn) == pytest.approx(48**-0.5 / 3**0.5, rel=0.1)
    assert drawn[0, :3].tolist() == FIRST
    assert not np.array_equal(drawn, first_matrix(12, "a", (4, 48)))


FIRST = [-0.10092819482088089, 0.1024848073720932, -0.011389349587261677]


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("nothing_like_it",), "No adapter fits this model with targets nothing_like_it"),
        (("embed_tokens",), "The layer model.embed_tokens is not a linear one"),
        (("lm_head",), "is also another table of the model"),
        (("q_proj|.*",), "is no layer's name"),
    ],
)
def test_targets_that_fit_no_layer_are_refused(folder, targets, words):
    wanted = msgspec.structs.replace(ADAPTER, targets=targets)
    with pytest.raises(UserError, match=words.replace("|", r"\|")):
        describe(bare(folder), wanted, MergeRules())


def test_another_table_than_this_machine_builds_is_refused(genesis, place):
    others = (FrozenTensor("model.embed_tokens.weight", (272, 48)),)
    adapter = msgspec.structs.replace(genesis.adapter, frozen=others)
    wrong = msgspec.structs.replace(genesis, adapter=adapter)
    with pytest.raises(UserError, match="The tensor table of the project's adapter"):
        network_of(wrong, place / "cache")
    with pytest.raises(UserError, match="The tensor table of the project"):
        build_model(genesis.model, seed=1)


# Training.


def test_version_0_is_the_base_model_and_nothing_of_it_is_kept_in_f32(genesis, folder, place):
    network = network_of(genesis, place / "cache")
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = torch.arange(32).view(1, -1)
    with torch.no_grad():
        assert torch.equal(network.eval()(ids).logits, plain.eval()(ids).logits)
    kinds = {(one.dtype, one.requires_grad) for one in network.parameters()}
    assert kinds == {(torch.bfloat16, False), (torch.float32, True)}
    view = FragmentView(network, layout_of(genesis))
    for ours, drawn in zip(view.copies(), first_adapter(genesis), strict=True):
        assert np.array_equal(ours, drawn)


@pytest.mark.parametrize("trains", ["both", "b"])
def test_one_learner_is_plain_peft_step_by_step(in_f32, folder, place, trains):
    genesis = in_f32
    if trains == "b":
        genesis = adapter_genesis(
            place, folder, base_dtype="f32", targets=("q_proj", "down_proj"), trains="b"
        )
    setup = TrainerSetup(configure(genesis, place, micro_batch=INNER.batch_sequences))
    setup.loop.reader.append(((0, STEPS),))
    plain = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]),
    )
    named = dict(plain.named_parameters())
    with torch.no_grad():
        for name, one in setup.trainer.model.named_parameters():
            if ".lora_" in name:
                named[f"base_model.model.{name}"].copy_(one)
    for name, one in named.items():
        one.requires_grad_(".lora_B." in name or (trains == "both" and ".lora_A." in name))
    trained = [one for one in plain.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, betas=(INNER.beta1, INNER.beta2), weight_decay=INNER.weight_decay
    )
    theirs = copy.deepcopy(setup.loop.reader)
    for step in range(STEPS):
        setup.loop.progress = step / STEPS
        ours = setup.loop.step()
        ids = torch.from_numpy(theirs.take(INNER.batch_sequences))
        logits = plain(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, INNER.grad_norm_max)
        rate = learning_rate(INNER, progress=step / STEPS, local_step=step)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        assert ours.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    first, last = trained[0], dict(setup.trainer.model.named_parameters())
    ours_first = last[next(k for k in named if named[k] is first).removeprefix("base_model.model.")]
    assert torch.allclose(ours_first, first, atol=1e-5)


def test_a_copy_to_read_shares_what_is_frozen(genesis, place):
    setup = TrainerSetup(configure(genesis, place, micro_batch=2))
    changed = [values + 0.01 for values in setup.view.copies()]
    before = {id(one) for one in setup.trainer.model.parameters() if not one.requires_grad}
    with setup.loop.other(setup.layout, np.concatenate(changed)) as other:
        shared = {id(one) for one in other.model.parameters() if not one.requires_grad}
        assert shared == before
        assert FragmentView(other.model, setup.layout).copies()[0][0] == changed[0][0]
    assert setup.heldout_loss(changed, 2) != setup.heldout_loss(setup.view.copies(), 2)


# The frozen base.


def test_a_folder_with_another_model_is_refused_by_the_name_of_a_tensor(genesis, tmp_path):
    other = base_folder(tmp_path / "other", seed=8)
    with pytest.raises(UserError, match=r"The tensor model.embed_tokens.weight in .*other is not"):
        hold(genesis, other, tmp_path / "cache")


def test_a_folder_stored_otherwise_gives_the_same_base(genesis, tmp_path):
    same = base_folder(tmp_path / "same", dtype=torch.bfloat16, shard_bytes=10**9)
    hold(genesis, same, tmp_path / "cache")
    assert HeldBase(tmp_path / "cache", genesis).missing() == []


def test_a_trainer_without_its_base_says_what_to_do(genesis, tmp_path):
    with pytest.raises(UserError, match=r"is not whole on this machine: 1 of 1 pieces"):
        network_of(genesis, tmp_path / "cache")


# What comes out.


@pytest.mark.parametrize("trains", ["both", "b"])
def test_what_is_exported_loads_in_peft_and_merged_in_transformers(place, folder, tmp_path, trains):
    genesis = adapter_genesis(place, folder, trains=trains)
    draw = np.random.default_rng(3)
    fragments = [
        values + draw.normal(0, 0.05, values.shape).astype(np.float32)
        for values in first_adapter(genesis)
    ]
    write_adapter(genesis, fragments, tmp_path / "adapter")
    export_model(genesis, fragments, tmp_path / "merged", place / "cache", "f32")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with_adapter = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"]) == (4, 8)
    ids = torch.arange(32).view(1, -1)
    with torch.no_grad():
        theirs, ours = with_adapter(ids).logits, merged(ids).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        untrained = plain.eval()(ids).logits
    assert torch.allclose(theirs, ours, atol=1e-4)
    assert not torch.allclose(theirs, untrained, atol=1e-1)


def test_it_is_told_how_much_of_an_adapter_rounding_loses(place, folder, tmp_path):
    genesis = adapter_genesis(place, folder)
    draw = np.random.default_rng(3)
    begun, cache = first_adapter(genesis), place / "cache"
    lost = {}
    for size in (0.05, 0.005):
        fragments = [
            values + draw.normal(0, size, values.shape).astype(np.float32) for values in begun
        ]
        lost[size] = export_model(genesis, fragments, tmp_path / f"of-{size}", cache, "bf16")
        assert export_model(genesis, fragments, tmp_path / f"all-{size}", cache, "f32") == 0.0
    before = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for name in ("of-0.005", "all-0.005"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / name, dtype=torch.float32
        )
        found.append({key: one for key, one in model.named_parameters() if "_proj" in key})
    off = sum(float((found[0][key] - one).square().sum()) for key, one in found[1].items())
    held = {key: one.to(torch.bfloat16).float() for key, one in before.named_parameters()}
    moved = sum(float((held[key] - one).square().sum()) for key, one in found[1].items())
    assert lost[0.005] == pytest.approx((off / moved) ** 0.5, rel=1e-3)
    assert 0.0 < lost[0.05] < lost[0.005]


def test_a_whole_model_has_no_adapter_to_export(tmp_path, genesis):
    whole = msgspec.structs.replace(genesis, adapter=None)
    with pytest.raises(UserError, match="trains a whole model and no adapter"):
        write_adapter(whole, [], tmp_path / "adapter")


def test_the_base_is_wanted_to_merge_and_the_words_name_the_other_way(genesis, tmp_path):
    with pytest.raises(UserError, match="Export the adapter alone with --adapter"):
        trained_model(genesis, first_adapter(genesis), tmp_path / "cache")


def test_gpt2_whose_layers_are_kept_transposed_has_an_adapter_too():
    config = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    spec = ModelSpec("GPT2LMHeadModel", config, ())
    wanted = AdapterSpec(2, 4.0, 0.0, ("all-linear",), "both", "f32")
    found = describe(spec, wanted, MergeRules())
    assert found.targets == ("c_attn", "c_fc", "c_proj")
    shapes = {one.name: one.shape for one in found.tensors}
    assert shapes["transformer.h.0.attn.c_attn.lora_A.default.weight"] == (2, 16)
    assert shapes["transformer.h.0.attn.c_attn.lora_B.default.weight"] == (48, 2)


def test_talking_to_an_adapter_is_talking_to_the_model_with_it(genesis, place):
    draw = np.random.default_rng(5)
    weights = [
        one + draw.normal(0, 0.05, one.shape).astype(np.float32) for one in first_adapter(genesis)
    ]
    told: dict[str, str] = {}
    for name, given in {"first": first_adapter(genesis), "trained": weights}.items():
        talk = Talk(genesis, given, place / "cache", is_chat=False)
        pieces: list[str] = []
        talk.say("the quiet", pieces.append, tokens=12, temperature=0.0)
        told[name] = "".join(pieces)
        talk.begin_anew(weights)
        pieces = []
        talk.say("the quiet", pieces.append, tokens=12, temperature=0.0)
        told[f"{name} renewed"] = "".join(pieces)
    assert told["first"] != told["trained"]
    assert told["first renewed"] == told["trained renewed"] == told["trained"]
