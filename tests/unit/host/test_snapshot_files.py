"""Files of snapshots: whole or not there, and damage with its place."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import Struct

from host.files import snapshot_files as files
from host.runtime.atomic_files import DiskFull
from protocol.errors import CorruptState

ONE, TWO = 1_700_000_000, 1_700_000_060


class Told(Struct, frozen=True):
    number: int


def written(folder, snapshot=ONE):
    partial = files.begin(folder, snapshot, 0)
    summed = files.write_arrays(partial, {"theta": np.arange(700_000, dtype=np.float32)})
    files.seal_file(partial / files.META, Told(7))
    return files.finish(partial, snapshot), summed


def spoil(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


def test_what_was_written_is_read(tmp_path):
    place, summed = written(tmp_path)
    assert (files.read_arrays(place, summed)["theta"] == np.arange(700_000)).all()
    assert files.open_sealed(place / files.META, Told)[0] == Told(7)
    assert files.held(tmp_path) == [ONE]


def test_nothing_is_there_before_it_is_whole(tmp_path):
    partial = files.begin(tmp_path, ONE, 0)
    files.write_arrays(partial, {"theta": np.zeros(8, np.float32)})
    assert files.held(tmp_path) == []
    files.clear_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_altered_byte_is_found_with_its_place(tmp_path):
    place, summed = written(tmp_path)
    spoil(place / files.ARRAYS, 1_500_000)
    with pytest.raises(CorruptState, match=r"arrays.safetensors was altered between byte 1048576"):
        files.check_file(place, summed)


@pytest.mark.parametrize("size", [0, 1_000, 2_000_000])
def test_a_cut_file_is_found_with_its_end(tmp_path, size):
    place, summed = written(tmp_path)
    with (place / files.ARRAYS).open("r+b") as handle:
        handle.truncate(size)
    with pytest.raises(CorruptState, match=f"ends at byte {size} of {summed.size_bytes}"):
        files.check_file(place, summed)


def test_bytes_too_many_are_found(tmp_path):
    place, summed = written(tmp_path)
    with (place / files.ARRAYS).open("ab") as handle:
        handle.write(b"!")
    with pytest.raises(CorruptState, match="goes on behind byte"):
        files.check_file(place, summed)


def test_a_missing_file_is_named(tmp_path):
    place, summed = written(tmp_path)
    (place / files.ARRAYS).unlink()
    with pytest.raises(CorruptState, match=r"arrays.safetensors cannot be read: No such file"):
        files.check_file(place, summed)
    (place / files.META).unlink()
    with pytest.raises(CorruptState, match="meta cannot be read"):
        files.open_sealed(place / files.META, Told)


def test_every_damage_of_a_sealed_file_is_found(tmp_path):
    place, _ = written(tmp_path)
    path = place / files.META
    sound = path.read_bytes()
    for offset in range(len(sound)):
        path.write_bytes(sound)
        spoil(path, offset)
        with pytest.raises(CorruptState, match="byte"):
            files.open_sealed(path, Told)
    for size in range(len(sound)):
        path.write_bytes(sound[:size])
        with pytest.raises(CorruptState, match=r"half written|another beginning"):
            files.open_sealed(path, Told)


def test_without_room_nothing_is_begun(tmp_path):
    with pytest.raises(DiskFull, match="a snapshot needs"):
        files.begin(tmp_path, ONE, 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_only_the_named_stay(tmp_path):
    written(tmp_path, ONE)
    written(tmp_path, TWO)
    (tmp_path / "notes").mkdir()
    files.keep_only(tmp_path, {TWO})
    assert files.held(tmp_path) == [TWO]
    assert (tmp_path / "notes").is_dir()
