"""Arrays in files without names: the same values, little memory, and nothing left behind."""

from __future__ import annotations

import errno
import logging
import tempfile

import numpy as np
import psutil
import pytest

from host.files.mapped_arrays import MappedArrays

MANY = 16 << 20
"""Elements: 64 MiB."""


def resident():
    return psutil.Process().memory_info().rss


def test_a_kept_array_has_the_same_values_and_takes_no_memory(tmp_path):
    arrays = MappedArrays(tmp_path / "weights")
    before = resident()
    kept = []
    for number in range(4):
        values = np.full(MANY, number, np.float32)
        kept.append(arrays.keep(values))
        del values
    assert resident() - before < 32 << 20
    assert arrays.bytes == 4 * 4 * MANY
    assert [float(one[0]) + float(one[-1]) for one in kept] == [0.0, 2.0, 4.0, 6.0]
    assert list((tmp_path / "weights").iterdir()) == [], "files have no names"


def test_what_was_read_is_given_back(tmp_path):
    arrays = MappedArrays(tmp_path)
    kept = arrays.keep(np.ones(MANY, np.float32))
    before = resident()
    assert kept.sum() == MANY
    assert resident() - before > 48 << 20
    arrays.relax()
    assert resident() - before < 8 << 20
    assert kept.sum() == MANY


def test_the_room_is_free_again_once_nobody_holds_the_array(tmp_path):
    arrays = MappedArrays(tmp_path)
    kept = arrays.keep(np.ones(MANY, np.float32))
    part = kept[:5]
    del kept
    assert arrays.bytes == 4 * MANY, "a view holds it too"
    del part
    assert arrays.bytes == 0


def test_small_arrays_stay_where_they_are(tmp_path):
    values = np.ones(1000, np.float32)
    assert MappedArrays(tmp_path).keep(values) is values
    kept = MappedArrays(tmp_path, least_bytes=1).keep(values)
    assert kept is not values
    np.testing.assert_array_equal(kept, values)


def test_without_room_an_array_stays_in_memory_and_it_is_said_once(tmp_path, caplog):
    values = np.ones(MANY, np.float32)
    arrays = MappedArrays(tmp_path, lambda: 1000)
    with caplog.at_level(logging.WARNING, "shoal.weights"):
        assert arrays.keep(values) is values
        assert arrays.keep(values) is values
    assert [record.message for record in caplog.records] == [
        f"weights stay in memory, not in files of {tmp_path}: limits.disk_bytes_max leaves 1,000"
        " bytes"
    ]


def test_a_full_disk_is_no_end(tmp_path, monkeypatch, caplog):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    values = np.ones(MANY, np.float32)
    with caplog.at_level(logging.WARNING, "shoal.weights"):
        assert MappedArrays(tmp_path).keep(values) is values
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("shape", [(0,), (300, 4)])
def test_any_shape_comes_back(tmp_path, shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(MappedArrays(tmp_path, least_bytes=1).keep(values), values)
