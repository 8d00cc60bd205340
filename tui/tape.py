"""Recordings of a swarm: frames on disk, to look at later what happened.

A tape only grows, by entries of a 4-byte big-endian length, the first 8 bytes of the content's
BLAKE3, and the content as MessagePack. The first entry says that this is a tape. A crash can
tear the last entry: readers leave it out, writers cut it off and go on. Anything else that does
not check is refused, with the offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import msgspec
from blake3 import blake3
from msgspec import Struct

from protocol.errors import UserError
from tui.frames import Frame, Told

if TYPE_CHECKING:
    from tui.playback import Playback
    from tui.sources import Source

VERSION = 1
FRAME_BYTES_MAX = 64 << 20
"""A thousand learners take 0.4 MB."""

PERIOD_S = 1.0
"""Recorded at most this often."""

EVENTS_PER_FRAME_MAX = 5000

_HEAD_BYTES = 12


class _Title(Struct, kw_only=True, forbid_unknown_fields=True):
    """The first entry."""

    shoal_tape: int


class Place(NamedTuple):
    """Where an entry's content lies in the file."""

    offset: int
    size: int


def entry(content: bytes) -> bytes:
    """`content` with the head that goes before it."""
    return len(content).to_bytes(4, "big") + blake3(content).digest(8) + content


class Tape:
    """A tape that is read. Frames are decoded one by one, when asked for."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be read, is no tape, or is damaged inside."""
        self.path = path
        with _said(path, "read"), path.open("rb") as file:
            self.places, self.bytes_good = _index(file, path)

    def __len__(self) -> int:
        return len(self.places)

    def frame(self, number: int) -> Frame:
        """The frame at this place. Raises UserError if what is there is no frame."""
        place = self.places[number]
        with _said(self.path, "read"), self.path.open("rb") as file:
            file.seek(place.offset)
            content = file.read(place.size)
        return _decode(content, self.path, place.offset)


def _index(file: BinaryIO, path: Path) -> tuple[list[Place], int]:
    """Places of all frames, and the offset at which the good part ends."""
    size_all = file.seek(0, 2)
    places: list[Place] = []
    offset = 0
    while offset < size_all:
        file.seek(offset)
        head = file.read(_HEAD_BYTES)
        size = int.from_bytes(head[:4], "big")
        end = offset + _HEAD_BYTES + size
        if places and (len(head) < _HEAD_BYTES or end > size_all):
            break  # torn while it was written
        content = file.read(size) if size <= FRAME_BYTES_MAX and end <= size_all else b""
        if len(content) != size or blake3(content).digest(8) != head[4:]:
            if not places:
                raise UserError(f"{path} is no tape of Shoal: its first entry is not (offset 0).")
            if end == size_all:
                break
            raise UserError(
                f"The tape {path} is damaged at offset {offset}. What lies before can be saved "
                f"with `head -c {offset}`."
            )
        if not places:
            _check_title(content, path)
        places.append(Place(offset + _HEAD_BYTES, size))
        offset = end
    if not places:
        raise UserError(f"{path} is no tape of Shoal: it is empty (offset 0).")
    return places[1:], offset


def _check_title(content: bytes, path: Path) -> None:
    try:
        title = msgspec.msgpack.decode(content, type=_Title)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is no tape of Shoal: {error} (offset 0).") from error
    if title.shoal_tape != VERSION:
        raise UserError(
            f"The tape {path} is of version {title.shoal_tape}, this Shoal reads version {VERSION}."
        )


def _decode(content: bytes, path: Path, offset: int) -> Frame:
    try:
        return msgspec.msgpack.decode(content, type=Frame)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"The tape {path} holds no frame at offset {offset}: {error}. It may come from "
            "another version of Shoal."
        ) from error


class TapeWriter:
    """Appends frames to a tape; a new file is begun, a torn end is cut off first."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be written, or is something else than a tape."""
        self.path = path
        is_new = not path.exists() or path.stat().st_size == 0
        bytes_good = 0 if is_new else Tape(path).bytes_good
        with _said(path, "written"):
            self._file = path.open("ab")
            self._file.truncate(bytes_good)
            if is_new:
                self._append(msgspec.msgpack.encode(_Title(shoal_tape=VERSION)))
        self._written_s: float | None = None
        self._held: list[Told] = []

    def write(self, frame: Frame) -> None:
        """Keeps the frame if the last one is a second old; its events are kept in any case."""
        self._held = [*self._held, *frame.events][-EVENTS_PER_FRAME_MAX:]
        if self._written_s is not None and 0 <= frame.at_s - self._written_s < PERIOD_S - 1e-3:
            return
        kept = msgspec.structs.replace(frame, events=tuple(self._held), is_jump=False)
        with _said(self.path, "written"):
            self._append(msgspec.msgpack.encode(kept))
        self._written_s = frame.at_s
        self._held = []

    def _append(self, content: bytes) -> None:
        self._file.write(entry(content))
        self._file.flush()

    def close(self) -> None:
        """Nothing is written after this."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextlib.contextmanager
def _said(path: Path, verb: str) -> Any:
    """Turns what the system says about the file into words for people."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The tape {path} cannot be {verb}: {error.strerror}. Name another file."
        ) from error


class RecordingSource:
    """A source that also writes what passes through it to a tape."""

    def __init__(self, source: Source, path: Path) -> None:
        """Raises what `TapeWriter` raises."""
        self._source = source
        self._writer = TapeWriter(path)

    @property
    def playback(self) -> Playback | None:
        """The controls of what is recorded, if it has any."""
        return self._source.playback

    async def frames(self) -> AsyncIterator[Frame]:
        """The frames of the source; if the tape can take no more, they go on and say so."""
        trouble = ""
        async for frame in self._source.frames():
            if not trouble:
                try:
                    self._writer.write(frame)
                except UserError as error:
                    trouble = f"Recording stopped. {error}"
            yield msgspec.structs.replace(frame, notice=trouble) if trouble else frame

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        """Passed on."""
        return await self._source.command(verb, target, **fields)
