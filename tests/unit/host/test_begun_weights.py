"""Weights on their way, in files: they outlive the daemon, and no disk is filled or believed."""

from __future__ import annotations

import logging
import os

import numpy as np
import psutil
import pytest
from blake3 import blake3

from host.files import begun_weights
from host.files.begun_weights import OLD_S, BegunWeights, FileRoom, forget_old
from host.files.mapped_arrays import MappedArrays, in_memory, mapped_file
from host.files.rooms import MemoryRoom

NUMEL = 1 << 20
SIZE = 4 * NUMEL
HALF = SIZE // 2


def a_root(number):
    return blake3(bytes([number])).digest()


def some_bytes(seed, count=HALF):
    return np.random.default_rng(seed).bytes(count)


def begun(folder, room=None):
    return BegunWeights(folder / "begun" / "project" / "default", lambda: room)


def test_what_was_written_is_there_for_the_next_life(tmp_path):
    first = begun(tmp_path).open(a_root(1), SIZE)
    assert not first.is_begun
    first.write(HALF, some_bytes(1))
    second = begun(tmp_path).open(a_root(1), SIZE)
    assert second.is_begun
    assert bytes(second.view(HALF, SIZE)) == some_bytes(1)
    assert not any(second.view(0, HALF))
    second.write(0, some_bytes(2))
    assert bytes(second.values().data.cast("B")) == some_bytes(2) + some_bytes(1)


def test_what_is_written_shows_in_views_and_values_taken_before(tmp_path):
    room = begun(tmp_path).open(a_root(1), SIZE)
    view, values = room.view(0, HALF), room.values()
    room.write(0, some_bytes(3))
    assert bytes(view) == some_bytes(3)
    assert bytes(values.data.cast("B"))[:HALF] == some_bytes(3)


@pytest.mark.parametrize("size_bytes", [100, 3 * SIZE])
def test_a_file_of_another_size_is_made_to_fit(tmp_path, size_bytes):
    weights = begun(tmp_path)
    weights.open(a_root(1), SIZE)
    (weights.folder / a_root(1).hex()).write_bytes(bytes([7]) * size_bytes)
    room = weights.open(a_root(1), SIZE)
    assert room.is_begun
    assert len(room.view(0, SIZE)) == SIZE


def test_nothing_is_followed_to_another_place(tmp_path):
    weights, elsewhere = begun(tmp_path), tmp_path / "precious"
    elsewhere.write_bytes(b"precious")
    weights.folder.mkdir(parents=True)
    (weights.folder / a_root(1).hex()).symlink_to(elsewhere)
    assert isinstance(weights.open(a_root(1), SIZE), MemoryRoom)
    assert elsewhere.read_bytes() == b"precious"


def test_small_arrays_get_no_file(tmp_path):
    weights = begun(tmp_path)
    assert isinstance(weights.open(a_root(1), 1000), MemoryRoom)
    assert not weights.folder.exists()


def test_on_a_disk_that_gets_full_the_array_goes_on_in_memory(tmp_path, monkeypatch, caplog):
    room = begun(tmp_path).open(a_root(1), SIZE)
    room.write(0, some_bytes(1))
    before = room.view(0, HALF)
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "shoal.weights"):
        patch.setattr(begun_weights.os, "pwrite", lambda *_: (_ for _ in ()).throw(full))
        room.write(HALF, some_bytes(2))
    room.write(HALF + 8, bytes(8))
    told = [record.message for record in caplog.records]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    expected = bytearray(some_bytes(1) + some_bytes(2))
    expected[HALF + 8 : HALF + 16] = bytes(8)
    assert bytes(room.values().data.cast("B")) == bytes(expected)
    assert bytes(before) == some_bytes(1)


def test_an_owners_ceiling_leaves_room_for_so_many_files_and_what_is_written_counts_once(tmp_path):
    weights = begun(tmp_path, room=2 * SIZE)
    first = weights.open(a_root(1), SIZE)
    assert isinstance(weights.open(a_root(2), SIZE), FileRoom)
    assert isinstance(weights.open(a_root(3), SIZE), MemoryRoom)
    first.write(0, bytes([1]) * SIZE)
    assert isinstance(weights.open(a_root(3), SIZE), FileRoom), (
        "the room is what may be written beside it"
    )
    weights.remove([a_root(2)])
    assert isinstance(weights.open(a_root(4), SIZE), FileRoom)


def test_only_what_is_wanted_stays_and_in_the_end_nothing(tmp_path):
    weights = begun(tmp_path)
    rooms = {number: weights.open(a_root(number), SIZE) for number in range(3)}
    rooms[1].write(0, some_bytes(1))
    weights.keep_only({a_root(0)})
    assert [one.name for one in weights.folder.iterdir()] == [a_root(0).hex()]
    assert bytes(rooms[1].view(0, HALF)) == some_bytes(1), "whoever has it open has it still"
    weights.clear()
    weights.clear()
    assert list(tmp_path.iterdir()) == []
    weights.keep_only(())
    assert isinstance(weights.open(a_root(0), SIZE), FileRoom), "another download begins"


def test_what_nobody_goes_on_with_is_forgotten_after_two_weeks(tmp_path):
    old, fresh = (BegunWeights(tmp_path / one / "default", lambda: None) for one in ("old", "new"))
    for weights in (old, fresh):
        weights.open(a_root(1), SIZE)
    now_s = os.stat(fresh.folder / a_root(1).hex()).st_mtime + OLD_S / 2
    os.utime(old.folder / a_root(1).hex(), (now_s, now_s - OLD_S - 1))
    (tmp_path / "new" / "empty").mkdir()
    forget_old(tmp_path, now_s)
    assert [one.name for one in tmp_path.iterdir()] == ["new"]
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["default"]
    forget_old(tmp_path / "nowhere", now_s)


def test_a_bank_in_files_takes_the_file_as_it_is_and_one_in_memory_a_copy(tmp_path):
    room = begun(tmp_path).open(a_root(1), SIZE)
    room.write(HALF, some_bytes(1))
    values = room.values()
    arrays = MappedArrays(tmp_path / "weights")
    assert arrays.keep(values) is values
    assert arrays.bytes == SIZE
    assert not (tmp_path / "weights").exists()
    copy = in_memory(values)
    assert mapped_file(copy) is None
    np.testing.assert_array_equal(copy, values)
    assert in_memory(copy) is copy
    del values, room
    assert arrays.bytes == 0


def test_of_what_is_zero_a_copy_takes_no_memory(tmp_path):
    room = begun(tmp_path).open(a_root(1), 32 * SIZE)
    process = psutil.Process()
    before = process.memory_full_info().uss
    copy = in_memory(room.values())
    grown = process.memory_full_info().uss - before
    assert not copy.any()
    assert grown < 8 * SIZE
