"""Tapes on disk: bounded, ended by a full disk, opened after anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tape.tape_file import (
    DISK_FREE_BYTES_MIN,
    QUEUE_BYTES_MAX,
    TapeLabel,
    TapeRecorder,
    TapeWriter,
    find_tapes,
)
from protocol.errors import UserError
from protocol.tape import Base, Fed, Frame, PushPayload, TapeDamaged, TapeEnded

LABEL = TapeLabel(b"p" * 32, "syncer", b"k" * 32, "somebody")
PLENTY = 10 * DISK_FREE_BYTES_MIN
PUSH = PushPayload(b"l" * 32, 1, 1, 0, "int4", b"content")


def writer(folder: Path, *, life: int = 1, mib_max: int = 4) -> TapeWriter:
    return TapeWriter(folder, LABEL, life.to_bytes(8, "big"), mib_max=mib_max, wall_s=float(life))


def noise(number: int) -> Frame:
    """A frame that cannot be compressed."""
    import random

    content = random.Random(number).randbytes(60_000)
    return PushPayload(b"l" * 32, 1, number, 0, "int4", content)


def recorder(
    folder: Path, *, free_bytes: Callable[[Path], int] = lambda _: PLENTY
) -> tuple[TapeRecorder, list[str]]:
    told: list[str] = []
    return TapeRecorder(writer(folder), on_stop=told.append, free_bytes=free_bytes), told


def test_events_and_payloads_lie_in_files_of_their_own(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.put(Fed(1, 2, 3))
    one.put(PUSH)
    one.close()
    (life,) = find_tapes(tmp_path)
    assert [frame for _, frame in life.frames("events")] == [Fed(1, 2, 3)]
    assert [frame for _, frame in life.frames("payloads")] == [PUSH]
    assert life.has_begin()


def test_a_tape_takes_no_more_room_than_it_may(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for number in range(200):
        one.put(noise(number))
    one.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 << 20
    (life,) = find_tapes(tmp_path)
    kept = [frame.sequence for _, frame in life.frames("payloads")]  # type: ignore[union-attr]
    assert kept == list(range(kept[0], 200)), "the newest, without a gap"
    assert kept[0] > 0


def test_a_new_life_makes_room_by_dropping_the_oldest(tmp_path: Path) -> None:
    for life in range(1, 5):
        one = writer(tmp_path, life=life)
        for number in range(30):
            one.put(noise(number))
        one.close()
    lives = find_tapes(tmp_path)
    assert [int.from_bytes(life.preface.life, "big") for life in lives][-1] == 4
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 << 20


def base(version: int, *, is_chained: bool) -> Base:
    return Base(0, version, "theta", is_chained, b"abcd")


def test_bases_are_kept_where_a_file_begins_and_where_a_chain_does(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for version in range(1, 6):
        one.put(base(version, is_chained=True))
    one.put(base(6, is_chained=False))
    one.close()
    (life,) = find_tapes(tmp_path)
    kept = [frame.version for _, frame in life.frames("payloads")]  # type: ignore[union-attr]
    assert kept == [1, 2, 6]


def test_what_is_put_is_on_disk_when_it_is_closed(tmp_path: Path) -> None:
    one, told = recorder(tmp_path)
    for number in range(100):
        one.put(lambda n=number: Fed(n, n, n), 10)  # type: ignore[misc]
    one.close()
    (life,) = find_tapes(tmp_path)
    assert len(list(life.frames("events"))) == 100
    assert not told


def test_a_full_disk_ends_the_tape_and_says_so(tmp_path: Path) -> None:
    one, told = recorder(tmp_path, free_bytes=lambda _: DISK_FREE_BYTES_MIN - 1)
    one.put(lambda: Fed(1, 1, 1), 10)
    one.close()
    assert told == ["its disk has less than 512 MB left"]
    one.put(lambda: Fed(2, 2, 2), 10)  # Does nothing any more.
    (life,) = find_tapes(tmp_path)
    ended = [frame for _, frame in life.frames("events") if isinstance(frame, TapeEnded)]
    assert [frame.reason for frame in ended] == told


def test_an_error_of_the_disk_ends_the_tape_and_nothing_else(tmp_path: Path) -> None:
    one, told = recorder(tmp_path / "tape")
    (tmp_path / "tape").rmdir()
    (tmp_path / "tape").write_text("in the way")
    one.put(lambda: Fed(1, 1, 1), 10)
    one.close()
    assert len(told) == 1
    assert told[0].startswith("it cannot be written: ")


def test_a_slow_disk_ends_the_tape_before_memory_does(tmp_path: Path) -> None:
    gate = threading.Event()

    def stuck(_: Path) -> int:
        gate.wait(60)
        return PLENTY

    one, told = recorder(tmp_path, free_bytes=stuck)
    one.put(lambda: Fed(1, 1, 1), QUEUE_BYTES_MAX)
    one.put(lambda: Fed(1, 1, 1), QUEUE_BYTES_MAX)
    gate.set()
    one.close()
    assert told == ["its disk is too slow"]


def test_a_missing_file_in_the_middle_is_found(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for number in range(60):
        one.put(noise(number))
        one.put(base(number, is_chained=True))
    one.close()
    paths = sorted(tmp_path.glob("*payloads*"))
    assert len(paths) >= 3
    paths[1].unlink()
    (life,) = find_tapes(tmp_path)
    with pytest.raises(TapeDamaged, match="the file before it is missing"):
        list(life.frames("payloads"))


def test_an_empty_file_is_passed_over(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.put(Fed(1, 2, 3))
    one.close()
    (tmp_path / "00000000099999-6162636465666768-events-000000.tape").touch()
    assert len(find_tapes(tmp_path)) == 1


def test_a_file_stands_for_its_whole_life(tmp_path: Path) -> None:
    for life in (1, 2):
        one = writer(tmp_path, life=life)
        one.put(Fed(1, 2, 3))
        one.put(PUSH)
        one.close()
    (life,) = find_tapes(sorted(tmp_path.glob("*events*"))[1])
    assert life.preface.life == (2).to_bytes(8, "big")
    assert set(life.files) == {"events", "payloads"}


def test_no_tape_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file there ends in \.tape"):
        find_tapes(tmp_path)
    with pytest.raises(UserError, match="There is no tape at"):
        find_tapes(tmp_path / "nowhere")


def test_another_file_is_no_tape(tmp_path: Path) -> None:
    path = tmp_path / "readme.tape"
    path.write_text("nothing of the kind")
    with pytest.raises(TapeDamaged, match=r"readme\.tape, at byte 0: this is no tape"):
        find_tapes(path)
