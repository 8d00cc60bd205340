"""Recordings of a swarm: frames on disk, to look at later what happened.

A recording only grows, by entries of a 4-byte big-endian length, the first 8 bytes of the content's
BLAKE3, and the content as MessagePack. The first entry says that this is a recording. A crash can
tear the last entry: readers leave it out, writers cut it off and go on. Anything else that does
not check is refused, with the offset.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

import msgspec
from blake3 import blake3
from msgspec import Struct

from protocol.errors import UserError
from protocol.tape import MAGIC as TAPE_MAGIC
from tui.frames.frame import Frame, Told

if TYPE_CHECKING:
    from tui.frames.sources import Source
    from tui.recording.playback import Playback

VERSION = 1
FRAME_BYTES_MAX = 64 << 20
"""A thousand learners take 0.4 MB."""

PERIOD_S = 1.0
"""Recorded at most this often."""

EVENTS_PER_FRAME_MAX = 5000

TITLE_BYTES_MAX = 1024

_HEAD_BYTES = 12
_STAMP = b"\xa4at_s\xcb"
"""How a frame begins, behind the byte that says how many fields it has; the time follows."""

_STAMP_BYTES = 1 + len(_STAMP) + 8

Decoded = TypeVar("Decoded")


class _Title(Struct, kw_only=True, forbid_unknown_fields=True):
    """The first entry."""

    shoal_recording: int


class Place(NamedTuple):
    """Where an entry's content lies in the file, and when its frame was recorded."""

    offset: int
    size: int
    at_s: float


class Places(Sequence[Place]):
    """The places of all frames, in 24 bytes each: a recording of a day has a hundred thousand."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._sizes = array("Q")
        self._times = array("d")

    def append(self, place: Place) -> None:
        """One more at the end."""
        self._offsets.append(place.offset)
        self._sizes.append(place.size)
        self._times.append(place.at_s)

    def pop(self) -> Place:
        """Takes the last one away."""
        return Place(self._offsets.pop(), self._sizes.pop(), self._times.pop())

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, number: int) -> Place: ...

    @overload
    def __getitem__(self, number: slice) -> list[Place]: ...

    def __getitem__(self, number: int | slice) -> Place | list[Place]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return Place(self._offsets[number], self._sizes[number], self._times[number])


def entry(content: bytes) -> bytes:
    """`content` with the head that goes before it."""
    return len(content).to_bytes(4, "big") + blake3(content).digest(8) + content


class Recording:
    """A recording that is read. Opening looks at the heads of its entries only; what is asked for
    later is checked and decoded then."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be read, is no recording, or does not chain."""
        self.path = path
        with _said(path, "read"):
            self._file = path.open("rb")
            try:
                self.places, self.bytes_good = _index(self._file.fileno(), path)
            except BaseException:
                self._file.close()
                raise

    def __len__(self) -> int:
        return len(self.places)

    def frame(self, number: int) -> Frame:
        """The frame at this place. Raises UserError if it is damaged, or no frame."""
        return self.decode(number, Frame)

    def decode(self, number: int, wanted: type[Decoded]) -> Decoded:
        """The frame at this place, or those of its fields that `wanted` names. For any thread.

        Raises UserError if it is damaged, or no frame.
        """
        place = self.places[number]
        with _said(self.path, "read"):
            content = _content(self._file.fileno(), place.offset - _HEAD_BYTES, place.size)
        if content is None:
            raise _damaged(self.path, place.offset - _HEAD_BYTES)
        return _decode(content, self.path, place.offset, wanted)

    def close(self) -> None:
        """Nothing is read after this."""
        self._file.close()


def _index(file: int, path: Path) -> tuple[Places, int]:
    """Places of all frames, and the offset at which the good part ends.

    Only heads are read, and the last entry: the end is where a crash leaves something torn.
    """
    places = Places()
    size_all = os.fstat(file).st_size
    title_bytes = _read_title(file, path, size_all)
    offset = _HEAD_BYTES + title_bytes
    while offset < size_all:
        head = os.pread(file, _HEAD_BYTES + _STAMP_BYTES, offset)
        size = int.from_bytes(head[:4], "big")
        end = offset + _HEAD_BYTES + size
        if len(head) < _HEAD_BYTES or end > size_all:
            break  # torn while it was written, or not what it says
        if size > FRAME_BYTES_MAX or (end < size_all and not head.startswith(_STAMP, 13)):
            _check_chain(file, path, places, offset, size)
        places.append(Place(offset + _HEAD_BYTES, size, _stamp(head)))
        offset = end
    while places and _content(file, places[-1].offset - _HEAD_BYTES, places[-1].size) is None:
        if len(places) > 1 and offset < size_all:
            raise _damaged(path, places[-1].offset - _HEAD_BYTES)
        offset = places.pop().offset - _HEAD_BYTES
        size_all = offset
    return places, offset


def _read_title(file: int, path: Path, size_all: int) -> int:
    """Length of the first entry. Raises UserError unless it says that this is a recording."""
    if not size_all:
        raise UserError(f"{path} is no recording of Shoal: it is empty (offset 0).")
    size = int.from_bytes(os.pread(file, 4, 0), "big")
    if os.pread(file, len(TAPE_MAGIC), 0) == TAPE_MAGIC:
        raise UserError(
            f"{path} is a tape of a daemon's events, not a recording of what was shown. Run it "
            f"again with: shoal replay {path}"
        )
    content = _content(file, 0, size) if size <= TITLE_BYTES_MAX else None
    if content is None:
        raise UserError(f"{path} is no recording of Shoal: its first entry is not (offset 0).")
    _check_title(content, path)
    return size


def _check_chain(file: int, path: Path, places: Places, offset: int, size: int) -> None:
    """Where a head does not look like one, either it is damaged or the one before it is."""
    before = places[-1] if places else None
    if before is not None and _content(file, before.offset - _HEAD_BYTES, before.size) is None:
        raise _damaged(path, before.offset - _HEAD_BYTES)
    if size > FRAME_BYTES_MAX or _content(file, offset, size) is None:
        raise _damaged(path, offset)


def _content(file: int, offset: int, size: int) -> bytes | None:
    """The content of the entry at `offset`; None if it does not check."""
    whole = os.pread(file, _HEAD_BYTES + size, offset)
    content = whole[_HEAD_BYTES:]
    is_sound = len(content) == size and blake3(content).digest(8) == whole[4:_HEAD_BYTES]
    return content if is_sound else None


def _stamp(head: bytes) -> float:
    """When the frame was recorded: its first field, which lies right behind the head."""
    if not head.startswith(_STAMP, 13) or len(head) < _HEAD_BYTES + _STAMP_BYTES:
        return math.nan
    told: float = struct.unpack_from(">d", head, 13 + len(_STAMP))[0]
    return told


def _damaged(path: Path, offset: int) -> UserError:
    return UserError(
        f"The recording {path} is damaged at offset {offset}. What lies before can be saved "
        f"with `head -c {offset}`."
    )


def _check_title(content: bytes, path: Path) -> None:
    try:
        title = msgspec.msgpack.decode(content, type=_Title)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is no recording of Shoal: {error} (offset 0).") from error
    if title.shoal_recording != VERSION:
        raise UserError(
            f"The recording {path} is of version {title.shoal_recording}, this Shoal reads "
            f"version {VERSION}."
        )


def _decode(content: bytes, path: Path, offset: int, wanted: type[Decoded]) -> Decoded:
    try:
        return msgspec.msgpack.decode(content, type=wanted)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"The recording {path} holds no frame at offset {offset}: {error}. It may come from "
            "another version of Shoal."
        ) from error


class RecordingWriter:
    """Appends frames to a recording; a new file is begun, a torn end is cut off first."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be written, or is something else than a recording."""
        self.path = path
        is_new = not path.exists() or path.stat().st_size == 0
        bytes_good = 0
        if not is_new:
            former = Recording(path)
            bytes_good = former.bytes_good
            former.close()
        with _said(path, "written"):
            self._file = path.open("ab")
            self._file.truncate(bytes_good)
            if is_new:
                self._append(msgspec.msgpack.encode(_Title(shoal_recording=VERSION)))
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
            f"The recording {path} cannot be {verb}: {error.strerror}. Name another file."
        ) from error


class RecordingSource:
    """A source that also writes what passes through it to a recording."""

    def __init__(self, source: Source, path: Path) -> None:
        """Raises what `RecordingWriter` raises."""
        self._source = source
        self._writer = RecordingWriter(path)

    @property
    def playback(self) -> Playback | None:
        """The controls of what is recorded, if it has any."""
        return self._source.playback

    async def frames(self) -> AsyncIterator[Frame]:
        """The frames of the source; if the recording can take no more, they go on and say so."""
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
