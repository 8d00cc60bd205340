"""Between the store and the bank: first weights, recovery after a crash, checkpoints."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file

import node
from node.host.keystore import Identity
from node.host.signed_project import OpenedProject
from protocol.errors import CorruptState, TransientError
from protocol.messages import CertifiedRecord
from protocol.numerics.codecs import flush
from protocol.records import FragmentMerged, StateDigests
from protocol.state import SwarmState, SwarmSummary
from syncer_node.archive import RECENT_RECORDS
from syncer_node.bank import MergeBank
from syncer_node.recovery import recertify, refold
from syncer_node.setup import Recovered
from syncer_node.store import F32, Checkpoint, Store, read_checkpoint

log = logging.getLogger("shoal.disk")

FIRST_WEIGHTS = 0
"""Log index under which the first weights are kept, before there is any record."""

INITIALISE_TIMEOUT_S = 1800.0

CHECKPOINTS_TO_RECOVER_FROM = 2
"""A damaged newest checkpoint must not be the end: the one before it still has its payloads."""


class Disk:
    """One project's durable state on this syncer."""

    def __init__(
        self, store: Store, bank: MergeBank, project: OpenedProject, identity: Identity
    ) -> None:
        self.store = store
        self.bank = bank
        self.project = project
        self.identity = identity
        self._best: int | None = None

    # First weights.

    def initialise(self) -> tuple[StateDigests, ...]:
        """Version 0 of every fragment: from disk if it was made before, else made now."""
        if FIRST_WEIGHTS not in self.store.checkpoints():
            theta = self._make_weights()
            momentum = [np.zeros_like(values) for values in theta]
            checkpoint = Checkpoint(FIRST_WEIGHTS, theta, momentum, [0] * len(theta), None)
            self.store.write_checkpoint(checkpoint)
        return self._load(read_checkpoint(self._place(FIRST_WEIGHTS)))

    def _make_weights(self) -> list[F32]:
        """Draw the weights in a process of its own: this daemon never builds a model."""
        with tempfile.TemporaryDirectory(dir=self.store.root) as folder:
            genesis, out = Path(folder) / "genesis", Path(folder) / "weights.safetensors"
            genesis.write_bytes(self.project.genesis_bytes)
            done = subprocess.run(
                [sys.executable, "-P", "-m", "node.trainer.initialise", str(genesis), str(out)],
                env={**os.environ, "PYTHONPATH": str(Path(node.__file__).parents[1])},
                capture_output=True,
                text=True,
                timeout=INITIALISE_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                words = done.stderr.strip().splitlines() or ["it said nothing"]
                raise TransientError(f"drawing the first weights failed: {words[-1]}")
            tensors = load_file(out)
        weights = [tensors[name].copy() for name in sorted(tensors)]
        for values in weights:
            flush(values)  # So that their bytes are what decoding them would give.
        return weights

    # Recovery.

    def recover(self) -> Recovered:
        """What the disk says: the newest sound checkpoint, and every stored record after it.

        Raises CorruptState when the log itself is damaged before its last record.
        """
        if self.store.log.cut_bytes:
            log.warning(
                "the log's last %d bytes were half written; they are cut off",
                self.store.log.cut_bytes,
            )
        recovered = Recovered(SwarmState(self.project.genesis.data.block_sequences))
        if len(self.store.log) == 0:
            return recovered
        self._recover_newest(recovered)
        self._collect_entries(recovered)
        best = recovered.state.best
        self._best = best.checkpoint if best else None
        log.info(
            "recovered at record %d, global step %d",
            recovered.state.index,
            recovered.state.global_step,
        )
        return recovered

    def _recover_newest(self, recovered: Recovered) -> None:
        """Start from the newest checkpoint that serves; a damaged one is set aside."""
        for index in self.store.checkpoints():
            if index > len(self.store.log):
                log.warning("checkpoint %d is ahead of the log, which lost its end", index)
                continue
            try:
                checkpoint = read_checkpoint(self._place(index))
                state = self._restore(checkpoint)
            except CorruptState as error:
                log.warning("checkpoint %d is set aside: %s", index, error)
                self.store.set_aside(index)
                continue
            try:
                self._refold(state, state.index)
            except CorruptState as error:
                log.warning("the log cannot be followed from checkpoint %d: %s", index, error)
                continue
            if not self._fits(state):
                log.warning("checkpoint %d is set aside: it is not what the log names", index)
                self.store.set_aside(index)
                continue
            recovered.state = state
            return
        refold(recovered.state, self.store.log.frames(), lambda _: None)
        if recovered.state.has_weights:
            raise CorruptState(
                f"no checkpoint under {self.store.root} leads to the end of the log. Restore the "
                "directory from a backup, or start a new project from an exported model."
            )

    def _fits(self, state: SwarmState) -> bool:
        """Whether the loaded tensors are those that the log's newest records certify."""
        return all(
            self.bank.current(at).state == fragment.state
            for at, fragment in enumerate(state.fragments)
        )

    def _restore(self, checkpoint: Checkpoint) -> SwarmState:
        """Load the tensors, and the log folded so far."""
        found = self._load(checkpoint)
        state = SwarmState(self.project.genesis.data.block_sequences)
        if checkpoint.summary is None:
            return state
        state = SwarmState.restore(checkpoint.summary, state.block_sequences)
        if [fragment.state for fragment in state.fragments] != list(found):
            raise CorruptState("its tensors are not those that the log names")
        return state

    def _refold(self, state: SwarmState, start: int) -> None:
        def replay(merged: FragmentMerged) -> None:
            payload = self.store.read_payload(merged.fragment, merged.version)
            self.bank.replay(merged, payload)

        refold(state, self.store.log.frames(start), replay)

    def _collect_entries(self, recovered: Recovered) -> None:
        """Entries at hand for learners that come back or join."""
        head = recovered.state.index
        for index in range(max(1, head - RECENT_RECORDS + 1), head + 1):
            recovered.recent.append(self._entry(index))
        for fragment in recovered.state.fragments:
            index = fragment.record_index
            recovered.origins[index] = self._entry(index)

    def _entry(self, index: int) -> CertifiedRecord:
        record = self.store.log.read(index - 1)
        certificate = self.store.certificate(index)
        voters = self.project.charter.voters
        entry = recertify(record, certificate, self.identity, voters)
        if entry is None:
            raise CorruptState(f"record {index} has no certificate")
        return entry

    # Checkpoints.

    def capture(self, index: int, summary: SwarmSummary) -> Checkpoint:
        """The current versions by reference; the arrays are never changed in place."""
        current = [self.bank.current(at) for at in range(len(self.bank.layout.fragments))]
        return Checkpoint(
            index,
            [version.theta for version in current],
            [version.momentum for version in current],
            [version.number for version in current],
            summary,
        )

    def write_checkpoint(self, checkpoint: Checkpoint, keep: set[int]) -> None:
        """Keep a checkpoint, then drop what no recovery and no export needs."""
        self.store.require_space()
        self.store.write_checkpoint(checkpoint)
        kept = {FIRST_WEIGHTS, *keep} | ({self._best} if self._best is not None else set())
        oldest = self.store.checkpoints()[:CHECKPOINTS_TO_RECOVER_FROM][-1]
        versions = read_versions(self._place(oldest))
        self.store.prune(versions, kept)

    def name_best(self, index: int) -> None:
        """This checkpoint is kept for good, and exported by default."""
        self._best = index
        self.store.name_best(index)

    def _load(self, checkpoint: Checkpoint) -> tuple[StateDigests, ...]:
        sizes = [fragment.numel for fragment in self.bank.layout.fragments]
        if [values.size for values in checkpoint.theta] != sizes:
            raise CorruptState("its fragments have other sizes than the project's")
        parts: Iterator[tuple[int, tuple[F32, F32, int]]] = enumerate(
            zip(checkpoint.theta, checkpoint.momentum, checkpoint.versions, strict=True)
        )
        return tuple(
            self.bank.initialise(at, number, theta, momentum)
            for at, (theta, momentum, number) in parts
        )

    def _place(self, index: int) -> Path:
        return self.store.root / "checkpoints" / str(index)


def read_versions(place: Path) -> list[int]:
    """Fragment versions of a checkpoint, without reading its tensors."""
    try:
        versions, _ = msgspec.msgpack.decode(
            (place / "meta").read_bytes(), type=tuple[list[int], SwarmSummary | None]
        )
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptState(f"the checkpoint {place} is damaged: {error}") from error
    return versions
