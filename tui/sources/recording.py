"""Recordings of a swarm: frames on disk, to see later what happened.

A recording only grows, by entries of a 4-byte big-endian length, the first 8 bytes of the content's
BLAKE3, and the content as MessagePack. The first entry names the format. A crash can tear the last
entry: readers leave it out, writers cut it off and go on. Any other damage is refused, with its
offset.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from protocol import decoders
from protocol.errors import UserError
from protocol.tape import MAGIC as TAPE_MAGIC
from tui.frames.frame import Frame, Told
from tui.sources.live import Source

VERSION = 1
FRAME_BYTES_MAX = 64 << 20
"""A thousand learners take 0.4 MB."""

TITLE_BYTES_MAX = 1024
PERIOD_S = 1.0
"""Recorded at most this often."""

EVENTS_PER_FRAME_MAX = 5000

_HEAD_BYTES = 12
_STAMP = b"\xa4at_s\xcb"
"""How a frame begins, behind the byte that counts its fields; the time follows."""

_STAMP_AT = _HEAD_BYTES + 1
_TIME_AT = _STAMP_AT + len(_STAMP)

Decoded = TypeVar("Decoded")


class _Title(Struct, kw_only=True, forbid_unknown_fields=True):
    """The first entry."""

    shoal_recording: int


class Recording:
    """A recording that is read. Opening looks at the heads of its entries only; a frame is checked
    and decoded when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be read, is no recording, or is damaged."""
        self.path = path
        self.offsets = array("Q")
        """Where each frame's entry begins, and where the last one ends: 16 bytes a frame with its
        time, since a recording of a day holds a hundred thousand."""
        self.times_s = array("d")
        """When each frame was recorded: wall clock, Unix seconds."""
        with _told(path, "read"):
            self._file = path.open("rb")
            try:
                self._read_index()
            except BaseException:
                self._file.close()
                raise

    def __len__(self) -> int:
        return len(self.times_s)

    def frame(self, number: int) -> Frame:
        """The frame at this place. Raises UserError if it is damaged, or no frame."""
        return self.decode(number, Frame)

    def decode(self, number: int, wanted: type[Decoded]) -> Decoded:
        """The frame at this place, or those of its fields that `wanted` names. For any thread.

        Raises UserError if it is damaged, or no frame.
        """
        offset = self.offsets[number]
        with _told(self.path, "read"):
            content = self._content(offset, self.size(number))
        if content is None:
            raise self._damaged(offset)
        try:
            return decoders.msgpack_decoder(wanted).decode(content)
        except msgspec.MsgspecError as error:
            raise UserError(
                f"The recording {self.path} holds no frame at offset {offset}: {error}. It may "
                "come from another version of Shoal."
            ) from error

    def size(self, number: int) -> int:
        """Bytes of the frame at this place."""
        return self.offsets[number + 1] - self.offsets[number] - _HEAD_BYTES

    def close(self) -> None:
        """Nothing is read after this."""
        self._file.close()

    def _read_index(self) -> None:
        """Finds all frames by the heads of their entries; of contents it checks the last one's,
        where a crash leaves something torn."""
        file_bytes = os.fstat(self._file.fileno()).st_size
        self.offsets.append(self._read_title())
        while (offset := self.offsets[-1]) < file_bytes:
            head = os.pread(self._file.fileno(), _TIME_AT + 8, offset)
            end = offset + _HEAD_BYTES + int.from_bytes(head[:4], "big")
            if len(head) < _TIME_AT + 8 or end > file_bytes:
                break  # torn while it was written
            is_stamped = head.startswith(_STAMP, _STAMP_AT) or end == file_bytes
            if end - offset > FRAME_BYTES_MAX or not is_stamped:
                raise self._damaged(offset if self._is_last_sound() else self.offsets[-2])
            self.times_s.append(struct.unpack_from(">d", head, _TIME_AT)[0])
            self.offsets.append(end)
        if not self._is_last_sound():
            if self.offsets[-1] < file_bytes:
                raise self._damaged(self.offsets[-2])
            self.offsets.pop()
            self.times_s.pop()

    def _is_last_sound(self) -> bool:
        """Whether the last frame found so far checks."""
        last = len(self) - 1
        return last < 0 or self._content(self.offsets[last], self.size(last)) is not None

    def _read_title(self) -> int:
        """Length of the first entry. Raises UserError unless it names this format."""
        head = os.pread(self._file.fileno(), max(_HEAD_BYTES, len(TAPE_MAGIC)), 0)
        if head.startswith(TAPE_MAGIC):
            raise UserError(
                f"{self.path} is a tape of a daemon's events, not a recording of the screen. "
                f"Run it again with: shoal replay {self.path}"
            )
        size = int.from_bytes(head[:4], "big")
        content = self._content(0, size) if len(head) and size <= TITLE_BYTES_MAX else None
        try:
            title = decoders.msgpack_decoder(_Title).decode(content or b"")
        except msgspec.MsgspecError as error:
            raise UserError(f"{self.path} is no recording of Shoal (offset 0).") from error
        if title.shoal_recording != VERSION:
            raise UserError(
                f"The recording {self.path} has version {title.shoal_recording}; this Shoal reads "
                f"version {VERSION}."
            )
        return _HEAD_BYTES + size

    def _content(self, offset: int, size: int) -> bytes | None:
        """The content of the entry at `offset`; None if it does not check."""
        whole = os.pread(self._file.fileno(), _HEAD_BYTES + size, offset)
        content = whole[_HEAD_BYTES:]
        is_sound = len(content) == size and blake3(content).digest(8) == whole[4:_HEAD_BYTES]
        return content if is_sound else None

    def _damaged(self, offset: int) -> UserError:
        return UserError(
            f"The recording {self.path} is damaged at offset {offset}. Save what lies before it "
            f"with: head -c {offset}"
        )


class RecordingWriter:
    """Appends frames to a recording; begins a new file, or cuts off a torn end first."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be written, or is something else than a recording."""
        self.path = path
        with _told(path, "written"):
            is_new = not path.exists() or path.stat().st_size == 0
        good_bytes = 0
        if not is_new:
            former = Recording(path)
            good_bytes = former.offsets[-1]
            former.close()
        with _told(path, "written"):
            self._file = path.open("ab")
            self._file.truncate(good_bytes)
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
        with _told(self.path, "written"):
            self._append(msgspec.msgpack.encode(kept))
        self._written_s = frame.at_s
        self._held = []

    def _append(self, content: bytes) -> None:
        head = len(content).to_bytes(4, "big") + blake3(content).digest(8)
        self._file.write(head + content)
        self._file.flush()

    def close(self) -> None:
        """Nothing is written after this."""
        self._file.close()


@contextlib.contextmanager
def _told(path: Path, verb: str) -> Iterator[None]:
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
        self.playback = source.playback
        self.command = source.command

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
