"""The moving average of the global versions: a model that wobbles less than the newest one.

    averages/N.safetensors  as of checkpoint N, beside it and as long as it is kept

Every merge moves the average of its fragment towards the new version. It is for whoever exports the
model and takes part in nothing: no learner gets it, no record names it, and a syncer that loses it
begins anew. A thread of its own does the arithmetic, behind merges, and needs 4 bytes a parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from host.runtime.atomic_files import replacing, require_space, writing
from host.runtime.compute_pool import give_way
from protocol.errors import CorruptState, ShoalError
from protocol.numerics.buffers import F32
from syncer_node.storage.merge_bank import Version

log = logging.getLogger("shoal.disk")

FOLDER: Final = "averages"
_SUFFIX: Final = ".safetensors"
_DIGEST: Final = "blake3"


def decay_at(decay: float, version: int) -> float:
    """What a version keeps of the average before it.

    At first less than `decay`, so that weights that nobody has trained are soon forgotten.
    """
    return min(decay, (1.0 + version) / (10.0 + version))


class Averages:
    """Of one syncer. Work is done in the order in which it is asked for."""

    def __init__(self, root: Path, count: int) -> None:
        """root: the syncer's store. count: of fragments."""
        self.folder = root / FOLDER
        self._root = root
        self._held: list[F32 | None] = [None] * count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="average", initializer=give_way)

    def take(self, fragment: int, version: Version, decay: float) -> None:
        """A new version of a fragment. decay: 0 keeps no average. One that no merge made replaces
        what was before: the average begins there."""
        is_merge = version.payload is not None
        given = (fragment, version.number, version.theta, decay)
        self._submit(lambda: self._take(*given, is_merge=is_merge))

    def load(self, index: int, head: bytes) -> None:
        """Goes on from the average as of this checkpoint, where there is one. head: hash of its
        record, by which it is told from one of the same index in a void history."""
        self._submit(lambda: self._load(index, head))

    def keep(self, index: int, head: bytes, kept: Callable[[], Collection[int]]) -> None:
        """Writes the average as it is now, as that of this checkpoint, and drops those of
        checkpoints that are gone. kept: log indices of those that are there."""
        self._submit(lambda: self._keep(index, head, kept))

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.shutdown(wait=True)

    def _submit(self, work: Callable[[], None]) -> None:
        self._thread.submit(work).add_done_callback(_tell)

    def _take(
        self, fragment: int, number: int, theta: F32, decay: float, *, is_merge: bool
    ) -> None:
        former = self._held[fragment]
        if not decay:
            self._held[fragment] = None
        elif former is None or not is_merge:
            self._held[fragment] = theta
        else:
            share = decay_at(decay, number)
            mixed = theta * np.float32(1.0 - share)
            mixed += former * np.float32(share)
            self._held[fragment] = mixed

    def _load(self, index: int, head: bytes) -> None:
        if not path_of(self._root, index).exists() or None in map(_size, self._held):
            return  # None was kept, or nobody wants one any more.
        found = read_average(self._root, index, head)
        if [one.size for one in found] != [_size(one) for one in self._held]:
            raise CorruptState(f"the average of checkpoint {index} is of another model")
        self._held = list(found)

    def _keep(self, index: int, head: bytes, kept: Callable[[], Collection[int]]) -> None:
        values = [one for one in self._held if one is not None]
        path_of(self._root, index).unlink(missing_ok=True)
        if len(values) == len(self._held):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            require_space(self._root, sum(one.nbytes for one in values), "the moving average")
            tensors = {f"average.{at:04d}": one for at, one in enumerate(values)}
            with writing(f"average {index}"), replacing(path_of(self._root, index)) as partial:
                save_file(tensors, partial, metadata={_DIGEST: _digest(values, head)})
        there = {index, *kept()}
        for path in self.folder.glob(f"*{_SUFFIX}") if self.folder.is_dir() else ():
            if path.stem.isdigit() and int(path.stem) not in there:
                path.unlink(missing_ok=True)


def path_of(root: Path, index: int) -> Path:
    """Where the average as of this checkpoint lies in a syncer's store."""
    return root / FOLDER / f"{index}{_SUFFIX}"


def read_average(root: Path, index: int, head: bytes) -> list[F32]:
    """The average as of this checkpoint, f32 [numel] each. head: hash of its record. CorruptState
    if there is none, or it is damaged or of another history."""
    path = path_of(root, index)
    try:
        with safe_open(path, framework="numpy") as handle:
            names = sorted(handle.keys())
            values = [handle.get_tensor(name) for name in names]
            said = (handle.metadata() or {}).get(_DIGEST)
    except (OSError, SafetensorError) as error:
        raise CorruptState(f"the average {path} cannot be read: {error}") from error
    if said != _digest(values, head):
        raise CorruptState(f"the average {path} is damaged, or of another history")
    return values


def _digest(values: Iterable[F32], head: bytes) -> str:
    hasher = blake3(head)
    for one in values:
        hasher.update(one.tobytes())
    return hasher.hexdigest()


def _size(values: F32 | None) -> int | None:
    return None if values is None else values.size


def _tell(done: Future[None]) -> None:
    """What went wrong costs an average and nothing else."""
    error = done.exception()
    if isinstance(error, ShoalError | OSError):
        log.warning("the moving average is not up to date: %s", error)
    elif error is not None:
        log.error("the moving average is not up to date, by a bug", exc_info=error)
