"""The projects of `examples/` as their pages say: a syncer and two learners, real processes."""

from __future__ import annotations

import math
import shutil

import peft
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from host.files.signed_project import read_signed
from node.trainer.text.corpus import open_corpus
from node.trainer.tools.score import heldout_loss
from tests.net.example_swarm import ExampleSwarm
from tests.net.swarms import shoal
from tests.support.base_folder import base_folder
from tests.support.chats import CHATML
from tests.support.examples import EXAMPLES
from tests.support.image_folder import BERT, write_digits
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

GUESSING = 5.55
"""Nats per byte of somebody who knows nothing: log 257."""


@pytest.mark.parametrize("name", ["own-text", "moe"])
def test_two_learners_train_the_example_and_its_export_loads(tmp_path, name):
    changes = {
        "limits__evaluate_every": 10,
        "limits__heldout_sequences": 16,
        "training__batch_sequences": 4,
    }
    if name == "own-text":
        texts = tmp_path / "my-text"
        texts.mkdir()
        for number in range(20):
            write_text(texts / f"{number}.txt", chars=10_000, seed=number)
        changes["data__heldout_frac"] = 0.2
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example(f"{name}/project.toml", **changes)
        swarm.begin()
        for learner in ("ada", "bob"):
            words = ("--data", str(tmp_path / "my-text")) if name == "own-text" else ()
            swarm.start_learner(learner, *words)
        swarm.all_merge("ada", "bob")

        _learns(swarm, below=GUESSING - 1.0)
        swarm.run("export", "--to", str(tmp_path / "out"), "--checkpoint", "latest")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.num_parameters() > 500_000


def test_two_learners_tune_a_chat_model_and_the_adapter_loads_in_peft(tmp_path):
    folder = base_folder(tmp_path / "model", template=CHATML)
    chats = str(EXAMPLES / "finetune-chat" / "chats")
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example(
            "finetune-chat/project.toml",
            model__from=str(folder),
            data__location=chats,
            data__sequence_tokens=64,
            training__learning_rate=0.003,
            limits__evaluate_every=6,
        )
        genesis = read_signed(swarm.signed).genesis
        swarm.begin()
        for learner in ("ada", "bob"):
            swarm.start_learner(learner, "--data", chats)
        swarm.all_merge("ada", "bob")

        def has_learned():
            now = swarm.syncer()
            curve = now.swarm.curve if now else []
            return len(curve) > 1 and curve[-1][2] < curve[0][2] - 0.3

        swarm.until(has_learned, "a lower held-out loss", limit_s=400.0)
        swarm.run("export", "--to", "my-adapter", "--adapter", "--checkpoint", "latest")
        cache = swarm.home.data_cache()
    text = open_corpus(genesis.data, seed=1, cache=cache, tokenizer=genesis.tokenizer).heldout(99)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = heldout_loss(base, text)
    tuned = peft.PeftModel.from_pretrained(base, tmp_path / "my-adapter").eval()
    assert heldout_loss(tuned, text) < before - 0.3


def test_two_learners_learn_digits_and_the_export_tells_them_apart(tmp_path):
    digits = load_digits()
    write_digits(tmp_path / "images", digits)
    changes = {
        "data__location": str(tmp_path / "images"),
        "model__config__image_size": 8,
        "model__config__patch_size": 2,
        "data__sequence_tokens": 16,
        "training__learning_rate": 0.003,
        "limits__evaluate_every": 10,
        "limits__heldout_sequences": 100,
    }
    shutil.copytree(tmp_path / "images", tmp_path / "copy")
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example("images/project.toml", **changes)
        swarm.begin()
        swarm.start_learner("ada", "--data", str(tmp_path / "images"))
        swarm.start_learner("bob", "--data", str(tmp_path / "copy"))
        swarm.all_merge("ada", "bob")
        _learns(swarm, below=math.log(10) - 1.0)
        swarm.run("export", "--to", str(tmp_path / "out"), "--checkpoint", "latest")
        tried = shoal(swarm.home, "try", "--prompt", "a")
    assert tried.returncode == 2
    assert "says the class of an image; it does not write" in tried.stderr
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {at: str(at) for at in range(10)}
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    seen = sorted((tmp_path / "images").rglob("*.png"))[::20]
    shown = processor([Image.open(path).convert("L") for path in seen], return_tensors="pt")
    with torch.no_grad():
        said = model(**shown).logits.argmax(dim=1).tolist()
    right = [
        model.config.id2label[label] == path.parent.name
        for label, path in zip(said, seen, strict=True)
    ]
    assert sum(right) > len(right) / 2


def test_two_learners_train_an_encoder_and_the_export_fills_a_gap(tmp_path):
    texts = tmp_path / "my-text"
    texts.mkdir()
    for number in range(20):
        write_text(texts / f"{number}.txt", chars=10_000, seed=number)
    changes = {
        "model__architecture": "BertForMaskedLM",
        "model__config": BERT | {"hidden_size": 64, "intermediate_size": 128},
        "data__sequence_tokens": 32,
        "data__heldout_frac": 0.2,
        "limits__evaluate_every": 10,
        "limits__heldout_sequences": 32,
    }
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example("own-text/project.toml", **changes)
        swarm.begin()
        for learner in ("ada", "bob"):
            swarm.start_learner(learner)  # The example publishes its text.
        swarm.all_merge("ada", "bob")
        _learns(swarm, below=GUESSING - 1.0)
        swarm.run("export", "--to", str(tmp_path / "out"), "--checkpoint", "latest")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("the quiet[MASK]harbour", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        logits = model(input_ids=ids["input_ids"]).logits
    assert logits.shape == (1, 17, 258)


def _learns(swarm, *, below):
    def has_learned():
        now = swarm.syncer()
        return now and now.swarm.curve and now.swarm.curve[-1][2] < below

    swarm.until(has_learned, "a held-out loss that is not a guess", limit_s=400.0)
