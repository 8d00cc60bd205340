from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest

from host.runtime.atomic_files import DISK_FREE_BYTES_MIN, DiskFull
from protocol import limits, wire
from protocol.errors import CorruptState, TransientError, UserError
from protocol.log.records import SeatTaken
from protocol.numerics.outer import digest
from syncer_node.storage import store as store_module
from syncer_node.storage.store import (
    CHECKPOINTS_KEPT,
    Checkpoint,
    Store,
    find_checkpoint,
    read_checkpoint,
)
from syncer_node.storage.write_ahead_log import WriteAheadLog
from tests.support.builders import SYNCER, Log, weights

NAME = digest(b"payload")
FRAMES = [b"first", b"", b"x" * 1000]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store")
    yield made
    made.close()


def written(path, frames=FRAMES):
    file = WriteAheadLog(path)
    for frame in frames:
        file.append(frame, durable=True)
    file.close()
    return path.read_bytes()


def a_checkpoint(index, *, fragments=2, summary=None, versions=None):
    values = [np.arange(128, dtype=np.float32) + index + at for at in range(fragments)]
    return Checkpoint(
        index, values, [v * -1 for v in values], versions or [index] * fragments, summary
    )


def fail(error):
    def failing(*_, **__):
        raise OSError(error, os.strerror(error))

    return failing


# Frames


def test_frames_come_back_in_order_after_a_restart(path):
    written(path)
    again = WriteAheadLog(path)
    assert list(again.frames()) == FRAMES
    assert [again.read(at) for at in range(3)] == FRAMES
    assert (len(again), again.cut_bytes) == (3, 0)
    assert list(again.frames(2)) == FRAMES[2:]
    assert list(again.frames(3)) == []


def test_a_torn_tail_is_cut_wherever_it_was_torn_and_the_log_goes_on(tmp_path):
    whole = written(tmp_path / "whole")
    two = len(written(tmp_path / "two", FRAMES[:2]))
    for size in (two + 1, two + 4, two + 11, two + 12, two + 500, len(whole) - 1):
        path = tmp_path / f"torn {size}"
        path.write_bytes(whole[:size])
        file = WriteAheadLog(path)
        assert list(file.frames()) == FRAMES[:2]
        assert file.cut_bytes == size - two
        file.append(b"after", durable=True)
        file.close()
        assert list(WriteAheadLog(path).frames()) == [*FRAMES[:2], b"after"]


@pytest.mark.parametrize("at", [0, 3, 4, 11, 12, 16])
def test_a_flipped_byte_ends_the_log_there(path, at):
    spoilt = bytearray(written(path))
    spoilt[at] ^= 0x40
    path.write_bytes(spoilt)
    file = WriteAheadLog(path)
    assert len(file) == 0
    assert file.cut_bytes == len(spoilt)


def test_a_flipped_byte_in_the_middle_keeps_what_was_before(path):
    spoilt = bytearray(written(path))
    spoilt[len(spoilt) // 2] ^= 1
    path.write_bytes(spoilt)
    assert list(WriteAheadLog(path).frames()) == FRAMES[:2]


def test_a_frame_that_is_damaged_while_the_log_is_open_is_noticed(path):
    written(path)
    file = WriteAheadLog(path)
    spoilt = bytearray(path.read_bytes())
    spoilt[-1] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(CorruptState, match="damaged at frame 2"):
        file.read(2)
    with pytest.raises(CorruptState, match="changed while"):
        list(file.frames())


def test_an_announced_length_beyond_any_frame_is_not_read(path):
    path.write_bytes((limits.FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(100))
    assert len(WriteAheadLog(path)) == 0


def test_a_log_is_closed_to_other_users(path):
    written(path)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_cuts_the_frame_back_and_the_next_append_works(path, monkeypatch, error):
    before = written(path)
    file = WriteAheadLog(path)
    monkeypatch.setattr(os, "fsync", fail(error))
    with pytest.raises(DiskFull, match="disk is full"):
        file.append(b"lost", durable=True)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert len(file) == 3
    file.append(b"kept", durable=True)
    assert list(file.frames()) == [*FRAMES, b"kept"]
    file.close()
    assert list(WriteAheadLog(path).frames()) == [*FRAMES, b"kept"]


def test_any_other_trouble_of_the_disk_is_for_another_try(path, monkeypatch):
    file = WriteAheadLog(path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(TransientError) as caught:
        file.append(b"lost", durable=True)
    assert not isinstance(caught.value, DiskFull)
    assert len(file) == 0


# The log


def test_records_are_appended_in_order_only(store):
    log = Log(SeatTaken(SYNCER.key), weights())
    store.voter.append(0, log.encoded[:1])
    with pytest.raises(TransientError, match="record 3 waits for record 2"):
        store.voter.append(2, log.encoded[1:])
    store.voter.append(1, log.encoded[1:])
    assert list(store.voter.log.frames()) == log.encoded


def test_certificates_may_lag_but_never_skip(store):
    log = Log(SeatTaken(SYNCER.key), weights())
    one, two = (entry.certificate for entry in log.entries)
    store.voter.keep_certificate(one)
    assert store.voter.certificate(1) is None  # Its record is not here yet.
    store.voter.append(0, log.encoded)
    store.voter.keep_certificate(two)
    assert store.voter.certificate(2) is None
    store.voter.keep_certificate(one)
    store.voter.keep_certificate(one)
    store.voter.keep_certificate(two)
    assert (store.voter.certificate(1), store.voter.certificate(2)) == (one, two)
    assert store.voter.certificate(0) is store.voter.certificate(3) is None


def test_a_disk_below_its_reserve_takes_no_record_and_no_payload(store, monkeypatch):
    usage = shutil.disk_usage(store.root)
    nearly = usage._replace(free=DISK_FREE_BYTES_MIN - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nearly)
    with pytest.raises(DiskFull, match="255 MB left of the 256 MB"):
        store.voter.append(0, [b"record"])
    with pytest.raises(DiskFull):
        store.write_payload(0, 1, NAME, b"payload")
    assert len(store.voter.log) == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=DISK_FREE_BYTES_MIN))
    store.voter.append(0, [b"record"])


# Payloads


def test_a_payload_comes_back_and_a_missing_one_is_told(store):
    store.write_payload(3, 14, NAME, b"payload")
    assert store.read_payload(3, 14, NAME) == b"payload"
    with pytest.raises(CorruptState, match="payload 3 v15"):
        store.read_payload(3, 15, NAME)


def test_a_damaged_payload_is_set_aside_and_not_deleted(store):
    store.write_payload(0, 1, NAME, b"payload")
    (place,) = (store.root / "payloads").iterdir()
    place.write_bytes(b"Payload")
    with pytest.raises(CorruptState, match="damaged and was set aside"):
        store.read_payload(0, 1, NAME)
    assert not place.exists()
    assert place.with_suffix(".corrupt").read_bytes() == b"Payload"


def test_a_payload_that_could_not_be_written_whole_is_not_there(store, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    with pytest.raises(DiskFull):
        store.write_payload(0, 1, NAME, b"payload")
    monkeypatch.undo()
    with pytest.raises(CorruptState):
        store.read_payload(0, 1, NAME)


# Checkpoints


def equal(one, other):
    arrays = zip(one.theta + one.momentum, other.theta + other.momentum, strict=True)
    return (one.index, one.versions, one.summary) == (
        other.index,
        other.versions,
        other.summary,
    ) and all(a.tobytes() == b.tobytes() for a, b in arrays)


def test_a_checkpoint_comes_back_bit_for_bit(store):
    summary = Log(SeatTaken(SYNCER.key), weights()).state.summary()
    odd = a_checkpoint(7, summary=summary)
    odd.theta[0][:4] = [-0.0, 1e-45, 3.4e38, np.pi]
    place = store.write_checkpoint(odd)
    assert equal(read_checkpoint(place), odd)
    assert wire.encode(read_checkpoint(place).summary) == wire.encode(summary)
    assert store.checkpoints() == [7]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_checkpoint_is_there_whole_or_not_at_all(store, monkeypatch, step):
    store.write_checkpoint(a_checkpoint(1))
    target = (os, "fsync") if step == "fsync" else (store_module.Path, "rename")
    monkeypatch.setattr(*target, fail(errno.ENOSPC))
    with pytest.raises(DiskFull, match="checkpoint 2"):
        store.write_checkpoint(a_checkpoint(2))
    monkeypatch.undo()
    assert store.checkpoints() == [1]
    store.write_checkpoint(a_checkpoint(2))
    assert equal(read_checkpoint(store.root / "checkpoints" / "2"), a_checkpoint(2))


def damage_missing_tensors(place):
    (place / "state.safetensors").unlink()


def damage_missing_meta(place):
    (place / "meta").unlink()


def damage_truncated_tensors(place):
    os.truncate(place / "state.safetensors", 100)


def damage_empty_tensors(place):
    os.truncate(place / "state.safetensors", 0)


def damage_truncated_meta(place):
    os.truncate(place / "meta", 3)


def damage_a_bit_of_meta(place):
    content = bytearray((place / "meta").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "meta").write_bytes(content)


def damage_noise_in_meta(place):
    (place / "meta").write_bytes(b"\xc1" * 50)


def damage_text_in_meta(place):
    (place / "meta").write_bytes(b"\x92\x91\xa2\xff\xfe\xc0")


def damage_header(place):
    content = bytearray((place / "state.safetensors").read_bytes())
    content[8:24] = b"\xff" * 16
    (place / "state.safetensors").write_bytes(content)


def damage_a_tensor_less(place):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(place / "state.safetensors")
    del tensors["momentum.0001"]
    save_file(tensors, place / "state.safetensors")


@pytest.mark.parametrize(
    "damage",
    [value for name, value in sorted(globals().items()) if name.startswith("damage_")],
    ids=lambda damage: damage.__name__.removeprefix("damage_"),
)
def test_a_damaged_checkpoint_is_told_as_such(store, damage):
    place = store.write_checkpoint(a_checkpoint(1))
    damage(place)
    with pytest.raises(CorruptState, match="checkpoints/1 is damaged"):
        read_checkpoint(place)


def test_a_checkpoint_set_aside_is_kept_but_not_listed(store):
    store.write_checkpoint(a_checkpoint(1))
    store.write_checkpoint(a_checkpoint(2))
    store.set_aside(2)
    assert store.checkpoints() == [1]
    assert (store.root / "checkpoints" / "2.corrupt" / "meta").is_file()
    store.set_aside(99)


def test_pruning_keeps_the_newest_and_whatever_is_named(store):
    for index in range(1, 7):
        store.write_checkpoint(a_checkpoint(index))
    store.prune([0, 0], keep={2})
    newest = list(range(6, 6 - CHECKPOINTS_KEPT, -1))
    assert store.checkpoints() == [*newest, 2]


def test_pruning_drops_exactly_the_payloads_that_no_recovery_needs(store):
    for fragment in (0, 1):
        for version in (1, 2, 3):
            store.write_payload(fragment, version, NAME, b"payload")
    store.prune([1, 2], keep=set())
    left = sorted(path.name for path in (store.root / "payloads").iterdir())
    assert left == [f"{name}-{NAME[:8].hex()}.bin" for name in ("0-2", "0-3", "1-3")]


def test_what_a_crash_left_half_written_does_not_stop_pruning(store):
    store.write_payload(0, 1, NAME, b"payload")
    for partial in (".0-2.bin.partial", ".11-340.bin.partial"):
        (store.root / "payloads" / partial).write_bytes(b"pay")
    store.prune([1, 0], keep=set())
    assert list((store.root / "payloads").iterdir()) == []


def test_rival_payloads_of_one_version_lie_beside_one_another_and_go_together(store):
    other = digest(b"another")
    store.write_payload(0, 1, NAME, b"payload")
    store.write_payload(0, 1, other, b"another")
    assert store.read_payload(0, 1, NAME) == b"payload"
    assert store.read_payload(0, 1, other) == b"another"
    assert bytes(store.find_payload(other)) == b"another"
    store.prune([1], keep=set())
    assert store.find_payload(NAME) is store.find_payload(other) is None


# Finding one


def test_the_newest_the_best_and_a_numbered_checkpoint_are_found(store):
    for index in (5, 40, 300):
        store.write_checkpoint(a_checkpoint(index))
    store.name_best(40)
    found = {which: find_checkpoint(store.root, which).name for which in ("latest", "best", "5")}
    assert found == {"latest": "300", "best": "40", "5": "5"}


def test_the_best_is_the_newest_while_none_was_measured_or_it_is_gone(store):
    store.write_checkpoint(a_checkpoint(5))
    assert find_checkpoint(store.root, "best").name == "5"
    store.name_best(77)
    assert find_checkpoint(store.root, "best").name == "5"


def test_without_any_checkpoint_the_user_is_told_what_to_do(store):
    with pytest.raises(UserError, match=r"no checkpoint under .* yet: run"):
        find_checkpoint(store.root, "best")


@pytest.mark.parametrize("which", ["6", "newest", "-1", ""])
def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(store, which):
    for index in (5, 40):
        store.write_checkpoint(a_checkpoint(index))
    store.set_aside(40)
    with pytest.raises(UserError, match=r"Choose best, latest, or one of: 5\."):
        find_checkpoint(store.root, which)


def test_a_damaged_note_of_the_best_falls_back_to_the_newest(store):
    store.write_checkpoint(a_checkpoint(5))
    (store.root / "checkpoints" / "best").write_bytes(b"")
    assert find_checkpoint(store.root, "best").name == "5"
