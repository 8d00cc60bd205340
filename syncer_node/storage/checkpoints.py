"""Between the store and the bank: first weights, recovery after a crash, checkpoints."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from host.files.held_base import HeldBase
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject
from host.runtime import fork_server
from host.runtime.python_path import python_path
from protocol import first_weights
from protocol.errors import CorruptState, TransientError
from protocol.log.records import NewVersions, StateDigests, WeightsRestored, read_record
from protocol.log.restoring import States
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import flush
from protocol.numerics.versions import state_manifests
from syncer_node.machine.setup import Recovered
from syncer_node.machine.standby import NONE
from syncer_node.machine.telling.recent_entries import RECENT_RECORDS
from syncer_node.raft.ballot import Ballot
from syncer_node.storage import recovery
from syncer_node.storage.averages import Averages
from syncer_node.storage.merge_bank import MergeBank
from syncer_node.storage.snapshot_store import SnapshotStore
from syncer_node.storage.store import Checkpoint, Store, read_checkpoint, read_meta

log = logging.getLogger("shoal.disk")

FIRST_WEIGHTS = 0
"""Log index under which the first weights are kept, before there is any record."""

INITIALISE_TIMEOUT_S = 1800.0

CHECKPOINTS_TO_RECOVER_FROM = 2
"""A damaged newest checkpoint must not be the end: the one before it still has its payloads."""


class CheckpointStore:
    """One project's durable state on this syncer."""

    def __init__(
        self,
        store: Store,
        bank: MergeBank,
        project: OpenedProject,
        identity: Identity,
        base: Path | None = None,
        cache: Path | None = None,
        averages: Averages | None = None,
    ) -> None:
        """base: the folder of the base model, for a project that starts from one. cache: the
        home's, which gets the tokenizer that lies there. averages: go on from that of a checkpoint
        which is loaded."""
        self.base = base
        self.cache = cache
        self.averages = averages
        self.held_base: HeldBase | None = None
        """The frozen base model that first weights bring, to be given to others."""
        self.store = store
        self.bank = bank
        self.project = project
        self.identity = identity
        self.snapshots = SnapshotStore(store.root)
        self._best: int | None = None

    # First weights.

    def initialise(self) -> tuple[StateDigests, ...]:
        """Version 0 of every fragment: from disk if it was made before, else made now."""
        if FIRST_WEIGHTS not in self.store.checkpoints():
            self._keep_first_weights()
            if self.held_base is not None:
                self.held_base.missing()  # What has come can be given from now on.
        states = self._load(read_checkpoint(self.store.place(FIRST_WEIGHTS)))
        if wrong := first_weights.trouble(self.project.genesis, dict(enumerate(states))):
            raise CorruptState(f"{wrong}; delete {self.store.place(FIRST_WEIGHTS)}")
        return states

    def _keep_first_weights(self) -> None:
        """Their memory is free again before they are read."""
        theta = self._make_weights()
        self.keep_first(theta, [np.zeros_like(values) for values in theta])

    def keep_first(self, theta: list[F32], momentum: list[F32]) -> None:
        """Keep version 0 of every fragment as the first checkpoint."""
        checkpoint = Checkpoint(FIRST_WEIGHTS, theta, momentum, [0] * len(theta), None)
        self.store.write_checkpoint(checkpoint)

    def _make_weights(self) -> list[F32]:
        """Draw or read the weights in a process of its own: this daemon never builds a model."""
        with tempfile.TemporaryDirectory(dir=self.store.root) as folder:
            genesis, out = Path(folder) / "genesis", Path(folder) / "weights.safetensors"
            genesis.write_bytes(self.project.genesis_bytes)
            code, said = fork_server.run(
                "node.trainer.tools.initialise",
                [
                    str(genesis),
                    str(out),
                    *(["--from", str(self.base)] if self.base is not None else []),
                    *(["--cache", str(self.cache)] if self.cache is not None else []),
                ],
                environment={**os.environ, "PYTHONPATH": python_path()},
                timeout_s=INITIALISE_TIMEOUT_S,
            )
            if code != 0:
                words = said.strip().splitlines() or ["it printed nothing"]
                raise TransientError(f"making the first weights failed: {words[-1]}")
            tensors = load_file(out)
        # One by one, so that there are never two copies of all of them.
        weights = [tensors.pop(name).copy() for name in sorted(tensors)]
        for values in weights:
            flush(values)  # So that their bytes are what decoding them would give.
        return weights

    # Recovery.

    def recover(self) -> Recovered:
        """What the disk says: the newest sound checkpoint, and every certified record after it.

        Where no checkpoint leads to the end of the log, the fragments are to be fetched from
        others. Raises CorruptState when the log itself is damaged before its last record.
        """
        files = self.store.voter
        if files.log.cut_bytes:
            log.warning(
                "cut off the log's last %d bytes: they were half written", files.log.cut_bytes
            )
        ballot = files.settle(self._boot(), self.project.charter.epoch)
        self._enter_epoch()
        view = recovery.scan(files, self.project.charter, self.identity)
        if recovery.is_sole_voter(self.identity, view.charter.voters) and ballot.owed > files.last:
            raise CorruptState(
                f"{files.log.path} is damaged: it ends at record {files.last}, but reached "
                f"{ballot.owed} before, and no other voter has the rest. Restore {files.root} from "
                "a backup, or ask the project's owner to begin a new epoch: "
                "shoal project reset-seat"
            )
        self._certify_stored(view)
        state, held = self._recover_state(view)
        recovered = Recovered(state, recovery.log_start(files, view), ballot, held)
        recovered.snapshots = self.snapshots.outlines()
        if state.index:
            self._collect_entries(recovered, view)
            log.info("recovered at record %d, global step %d", state.index, state.global_step)
        best = state.best
        self._best = best.checkpoint if best else None
        return recovered

    def _boot(self) -> Ballot:
        """This disk's ballot at a new start; made anew where it is lost and nobody else votes."""
        files = self.store.voter
        try:
            return files.boot()
        except CorruptState:
            ballot = recovery.lone_ballot(files, self.project.charter, self.identity)
            if ballot is None:
                raise
            log.warning(
                "the ballot in %s was lost or damaged; made it anew from the log, as nobody else "
                "votes in this project",
                files.root,
            )
            files.save_ballot(ballot)
            return files.boot()

    def _enter_epoch(self) -> None:
        """Leave what the owner voided; where an epoch begins at a snapshot, go back to that."""
        files, charter = self.store.voter, self.project.charter
        recovery.enter_epoch(files, charter)
        origin = charter.origin
        if origin is None or files.last > origin.index:
            return  # The log is in the epoch.
        self.store.void_behind(origin.index, charter.epoch)
        try:
            meta = self.snapshots.place_checkpoint(origin)
        except CorruptState as error:
            log.warning("cannot use the snapshot; fetching the weights from other hosts: %s", error)
            return
        if meta is not None and files.last == 0:
            files.begin_behind(meta.entry, meta.summary, meta.origins)

    def _certify_stored(self, view: recovery.LogView) -> None:
        """What the sole voter stored is committed: make the certificates that were lost."""
        files = self.store.voter
        for index in range(files.certified + 1, view.certified + 1):
            entry = recovery.recertify(
                files.record(index), None, self.identity, view.charter.voters
            )
            if entry is not None:
                files.keep_certificate(entry.certificate)

    def _recover_state(self, view: recovery.LogView) -> tuple[SwarmState, list[int]]:
        """The folded log, and which version of each fragment the bank holds."""
        count = len(self.bank.layout.fragments)
        for index in self.store.checkpoints():
            if not self.store.voter.floor.index <= index <= view.certified:
                log.warning("checkpoint %d belongs to another log", index)
                continue
            try:
                checkpoint = read_checkpoint(self.store.place(index))
                state = self._restore(checkpoint)
            except CorruptState as error:
                log.warning("set checkpoint %d aside: %s", index, error)
                self.store.set_aside(index)
                continue
            try:
                stored = self.store.voter.between(state.index, view.certified)
                recovery.refold(state, stored, self.replay)
            except CorruptState as error:
                log.warning("cannot replay the log from checkpoint %d: %s", index, error)
                continue
            if not self._fits(state):
                log.warning("set checkpoint %d aside: its content is not what the log names", index)
                self.store.set_aside(index)
                continue
            return state, [self.bank.current(at).number for at in range(count)]
        state = self._folded(view.certified)
        if state.has_weights:
            log.warning("no checkpoint reaches the end of the log; fetching the weights")
        return state, [NONE if state.has_weights else 0] * count

    def _folded(self, certified: int) -> SwarmState:
        """The log without tensors."""
        files, block = self.store.voter, self.project.genesis.data.block_sequences
        state = SwarmState.restore(files.floor.summary, block)
        recovery.refold(state, files.between(state.index, certified))
        return state

    def _fits(self, state: SwarmState) -> bool:
        """Whether the loaded tensors are those that the log's newest records certify."""
        return all(
            self.bank.current(at).state == fragment.state
            for at, fragment in enumerate(state.fragments)
        )

    def _restore(self, checkpoint: Checkpoint) -> SwarmState:
        """Load the tensors, and the log folded so far."""
        found = self._load(checkpoint)
        block, summary = self.project.genesis.data.block_sequences, checkpoint.summary
        state = SwarmState.restore(summary, block)
        if summary is not None and [fragment.state for fragment in state.fragments] != list(found):
            raise CorruptState("its tensors are not those the log names")
        return state

    def replay(self, made: NewVersions) -> None:
        """Take a merge's outer step from its kept payload, or the kept weights that the guard went
        back to. Raises CorruptState."""
        if isinstance(made, WeightsRestored):
            kept = self.checkpoint_of(made.checkpoint, made.fragments)
            if kept is None:
                raise CorruptState(f"the weights of checkpoint {made.checkpoint} are not here")
            self.bank.restore(made, kept.theta, kept.momentum)
            return
        payload = self.store.read_payload(made.fragment, made.version, made.payload)
        self.bank.replay(made, payload)

    # Going back.

    def checkpoint_of(self, index: int, states: States) -> Checkpoint | None:
        """The weights of this checkpoint, if this disk has them whole."""
        for place in (self.store.restored_place(index), self.store.place(index)):
            if not place.exists():
                continue
            try:
                found = read_checkpoint(place)
            except CorruptState as error:
                log.warning("cannot go back to it from this disk: %s", error)
                continue
            pairs = zip(found.theta, found.momentum, strict=True)
            if tuple(state_manifests(*pair).digests for pair in pairs) == states:
                return found
            log.warning("%s does not hold the weights that the log names", place)
        return None

    def keep_restored(self, index: int, theta: list[F32], momentum: list[F32]) -> None:
        """Keep these weights of a checkpoint durably, apart from what is pruned or set aside."""
        self.store.write_restored(Checkpoint(index, theta, momentum, [0] * len(theta), None))

    def _collect_entries(self, recovered: Recovered, view: recovery.LogView) -> None:
        """Entries at hand for learners that come back or join."""
        floor, state = self.store.voter.floor, recovered.state
        for index in range(state.index, max(floor.index, state.index - RECENT_RECORDS), -1):
            entry = self._entry(index, view)
            if entry is None:
                break
            recovered.recent.insert(0, entry)
        if not recovered.recent and floor.entry is not None:
            recovered.recent.append(floor.entry)
        known = {read_record(one.record, may_be_brief=True).index: one for one in floor.origins}
        for fragment in state.fragments:
            index = fragment.record_index
            origin = self._entry(index, view) if index > floor.index else known.get(index)
            if origin is None:
                raise CorruptState(f"record {index} has no certificate")
            recovered.origins[index] = origin

    def _entry(self, index: int, view: recovery.LogView) -> CertifiedRecord | None:
        files = self.store.voter
        record, certificate = files.record(index), files.certificate(index)
        return recovery.recertify(record, certificate, self.identity, view.charter.voters)

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
        versions, _ = read_meta(self.store.place(oldest))
        self.store.prune(versions, kept)
        self._prune_restored(checkpoint.summary, oldest)

    def _prune_restored(self, summary: SwarmSummary | None, oldest: int) -> None:
        """oldest: the checkpoint of the lowest log index that recovery may start from."""
        restored = summary.restored if summary is not None else None
        if restored is not None and restored.index <= oldest:
            self.store.prune_restored(restored.pause.best.checkpoint)

    def name_best(self, index: int) -> None:
        """This checkpoint is kept for good, and exported by default."""
        self._best = index
        self.store.name_best(index)

    def _load(self, checkpoint: Checkpoint) -> tuple[StateDigests, ...]:
        sizes = [fragment.numel for fragment in self.bank.layout.fragments]
        if [values.size for values in checkpoint.theta] != sizes:
            raise CorruptState("its fragments have other sizes than the project's")
        parts = zip(checkpoint.versions, checkpoint.theta, checkpoint.momentum, strict=True)
        states = tuple(self.bank.initialise(at, *part) for at, part in enumerate(parts))
        if self.averages is not None:
            self.averages.load(checkpoint.index, checkpoint.head)
        return states
