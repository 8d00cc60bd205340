"""Files of a snapshot: whole or not there, and every damage found with its file and offset.

    DIR/<stamp>/meta                what else there is, sealed with its own digest
    DIR/<stamp>/arrays.safetensors  tensors; `meta` holds the hash of each MiB of it

A snapshot is written into `DIR/.<stamp>.partial`, fsynced, and renamed when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from host.runtime.atomic_files import require_space, sync, writing
from protocol import decoders
from protocol.errors import CorruptState
from protocol.snapshots.manifest import FileSum, from_stamp, stamp

MAGIC: Final = b"SHOALSNP1\n"
LENGTH_BYTES: Final = 8
DIGEST_BYTES: Final = 32
META: Final = "meta"
ARRAYS: Final = "arrays.safetensors"
CHUNK_BYTES: Final = 1 << 20

F32 = NDArray[np.float32]
T = TypeVar("T", bound=msgspec.Struct)


def held(folder: Path) -> list[int]:
    """Snapshots with a directory here, newest first; whether they are sound is another question."""
    found = []
    for path in folder.glob("*"):
        try:
            found.append(from_stamp(path.name))
        except ValueError:
            continue
    return sorted(found, reverse=True)


def begin(folder: Path, snapshot: int, size_bytes: int) -> Path:
    """An empty directory for what will be this snapshot. DiskFull without room for its bytes."""
    partial = folder / f".{stamp(snapshot)}.partial"
    with writing("a snapshot"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_space(folder, size_bytes, "a snapshot")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
    return partial


def finish(partial: Path, snapshot: int) -> Path:
    """From now on the snapshot is there. What was there under its name is gone."""
    place = partial.with_name(stamp(snapshot))
    with writing("a snapshot"):
        sync(partial)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        sync(place.parent)
    return place


def clear_partial(folder: Path) -> None:
    """Drop what was half written when a daemon ended."""
    for partial in folder.glob(".*.partial"):
        shutil.rmtree(partial, ignore_errors=True)


def keep_only(folder: Path, snapshots: set[int]) -> None:
    """Drop every other snapshot here."""
    for snapshot in held(folder):
        if snapshot not in snapshots:
            shutil.rmtree(folder / stamp(snapshot), ignore_errors=True)


def write_arrays(place: Path, arrays: Mapping[str, F32]) -> FileSum:
    """Write tensors durably, and say how to check them."""
    path = place / ARRAYS
    with writing(path.name):
        save_file(dict(arrays), path)
        sync(path)
        return sum_of(path)


def sum_of(path: Path) -> FileSum:
    """The hash of each chunk of a file."""
    chunks = []
    with path.open("rb") as handle:
        while piece := handle.read(CHUNK_BYTES):
            chunks.append(blake3(piece).digest())
        return FileSum(path.name, handle.tell(), CHUNK_BYTES, b"".join(chunks))


def check_file(place: Path, expected: FileSum) -> Path:
    """The file, if it is what was written. Raises CorruptState with the offset of the damage."""
    path = place / expected.name
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            for offset in range(0, expected.size_bytes, expected.chunk_bytes):
                piece = handle.read(min(expected.chunk_bytes, expected.size_bytes - offset))
                at = offset // expected.chunk_bytes * DIGEST_BYTES
                is_whole = len(piece) == min(expected.chunk_bytes, expected.size_bytes - offset)
                if not is_whole:
                    raise CorruptState(
                        f"{path} ends at byte {size} of {expected.size_bytes}: half written or cut"
                    )
                if blake3(piece).digest() != expected.chunks[at : at + DIGEST_BYTES]:
                    raise CorruptState(
                        f"{path} was altered between byte {offset} and {offset + len(piece)}"
                    )
    except OSError as error:
        raise CorruptState(f"{path} cannot be read: {error.strerror}") from error
    if size != expected.size_bytes:
        raise CorruptState(f"{path} goes on behind byte {expected.size_bytes}, where it ended")
    return path


def read_arrays(place: Path, expected: FileSum) -> dict[str, F32]:
    """The tensors, checked before they are decoded. Raises CorruptState."""
    path = check_file(place, expected)
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptState(f"{path} cannot be decoded: {error}") from error


def seal_file(path: Path, content: msgspec.Struct) -> bytes:
    """Write a value durably with its digest, which is returned."""
    encoded = msgspec.msgpack.encode(content)
    digest = blake3(encoded).digest()
    with writing(path.name), path.open("wb") as handle:
        handle.write(MAGIC + len(encoded).to_bytes(LENGTH_BYTES, "big") + digest + encoded)
        handle.flush()
        os.fsync(handle.fileno())
    return digest


def open_sealed(path: Path, kind: type[T]) -> tuple[T, bytes]:
    """The value in a file and its digest. Raises CorruptState with the offset of the damage."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise CorruptState(f"{path} cannot be read: {error.strerror}") from error
    head = len(MAGIC) + LENGTH_BYTES + DIGEST_BYTES
    if len(found) < head:
        raise CorruptState(f"{path} ends at byte {len(found)} of {head} and more: half written")
    if not found.startswith(MAGIC):
        raise CorruptState(f"{path} is not a snapshot file: wrong header at byte 0")
    size = int.from_bytes(found[len(MAGIC) : len(MAGIC) + LENGTH_BYTES], "big")
    digest, content = found[head - DIGEST_BYTES : head], found[head:]
    if len(content) != size:
        raise CorruptState(f"{path} ends at byte {len(found)} of {head + size}: half written")
    if blake3(content).digest() != digest:
        raise CorruptState(f"{path} was altered between byte {len(MAGIC)} and {len(found)}")
    try:
        return decoders.msgpack_decoder(kind).decode(content), digest
    except msgspec.MsgspecError as error:
        raise CorruptState(
            f"{path} is of another version of Shoal, at byte {head}: {error}"
        ) from error
