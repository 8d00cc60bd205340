"""A syncer's disk: the record log, merged payloads, checkpoints.

    log             every record, framed and checksummed, fsynced one by one; a torn tail is cut
    certificates    the proof of each record, beside the log; may lag behind it after a power loss
    payloads/       merged displacements since the oldest checkpoint that is kept
    checkpoints/N/  theta, momentum and the folded log as of record N; 0 holds the first weights
    checkpoints/best

Everything is written beside its place, fsynced and renamed. A file whose content does not match
what the log says about it is set aside with the suffix `.corrupt`, never deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from protocol import limits, wire
from protocol.errors import CorruptState, TransientError, UserError
from protocol.messages import Certificate
from protocol.state import SwarmSummary

F32 = NDArray[np.float32]
CHECKSUM_BYTES = 8
LENGTH_BYTES = 4
CHECKPOINTS_KEPT = 3
DISK_FREE_BYTES_MIN = 256 << 20
"""Merging pauses before the disk is so full that other programs suffer."""


class DiskFull(TransientError):
    """There is no room; merging pauses and resumes by itself."""


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn the operating system's complaints into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk is full, {what} was not written; merging resumes when space is free"
            ) from error
        raise TransientError(f"{what} was not written: {error.strerror}") from error


class FrameFile:
    """An append-only file of checksummed frames. A half-written last frame is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: list[int] = []
        self._end = 0
        self._handle: BinaryIO | None = None
        self.cut_bytes = self._scan()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, content: bytes, *, durable: bool) -> None:
        """Add a frame behind the last; on return it is on disk if `durable`.

        After any failure the file is cut back and opened anew: a failed fsync says nothing about
        what a later one on the same handle would mean.
        """
        checksum = blake3(content).digest(CHECKSUM_BYTES)
        frame = len(content).to_bytes(LENGTH_BYTES, "big") + checksum + content
        with writing(self.path.name):
            try:
                handle = self._open()
                handle.write(frame)
                handle.flush()
                if durable:
                    os.fsync(handle.fileno())
            except OSError:
                self.close()
                with contextlib.suppress(OSError):
                    os.truncate(self.path, self._end)
                raise
        self._offsets.append(self._end)
        self._end += len(frame)

    def read(self, at: int) -> bytes:
        """The frame at this position, counted from 0."""
        with self.path.open("rb") as handle:
            handle.seek(self._offsets[at])
            content = _read_frame(handle)
        if content is None:
            raise CorruptState(f"{self.path} is damaged at frame {at}")
        return content

    def frames(self, start: int = 0) -> Iterator[bytes]:
        """All frames from this position on."""
        if start >= len(self._offsets):
            return
        with self.path.open("rb") as handle:
            handle.seek(self._offsets[start])
            for _ in range(start, len(self._offsets)):
                content = _read_frame(handle)
                if content is None:
                    raise CorruptState(f"{self.path} changed while it was read")
                yield content

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                handle.close()

    def _open(self) -> BinaryIO:
        if self._handle is None:
            os.truncate(self.path, self._end)
            self._handle = self.path.open("ab")
        return self._handle

    def _scan(self) -> int:
        """Find the frames; bytes after the last sound one are cut when something is appended."""
        self.path.touch(mode=0o600)
        with self.path.open("rb") as handle:
            while _read_frame(handle) is not None:
                self._offsets.append(self._end)
                self._end = handle.tell()
        return self.path.stat().st_size - self._end


def _read_frame(handle: BinaryIO) -> bytes | None:
    header = handle.read(LENGTH_BYTES + CHECKSUM_BYTES)
    if len(header) < LENGTH_BYTES + CHECKSUM_BYTES:
        return None
    size = int.from_bytes(header[:LENGTH_BYTES], "big")
    if size > limits.FRAME_BYTES_MAX:
        return None
    content = handle.read(size)
    if len(content) < size or blake3(content).digest(CHECKSUM_BYTES) != header[LENGTH_BYTES:]:
        return None
    return content


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All fragments as of one log index."""

    index: int
    theta: list[F32]
    momentum: list[F32]
    versions: list[int]
    summary: SwarmSummary | None
    """The folded log; None for the first weights, which precede it."""


class Store:
    """One project's files on a syncer's disk. Not thread-safe: one thread writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("payloads", "checkpoints"):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for partial in (root / "checkpoints").glob(".*.partial"):
            shutil.rmtree(partial, ignore_errors=True)  # Half written when the syncer died.
        self.log = FrameFile(root / "log")
        self.certificates = FrameFile(root / "certificates")

    def require_space(self) -> None:
        """Raise DiskFull while the disk has less than the reserve free."""
        free = shutil.disk_usage(self.root).free
        if free < DISK_FREE_BYTES_MIN:
            raise DiskFull(
                f"the disk of {self.root} has {free >> 20} MB left of the "
                f"{DISK_FREE_BYTES_MIN >> 20} MB that merging needs; free some space"
            )

    def append(self, index: int, record: bytes) -> None:
        """Store record `index` durably. TransientError if it is not the next, or not possible."""
        if index != len(self.log) + 1:
            raise TransientError(f"record {index} waits for record {len(self.log) + 1}")
        self.require_space()
        self.log.append(record, durable=True)

    def keep_certificate(self, certificate: Certificate) -> None:
        """Store a proof beside the log; a missing one is made again or asked for."""
        if certificate.index == len(self.certificates) + 1:
            self.certificates.append(wire.encode(certificate), durable=False)

    def certificate(self, index: int) -> Certificate | None:
        if not 1 <= index <= len(self.certificates):
            return None
        return wire.decode(self.certificates.read(index - 1), Certificate)

    def write_payload(self, fragment: int, version: int, payload: bytes) -> None:
        """Keep a merged payload durably, before its record is."""
        self.require_space()
        _write_atomically(self._payload(fragment, version), payload)

    def read_payload(self, fragment: int, version: int) -> bytes:
        """A kept payload. Raises CorruptState if it is not there."""
        try:
            return self._payload(fragment, version).read_bytes()
        except OSError as error:
            raise CorruptState(f"payload {fragment} v{version}: {error.strerror}") from error

    def write_checkpoint(self, checkpoint: Checkpoint) -> Path:
        """Keep a checkpoint durably and whole, or not at all."""
        place = self.root / "checkpoints" / str(checkpoint.index)
        partial = place.with_name(f".{checkpoint.index}.partial")
        with writing(f"checkpoint {checkpoint.index}"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o700)
            tensors = {f"theta.{at:04d}": values for at, values in enumerate(checkpoint.theta)}
            for at, values in enumerate(checkpoint.momentum):
                tensors[f"momentum.{at:04d}"] = values
            save_file(tensors, partial / "state.safetensors")
            _sync(partial / "state.safetensors")
            meta = msgspec.msgpack.encode((checkpoint.versions, checkpoint.summary))
            _write_atomically(partial / "meta", meta)
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
            _sync(place.parent)
        return place

    def checkpoints(self) -> list[int]:
        """Log indices of the checkpoints here, newest first."""
        names = (path.name for path in (self.root / "checkpoints").iterdir())
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def name_best(self, index: int) -> None:
        """Remember which checkpoint had the lowest held-out loss."""
        _write_atomically(self.root / "checkpoints" / "best", str(index).encode())

    def prune(self, versions: Sequence[int], keep: set[int]) -> None:
        """Drop old checkpoints but the named ones, and payloads that no recovery needs.

        `versions`: of each fragment in the oldest checkpoint that recovery may start from.
        """
        held = self.checkpoints()
        for index in held[CHECKPOINTS_KEPT:]:
            if index not in keep:
                shutil.rmtree(self.root / "checkpoints" / str(index), ignore_errors=True)
        for path in (self.root / "payloads").iterdir():
            if path.name.startswith("."):
                path.unlink(missing_ok=True)  # Half written when the syncer died.
                continue
            fragment, _, version = path.stem.partition("-")
            if int(version) <= versions[int(fragment)]:
                path.unlink(missing_ok=True)

    def set_aside(self, index: int) -> None:
        """Move a damaged checkpoint out of the way, for somebody to look at."""
        place = self.root / "checkpoints" / str(index)
        with contextlib.suppress(OSError):
            place.rename(place.with_name(f"{index}.corrupt"))

    def close(self) -> None:
        self.log.close()
        self.certificates.close()

    def _payload(self, fragment: int, version: int) -> Path:
        return self.root / "payloads" / f"{fragment}-{version}.bin"


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in this directory. Raises CorruptState if a part is missing or damaged."""
    try:
        tensors = load_file(place / "state.safetensors")
        meta = (place / "meta").read_bytes()
        versions, summary = msgspec.msgpack.decode(meta, type=tuple[list[int], SwarmSummary | None])
        count = len(versions)
        theta = [tensors[f"theta.{at:04d}"] for at in range(count)]
        momentum = [tensors[f"momentum.{at:04d}"] for at in range(count)]
    except (OSError, KeyError, ValueError, msgspec.MsgspecError, SafetensorError) as error:
        raise CorruptState(f"the checkpoint {place} is damaged: {error}") from error
    return Checkpoint(int(place.name), theta, momentum, versions, summary)


def find_checkpoint(root: Path, which: str) -> Path:
    """The checkpoint called `best`, `latest`, or by its log index. UserError if there is none."""
    place = root / "checkpoints"
    held = sorted((int(path.name) for path in place.glob("*") if path.name.isdigit()), reverse=True)
    if not held:
        raise UserError(f"There is no checkpoint under {root} yet: run the syncer first.")
    if which == "latest":
        return place / str(held[0])
    if which == "best":
        best = place / "best"
        named = best.read_text(errors="replace").strip() if best.is_file() else ""
        is_here = named.isdigit() and int(named) in held
        return place / (named if is_here else str(held[0]))
    if which.isdigit() and int(which) in held:
        return place / which
    listed = ", ".join(str(index) for index in held)
    raise UserError(f"There is no checkpoint {which!r}. Choose best, latest, or one of: {listed}.")


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with writing(path.name):
        with partial.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
