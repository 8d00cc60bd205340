"""The syncer's machine: sessions, the log, rounds, leases, checkpoints, and the end of a run.

    starting --weights--> training --budget--> draining --drained--> ended

Nothing is broadcast before it is committed. Whatever is volatile here (rounds in flight, who is
asked) may be lost at any moment: a restarted syncer continues from the last committed record, and
learners keep what was not merged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from protocol import limits, wire
from protocol.commit import CommitTracker, Proposal
from protocol.desk import Desk
from protocol.errors import RemoteError, UnexpectedMessage
from protocol.ids import JobId
from protocol.machine import (
    Disconnect,
    Effect,
    Event,
    Failed,
    JobDone,
    Note,
    PeerDown,
    PeerUp,
    Received,
    Started,
    Stop,
    StopAsked,
    WakeAt,
    Woke,
)
from protocol.membership import Membership, Session
from protocol.messages import (
    CertifiedRecord,
    Committed,
    Decline,
    Envelope,
    Evaluation,
    FragmentIndex,
    Goodbye,
    Heartbeat,
    Hello,
    LeaseRequest,
    Message,
    Push,
    PushHeader,
    Refused,
    Welcome,
)
from protocol.project import Charter, Genesis
from protocol.quorum import GraceWindow
from protocol.records import (
    BlocksLeased,
    BlocksReturned,
    Body,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    FragmentMerged,
    Record,
    RunEnded,
    RunEnding,
    SeatTaken,
    WeightsInitialised,
    sign_record,
)
from protocol.signing import Signer, Verify, open_envelope
from protocol.state import SwarmState
from protocol.trace import (
    CheckpointScored,
    FragmentCommitted,
    PeerMisbehaved,
    PhaseChanged,
    RecordCommitted,
    SessionClosed,
    SessionOpened,
    SessionRefused,
)
from syncer_node.evaluating import Evaluating
from syncer_node.jobs import (
    Append,
    Appended,
    FetchPush,
    InitialiseWeights,
    Keep,
    Merge,
    NameBest,
    WeightsMade,
    WriteCheckpoint,
)
from syncer_node.merging import Merging
from syncer_node.pacing import Pace

LOOK_EVERY_S = 0.02
"""Heartbeats come often; rounds are looked at no more often than this because of them."""

RECENT_RECORDS = 2048
"""Committed records kept at hand for learners that continue their log."""

CYCLES_PER_CHECKPOINT = 8
"""Merges of every fragment between two checkpoints, at most: recovery replays what lies between."""

RECORDS_PER_MESSAGE = 64
BLOCKS_HELD_MAX = 4096
STORE_RETRY_S = 5.0
NOT_READY_RETRY_S = 2.0


class Phase(Enum):
    STARTING = "starting"
    TRAINING = "training"
    DRAINING = "draining"
    ENDED = "ended"


PHASE_TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.STARTING, "weights"): Phase.TRAINING,
    (Phase.TRAINING, "budget"): Phase.DRAINING,
    (Phase.DRAINING, "drained"): Phase.ENDED,
}


@dataclass(slots=True)
class Recovered:
    """What the store gave back at start: the folded log and the entries worth keeping at hand."""

    state: SwarmState
    recent: list[CertifiedRecord] = field(default_factory=list)
    origins: dict[int, CertifiedRecord] = field(default_factory=dict)
    """Entries by log index that made the newest version of some fragment."""


@dataclass(frozen=True, slots=True)
class SyncerSetup:
    """Everything a syncer machine is told once."""

    project: bytes
    genesis: Genesis
    charter: Charter
    charter_envelope: Envelope
    layout_digest: bytes
    numels: tuple[int, ...]
    signer: Signer
    verify: Verify
    wall_offset_s: float
    """Wall clock minus the monotonic clock that events are stamped with."""


class SyncerMachine:
    """`handle(event, now_s)` for the host that holds the seat."""

    def __init__(self, setup: SyncerSetup, recovered: Recovered) -> None:
        self.setup = setup
        self.state = recovered.state
        self.members = Membership()
        self.desk = Desk()
        self.phase = Phase.STARTING
        self.faults: dict[str, int] = {}
        self.store_trouble = ""
        self._recent: deque[CertifiedRecord] = deque(recovered.recent, maxlen=RECENT_RECORDS)
        self._origins = dict(recovered.origins)
        self._now_s = 0.0
        self._looked_s = -1.0
        self._listening_since_s = 0.0
        self._retries: list[tuple[float, Append]] = []
        self._is_leasing = False
        self._lease_queue: deque[tuple[bytes, int]] = deque()
        self._returning: set[tuple[bytes, int]] = set()
        self._is_ending_proposed = False
        charter, rounds = setup.charter, setup.charter.rounds
        self.log = CommitTracker(
            project=setup.project,
            epoch=self.state.epoch,
            term=self.state.term + 1,
            voters=charter.voters,
            index=self.state.index,
            head=self.state.head,
        )
        self.merging = Merging(
            desk=self.desk,
            state=self.state,
            members=self.members,
            spec=rounds,
            outer=charter.outer,
            numels=setup.numels,
            tokens_per_step=charter.inner.batch_sequences * setup.genesis.data.sequence_tokens,
            propose=self._propose,
            pace=Pace(rounds, setup.genesis.fragments),
            window=GraceWindow(rounds.grace_safety, rounds.overlap_steps),
            last_round=self.state.rounds,
            proposed_step=self.state.global_step,
        )
        self.evaluating = Evaluating(
            state=self.state,
            members=self.members,
            every=charter.limits.evaluate_every,
            checkpoint_every=CYCLES_PER_CHECKPOINT * setup.genesis.fragments,
            propose=self._propose,
        )

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Effects of one event."""
        self._now_s = now_s
        match event:
            case Started():
                self._start()
            case PeerUp():
                pass  # A peer is nobody until its Hello is accepted.
            case PeerDown(peer, reason):
                self._lose(peer, reason)
            case Received(peer, message):
                self._receive(peer, message)
            case JobDone(number, result):
                self._job_done(number, result)
            case StopAsked(reason):
                self._stop(reason)
                return self.desk.drain()
            case Woke() | Note():
                pass
        is_routine = isinstance(event, Received) and isinstance(event.message, Heartbeat)
        if not is_routine or now_s - self._looked_s >= LOOK_EVERY_S:
            self._look()
        self._wake()
        return self.desk.drain()

    def fault(self, peer: bytes, error: RemoteError) -> list[Effect]:
        """Count a peer's offence that was found while reading its bytes."""
        self._blame(peer, error)
        return self.desk.drain()

    # Life of the run.

    def _start(self) -> None:
        self._listening_since_s = self._now_s
        self._propose(SeatTaken(self.setup.signer.key))
        if self.setup.charter.revision > self.state.charter_revision:
            self._propose(CharterAdopted(self.setup.charter_envelope))
        if self.state.ended is not None:
            self.phase = Phase.ENDED
        elif self.state.is_ending:
            self.phase = Phase.DRAINING
        elif self.state.has_weights:
            self.phase = Phase.TRAINING
        else:
            self.desk.start(InitialiseWeights())
        self.desk.emit(PhaseChanged(self.phase.value, f"log at record {self.state.index}"))

    def _fire(self, trigger: str, detail: str) -> None:
        self.phase = PHASE_TRANSITIONS[self.phase, trigger]
        self.desk.emit(PhaseChanged(self.phase.value, detail))

    def _look(self) -> None:
        now_s = self._now_s
        self._looked_s = now_s
        for session in self.members.silent(now_s):
            self.desk.out.append(Disconnect(session.peer, "silent"))
            self._lose(session.peer, f"not heard for {limits.GONE_AFTER_S:.0f} s")
        self._take_leases_back()
        self._retry_store()
        is_stored = not self.store_trouble
        self.merging.look(now_s, may_open=self.phase is Phase.TRAINING and is_stored)
        if self.phase is Phase.TRAINING:
            self._check_budget()
            self.evaluating.look(now_s)
        elif (
            self.phase is Phase.DRAINING
            and not self.merging.rounds
            and not self.log.tail
            and self.evaluating.finish(now_s)
        ):
            self._end()

    def _check_budget(self) -> None:
        budget = self.setup.charter.limits.tokens
        if self.state.tokens >= budget and not self._is_ending_proposed:
            self._is_ending_proposed = True
            self._propose(RunEnding("token-budget"))

    def _end(self) -> None:
        best = self.state.best
        body = RunEnded(
            global_step=self.state.global_step,
            tokens=self.state.tokens,
            best=best.checkpoint if best else self.state.checkpoint,
            best_loss=best.loss if best else None,
        )
        self._propose(body)

    def _stop(self, reason: str) -> None:
        """Say goodbye; learners go on by themselves and come back when there is a syncer again."""
        for session in self.members.live():
            self.desk.send(session.peer, Goodbye(reason))
        self.desk.out.append(Stop(reason))

    def _wake(self) -> None:
        times = [self.merging.deadline_s(self._now_s), self.evaluating.deadline_s()]
        times += [at_s for at_s, _ in self._retries]
        times.append(self._now_s + limits.HEARTBEAT_S)
        self.desk.out.append(WakeAt(max(self._now_s, min(t for t in times if t is not None))))

    # The log.

    def _propose(self, body: Body) -> None:
        proposal = self.log.propose(body, self._now_s + self.setup.wall_offset_s)
        self._store(Append(proposal.record.index, proposal.encoded))

    def _store(self, append: Append) -> None:
        self.desk.start(append)

    def _retry_store(self) -> None:
        due = [append for at_s, append in self._retries if at_s <= self._now_s]
        self._retries = [(at_s, a) for at_s, a in self._retries if at_s > self._now_s]
        for append in due:
            self._store(append)

    def _appended(self, job: Append, result: object) -> None:
        if not isinstance(result, Appended):
            reason = result.reason if isinstance(result, Failed) else "append failed"
            if not self.store_trouble:
                self.desk.emit(PhaseChanged("merging paused", reason))
            self.store_trouble = reason
            self._retries.append((self._now_s + STORE_RETRY_S, job))
            return
        if self.store_trouble:
            self.store_trouble = ""
            self.desk.emit(PhaseChanged(self.phase.value, "the log can be written again"))
        for proposal in self.log.tail:
            if proposal.record.index == job.index:
                vote = sign_record(proposal.record, proposal.digest, self.setup.signer)
                for done, entry in self.log.vote(job.index, vote):
                    self._commit(done, entry)
                return

    def _commit(self, proposal: Proposal, entry: CertifiedRecord) -> None:
        record = proposal.record
        self.state.apply(record, proposal.digest)
        self._recent.append(entry)
        self.desk.do(Keep(entry, record.index))
        kind = type(record.body).__name__
        self.desk.emit(RecordCommitted(record.index, record.term, proposal.digest, kind))
        self._after(record.body, record.index, entry)
        for session in self.members.live():
            self.desk.send(session.peer, Committed((entry,)))

    def _after(self, body: Body, index: int, entry: CertifiedRecord) -> None:
        """What a committed record sets in motion here."""
        match body:
            case WeightsInitialised():
                self._origins[index] = entry
                self._fire("weights", f"{len(body.fragments)} fragments at version 0")
            case FragmentMerged():
                self._merged(body, index, entry)
            case BlocksLeased():
                self._is_leasing = False
                self._lease_next()
            case BlocksReturned(learner, incarnation):
                self._returning.discard((learner, incarnation))
            case CheckpointMarked(_, evaluator):
                self.evaluating.on_marked(index, evaluator, self._now_s)
                self.desk.start(WriteCheckpoint(index, self.state.summary()))
            case CheckpointEvaluated():
                self.evaluating.on_scored()
                best = self.state.best
                if best is not None and best.checkpoint == body.checkpoint:
                    self.desk.do(NameBest(body.checkpoint))
                self.desk.emit(CheckpointScored(body.global_step, body.loss, body.evaluator))
            case RunEnding():
                self._fire("budget", f"{self.state.tokens:,} tokens committed")
            case RunEnded():
                self._fire("drained", f"global step {body.global_step}, best {body.best}")

    def _merged(self, merged: FragmentMerged, index: int, entry: CertifiedRecord) -> None:
        self._origins[index] = entry
        needed = {fragment.record_index for fragment in self.state.fragments}
        self._origins = {at: e for at, e in self._origins.items() if at in needed}
        parts = merged.contributions
        self.merging.on_committed(merged, self._now_s)
        self.desk.emit(
            FragmentCommitted(
                index=index,
                global_step=merged.global_step,
                fragment=merged.fragment,
                version=merged.version,
                participants=len(parts),
                mean_steps=sum(part.steps for part in parts) / len(parts),
                merge_s=self.merging.window.sync.value_s or 0.0,
            )
        )

    # Sessions.

    def _receive(self, peer: bytes, message: Message) -> None:
        try:
            if isinstance(message, Hello):
                self._hello(peer, message)
                return
            session = self.members.sessions.get(peer)
            if session is None or not session.is_connected:
                raise UnexpectedMessage(f"{type(message).__name__} before hello")
            session.heard_s = self._now_s
            self._dispatch(session, message)
        except RemoteError as error:
            self._blame(peer, error)

    def _dispatch(self, session: Session, message: Message) -> None:
        match message:
            case Heartbeat():
                session.beat = message
            case Push(envelope):
                self._push(session, envelope)
            case Decline():
                self.merging.on_decline(session.peer, message)
            case LeaseRequest(blocks):
                self._lease_queue.append((session.peer, blocks))
                self._lease_next()
            case Evaluation():
                self.evaluating.on_evaluation(session.peer, message)
            case Goodbye(reason):
                self._lose(session.peer, reason or "said goodbye")
                self.desk.out.append(Disconnect(session.peer, "goodbye"))
            case _:
                raise UnexpectedMessage(f"{type(message).__name__} from a learner")

    def _hello(self, peer: bytes, hello: Hello) -> None:
        refusal = self._refusal(peer, hello)
        if refusal is not None:
            self.desk.emit(SessionRefused(peer, refusal.reason, refusal.text))
            if refusal.retry_after_s is None:
                self.faults[refusal.reason] = self.faults.get(refusal.reason, 0) + 1
            self.desk.send(peer, refusal)
            self.desk.out.append(Disconnect(peer, refusal.reason))
            return
        former = self.members.sessions.get(peer)
        if former is not None and former.incarnation < hello.incarnation:
            self.merging.on_gone(peer)
            self._return_leases(former.key)
        session = self.members.open(peer, hello, self._now_s)
        assert session is not None, "checked by _refusal"
        entries = self._continuation(hello)
        index = self._index() if entries is None else None
        self.desk.send(
            peer,
            Welcome(self.setup.charter_envelope, self.state.epoch, self.state.term, index),
        )
        for at in range(0, len(entries or []), RECORDS_PER_MESSAGE):
            chunk = tuple((entries or [])[at : at + RECORDS_PER_MESSAGE])
            self.desk.send(peer, Committed(chunk))
        self.desk.emit(SessionOpened(peer, session.name, entries is not None))

    def _refusal(self, peer: bytes, hello: Hello) -> Refused | None:
        charter = self.setup.charter
        if hello.wire_version != limits.WIRE_VERSION:
            text = (
                f"this swarm speaks wire version {limits.WIRE_VERSION}, you speak "
                f"{hello.wire_version}: install the shoal release that matches"
            )
            return Refused("wire-version", text, None)
        if hello.project != self.setup.project:
            return Refused("wrong-project", "this syncer serves another project", None)
        if hello.layout != self.setup.layout_digest:
            return Refused("wrong-layout", "your fragments are cut differently: update shoal", None)
        if peer in charter.banned:
            return Refused("banned", "the project's owner has banned this key", None)
        known = self.members.sessions.get(peer)
        if known is not None and known.incarnation > hello.incarnation:
            text = "a newer session of the same key is here: is the key used on two hosts?"
            return Refused("stale-incarnation", text, None)
        if known is None and sum(1 for _ in self.members.live()) >= charter.limits.learners:
            return Refused("full", "the project takes no more learners now", 60.0)
        if not self.state.has_weights:
            return Refused("not-ready", "the first weights are being made", NOT_READY_RETRY_S)
        return None

    def _continuation(self, hello: Hello) -> list[CertifiedRecord] | None:
        """The entries after the learner's head; None when it must start from the index."""
        behind = self.state.index - hello.head_index
        if hello.head_index == 0 or behind < 0 or behind > len(self._recent):
            return None
        if behind == 0:
            return [] if hello.head == self.state.head else None
        entries = list(self._recent)[-behind:]
        previous = wire.decode(entries[0].record, Record).previous
        return entries if previous == hello.head else None

    def _index(self) -> FragmentIndex:
        indices = sorted({fragment.record_index for fragment in self.state.fragments})
        return FragmentIndex(
            log_index=self.state.index,
            head=self.state.head,
            entries=tuple(self._origins[index] for index in indices),
            summary=wire.encode(self.state.summary()),
        )

    def _push(self, session: Session, envelope: Envelope) -> None:
        payload = open_envelope(
            "push", self.setup.project, envelope, self.setup.verify, signer=session.peer
        )
        header = wire.decode(payload, PushHeader)
        if header.project != self.setup.project or header.incarnation != session.incarnation:
            raise UnexpectedMessage("push of another project or session")
        self.merging.on_push(session, header, self._now_s)

    def _lose(self, peer: bytes, reason: str) -> None:
        session = self.members.close(peer, reason)
        if session is not None:
            session.heard_s = self._now_s
            self.merging.on_gone(peer)
            self.desk.emit(SessionClosed(peer, session.name, reason))

    def _blame(self, peer: bytes, error: RemoteError) -> None:
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1
        session = self.members.sessions.get(peer)
        if session is not None:
            session.rejected[error.reason] = session.rejected.get(error.reason, 0) + 1
        self.desk.emit(PeerMisbehaved(peer, error.reason, str(error)))

    # Leases.

    def _lease_next(self) -> None:
        """One lease at a time, so that two never name the same positions."""
        while not self._is_leasing and self._lease_queue:
            peer, blocks = self._lease_queue.popleft()
            session = self.members.sessions.get(peer)
            if session is None or not session.is_connected:
                continue
            if self.state.leases.unread(session.key) >= BLOCKS_HELD_MAX:
                continue
            blocks = min(blocks, self.setup.charter.limits.lease_blocks)
            spans = self.state.leases.pick(blocks)
            self._is_leasing = True
            self._propose(BlocksLeased(peer, session.incarnation, spans))

    def _take_leases_back(self) -> None:
        lease_s = self.setup.charter.limits.lease_s
        for session in self.members.lost(self._now_s, lease_s):
            self._return_leases(session.key)
            self.members.forget(session.peer)
            self.merging.last_sequence.pop(session.key, None)
        known = {session.key for session in self.members.sessions.values()}
        # Sessions from before a restart of the syncer get one lease time to come back.
        if self._now_s - self._listening_since_s > lease_s:
            for key in [held for held in self.state.leases.held if held not in known]:
                self._return_leases(key)

    def _return_leases(self, key: tuple[bytes, int]) -> None:
        if self.state.leases.held.get(key) and key not in self._returning:
            self._returning.add(key)
            self._propose(BlocksReturned(*key))

    def _job_done(self, number: JobId, result: object) -> None:
        job = self.desk.finish(number)
        match job:
            case InitialiseWeights():
                if isinstance(result, WeightsMade):
                    self._propose(WeightsInitialised(result.fragments))
                else:
                    reason = result.reason if isinstance(result, Failed) else "unknown"
                    self.desk.out.append(Stop(f"the first weights could not be made: {reason}", 1))
            case FetchPush():
                self.merging.on_fetched(job, result)
            case Merge():
                self.merging.on_merged(job, result, self._now_s)
            case Append():
                self._appended(job, result)
            case WriteCheckpoint():
                if isinstance(result, Failed):
                    self.desk.emit(PhaseChanged("checkpoint failed", result.reason))
            case _:
                pass  # Answered before.
