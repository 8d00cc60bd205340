"""Images published by their owner: shards are the images, and are all that a trainer opens."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pytest

from host.files.shard_files import MANIFEST, ShardFiles
from node.trainer.images.image_set import open_images
from node.trainer.images.labels import BLANK
from node.trainer.images.published import open_published_images, publish_images
from node.trainer.setup import TrainerSetup, open_data
from protocol.errors import UserError
from protocol.project import PublishedSpec
from protocol.shards import ShardManifest, sample_bytes
from tests.support.image_folder import image_project, signed
from tests.support.tiny_project import configure


@pytest.fixture
def genesis(tmp_path):
    return signed(tmp_path, image_project(tmp_path, data__publish=True))


@pytest.fixture
def mine(genesis, tmp_path):
    return open_images(genesis.data, genesis.images, seed=genesis.seed, cache=tmp_path / "cache")


def records(images, numbers):
    """Each image and its class, as bytes."""
    pixels, labels = images.look(numbers)
    return [
        one.tobytes() + bytes([label]) for one, label in zip(pixels, labels.tolist(), strict=True)
    ]


def all_of(images, genesis):
    return np.concatenate([images.sequences(at) for at in range(genesis.data.blocks)])


def test_every_image_is_published_once_and_what_is_held_out_stays_apart(genesis, mine, tmp_path):
    shards = open_data(genesis, tmp_path / "cache")
    assert shards.matches
    read, wanted = all_of(shards, genesis), all_of(mine, genesis)
    assert sorted(read) == sorted(wanted)
    assert sorted(records(shards, read)) == sorted(records(mine, wanted))
    held = shards.heldout(10**6)
    assert len(held) == genesis.images.heldout
    assert records(shards, held) == records(mine, mine.heldout(10**6))
    assert not set(held.tolist()) & set(read.tolist())
    mixed = np.concatenate([held[:3], read[:5], held[2:4]])
    assert records(shards, mixed) == [records(shards, mixed[at : at + 1])[0] for at in range(10)]


def test_a_trainer_needs_no_images_and_for_its_dry_step_no_shard(genesis, tmp_path):
    cache = tmp_path / "cache"
    shutil.rmtree(tmp_path / "images")
    setup = TrainerSetup(configure(genesis, tmp_path))
    setup.loop.reader.append(((0, genesis.data.blocks),))
    losses = [setup.loop.step().loss for _ in range(4)]
    assert np.isfinite(losses).all()
    bare = tmp_path / "bare"
    manifest = ShardFiles(cache, genesis).find(genesis.published.manifest)
    ShardFiles(bare, genesis, "learner-ada").keep_manifest(manifest)
    shards = open_published_images(genesis, cache=bare, owner="learner-ada")
    pixels, labels = shards.look(np.full(3, BLANK))
    assert pixels.shape == (3, 1, 8, 8)
    assert labels.tolist() == [0, 0, 0]
    with pytest.raises(UserError, match="learner-ada"):
        shards.look(shards.sequences(0))


def test_signing_again_is_the_same_project_and_another_size_has_other_shards(
    genesis, mine, tmp_path
):
    again = signed(tmp_path, image_project(tmp_path, data__publish=True))
    assert again == genesis
    assert publish_images(mine, genesis, cache=tmp_path / "cache") == genesis.published
    larger = signed(
        tmp_path, image_project(tmp_path, data__publish=True, model__config__image_size=16)
    )
    assert sample_bytes(larger) == 2 + 16 * 16
    assert len(list((tmp_path / "cache").glob(f"shards-*/host/{MANIFEST}"))) == 2
    assert larger.published != genesis.published


def test_a_class_that_the_project_does_not_have_is_refused(genesis, tmp_path):
    fewer = msgspec.structs.replace(genesis.images, classes=("bars", "dots"))
    changed = msgspec.structs.replace(genesis, images=fewer)
    files = ShardFiles(tmp_path / "cache", genesis)
    shutil.copytree(files.folder, ShardFiles(tmp_path / "cache", changed).folder)
    shards = open_published_images(changed, cache=tmp_path / "cache", owner="host")
    with pytest.raises(UserError, match="a class that the project does not have"):
        shards.look(all_of(shards, changed))


def test_the_list_of_shards_is_bounded_by_the_size_of_images(genesis, tmp_path):
    table = ShardFiles(tmp_path / "cache", genesis).table
    assert isinstance(genesis.published, PublishedSpec)
    assert table.sequence_bytes == 2 + 64
    assert {one.bytes for one in table.shards} <= {66 * one.sequences for one in table.shards}
    content = ShardFiles(tmp_path / "cache", genesis).find(genesis.published.manifest)
    manifest = msgspec.msgpack.decode(content, type=ShardManifest)
    assert manifest.heldout_sequences == genesis.images.heldout
