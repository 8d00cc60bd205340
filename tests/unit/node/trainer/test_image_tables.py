"""Images in rows of .parquet files: the same set as in folders, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyarrow import Table, parquet

from node.trainer.images.image_set import View, count_images, describe_images, open_images
from protocol.errors import UserError
from tests.support.image_folder import CLASSES, image_project, signed

VIEW = View(8, 8, (0.5,), (0.5,))
NOTES = {"info": {"features": {"label": {"_type": "ClassLabel", "names": list(CLASSES)}}}}


@pytest.fixture
def genesis(tmp_path):
    return signed(tmp_path, image_project(tmp_path))


def rows_of(genesis):
    """Picture and class of every file of the project."""
    root = Path(genesis.data.location)
    return [(one.read_bytes(), name) for name in CLASSES for one in sorted((root / name).iterdir())]


def write(path, rows, notes=None):
    table = Table.from_pylist(rows)
    if notes is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
    parquet.write_table(table, path)
    return path


def described(genesis, location, cache):
    data = msgspec.structs.replace(genesis.data, location=str(location))
    return describe_images(data, VIEW, cache=cache)


def test_rows_are_the_images_that_folders_are(genesis, tmp_path):
    rows = rows_of(genesis)
    by_name = write(
        tmp_path / "named.parquet",
        [{"image": {"bytes": a, "path": None}, "label": b} for a, b in rows],
    )
    (tmp_path / "split").mkdir()
    numbered = [{"id": 1, "img": a, "label": CLASSES.index(b)} for a, b in rows[::-1]]
    write(tmp_path / "split" / "0.parquet", numbered[:9], NOTES)
    write(tmp_path / "split" / "1.parquet", numbered[9:], NOTES)
    for place in (by_name, tmp_path / "split"):
        found = described(genesis, place, tmp_path / "cache")
        assert found.images == genesis.images
        assert found.digest == genesis.data.digest
    mine = open_images(genesis.data, genesis.images, seed=3, cache=tmp_path / "cache")
    data = msgspec.structs.replace(genesis.data, location=str(by_name))
    other = open_images(data, genesis.images, seed=3, cache=tmp_path / "cache")
    assert other.matches
    assert count_images(data, genesis.images) == len(rows)
    for a, b in zip(mine.look(mine.sequences(2)), other.look(other.sequences(2)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not list((tmp_path / "cache").glob("tmp*"))


def test_numbers_without_notes_are_their_own_names(genesis, tmp_path):
    rows = [{"image": a, "label": 10 * CLASSES.index(b)} for a, b in rows_of(genesis)]
    path = write(tmp_path / "plain.parquet", rows)
    assert described(genesis, path, tmp_path / "cache").images.classes == ("0", "10", "20")


@pytest.mark.parametrize(
    ("row", "notes", "words"),
    [
        ({"image": None, "label": "bars"}, None, "row 37 has no picture in the column 'image'"),
        ({"image": b"x", "label": "bars"}, None, "row 37 is no PNG or JPEG"),
        ({"image": b"x", "label": None}, None, "has None as a class in the column 'label'"),
        ({"image": b"x", "label": -1}, NOTES, "row 37 has the class -1; they are numbered 0 to 2"),
    ],
)
def test_a_row_that_is_no_image_of_a_class_is_named(genesis, tmp_path, row, notes, words):
    rows = [{"image": a, "label": CLASSES.index(b) if notes else b} for a, b in rows_of(genesis)]
    path = write(tmp_path / "odd.parquet", [*rows, row], notes)
    with pytest.raises(UserError, match=words):
        described(genesis, path, tmp_path / "cache")


def test_other_columns_and_other_classes_are_refused(genesis, tmp_path):
    path = write(tmp_path / "odd.parquet", [{"picture": b"x", "label": "bars"}])
    with pytest.raises(UserError, match=r"no column image or img .* columns are label, picture"):
        described(genesis, path, tmp_path / "cache")
    rows = [{"image": a, "label": b + "s"} for a, b in rows_of(genesis)]
    data = msgspec.structs.replace(
        genesis.data, location=str(write(tmp_path / "other.parquet", rows))
    )
    with pytest.raises(UserError, match="the class 'barss', which is no class of this project"):
        open_images(data, genesis.images, seed=3, cache=tmp_path / "cache")
