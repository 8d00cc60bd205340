"""Projects of encoders and of classifiers of images, from the project file to the export."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from host.files.home import Home
from host.files.local_settings import Settings
from node.trainer.base_model import describe, first_weights
from node.trainer.model import FragmentView, build_model, initial_weights, layout_of
from node.trainer.setup import open_data
from node.trainer.text.masking import LABELS, READ
from node.trainer.tools.export import export_model
from node.trainer.tools.talk import Talk
from node.trainer.tools.trial import try_out
from protocol import wire
from protocol.errors import UserError
from protocol.project import Genesis, encode
from shoal.doctor import probes
from shoal.project.file_commands import create, show
from shoal.project.project_file import make_genesis, read_file
from shoal.sim.trial_project import sign
from simulator.compare.setting import Setting
from tests.support.base_folder import edit_config
from tests.support.image_folder import (
    BERT,
    CLASSES,
    OWNER,
    image_project,
    masked_project,
    parsed,
    signed,
    write_images,
)
from tests.support.tiny_project import INNER

PROJECTS = {"images": image_project, "masked": masked_project}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def projects(place):
    """Signed once: by name, genesis and folder."""
    made = {}
    for name, project in PROJECTS.items():
        folder = place / name
        folder.mkdir()
        made[name] = signed(folder, project(folder)), folder
    return made


@pytest.mark.parametrize("name", PROJECTS)
def test_a_signed_project_is_read_as_it_was_written(projects, name):
    genesis, _ = projects[name]
    assert wire.decode(encode(genesis), Genesis, bytes_max=1 << 20) == genesis


def test_a_project_of_a_decoder_has_none_of_the_new_fields(projects):
    genesis, _ = projects["images"]
    plain = msgspec.structs.replace(genesis, images=None)
    assert len(msgspec.msgpack.decode(encode(plain))) < len(msgspec.msgpack.decode(encode(genesis)))


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("project", "changes", "words"),
    [
        (image_project, {"data__source": "folder"}, "text_field is missing"),
        (masked_project, {"data__source": "images", "data__publish": False}, "is for text"),
        (image_project, {"model__architecture": "LlamaForCausalLM"}, "for text|key"),
        (image_project, {"model__architecture": "CLIPForImageClassification"}, "several models"),
        (image_project, {"model__architecture": "timm_wrapper"}, "another library"),
        (image_project, {"data__image_size": 16}, "image_size is 8"),
        (image_project, {"data__image_size": 5000}, "from 1 to 2048"),
        (image_project, {"model__config__image_size": 4096}, "a side has 1 to 2,048"),
        (image_project, {"model__config__num_labels": 4}, "Leave num_labels out"),
        (image_project, {"data__location": "nowhere"}, "There is no folder"),
        (masked_project, {"data__source": "chats"}, "only for a decoder"),
        (masked_project, {"data__masked_frac": 0.9}, "masked_frac|frac"),
        (masked_project, {"model__config__vocab_size": 257}, "vocab_size to at least 258"),
        (masked_project, {"model__config__max_position_embeddings": 16}, "32 tokens do not fit"),
        (masked_project, {"model__architecture": "BartForConditionalGeneration"}, "half of a"),
        (masked_project, {"model__architecture": "RobertaForMaskedLM"}, "needs pad_token_id"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(tmp_path, project, changes, words):
    with pytest.raises(UserError, match=words):
        signed(tmp_path, project(tmp_path, **changes))


def test_a_model_of_text_on_images_is_refused(tmp_path):
    text = image_project(tmp_path, model__architecture="BertForMaskedLM", model__config=BERT)
    with pytest.raises(UserError, match="is for text"):
        signed(tmp_path, text)


def test_a_classifier_on_text_is_refused(tmp_path):
    config = {"image_size": 8, "patch_size": 2}
    text = masked_project(
        tmp_path, model__architecture="ViTForImageClassification", model__config=config
    )
    with pytest.raises(UserError, match='Set source = "images"'):
        signed(tmp_path, text)


def test_batch_normalisation_is_refused(tmp_path):
    config = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_channels": 1}
    changes = {"model__architecture": "ResNetForImageClassification", "model__config": config}
    with pytest.raises(UserError, match="normalises by batch"):
        signed(tmp_path, image_project(tmp_path, data__image_size=8, **changes))


def test_a_model_for_any_size_needs_one(tmp_path):
    config = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_channels": 1}
    changes = {"model__architecture": "ResNetForImageClassification", "model__config": config}
    with pytest.raises(UserError, match="say image_size"):
        signed(tmp_path, image_project(tmp_path, **changes))


@pytest.mark.parametrize(("name", "words"), [("images", "class of an image"), ("masked", "hidden")])
def test_a_model_that_does_not_write_says_so(projects, name, words):
    genesis, folder = projects[name]
    with pytest.raises(UserError, match=words):
        Talk(genesis, initial_weights(genesis), folder / "cache", is_chat=False)


# ------------------------------------------------------------------------------------- the export


def test_transformers_loads_a_classifier_and_prepares_its_images(projects, tmp_path):
    genesis, folder = projects["images"]
    fragments = initial_weights(genesis)
    export_model(genesis, fragments, tmp_path / "out", folder / "cache")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == dict(enumerate(CLASSES))
    assert model.config.label2id == {name: at for at, name in enumerate(CLASSES)}
    images = open_data(genesis, folder / "cache")
    pixels, _ = images.look(images.heldout(1))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    shown = processor(Image.fromarray(pixels[0, 0]), return_tensors="pt")["pixel_values"]
    ours = (torch.from_numpy(pixels[:1]).float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(shown.float(), ours, atol=1e-5, rtol=0)
    again = build_model(genesis.model, seed=99)
    view = FragmentView(again, layout_of(genesis))
    for index, values in enumerate(fragments):
        view.write(index, values)
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval()(pixel_values=ours).logits, again.eval()(pixel_values=ours).logits
        )


def test_transformers_loads_an_encoder_and_its_mask(projects, tmp_path):
    genesis, folder = projects["masked"]
    export_model(genesis, initial_weights(genesis), tmp_path / "out", folder / "cache")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.mask_token_id == genesis.masked.token == 257
    ids = tokenizer("the qu[MASK]et", add_special_tokens=False)["input_ids"]
    assert ids.count(257) == 1
    samples = torch.from_numpy(open_data(genesis, folder / "cache").heldout(2))
    with torch.no_grad():
        loss = model.eval()(input_ids=samples[:, READ], labels=samples[:, LABELS].contiguous()).loss
    assert float(loss) == pytest.approx(np.log(258), abs=0.5)  # Of somebody who knows nothing.
    assert not (tmp_path / "out" / "generation_config.json").exists()


# -------------------------------------------------------------------------- from published models


def published_vit(folder, labels):
    config = transformers.ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=16, intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=2, num_labels=labels,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.ViTForImageClassification(config)
    for one in model.parameters():
        one.data.add_(0.125)
    model.save_pretrained(folder)
    said = {"image_mean": [0.25], "image_std": [0.75]}
    (folder / "preprocessor_config.json").write_text(str(said).replace("'", '"'))
    return model


def from_folder(text, base):
    lines = [one for one in text.splitlines() if not one.startswith("architecture = ")]
    at = lines.index("[model]") + 1
    return "\n".join([*lines[:at], f'from = "{base}"', *lines[at:]])


@pytest.mark.parametrize("labels", [3, 7])
def test_a_project_goes_on_from_a_published_classifier(tmp_path, labels):
    model = published_vit(tmp_path / "vit", labels)
    genesis = signed(tmp_path, from_folder(image_project(tmp_path), tmp_path / "vit"))
    assert genesis.model.architecture == "ViTForImageClassification"
    assert (genesis.images.mean, genesis.images.std) == ((0.25,), (0.75,))
    started = build_model(genesis.model, seed=1)
    view = FragmentView(started, layout_of(genesis))
    for index, values in enumerate(first_weights(genesis, tmp_path / "vit")):
        view.write(index, values)
    theirs = dict(model.named_parameters())
    for name, values in started.named_parameters():
        if name.startswith("classifier.") and labels != 3:
            assert not values.any(), "a head for other classes begins with zeros"
        else:
            assert torch.equal(values, theirs[name]), name


def test_a_project_file_is_made_from_a_published_classifier(tmp_path):
    published_vit(tmp_path / "vit", 3)
    path = tmp_path / "made.toml"
    create(path, base=str(tmp_path / "vit"))
    made = read_file(path)
    assert (made.data.source, made.data.sequence_tokens) == ("images", 16)
    write_images(tmp_path / "my-images")
    genesis = make_genesis(made, owner=OWNER, data_cache=tmp_path / "cache")
    assert genesis.images.classes == CLASSES
    with pytest.raises(UserError, match="beside a causal decoder only"):
        create(tmp_path / "other.toml", base=str(tmp_path / "vit"), adapter=True)


def test_a_published_model_that_wants_impossible_images_is_refused(tmp_path):
    published_vit(tmp_path / "vit", 3)
    (tmp_path / "vit" / "preprocessor_config.json").write_text('{"image_std": [0.0]}')
    with pytest.raises(UserError, match=r"preprocessor_config\.json cannot be used"):
        signed(tmp_path, from_folder(image_project(tmp_path), tmp_path / "vit"))


def test_a_class_that_is_not_of_the_model_type_does_not_count(tmp_path):
    published_vit(tmp_path / "vit", 3)
    edit_config(tmp_path / "vit", architectures=["LlamaForCausalLM", "ViTModel"])
    assert describe(tmp_path / "vit").architecture == "ViTForImageClassification"


def test_a_project_goes_on_from_a_published_encoder(tmp_path):
    config = transformers.BertConfig(**BERT, pad_token_id=0)
    torch.manual_seed(5)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path / "bert")
    assert describe(tmp_path / "bert").architecture == "BertForMaskedLM"
    text = from_folder(masked_project(tmp_path, model__config={}), tmp_path / "bert")
    genesis = signed(tmp_path, text)
    assert genesis.masked is not None
    assert first_weights(genesis, tmp_path / "bert")


# -------------------------------------------------------------------------------------- elsewhere


@pytest.mark.parametrize("name", PROJECTS)
def test_a_machine_is_tried_with_what_the_model_is_to_say(projects, name):
    genesis, _ = projects[name]
    tokens = genesis.data.sequence_tokens
    wish = probes.wish_for(genesis.model, INNER, tokens, Settings(), genesis)
    answer = try_out(msgspec.structs.replace(wish, device="cpu"))
    assert answer.trouble == ""
    assert answer.tokens_per_s > 0
    assert answer.parameters == sum(one.numel for one in genesis.model.tensors)


def test_a_simulation_wants_a_decoder(tmp_path):
    setting = Setting(
        seed=1, learners=2, steps=4, step_s=1.0, link_mbps=100.0, latency_s=0.03,
        clock_parameters=1000,
    )  # fmt: skip
    file = parsed(tmp_path, image_project(tmp_path))
    with pytest.raises(UserError, match="trains no decoder"):
        sign(file, setting, Home(tmp_path / "home"))


def test_an_unsigned_file_shows_its_images(tmp_path):
    text = image_project(tmp_path)
    parsed(tmp_path, text)
    assert f"data        images {tmp_path / 'images'}" in show(tmp_path / "project.toml")
