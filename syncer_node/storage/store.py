"""A syncer's disk: the record log, merged payloads, checkpoints.

    ballot          this disk's name, and the vote it gave
    charter         the newest that the owner signed
    floor           the record before the log's first one, where this disk joined later
    log             every record since, framed and checksummed, fsynced; a torn tail is cut
    certificates    the proof of each record, beside the log; may lag behind it after a power loss
    payloads/       merged displacements since the oldest checkpoint that is kept
    checkpoints/N/  theta, momentum and the folded log as of record N; 0 holds the first weights
    checkpoints/best
    averages/N.safetensors
                    the moving average as of checkpoint N, where the project wants one
    restored/N      the weights of checkpoint N that the guard went back to, until no recovery needs
                    them

Everything is written beside its place, fsynced and renamed. A file whose content does not match
what the log says about it is set aside with the suffix `.corrupt`, never deleted.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from host.runtime.atomic_files import require_space, sync, write_atomically, writing
from host.runtime.checked_files import read_checked, write_checked
from protocol import decoders
from protocol.errors import CorruptState, UserError
from protocol.log.state import SwarmSummary
from protocol.numerics.buffers import F32
from syncer_node.storage.voter_files import VoterFiles

CHECKPOINTS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All fragments as of one log index."""

    index: int
    theta: list[F32]
    momentum: list[F32]
    versions: list[int]
    summary: SwarmSummary | None
    """The folded log; None for the first weights, which precede it."""

    @property
    def head(self) -> bytes:
        """Hash of the record that it is as of; empty for the first weights."""
        return self.summary.head if self.summary is not None else b""


def tensors_of(checkpoint: Checkpoint) -> dict[str, F32]:
    """Its arrays under the names that they have on disk."""
    tensors = {f"theta.{at:04d}": values for at, values in enumerate(checkpoint.theta)}
    tensors |= {f"momentum.{at:04d}": values for at, values in enumerate(checkpoint.momentum)}
    return tensors


class Store:
    """One project's files on a syncer's disk. Not thread-safe: one thread writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("payloads", "checkpoints", "restored"):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in ("checkpoints", "restored"):
            for partial in (root / folder).glob(".*.partial"):
                shutil.rmtree(partial, ignore_errors=True)  # Half written when the syncer died.
        self.voter = VoterFiles(root)

    def require_space(self) -> None:
        """Raise DiskFull while the disk has less than the reserve free."""
        require_space(self.root)

    def write_payload(
        self, fragment: int, version: int, name: bytes, payload: bytes | memoryview
    ) -> None:
        """Keep a merged payload durably, before its record is. `name`: its digest."""
        self.require_space()
        write_atomically(self._payload(fragment, version, name), payload)

    def read_payload(self, fragment: int, version: int, name: bytes) -> bytes:
        """A kept payload. Raises CorruptState if it is not there, or damaged (then set aside)."""
        place = self._payload(fragment, version, name)
        try:
            payload = place.read_bytes()
        except OSError as error:
            raise CorruptState(f"payload {fragment} v{version}: {error.strerror}") from error
        if blake3(payload).digest() != name:
            with contextlib.suppress(OSError):
                place.rename(place.with_suffix(".corrupt"))
            raise CorruptState(f"payload {fragment} v{version} is damaged and was set aside")
        return payload

    def write_checkpoint(self, checkpoint: Checkpoint) -> Path:
        """Keep a checkpoint durably and whole, or not at all."""
        place = self.place(checkpoint.index)
        _write(place, checkpoint)
        return place

    def write_restored(self, checkpoint: Checkpoint) -> None:
        """Keep the weights of a checkpoint durably, before the record that goes back to them is."""
        self.require_space()
        _write(self.restored_place(checkpoint.index), checkpoint)

    def restored_place(self, checkpoint: int) -> Path:
        """Where the weights of this checkpoint lie that the guard went back to."""
        return self.root / "restored" / str(checkpoint)

    def prune_restored(self, up_to: int) -> None:
        """Drop kept weights of checkpoints up to this one: no recovery needs them."""
        for place in (self.root / "restored").iterdir():
            if place.name.isdigit() and int(place.name) <= up_to:
                shutil.rmtree(place, ignore_errors=True)

    def place(self, index: int) -> Path:
        """Where the checkpoint of this log index lies."""
        return self.root / "checkpoints" / str(index)

    def checkpoints(self) -> list[int]:
        """Log indices of the checkpoints here, newest first."""
        return checkpoints_in(self.root)

    def name_best(self, index: int) -> None:
        """Remember which checkpoint had the lowest held-out loss."""
        write_atomically(self.root / "checkpoints" / "best", str(index).encode())

    def find_payload(self, name: bytes) -> memoryview | None:
        """A kept payload by its digest, for a standby that is behind; None if it is not here."""
        for place in (self.root / "payloads").glob(f"*-{name[:8].hex()}.bin"):
            with contextlib.suppress(OSError):  # Pruned meanwhile.
                return memoryview(place.read_bytes())
        return None

    def prune(self, versions: Sequence[int], keep: set[int]) -> None:
        """Drop old checkpoints but the named ones, and payloads that no recovery needs.

        `versions`: of each fragment in the oldest checkpoint that recovery may start from.
        """
        held = self.checkpoints()
        for index in held[CHECKPOINTS_KEPT:]:
            if index not in keep:
                shutil.rmtree(self.place(index), ignore_errors=True)
        for path in (self.root / "payloads").iterdir():
            if path.name.startswith("."):
                path.unlink(missing_ok=True)  # Half written when the syncer died.
                continue
            if path.suffix != ".bin":
                continue
            fragment, version, _ = path.stem.split("-")
            if int(version) <= versions[int(fragment)]:
                path.unlink(missing_ok=True)

    def set_aside(self, index: int) -> None:
        """Move a damaged checkpoint out of the way, for somebody to look at."""
        place = self.place(index)
        with contextlib.suppress(OSError):
            place.rename(place.with_name(f"{index}.corrupt"))

    def void_behind(self, index: int, epoch: int) -> None:
        """The owner voided what is behind this record: checkpoints of it are no checkpoints now."""
        for held in self.checkpoints():
            if held > index:
                place = self.place(held)
                with writing(f"checkpoint {held}"):
                    place.rename(place.with_name(f"{held}.before-epoch-{epoch}"))
        best = _best(self.root)
        if best is not None and best > index:
            (self.root / "checkpoints" / "best").unlink()

    def close(self) -> None:
        self.voter.close()

    def _payload(self, fragment: int, version: int, name: bytes) -> Path:
        return self.root / "payloads" / f"{fragment}-{version}-{name[:8].hex()}.bin"


def _write(place: Path, checkpoint: Checkpoint) -> None:
    with checkpoint_at(place, checkpoint.versions, checkpoint.summary) as state:
        save_file(tensors_of(checkpoint), state)
        sync(state)


@contextlib.contextmanager
def checkpoint_at(place: Path, versions: list[int], summary: SwarmSummary | None) -> Iterator[Path]:
    """Where to put the tensors of a checkpoint; afterwards it is there, durably and whole."""
    partial = place.with_name(f".{place.name}.partial")
    with writing(f"checkpoint {place.name}"):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        yield partial / "state.safetensors"
        write_checked(partial / "meta", msgspec.msgpack.encode((versions, summary)))
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        sync(place.parent)


def checkpoints_in(root: Path) -> list[int]:
    """Log indices of the checkpoints of this store, newest first."""
    names = (path.name for path in (root / "checkpoints").glob("*"))
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _best(root: Path) -> int | None:
    """The checkpoint that is named the best, whether it is here or not."""
    path = root / "checkpoints" / "best"
    named = path.read_text(errors="replace").strip() if path.is_file() else ""
    return int(named) if named.isdigit() else None


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in this directory. Raises CorruptState if a part is missing or damaged."""
    try:
        tensors = load_file(place / "state.safetensors")
        versions, summary = read_meta(place)
        count = len(versions)
        theta = [tensors[f"theta.{at:04d}"] for at in range(count)]
        momentum = [tensors[f"momentum.{at:04d}"] for at in range(count)]
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise CorruptState(f"the checkpoint {place} is damaged: {error}") from error
    return Checkpoint(int(place.name), theta, momentum, versions, summary)


def read_meta(place: Path) -> tuple[list[int], SwarmSummary | None]:
    """Fragment versions and folded log of a checkpoint, without its tensors. CorruptState."""
    try:
        meta = read_checked(place / "meta")
        return decoders.msgpack_decoder(tuple[list[int], SwarmSummary | None]).decode(meta)
    except (OSError, ValueError, msgspec.MsgspecError, CorruptState) as error:
        raise CorruptState(f"the checkpoint {place} is damaged: {error}") from error


def find_checkpoint(root: Path, which: str) -> Path:
    """The checkpoint called `best`, `latest`, or by its log index. UserError if there is none."""
    place, held = root / "checkpoints", checkpoints_in(root)
    if not held:
        raise UserError(f"There is no checkpoint under {root} yet: run the syncer first.")
    if which == "latest":
        return place / str(held[0])
    if which == "best":
        best = _best(root)
        return place / str(best if best in held else held[0])
    if which.isdigit() and int(which) in held:
        return place / which
    listed = ", ".join(str(index) for index in held)
    raise UserError(f"There is no checkpoint {which!r}. Choose best, latest, or one of: {listed}.")
