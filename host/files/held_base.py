"""The frozen base model of a project with an adapter, as this machine keeps it: one file.

It has the values of all frozen tensors, one after the other, and is known by the hashes of its
pieces. They are checked before anything is read or given from it, so whoever wrote a piece, and
whatever became of it since, does not matter. Two projects on one base share the file.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from host.runtime.memory_files import take_room
from protocol import limits
from protocol.errors import InternalError, UserError
from protocol.ids import Digest
from protocol.project import AdapterSpec, FrozenTensor, Genesis

_CONTEXT: Final = "shoal 1 held base"
BLOCK_BYTES: Final = 512
"""In which the system counts what a file takes."""

VALUE_BYTES: Final = {"bf16": 2, "f32": 4}


class Piece(NamedTuple):
    """A blob of the held base."""

    number: int
    bytes: int
    digest: Digest


def pieces_of(content: memoryview) -> list[Digest]:
    """Content hashes of a held base, piece by piece."""
    size = limits.HELD_PIECE_BYTES
    return [blake3(content[at : at + size]).digest() for at in range(0, len(content), size)]


class HeldBase:
    """The frozen base of one project; empty where it trains whole models."""

    def __init__(self, cache: Path, genesis: Genesis) -> None:
        """cache: the home's. UserError if the project's pieces do not add up to its tensors."""
        self.adapter: AdapterSpec | None = genesis.adapter
        self.source = genesis.base.source if genesis.base is not None else "a base model"
        self.size_bytes = 0 if self.adapter is None else self.adapter.held_bytes
        named = () if self.adapter is None else self.adapter.pieces
        if len(named) != -(-self.size_bytes // limits.HELD_PIECE_BYTES):
            raise UserError(
                "The project names another number of pieces than its frozen base model has. Ask "
                "its owner to sign it anew."
            )
        self.pieces = [Piece(at, self._length(at), digest) for at, digest in enumerate(named)]
        self._at = {one.digest: one for one in self.pieces}
        key = blake3(b"".join(named), derive_key_context=_CONTEXT).hexdigest(12)
        self.path = cache / f"base-{key}.held"
        self._good: set[int] = set()
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()

    def _length(self, at: int) -> int:
        first = at * limits.HELD_PIECE_BYTES
        return min(limits.HELD_PIECE_BYTES, self.size_bytes - first)

    def missing(self) -> list[Piece]:
        """Pieces that are not here. Cost: reads the file, where pieces were not checked before."""
        if not self.pieces or not self._open():
            return list(self.pieces)
        for one in self.pieces:
            if one.number not in self._good and blake3(self._view(one)).digest() == one.digest:
                self._good.add(one.number)
        return [one for one in self.pieces if one.number not in self._good]

    def wanted_bytes(self) -> int:
        """Of the disk, that the base will take beyond what its file takes now."""
        try:
            taken = self.path.stat().st_blocks * BLOCK_BYTES
        except OSError:
            taken = 0
        return max(0, self.size_bytes - taken)

    def find(self, digest: Digest) -> memoryview | None:
        """The piece with this digest, if it is known to be here; reads nothing."""
        one = self._at.get(digest)
        return None if one is None or one.number not in self._good else self._view(one)

    def keep(self, piece: Piece, content: bytes | memoryview) -> None:
        """Writes a piece. UserError if the disk has no room for the whole base."""
        if len(content) != piece.bytes or blake3(content).digest() != piece.digest:
            raise InternalError(f"piece {piece.number} is not what the project pins")
        try:
            self._make_room()
            with self.path.open("r+b") as handle:
                os.pwrite(handle.fileno(), content, piece.number * limits.HELD_PIECE_BYTES)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}). The frozen base model takes "
                f"{self.size_bytes:,} bytes there: free some disk space."
            ) from error
        if self._open():
            self._good.add(piece.number)

    def keep_all(self, content: memoryview) -> None:
        """Writes what is missing from a whole held base. UserError if it is another one."""
        if pieces_of(content) != [one.digest for one in self.pieces]:
            raise UserError(
                f"What was read of {self.source} is not the frozen base model that the project "
                "names. Get its files anew, of the revision that the project's owner used."
            )
        for one in self.missing():
            first = one.number * limits.HELD_PIECE_BYTES
            self.keep(one, content[first : first + one.bytes])

    def tensors(self) -> Iterator[tuple[FrozenTensor, memoryview]]:
        """Every frozen tensor with its bytes; they stay valid as long as this object.

        UserError if the base is not here whole.
        """
        gone = self.missing()
        if gone:
            raise UserError(
                f"The frozen base model {self.source} is not whole on this machine: {len(gone)} of "
                f"{len(self.pieces)} pieces are missing in {self.path}. Start the daemon again, "
                "which fetches them from other hosts, or name the folder of the model with --from."
            )
        if self.adapter is None or self._map is None:
            return
        size, first = VALUE_BYTES[self.adapter.base_dtype], 0
        whole = memoryview(self._map)
        for tensor in self.adapter.frozen:
            end = first + size * tensor.numel
            yield tensor, whole[first:end]
            first = end

    def _view(self, piece: Piece) -> memoryview:
        assert self._map is not None, "the file was opened before"
        first = piece.number * limits.HELD_PIECE_BYTES
        return memoryview(self._map)[first : first + piece.bytes]

    def _open(self) -> bool:
        """Whether the file is here in its full size."""
        with self._lock:
            if self._map is not None:
                return True
            try:
                with self.path.open("rb") as handle:
                    if os.fstat(handle.fileno()).st_size != self.size_bytes:
                        return False
                    self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError:
                return False  # Then it comes from somebody else, who is asked next.
            return True

    def _make_room(self) -> None:
        """The file in its full size, so that a full disk is noticed before a long download."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size != self.size_bytes:
                take_room(descriptor, self.size_bytes)
                os.ftruncate(descriptor, self.size_bytes)
        finally:
            os.close(descriptor)
