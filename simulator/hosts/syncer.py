"""Simulated syncers: the daemon's machine and bank, a disk that survives, a table of notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from host.bulk.blob_store import BlobStore
from host.bulk.giving import SYNCER_AHEAD_S, Giving
from protocol import wire
from protocol.errors import CorruptState, MalformedPayload
from protocol.fragments import build_layout
from protocol.log.records import NewVersions, StateDigests, WeightsRestored, read_record
from protocol.log.restoring import States
from protocol.log.state import SwarmState
from protocol.machine import Effect, Failed, Start
from protocol.merge_rules import RULES, MergeRules
from protocol.messages import Envelope, Vote
from protocol.numerics import chunks
from protocol.numerics.codecs import F32
from protocol.numerics.merge import merge_fragment
from protocol.numerics.versions import state_manifests
from protocol.project import Charter
from simulator.hosts.syncer_disk import SyncerDisk
from simulator.hosts.voter import FSYNC_S, Observer, SimVoter
from simulator.stand_ins.backends import Backend
from simulator.stand_ins.tiny import SimSigner, TinyProject, charter_envelope
from simulator.virtual.world import Host, World
from syncer_node.machine import jobs
from syncer_node.machine.setup import Recovered, SyncerSetup
from syncer_node.machine.standby import NONE
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.raft import Raft
from syncer_node.storage.merge_bank import MergeBank, Version
from syncer_node.storage.recovery import LogView, log_start, refold
from syncer_node.storage.tape_recorder import PayloadTape, RecordedMachine, Sink

MERGE_S = 0.02
NOTICE_TTL_S = 30.0
CHECKPOINTS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """What a leader says in the swarm's table."""

    key: bytes
    epoch: int
    term: int
    votes: tuple[Vote, ...]
    charter: Envelope
    until_s: float


class SimSyncer(SimVoter):
    """A syncer in virtual time, one of one or more."""

    disk: SyncerDisk

    def __init__(
        self,
        world: World,
        tiny: TinyProject,
        signer: SimSigner,
        *,
        observer: Observer,
        notices: dict[bytes, Notice],
        backend: Backend,
        name: str = "syncer",
        rules: MergeRules = RULES,
    ) -> None:
        """rules: other ones leave out layers of the defence."""
        super().__init__(world, tiny, signer, name=name, observer=observer)
        self.notices = notices
        self.backend = backend
        self.rules = rules
        self.layout = build_layout(
            tiny.genesis.model.tensors, tiny.genesis.strategy, tiny.genesis.fragments
        )
        self.blob_store = BlobStore(clock=lambda: self.world.now_s)
        self.giving = Giving(ahead_s=SYNCER_AHEAD_S)
        self.bank: MergeBank
        self.syncer: SyncerMachine
        self.tape: Callable[[SimSyncer], Sink] | None = None
        """Makes the tape of each life; None records nothing."""
        self._payloads: PayloadTape | None = None
        self.merge_s = MERGE_S
        """How long its processor takes for a merge."""

    @property
    def raft(self) -> Raft:
        return self.syncer.raft

    def _empty_disk(self, ballot: Ballot) -> SyncerDisk:
        return SyncerDisk(ballot, charter_envelope(self.tiny))

    def build(self) -> SyncerMachine | RecordedMachine:
        envelope = self.disk.charter
        charter = wire.decode(envelope.payload, Charter)
        self.blob_store = BlobStore(clock=lambda: self.world.now_s)
        self.giving = Giving(ahead_s=SYNCER_AHEAD_S)
        self.bank = MergeBank(
            self.layout, charter, self.blob_store, merge=self.backend.merge, rules=self.rules
        )
        raft = self._begin_life()
        setup = SyncerSetup(
            project=raft.project,
            genesis=self.tiny.genesis,
            charter=charter,
            charter_envelope=envelope,
            layout_digest=self.layout.digest,
            numels=tuple(fragment.numel for fragment in self.layout.fragments),
            signer=raft.signer,
            verify=raft.verify,
            wall_offset_s=raft.wall_offset_s,
            rng=raft.rng,
            nonce=raft.nonce,
            rules=self.rules,
        )
        recovered = self._recover()
        if self.tape is None:
            self.syncer = SyncerMachine(setup, recovered)
            return self.syncer
        sink = self.tape(self)
        # Sets of local steps are put together otherwise than any replay would.
        is_usual = self.backend.merge is merge_fragment
        self._payloads = PayloadTape(sink) if is_usual else None
        recorded = RecordedMachine(setup, recovered, self.seed.encode(), sink, "simulator")
        self.syncer = recorded.inner
        return recorded

    # The disk.

    def _recover(self) -> Recovered:
        """As the daemon does, from the whole log and its payloads instead of a checkpoint."""
        disk = self.disk
        view = disk.open(self.signer, self._proven_alone)
        state, versions = self._fold(view)
        outlines = tuple(kept.manifest.outline for _, kept in sorted(disk.snapshots.items()))
        recovered = Recovered(state, log_start(disk, view), disk.ballot, versions)
        recovered.snapshots = outlines
        self._collect(recovered)
        return recovered

    def _fold(self, view: LogView) -> tuple[SwarmState, list[int]]:
        disk, block = self.disk, self.tiny.genesis.data.block_sequences
        count = len(self.layout.fragments)
        records = disk.log[: max(0, view.certified - disk.floor.index)]
        summary = disk.floor_summary
        if disk.base is not None or (summary is None and disk.has_weights):
            if disk.base is None:
                self._initialise()
            for at, one in enumerate(disk.base or ()):
                self.bank.initialise(at, one.number, one.theta, one.momentum)
            state = SwarmState(block) if summary is None else SwarmState.restore(summary, block)
            try:
                refold(state, records, self._replay)
                return state, [self.bank.current(at).number for at in range(count)]
            except CorruptState:
                pass  # A payload is lost: the fragments must come from others.
        state = SwarmState(block) if summary is None else SwarmState.restore(summary, block)
        refold(state, records, lambda _: None)
        return state, [NONE if state.has_weights else 0] * count

    def _replay(self, made: NewVersions) -> None:
        if isinstance(made, WeightsRestored):
            kept = self.disk.restored.get(made.checkpoint)
            if kept is None:
                raise CorruptState("the weights that the guard went back to are lost")
            self.bank.restore(made, [one.theta for one in kept], [one.momentum for one in kept])
            return
        payload = self.disk.payloads.get(made.payload)
        if payload is None:
            raise CorruptState("the payload is lost")
        self.bank.replay(made, payload)

    def _write_checkpoint(self, job: jobs.WriteCheckpoint) -> None:
        """Keep the newest checkpoints, and those that the guard may go back to."""
        if self.disk.is_full:
            return
        count = len(self.layout.fragments)
        current = [
            replace(self.bank.current(at), residual=None, payload=None) for at in range(count)
        ]
        kept = self.disk.checkpoints | {job.index: current}
        needed = {*sorted(kept)[-CHECKPOINTS_KEPT:], *job.summary.candidates}
        needed |= {mark.index for mark in job.summary.marks}
        self.disk.checkpoints = {at: one for at, one in kept.items() if at in needed}

    def _collect(self, recovered: Recovered) -> None:
        disk = self.disk
        for index in range(disk.floor.index + 1, recovered.state.index + 1):
            entry = disk.entry(index)
            if entry is not None:
                recovered.recent.append(entry)
        by_index = {read_record(one.record).index: one for one in recovered.recent}
        for origin in disk.floor_origins:
            index = read_record(origin.record, may_be_brief=True).index
            by_index.setdefault(index, origin)
        if not recovered.recent and disk.floor_entry is not None:
            recovered.recent.append(disk.floor_entry)
        for fragment in recovered.state.fragments:
            recovered.origins[fragment.record_index] = by_index[fragment.record_index]

    def _initialise(self) -> jobs.WeightsMade:
        made = []
        for fragment in self.layout.fragments:
            theta = self.backend.weights(fragment.numel, fragment.index)
            made.append(self.bank.initialise(fragment.index, 0, theta, np.zeros_like(theta)))
        self.disk.has_weights = True
        return jobs.WeightsMade(tuple(made))

    # Jobs.

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job, world = start.job, self.world
        self.bank.charter = self.syncer.setup.charter
        match job:
            case jobs.InitialiseWeights():
                world.after(2.0, lambda: answer(self._initialise()))
            case jobs.FetchPush():
                source = job.source or job.peer
                delay_s = world.transfer_s(source, self.key, job.header.payload_bytes)
                world.after(delay_s, lambda: answer(self._fetch(job)))
            case jobs.TakeMerge(result=result):
                assert result.merger is not None, "it comes from one"
                delay_s = world.transfer_s(result.merger, self.key, result.payload_bytes)
                world.after(delay_s, lambda: answer(self._take(job)))
            case jobs.FetchPayload() if self._has_mergers:
                world.after(self._copy_s(job), lambda: answer(self._fetch_from_peers(job)))
            case jobs.HoldCheckpoint(checkpoint, states):
                delay_s = 2 * world.delay_s(4096)
                world.after(delay_s, lambda: answer(self._hold(checkpoint, states)))
            case jobs.FetchPayload() | jobs.FetchWeights() | jobs.RepairFragment():
                world.after(2 * world.delay_s(4096), lambda: answer(self._fetch_from_peers(job)))
            case jobs.Merge():
                world.after(self.merge_s, lambda: answer(self._merge(job)))
            case jobs.FetchRestored(restored=restored):
                delay_s = 2 * world.delay_s(4096)
                states = restored.fragments
                world.after(
                    delay_s, lambda: answer(self._keep_restored(restored.checkpoint, states))
                )
            case jobs.WriteCheckpoint():
                self._write_checkpoint(job)
                super().run_job(start, answer)
            case jobs.LoadWeights() | jobs.Replay() | jobs.Restore():
                world.after(FSYNC_S, lambda: answer(self._load(job)))
            case _:
                super().run_job(start, answer)

    @property
    def _has_mergers(self) -> bool:
        return self.syncer.setup.charter.rounds.mergers_max != 1

    def _copy_s(self, job: jobs.FetchPayload) -> float:
        """Seconds until a payload is here, from whoever merged; it may be on this disk already."""
        merged = job.merged
        source = merged.merger or job.leader
        if merged.payload in self.disk.payloads or source is None:
            return FSYNC_S
        return self.world.transfer_s(source, self.key, merged.payload_bytes)

    def _take(self, job: jobs.TakeMerge) -> object:
        """What a merger merged, as a candidate here."""
        result, world = job.result, self.world
        merger = world.hosts[result.merger or b""]
        assert isinstance(merger, SimSyncer), "syncers merge"
        payload = merger.blob_store.get(result.payload) if world.can_reach(self, merger) else None
        if payload is None:
            return Failed("the merger is gone")
        if self.disk.is_full:
            return Failed("disk full")
        try:
            self.bank.take(job.merge, result, bytes(payload))
        except CorruptState as error:
            return Failed(str(error))
        self.disk.payloads[result.payload] = bytes(payload)
        return jobs.MergeTaken()

    def _load(self, job: jobs.LoadWeights | jobs.Replay | jobs.Restore) -> object:
        try:
            match job:
                case jobs.Replay(made) | jobs.Restore(made):
                    self._replay(made)
                case jobs.LoadWeights():
                    self._initialise()
        except CorruptState as error:
            return Failed(str(error))
        return jobs.Replayed()

    def _checkpoint_here(self, checkpoint: int, states: States) -> list[Version] | None:
        """The weights of a checkpoint that this disk has."""
        for kept in (self.disk.restored, self.disk.checkpoints):
            found = kept.get(checkpoint)
            if found is not None and tuple(one.state for one in found) == states:
                return found
        return None

    def _keep_restored(self, checkpoint: int, states: States) -> object:
        """As the daemon does: from this disk, else from whoever offers them."""
        found = self._checkpoint_here(checkpoint, states)
        if found is None:
            found = [one for state in states if (one := self._fetch_version(state)) is not None]
        if len(found) < len(states):
            return Failed("nobody has the checkpoint")
        self.disk.restored[checkpoint] = found
        return jobs.PayloadKept()

    def _fetch_version(self, state: StateDigests) -> Version | None:
        theta, momentum = self._assemble(state.theta), self._assemble(state.momentum)
        if theta is None or momentum is None:
            return None
        return Version(0, theta, momentum, None, state, None, state_manifests(theta, momentum))

    def _hold(self, checkpoint: int, states: States) -> object:
        answer = self._keep_restored(checkpoint, states)
        if isinstance(answer, jobs.PayloadKept):
            self._offer_checkpoint(checkpoint, states)
        return answer

    def _offer_checkpoint(self, checkpoint: int, states: States) -> None:
        found = self._checkpoint_here(checkpoint, states) if checkpoint else None
        if found is None:
            self.bank.let_checkpoint_go()
        elif self.bank.held_checkpoint != checkpoint:
            arrays = [one.theta for one in found], [one.momentum for one in found]
            self.bank.hold_checkpoint(checkpoint, *arrays)

    def act(self, action: object) -> None:
        match action:
            case jobs.Adopt(fragment, version, payload):
                self.bank.adopt(fragment, version, payload)
            case jobs.AdoptRestored(restored):
                self.bank.adopt_restored(restored)
            case jobs.OfferCheckpoint(checkpoint, states):
                self._offer_checkpoint(checkpoint, states)
            case jobs.Forget(pushes):
                for push in pushes:
                    self.bank.forget_push(push)
            case jobs.OfferPush(push, payload):
                self.bank.offer_push(push, payload)
            case jobs.RetractPush(payload):
                self.bank.retract_push(payload)
            case jobs.CutSnapshot(snapshot, summary):
                fragments = range(len(self.layout.fragments))
                self.disk.weights[snapshot] = [self.bank.current(at) for at in fragments]
                self.disk.summaries[snapshot] = summary
            case _:
                super().act(action)

    def take_snapshot(self) -> None:
        """Its owner wants a snapshot."""
        self.carry_out(self._driven().take_snapshot(self.clock_s))

    def _offer_charter(self, envelope: Envelope) -> list[Effect]:
        return self._driven().offer_charter(envelope, self.clock_s)

    def _driven(self) -> SyncerMachine | RecordedMachine:
        """The machine, with a tape around it where there is one."""
        assert isinstance(self.machine, SyncerMachine | RecordedMachine), "it is up"
        return self.machine

    def announce(self) -> None:
        """Say in the table that this host leads, as the daemon does again and again."""
        if not self.is_up:
            return
        raft = self.syncer.raft
        is_stopped = self.syncer.lost is not None and raft.is_leading
        if self.syncer.leadership is None and not is_stopped:
            return
        self.notices[self.key] = Notice(
            self.key,
            raft.context.epoch,
            raft.context.term,
            raft.election.seat_votes,
            self.syncer.setup.charter_envelope,
            self.world.now_s + NOTICE_TTL_S,
        )

    def boot(self) -> None:
        super().boot()
        life = self.life

        def again() -> None:
            if self.life == life:
                self.announce()
                self.world.after(0.5, again)

        again()

    def _peers(self) -> list[Host]:
        """Hosts that may have bytes for us: other syncers first."""
        others = [host for host in self.world.hosts.values() if host is not self]
        others.sort(key=lambda host: (not isinstance(host, SimSyncer), host.name))
        return [host for host in others if self.world.can_reach(self, host)]

    def _find(self, *names: bytes) -> list[bytes] | None:
        for host in self._peers():
            blob_store = getattr(host, "blob_store", None)
            if blob_store is None:
                continue
            parts = [blob_store.get(name) for name in names]
            if all(part is not None for part in parts):
                return [bytes(part) for part in parts]
        return None

    def find_payload(self, name: bytes) -> bytes | None:
        """From this disk, somebody's shelf, or another syncer's disk, which it serves too."""
        own = self.disk.payloads.get(name)
        if own is not None:
            return own
        found = self._find(name)
        if found is not None:
            return found[0]
        disks = (host.disk for host in self._peers() if isinstance(host, SimSyncer))
        return next((disk.payloads[name] for disk in disks if name in disk.payloads), None)

    def _fetch_from_peers(
        self, job: jobs.FetchPayload | jobs.FetchWeights | jobs.RepairFragment
    ) -> object:
        match job:
            case jobs.FetchPayload():
                payload = self.find_payload(job.merged.payload)
                if payload is None:
                    return Failed("nobody has the payload")
                self.disk.payloads[job.merged.payload] = payload
                return jobs.PayloadKept()
            case jobs.FetchWeights():
                self.disk.has_weights = True  # The simulator's are the same everywhere.
                return jobs.PayloadKept()
            case jobs.RepairFragment():
                state = job.newest.state
                arrays = [self._assemble(name) for name in (state.theta, state.momentum)]
                theta, momentum = arrays
                if theta is None or momentum is None:
                    return Failed("nobody has the fragment")
                self.bank.initialise(job.fragment, job.newest.version, theta, momentum)
                return jobs.Repaired()

    def _assemble(self, root: bytes) -> F32 | None:
        """A state by its digest: the manifest, then the chunks that it names."""
        manifest = self._find(root)
        if manifest is None:
            return None
        parts = self._find(*chunks.digests(manifest[0]))
        return None if parts is None else np.frombuffer(b"".join(parts), np.float32).copy()

    def _fetch(self, job: jobs.FetchPush) -> object:
        peer = self.world.hosts.get(job.source or job.peer)
        if peer is None or not self.world.can_dial(self, peer):
            return Failed("unreachable")
        blob = getattr(peer, "blob_store").get(job.header.digest)  # noqa: B009 -- learners have one
        if blob is None:
            return Failed("not held")
        push = (job.peer, job.header.incarnation, job.header.sequence)
        try:
            self.bank.keep_push(push, job.header.fragment, bytes(blob), job.header.codec)
        except MalformedPayload as error:
            return jobs.PushRefused(error.reason, str(error))
        if self._payloads is not None:
            self._payloads.keep_push(job, blob)
        return jobs.PushFetched()

    def may_give(self, to: bytes, digest: bytes) -> bool:
        """Whether it sends a merged payload to a learner now, or its line is too far behind."""
        payload = self.blob_store.get(digest)
        if payload is None or not self.bank.is_merged(digest):
            return payload is not None
        self.giving.measured(self.world.up_bytes_per_s(self.key))
        return self.giving.may_give(to, digest, len(payload), self.world.now_s)

    def _merge(self, job: jobs.Merge) -> object:
        if self.disk.is_full:
            return Failed("disk full")
        if self._payloads is not None:
            self._payloads.keep_base(job.fragment, self.bank)
        try:
            outcome = self.bank.merge(job)
        except (CorruptState, KeyError) as error:
            return Failed(str(error))
        self.disk.payloads[outcome.payload_digest] = bytes(outcome.payload)
        return jobs.Merged(
            payload=outcome.payload_digest,
            payload_bytes=len(outcome.payload),
            state=outcome.state,
            norms=outcome.norms,
            scales=outcome.scales,
            cosines=outcome.cosines,
            trusts=outcome.trusts,
            shares=outcome.shares,
            tensors=outcome.tensors,
            tensors_clipped=outcome.tensors_clipped,
            expected=outcome.expected,
            repeats=outcome.repeats,
            echoes=outcome.echoes,
            novelties=outcome.novelties,
            seconds=self.merge_s,
            up_bytes_per_s=self.world.up_bytes_per_s(self.key),
            up_backlog_s=self.giving.backlog_s(self.world.now_s),
        )
