"""Encoders and classifiers of images of the registries of transformers, as projects name them."""

from __future__ import annotations

import pytest
import torch

from node.trainer import architectures
from node.trainer.model import build_model, describe_model
from protocol.errors import UserError
from tests.support.image_folder import BERT

ROBERTA = BERT | {"pad_token_id": 1}

ENCODERS = {
    "bert": BERT,
    "RobertaForMaskedLM": ROBERTA,
    "xlm-roberta": ROBERTA,
    "mpnet": ROBERTA,
    "electra": BERT | {"embedding_size": 16},
    "albert": BERT | {"embedding_size": 16},
    "deberta-v2": BERT,
    "modernbert": {key: value for key, value in BERT.items() if "dropout_prob" not in key},
    "distilbert": {
        "vocab_size": 258,
        "dim": 32,
        "hidden_dim": 64,
        "n_layers": 2,
        "n_heads": 2,
        "max_position_embeddings": 32,
    },
}

PATCHES = {
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

CLASSIFIERS = {
    "vit": PATCHES | {"intermediate_size": 32},
    "deit": PATCHES | {"intermediate_size": 32},
    "beit": PATCHES | {"intermediate_size": 32},
    "vit_msn": PATCHES | {"intermediate_size": 32},
    "dinov2": PATCHES | {"mlp_ratio": 2},
    "swin": {
        "image_size": 8,
        "patch_size": 2,
        "num_channels": 1,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "window_size": 2,
    },
    "convnextv2": {
        "num_channels": 1,
        "patch_size": 2,
        "num_stages": 2,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
    },
}


def task_of(name):
    return architectures.find(name).task


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_sees_the_whole_sequence_up_to_its_last_position(name):
    assert task_of(name) == "masked"
    model = build_model(describe_model(name, ENCODERS[name]), seed=1).eval()
    length = architectures.positions_max(model.config)
    ids = torch.arange(10, 10 + length)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        ids[0, -1] = 99
        after = model(input_ids=ids).logits
    assert before.shape == (1, length, 258)
    assert not torch.allclose(before[:, 0], after[:, 0])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_of_the_registry_is_found_by_its_model_type(name):
    assert task_of(name) == "images"
    spec = describe_model(name, CLASSIFIERS[name] | {"num_labels": 5})
    model = build_model(spec, seed=1).eval()
    with torch.no_grad():
        logits = model(pixel_values=torch.randn(2, 1, 8, 8)).logits
    assert logits.shape == (2, 5)
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clip", "several models"),
        ("timm_wrapper", "another library"),
        ("imagegpt", "colours"),
        ("yoso", "kernels"),
        ("big_bird", "at random"),
        ("xmod", "language"),
    ],
)
def test_what_is_not_for_projects_is_refused_with_its_reason(name, words):
    with pytest.raises(UserError, match=words):
        architectures.find(name)


def test_every_denied_architecture_is_in_its_registry():
    for task in architectures.TASKS:
        known = set(architectures.registry(task))
        assert set(architectures.DENIED_FOR[task]) <= known
    assert {"vit", "convnext", "swin"} <= set(architectures.supported("images"))
    assert {"bert", "roberta"} <= set(architectures.supported("masked"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backbone_config": {"model_type": "vit"}}, "no configuration key"),
        ({"id2label": {"0": "a"}}, "no configuration key"),
        ({"hidden_act": "owner/kernels"}, "file or an address"),
        ({"num_hidden_layers": 1025}, "between 0 and 1024"),
        ({"image_size": [8] * 1025}, "more than 1024"),
        ({"num_labels": 2**28 + 1}, "num_labels = "),
    ],
)
def test_hostile_values_are_refused_before_anything_is_built(values, words):
    with pytest.raises(UserError, match=words):
        describe_model("ViTForImageClassification", CLASSIFIERS["vit"] | values)


def test_a_table_that_no_memory_holds_is_described_and_not_built():
    spec = describe_model("vit", CLASSIFIERS["vit"] | {"image_size": 1 << 16})
    assert sum(one.numel for one in spec.tensors) > 10**10
