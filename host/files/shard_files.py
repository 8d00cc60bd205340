"""Published data as this machine keeps them: a file for each shard, known by its content hash.

Every daemon has a folder of its own, so that none throws away what another one reads; what another
folder of this home has is linked and not fetched. A file counts once its bytes were compared with
their hash in this life of the daemon, so whoever wrote it, and whatever became of it since, does
not matter.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from host.runtime.atomic_files import replace_file
from protocol.errors import InternalError, RemoteError, UserError
from protocol.ids import Digest
from protocol.project import Genesis
from protocol.shards import Shard, ShardTable, check_manifest

MANIFEST: Final = "manifest"
_CONTEXT: Final = "shoal 1 shards"
HOST: Final = "host"
"""Folder of the machine that published them, and of other syncers."""


def shards_root(cache: Path, genesis: Genesis) -> Path:
    """The folder of all folders with shards of a project's data in one home. Makes nothing."""
    parts: tuple[object, ...] = (genesis.data, genesis.seed)
    if genesis.images is not None:
        parts += (genesis.images,)  # Of what size they are is not said by the data.
    material = msgspec.msgpack.encode(parts)
    return cache / f"shards-{blake3(material, derive_key_context=_CONTEXT).hexdigest(12)}"


def shard_name(digest: Digest) -> str:
    """The file name of a shard."""
    return f"{digest.hex()}.shard"


def learners_folder(instance: str) -> str:
    """The name of the folder of one learner of a home."""
    return f"learner-{instance}"


class ShardFiles:
    """The shards of one project in one folder; none where it publishes no data."""

    def __init__(self, cache: Path, genesis: Genesis, owner: str = HOST) -> None:
        """cache: the home's. owner: the name of the folder."""
        self.genesis = genesis
        self.pinned = genesis.published
        self.folder = shards_root(cache, genesis) / owner
        self.table: ShardTable | None = None
        """Once the list of shards is here."""
        self._manifest: memoryview | None = None
        self._at: dict[Digest, Shard] = {}
        self._good: set[int] = set()
        self._lock = threading.Lock()
        if self.pinned is not None:
            self._open_manifest()

    @property
    def held_bytes(self) -> int:
        """Of the shards that are known to be here."""
        if self.table is None:
            return 0
        with self._lock:
            return sum(self.table.shards[number].bytes for number in self._good)

    def keep_manifest(self, content: bytes | memoryview) -> None:
        """Writes the list of shards. UserError if it cannot be written, or is of no use."""
        if self.pinned is None:
            raise InternalError("this project publishes no data")
        check_manifest(self.pinned, content)
        self._write(self.folder / MANIFEST, content)
        self._open_manifest()
        if self.table is None:
            raise UserError("The list of shards that the project pins is of no use.")

    def look(self) -> list[int]:
        """The numbers of the shards that are here. Cost: reads all that were not checked before."""
        if self.table is not None:
            for one in self.table.shards:
                if one.number not in self._good and self._is_intact(one):
                    self._note(one)
        with self._lock:
            return sorted(self._good)

    def mend(self) -> set[int]:
        """The numbers of shards that were here and are gone, as somebody tidied up; the list of
        shards is written again if it is too. UserError if it cannot be. Cost: looks for each file.
        """
        if self.table is None or self._manifest is None:
            return set()
        if not (self.folder / MANIFEST).is_file():
            self._write(self.folder / MANIFEST, self._manifest)
        with self._lock:
            held = set(self._good)
        gone = {number for number in held if not self.path(self.table.shards[number]).is_file()}
        with self._lock:
            self._good -= gone
        return gone

    def find(self, digest: Digest) -> memoryview | None:
        """The shard or the list with this digest, if it is known to be here; reads nothing."""
        if self.pinned is not None and digest == self.pinned.manifest:
            return self._manifest
        one = self._at.get(digest)
        if one is None or one.number not in self._good:
            return None
        return self._mapped(one)

    def path(self, one: Shard) -> Path:
        """Where a shard lies."""
        return self.folder / shard_name(one.digest)

    def located(self, one: Shard) -> Path:
        """The same, or where another daemon of this home has it."""
        own = self.path(one)
        if own.is_file():
            return own
        return next(iter(sorted(self.folder.parent.glob(f"*/{own.name}"))), own)

    def keep(self, number: int, content: bytes | memoryview) -> None:
        """Writes a shard. UserError if it cannot be written."""
        one = self._shard(number)
        if len(content) != one.bytes or blake3(content).digest() != one.digest:
            raise InternalError(f"shard {number} is not what the project pins")
        self._write(self.path(one), content)
        self._note(one)

    def link(self, number: int) -> bool:
        """Takes a shard from another folder of this home. False if none has it intact."""
        one = self._shard(number)
        target = self.path(one)
        for found in sorted(self.folder.parent.glob(f"*/{target.name}")):
            if found == target:
                continue
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                os.link(found, target)
            except OSError:
                continue  # Evicted meanwhile, or no links here: then it is fetched.
            if self._is_intact(one):
                self._note(one)
                return True
            target.unlink(missing_ok=True)
        return False

    def evict(self, number: int) -> None:
        """Throws a shard away."""
        one = self._shard(number)
        with self._lock:
            self._good.discard(number)
        self.path(one).unlink(missing_ok=True)

    def _shard(self, number: int) -> Shard:
        if self.table is None:
            raise InternalError("the list of shards is not here")
        return self.table.shards[number]

    def _note(self, one: Shard) -> None:
        with self._lock:
            self._good.add(one.number)

    def _is_intact(self, one: Shard) -> bool:
        mapped = self._mapped(one)
        return mapped is not None and blake3(mapped).digest() == one.digest

    def _mapped(self, one: Shard) -> memoryview | None:
        try:
            with self.path(one).open("rb") as handle:
                if os.fstat(handle.fileno()).st_size != one.bytes:
                    return None
                return memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError:
            return None  # Then it comes from somebody else, who is asked next.

    def _open_manifest(self) -> None:
        """Takes up the list of shards, if it is here and what the project pins."""
        assert self.pinned is not None, "the project publishes data"
        for place in (self.folder, *sorted(self.folder.parent.glob("*"))):
            try:
                with (place / MANIFEST).open("rb") as handle:
                    content = handle.read(self.pinned.manifest_bytes + 1)
                table = ShardTable(self.genesis, content)
            except (OSError, RemoteError):
                continue  # Then it comes from somebody else, who is asked next.
            self.table, self._manifest = table, memoryview(content)
            self._at = {one.digest: one for one in table.shards}
            if place != self.folder:
                self._write(self.folder / MANIFEST, content)
            return

    def _write(self, path: Path, content: bytes | memoryview) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}). Free some disk space."
            ) from error
