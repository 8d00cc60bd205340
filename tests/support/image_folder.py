"""Small images in a folder for each class, and projects that train on them or on hidden tokens."""

from __future__ import annotations

import numpy as np
from PIL import Image

from shoal.project import project_file
from tests.support.examples import example_text
from tests.support.tiny_project import write_text

OWNER = bytes(range(32))
CLASSES = ("bars", "dots", "stripes")

VIT = {
    "data__block_sequences": 4,
    "data__sequence_tokens": 16,
    "data__heldout_frac": 0.3,
    "model__config__image_size": 8,
    "model__config__patch_size": 2,
    "model__config__hidden_size": 16,
    "model__config__intermediate_size": 32,
    "model__config__num_hidden_layers": 2,
    "model__config__num_attention_heads": 2,
    "model__fragments": 3,
    "training__batch_sequences": 4,
}
"""The example, small enough for a test."""

BERT = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def write_images(root, *, count=12, side=8, seed=3, classes=CLASSES):
    """`count` grey images of each class, which a model can tell apart."""
    draw = np.random.default_rng(seed)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 60, size=(side, side))
            pixels[label :: len(classes)] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


def write_digits(root, digits):
    """The handwritten digits of scikit-learn, a folder for each."""
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        grey = (pixels * 255 / 16).astype(np.uint8)
        Image.fromarray(grey).save(root / str(label) / f"{number}.png")
    return root


def image_project(folder, **changes):
    """The text of the example's project file, with images in `folder / "images"`."""
    if not (folder / "images").exists():
        write_images(folder / "images")
    changes = {"data__location": str(folder / "images"), **VIT, **changes}
    return example_text("images/project.toml", **changes)


def masked_project(folder, **changes):
    """The text of a project file for a small BERT on invented text."""
    text = folder / "text.txt"
    if not text.exists():
        write_text(text, chars=20_000)
    changes = {
        "model__architecture": "BertForMaskedLM",
        "model__config": BERT,
        "model__fragments": 3,
        "data__source": "file",
        "data__location": str(text),
        "data__sequence_tokens": 32,
        "data__block_sequences": 4,
        "data__heldout_frac": 0.3,
        "training__batch_sequences": 4,
        **changes,
    }
    return example_text("own-text/project.toml", **changes)


def parsed(folder, text):
    """The project file with this text."""
    path = folder / "project.toml"
    path.write_text(text)
    return project_file.read_file(path)


def signed(folder, text):
    """The genesis that signing this project file gives."""
    file = parsed(folder, text)
    return project_file.make_genesis(file, owner=OWNER, data_cache=folder / "cache")
