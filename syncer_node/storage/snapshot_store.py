"""Snapshots of the whole swarm on a syncer's disk, beside its checkpoints.

snapshots/<stamp>/arrays.safetensors  theta and momentum of every fragment, as of the cut
snapshots/<stamp>/meta                manifest, folded log, and the records that prove it
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from host.files import snapshot_files as files
from protocol.errors import CorruptState
from protocol.log.state import SwarmSummary
from protocol.messages import CertifiedRecord
from protocol.project import Origin
from protocol.snapshots.manifest import FileSum, Manifest, SnapshotOutline, stamp
from syncer_node.machine.jobs import KeepSnapshot, SnapshotKept, SnapshotWritten
from syncer_node.storage.store import Checkpoint, checkpoint_at, tensors_of

log = logging.getLogger("shoal.snapshots")

FOLDER: Final = "snapshots"


class SnapshotMeta(Struct, frozen=True, array_like=True):
    """What the `meta` of a syncer's snapshot holds."""

    manifest: Manifest
    versions: tuple[int, ...]
    summary: SwarmSummary
    entry: CertifiedRecord
    """The record at the cut."""
    origins: tuple[CertifiedRecord, ...]
    """Those that made the versions of the cut."""
    arrays: FileSum


@dataclass(slots=True)
class _Open:
    """A snapshot that is being written."""

    snapshot: int
    checkpoint: Checkpoint
    summary: SwarmSummary
    partial: Path | None = None
    arrays: FileSum | None = None


class SnapshotStore:
    """One project's snapshots. One thread writes."""

    def __init__(self, root: Path, *, is_reader: bool = False) -> None:
        """root: the syncer's store. is_reader: a daemon may be writing there."""
        self.root = root
        self.folder = root / FOLDER
        self._open: _Open | None = None
        if not is_reader:
            files.clear_partial(self.folder)

    # Taking one.

    def cut(self, snapshot: int, checkpoint: Checkpoint) -> None:
        """Hold on to these versions; their arrays are never changed in place."""
        assert checkpoint.summary is not None, "a snapshot is of a log"
        self._open = _Open(snapshot, checkpoint, checkpoint.summary)

    def write(self, snapshot: int) -> SnapshotWritten:
        """Write the weights of the cut. Raises TransientError."""
        opened = self._opened(snapshot)
        tensors = tensors_of(opened.checkpoint)
        size = sum(values.nbytes for values in tensors.values())
        opened.partial = files.begin(self.folder, snapshot, size)
        opened.arrays = files.write_arrays(opened.partial, tensors)
        return SnapshotWritten()

    def keep(self, job: KeepSnapshot) -> SnapshotKept:
        """Finish it; then drop what is not kept. Raises TransientError."""
        opened = self._opened(job.manifest.snapshot)
        assert opened.partial is not None, "the weights were written first"
        assert opened.arrays is not None, "and summed"
        versions = tuple(opened.checkpoint.versions)
        files.seal_file(
            opened.partial / files.META,
            SnapshotMeta(
                job.manifest, versions, opened.summary, job.entry, job.origins, opened.arrays
            ),
        )
        files.finish(opened.partial, opened.snapshot)
        self._open = None
        files.keep_only(self.folder, set(job.kept))
        return SnapshotKept()

    def drop(self, snapshot: int) -> None:
        """Forget one that was not finished."""
        opened, self._open = self._open, None
        if opened is not None and opened.snapshot == snapshot and opened.partial is not None:
            shutil.rmtree(opened.partial, ignore_errors=True)

    def _opened(self, snapshot: int) -> _Open:
        if self._open is None or self._open.snapshot != snapshot:
            raise CorruptState(f"snapshot {stamp(snapshot)} was not begun here")
        return self._open

    # What is here.

    def outlines(self) -> tuple[SnapshotOutline, ...]:
        """Those whose manifest is sound, oldest first."""
        found = []
        for snapshot in reversed(files.held(self.folder)):
            try:
                found.append(self.meta(snapshot).manifest.outline)
            except CorruptState as error:
                log.warning("snapshot %s cannot be used: %s", stamp(snapshot), error)
        return tuple(found)

    def meta(self, snapshot: int) -> SnapshotMeta:
        """What a snapshot says of itself. Raises CorruptState with file and offset."""
        place = self.folder / stamp(snapshot)
        meta, _ = files.open_sealed(place / files.META, SnapshotMeta)
        if meta.manifest.snapshot != snapshot:
            found = stamp(meta.manifest.snapshot)
            raise CorruptState(f"{place / files.META} is that of snapshot {found}")
        return meta

    def check(self, snapshot: int) -> SnapshotMeta:
        """As `meta`, with every byte of the weights checked."""
        meta = self.meta(snapshot)
        files.check_file(self.folder / stamp(snapshot), meta.arrays)
        return meta

    def place_checkpoint(self, origin: Origin) -> SnapshotMeta | None:
        """Make the snapshot at which an epoch begins the checkpoint to recover from; None if it
        is not here. Raises CorruptState or TransientError."""
        if not origin.snapshot or origin.snapshot not in files.held(self.folder):
            return None
        meta = self.check(origin.snapshot)
        if (meta.manifest.index, meta.manifest.head) != (origin.index, origin.head):
            raise CorruptState(f"snapshot {stamp(origin.snapshot)} ends at another record")
        place = self.root / "checkpoints" / str(origin.index)
        if place.exists():
            return meta
        with checkpoint_at(place, list(meta.versions), meta.summary) as state:
            os.link(self.folder / stamp(origin.snapshot) / files.ARRAYS, state)
        return meta
