from __future__ import annotations

import io
import shutil
import struct
import zlib

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from node.trainer.images import decoding
from node.trainer.images.decoding import decode
from node.trainer.images.image_set import View, describe_images, open_images
from node.trainer.making import check_fits
from node.trainer.setup import TrainerSetup, open_data
from node.trainer.text.reader import read_places
from protocol.errors import UserError
from tests.support.image_folder import CLASSES, image_project, signed, write_images
from tests.support.tiny_project import configure

VIEW = View(8, 8, (0.5,), (0.5,))


@pytest.fixture
def genesis(tmp_path):
    return signed(tmp_path, image_project(tmp_path))


def opened(genesis, folder, **changes):
    data = msgspec.structs.replace(genesis.data, **changes)
    return open_images(data, genesis.images, seed=genesis.seed, cache=folder / "cache")


def png(width, height, mode="L"):
    out = io.BytesIO()
    Image.new(mode, (width, height)).save(out, "PNG")
    return out.getvalue()


def bomb(width, height):
    """A PNG of a few bytes that claims to have so many pixels."""

    def chunk(kind, content):
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


# ------------------------------------------------------------------------------------ one picture


def test_a_picture_is_scaled_and_its_channels_come_first():
    grey = decode(png(20, 10), "one", height=4, width=6, channels=1)
    assert (grey.shape, grey.dtype) == ((1, 4, 6), np.uint8)
    colour = io.BytesIO()
    Image.new("RGB", (6, 4), (200, 10, 30)).save(colour, "PNG")
    decoded = decode(colour.getvalue(), "one", height=4, width=6, channels=3)
    assert decoded[:, 0, 0].tolist() == [200, 10, 30]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no PNG or JPEG"),
        (b"GIF89a" + bytes(50), "no PNG or JPEG"),
        (png(30, 30)[:40], "no PNG or JPEG"),
        (bomb(60_000, 60_000), "pixels"),
        (bomb(9_000, 9_000), "81,000,000|pixels"),
        (bomb(3_000, 3_000), "no PNG or JPEG"),
    ],
)
def test_what_is_no_sound_picture_is_refused_by_its_name(content, words):
    with pytest.raises(UserError, match=words) as refused:
        decode(content, "folder/evil.png", height=8, width=8, channels=1)
    assert "folder/evil.png" in str(refused.value)


def test_a_picture_of_more_than_8_bits_is_refused():
    deep = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep, "PNG")
    with pytest.raises(UserError, match="more than 8 bits"):
        decode(deep.getvalue(), "deep.png", height=4, width=4, channels=1)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "FILE_BYTES_MAX", 100)
    path = tmp_path / "large.png"
    path.write_bytes(bytes(101))
    with pytest.raises(UserError, match=r"large\.png is larger"):
        decoding.read_file(path)


# ------------------------------------------------------------------------------------- the folder


def test_the_project_pins_classes_size_and_numbers(genesis):
    images = genesis.images
    assert images.classes == CLASSES
    assert (images.height, images.width, images.channels) == (8, 8, 1)
    assert images.images + images.heldout == 36
    assert genesis.data.blocks == images.images // 4
    assert genesis.model.config["num_labels"] == 3


def test_numbers_stand_for_pixels_and_classes(genesis, tmp_path):
    found = opened(genesis, tmp_path)
    assert found.matches
    pixels, labels = found.look(np.arange(genesis.images.images + genesis.images.heldout))
    files = {
        np.asarray(Image.open(path)).tobytes(): CLASSES.index(path.parent.name)
        for path in (tmp_path / "images").rglob("*.png")
    }
    assert {
        one.tobytes(): label for one, label in zip(pixels, labels.tolist(), strict=True)
    } == files
    assert len(set(labels[:8].tolist())) > 1, "classes come mixed"


def test_held_out_images_are_never_leased(genesis, tmp_path):
    found = opened(genesis, tmp_path)
    leased = {int(one) for at in range(3 * genesis.data.blocks) for one in found.sequences(at)}
    heldout = set(found.heldout(1000).tolist())
    assert len(heldout) == genesis.images.heldout
    assert not leased & heldout
    assert read_places(found, [(2, 1)])[0] == found.sequences(2)[1]


def test_another_name_of_a_file_changes_nothing(genesis, tmp_path):
    other = tmp_path / "copy"
    shutil.copytree(tmp_path / "images", other)
    for number, path in enumerate(sorted(other.rglob("*.png"))):
        path.rename(path.parent / f"{97 * number % 36}-renamed.PNG")
    found, copied = opened(genesis, tmp_path), opened(genesis, tmp_path, location=str(other))
    assert copied.matches
    for own, copy in zip(found.look(found.heldout(9)), copied.look(copied.heldout(9)), strict=True):
        assert np.array_equal(own, copy)


def test_a_copy_that_differs_is_known_by_its_digest(genesis, tmp_path):
    for change in (
        lambda root: _train_file(genesis, tmp_path, root).unlink(),
        lambda root: _train_file(genesis, tmp_path, root).write_bytes(png(8, 8)),
        lambda root: _moved(_train_file(genesis, tmp_path, root)),
    ):
        other = tmp_path / "copy"
        shutil.copytree(tmp_path / "images", other)
        change(other)
        assert not opened(genesis, tmp_path, location=str(other)).matches
        shutil.rmtree(other)


def _train_file(genesis, folder, root):
    pixels, _ = opened(genesis, folder).look(np.array([0]))
    return next(
        path
        for path in sorted(root.rglob("*.png"))
        if np.array_equal(np.asarray(Image.open(path)), pixels[0, 0])
    )


def _moved(path):
    other = CLASSES[(CLASSES.index(path.parent.name) + 1) % 3]
    path.rename(path.parent.parent / other / "moved.png")


def test_a_class_that_the_project_does_not_know_is_refused(genesis, tmp_path):
    write_images(tmp_path / "other", classes=("bars", "zebra"))
    with pytest.raises(UserError, match="zebra is no class of this project"):
        opened(genesis, tmp_path, location=str(tmp_path / "other"))


def test_a_copy_with_less_than_a_block_is_refused_in_words(genesis, tmp_path):
    write_images(tmp_path / "few", count=1)
    with pytest.raises(UserError, match=r"few holds .* samples to train on"):
        opened(genesis, tmp_path, location=str(tmp_path / "few"))


def test_images_that_the_disk_cannot_hold_are_not_begun(genesis, tmp_path, monkeypatch):
    shutil.rmtree(tmp_path / "cache")
    full = shutil.disk_usage(tmp_path)._replace(free=36 * 64 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(UserError, match="take 2,304 bytes"):
        opened(genesis, tmp_path)
    assert not list((tmp_path / "cache").glob("*/pixels.bin"))


def test_a_project_that_contradicts_itself_is_refused(genesis, tmp_path):
    with pytest.raises(UserError, match="contradicts itself"):
        open_data(msgspec.structs.replace(genesis, images=None), tmp_path / "cache")


def test_a_damaged_cache_is_made_again(genesis, tmp_path):
    found = opened(genesis, tmp_path)
    before = found.look(np.arange(5))[0]
    (cached,) = (tmp_path / "cache").glob("images-*/pixels.bin")
    cached.write_bytes(b"short")
    assert np.array_equal(opened(genesis, tmp_path).look(np.arange(5))[0], before)


@pytest.mark.parametrize(("classes", "words"), [((), "0 folders"), (("one",), "1 folders")])
def test_a_folder_without_classes_is_refused(tmp_path, genesis, classes, words):
    root = tmp_path / "bare"
    root.mkdir()
    write_images(root, classes=classes)
    spec = msgspec.structs.replace(genesis.data, location=str(root))
    with pytest.raises(UserError, match=words):
        describe_images(spec, VIEW, cache=tmp_path / "cache")


# --------------------------------------------------------------------------------- in the trainer


def test_losses_per_sample_average_to_that_of_all(genesis, tmp_path):
    setup = TrainerSetup(configure(genesis, tmp_path, micro_batch=3))
    numbers = setup.corpus.heldout(8)
    with torch.no_grad():
        each = setup.trainer.losses(numbers, lambda: None)
    assert each.shape == (len(numbers),)
    whole = setup.heldout_loss(setup.view.copies(), 8)
    assert each.mean() == pytest.approx(whole, abs=1e-5)
    assert whole == pytest.approx(np.log(3), abs=0.3)  # Of somebody who knows nothing.
    assert setup.generate("a", 3, seed=1, temperature=1.0, values=None) == ""
    assert setup.ready().heldout_tokens == 16 * genesis.images.heldout


def test_a_model_for_other_images_is_refused(genesis):
    for changes, words in (
        ({"height": 16, "width": 16}, "image_size is 8"),
        ({"classes": ("a", "b")}, "3 classes, the images have 2"),
        ({"channels": 3}, "num_channels is 1"),
        ({"mean": (0.5, 0.5)}, "number of means"),
    ):
        images = msgspec.structs.replace(genesis.images, **changes)
        with pytest.raises(UserError, match=words):
            check_fits(msgspec.structs.replace(genesis, images=images), 0)
