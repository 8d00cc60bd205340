"""A tape on disk: files of bounded size, the oldest dropped first, written by a thread of its own.

    DIR/<start>-<life>-events-000000.tape       every input of a machine
    DIR/<start>-<life>-payloads-000000.tape     what pushes weighed, for a window

Recording never holds up what it records: frames are queued, and a full disk, a slow one, or an
error stops the tape, which says so, and nothing else. What is written survives the death of the
process; after a power cut the last seconds may be missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from protocol import tape
from protocol.errors import UserError

log = logging.getLogger("shoal.tape")

SUFFIX: Final = ".tape"
EVENTS_SHARE: Final = 0.5
"""Of the room a tape may take; the rest is for payloads."""

FILES_PER_STRAND: Final = 4
GROUP_BYTES: Final = 64 << 10
"""Frames are written when there are so many, or after `FLUSH_S`."""

FLUSH_S: Final = 0.5
QUEUE_BYTES_MAX: Final = 256 << 20
DISK_FREE_BYTES_MIN: Final = 512 << 20
"""Twice what merging needs free: the tape stops long before merging has to."""

BASES_PER_FILE: Final = 2
"""Bases of each fragment in a file: pushes of the first merge may be in the file before it."""

NO_VERSION: Final = -1

BASE_BYTES: Final = 15
"""Value, momentum and carried error of one parameter, and what was merged of it lately, as int4."""

MIB_MIN: Final = 4


def mib_for_payloads(parameters: int) -> int:
    """Least `mib_max` with which the payloads of a model of this size can be kept."""
    one_file = 2 * BASES_PER_FILE * BASE_BYTES * parameters
    return 1 + (int(FILES_PER_STRAND * one_file / (1 - EVENTS_SHARE)) >> 20)


@dataclass(frozen=True, slots=True)
class TapeLabel:
    """Whose tape it is."""

    project: bytes
    role: tape.Role
    key: bytes
    name: str
    scheme: tape.Scheme = "ed25519"


@dataclass(slots=True)
class _Strand:
    """The file being written, and what is to go into it."""

    name: tape.Strand
    budget: int
    handle: BinaryIO | None = None
    number: int = 0
    size: int = 0
    writing: tape.TapeWriting | None = None
    former: bytes = b""
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0
    bases: dict[int, set[int]] = field(default_factory=dict)
    """Versions of each fragment whose base is in this file."""

    @property
    def limit(self) -> int:
        """What one file takes at most, but for its last group."""
        share = self.budget // FILES_PER_STRAND
        return share if self.name == "events" else share + share // 2


class TapeWriter:
    """Writes the files of one life, in the caller's own thread. Raises OSError."""

    def __init__(
        self, folder: Path, label: TapeLabel, life: bytes, *, mib_max: int, wall_s: float
    ) -> None:
        """mib_max: what all files here may take together. wall_s: when this life began."""
        self.folder = folder
        self._label = label
        self._life = life
        self._wall_s = wall_s
        room = max(MIB_MIN, mib_max) << 20
        events = int(room * EVENTS_SHARE)
        self._strands = {
            "events": _Strand("events", events),
            "payloads": _Strand("payloads", room - events),
        }
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def state_every_bytes(self) -> int:
        """How much may be told between two states, so that most files have one to begin from."""
        return self._strands["events"].limit

    def put(self, frame: tape.Frame) -> None:
        """Add a frame; payloads go to their own files."""
        is_payload = isinstance(frame, tape.PushPayload | tape.Base)
        strand = self._strands["payloads" if is_payload else "events"]
        if isinstance(frame, tape.Base) and not self._wants(strand, frame):
            return
        if isinstance(frame, tape.MachineState):
            # Merging can go on from here with one more base of each fragment.
            bases = self._strands["payloads"].bases
            bases.update({fragment: {NO_VERSION} for fragment in bases})
        encoded = tape.encode_frame(frame)
        strand.waiting.append(encoded)
        strand.waiting_bytes += len(encoded)
        if strand.waiting_bytes >= GROUP_BYTES:
            self._write(strand)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for strand in self._strands.values():
            self._write(strand)

    def close(self, reason: str = "") -> None:
        """End the tape; with a reason it is said in its last frame."""
        try:
            if reason:
                self.put(tape.TapeEnded(reason))
            self.flush()
        finally:
            for strand in self._strands.values():
                if strand.handle is not None:
                    strand.handle.close()
                    strand.handle = None

    def _wants(self, strand: _Strand, base: tape.Base) -> bool:
        if base.part == "theta" and strand.size >= strand.budget // FILES_PER_STRAND:
            self._turn(strand)  # Here a file is of most use by itself.
        versions = strand.bases.setdefault(base.fragment, set())
        is_new = base.version not in versions
        if is_new and base.is_chained and len(versions) >= BASES_PER_FILE:
            return False
        versions.add(base.version)
        return True

    def _write(self, strand: _Strand) -> None:
        if not strand.waiting:
            return
        if strand.handle is None:
            self._open(strand)
        elif strand.size >= strand.limit:
            self._turn(strand)
            self._open(strand)
        assert strand.handle is not None
        assert strand.writing is not None
        frames, strand.waiting, strand.waiting_bytes = strand.waiting, [], 0
        data = strand.writing.group(frames)
        strand.handle.write(data)
        strand.handle.flush()
        strand.size += len(data)

    def _turn(self, strand: _Strand) -> None:
        """The next frames go into a new file."""
        if strand.size < strand.limit:
            self._write(strand)
        if strand.handle is not None:
            strand.handle.close()
        if strand.writing is not None:
            strand.former = strand.writing.chain
        strand.handle, strand.bases, strand.size = None, {}, 0
        strand.number += 1

    def _open(self, strand: _Strand) -> None:
        label = self._label
        strand.writing = tape.TapeWriting(
            tape.Preface(
                version=tape.VERSION,
                project=label.project,
                role=label.role,
                key=label.key,
                scheme=label.scheme,
                strand=strand.name,
                life=self._life,
                number=strand.number,
                former=strand.former,
                wall_s=self._wall_s,
                name=label.name,
            ),
            is_packed=strand.name == "events",
        )
        self._make_room(strand)
        name = f"{int(self._wall_s * 1000):014d}-{self._life.hex()}-{strand.name}"
        path = self.folder / f"{name}-{strand.number:06d}{SUFFIX}"
        strand.handle = path.open("xb")
        strand.handle.write(strand.writing.first)
        strand.size = len(strand.writing.first)

    def _make_room(self, strand: _Strand) -> None:
        """Drop the oldest files of this strand until one more fits."""
        paths = sorted(self.folder.glob(f"*-{strand.name}-*{SUFFIX}"))
        sizes = [path.stat().st_size for path in paths]
        room = strand.budget - strand.limit - GROUP_BYTES
        while paths and sum(sizes) > room:
            paths.pop(0).unlink()
            sizes.pop(0)


class TapeRecorder:
    """A queue in front of a `TapeWriter`: `put` costs the caller next to nothing."""

    def __init__(
        self,
        writer: TapeWriter,
        *,
        on_stop: Callable[[str], None],
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        """on_stop: told, on the tape's own thread, why the tape stopped before its end."""
        self._writer = writer
        self._on_stop = on_stop
        self._free_bytes = free_bytes or (lambda path: shutil.disk_usage(path).free)
        self._queue: deque[tuple[Callable[[], tape.Frame], int]] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self.stopped = ""
        """Why nothing is recorded any more; empty while something is."""
        self._thread = threading.Thread(target=self._run, name="tape", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return not self.stopped

    @property
    def state_every_bytes(self) -> int:
        """As the writer says."""
        return self._writer.state_every_bytes

    def put(self, frame: Callable[[], tape.Frame], size: int, *, is_urgent: bool = False) -> None:
        """Record what this gives, soon and on another thread.

        size: about how many bytes. is_urgent: at once, for others may count on it.
        """
        if self.stopped:
            return
        with self._changed:
            self._queue.append((frame, size))
            self._queued_bytes += size
            is_too_much = self._queued_bytes > QUEUE_BYTES_MAX
            if is_urgent or size > GROUP_BYTES or is_too_much:
                self._changed.notify()
        if is_too_much:
            self.stop("its disk is too slow")

    def stop(self, reason: str) -> None:
        """Record nothing more; the rest goes on."""
        with self._changed:
            if self.stopped:
                return
            self.stopped = reason
            self._changed.notify()
        self._on_stop(reason)

    def close(self) -> None:
        """Write what is queued and end. Bounded: what a dead disk does not take is given up."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            while not self.stopped and not self._is_closing:
                with self._changed:
                    self._changed.wait(FLUSH_S)
                self._take()
            self._writer.close(self.stopped)
        except OSError as error:
            self.stop(f"it cannot be written: {error.strerror or error}")
            with contextlib.suppress(OSError):
                self._writer.close()

    def _take(self) -> None:
        if self._free_bytes(self._writer.folder) < DISK_FREE_BYTES_MIN:
            self.stop(f"its disk has less than {DISK_FREE_BYTES_MIN >> 20} MB left")
            return
        with self._changed:
            taken, self._queue, self._queued_bytes = self._queue, deque(), 0
        for frame, _ in taken:
            self._writer.put(frame())
        self._writer.flush()


# Reading.


@dataclass(slots=True)
class TapeFile:
    """One file of a tape, known by its preface."""

    path: Path
    preface: tape.Preface
    cut_bytes: int = 0
    """Half-written bytes at its end, once it is read."""
    size: int = 0

    def groups(self) -> Iterator[tape.Group]:
        """Its sound groups. Raises TapeDamaged with file and offset."""
        with self.path.open("rb") as handle:
            reading = tape.TapeReading(handle.read, str(self.path))
            yield from reading.groups()
            self.cut_bytes, self.size = reading.cut_bytes, reading.offset


@dataclass(slots=True)
class TapeLife:
    """The tape of one daemon from its start to its end: its files, in order."""

    files: dict[tape.Strand, list[TapeFile]] = field(default_factory=dict)

    @property
    def preface(self) -> tape.Preface:
        return next(iter(self.files.values()))[0].preface

    def has_begin(self) -> bool:
        """Whether its first events are still there."""
        events = self.files.get("events", [])
        return bool(events) and events[0].preface.number == 0

    def frames(self, strand: tape.Strand) -> Iterator[tuple[str, tape.Frame]]:
        """Every frame with its place, as `file, at byte N`. Raises TapeDamaged."""
        former: bytes | None = None
        files = self.files.get(strand, [])
        for at, file in enumerate(files):
            if former is not None and file.preface.former != former:
                raise tape.TapeDamaged(f"{file.path}, at byte 0: the file before it is missing")
            for one in file.groups():
                former = one.checksum
                for frame in one.frames:
                    yield f"{file.path}, group at byte {one.offset}", frame
            if file.cut_bytes and at < len(files) - 1:
                raise tape.TapeDamaged(f"{file.path}, at byte {file.size}: its end is missing")

    def cuts(self) -> list[tuple[Path, int, int]]:
        """Files whose end is half written: (file, offset, bytes), as far as they are read."""
        every = (file for files in self.files.values() for file in files)
        return [(file.path, file.size, file.cut_bytes) for file in every if file.cut_bytes]


def find_tapes(place: Path) -> list[TapeLife]:
    """All tapes below a directory, or the one that a file belongs to, oldest first.

    Raises UserError if there are none, TapeDamaged if a preface cannot be read. A file that holds
    no whole preface, as after a kill at its birth, is passed over if another file is there; so is
    one of another version of Shoal, with a warning.
    """
    if not place.exists():
        raise UserError(f"There is no tape at {place}.")
    paths = [place] if place.is_file() else sorted(place.rglob(f"*{SUFFIX}"))
    if not paths:
        raise UserError(f"There is no tape below {place}: no file there ends in {SUFFIX}.")
    lives: dict[tuple[bytes, bytes], TapeLife] = {}
    others: list[tape.OtherTapeVersion] = []
    for path in sorted(paths, key=lambda one: one.name):
        if path.stat().st_size == 0 and len(paths) > 1:
            continue  # Its daemon was killed between making the file and writing to it.
        try:
            file = TapeFile(path, read_preface(path))
        except tape.OtherTapeVersion as error:
            others.append(error)
            continue
        life = lives.setdefault((file.preface.key, file.preface.life), TapeLife())
        life.files.setdefault(file.preface.strand, []).append(file)
    for other in others:
        if not lives:
            raise other
        log.warning("skipped: %s", other)
    if place.is_file():
        return _with_siblings(place, next(iter(lives.values())))
    return list(lives.values())


def _with_siblings(path: Path, life: TapeLife) -> list[TapeLife]:
    """A file stands for the whole life that it is a part of."""
    preface = life.preface
    key = (preface.key, preface.life)
    siblings = find_tapes(path.parent) if path.suffix == SUFFIX else [life]
    found = (one for one in siblings if (one.preface.key, one.preface.life) == key)
    return [next(found, life)]


def read_preface(path: Path) -> tape.Preface:
    """What a file says of itself. Raises TapeDamaged or UserError."""
    try:
        with path.open("rb") as handle:
            return tape.TapeReading(handle.read, str(path)).preface
    except OSError as error:
        raise UserError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
