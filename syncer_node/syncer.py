"""The syncer's machine: sessions, the log, rounds, leases, checkpoints, and the end of a run.

    starting --weights--> training --budget--> draining --drained--> ended

Nothing is broadcast before it is committed. Whatever is volatile here (rounds in flight, who is
asked) may be lost at any moment: a restarted syncer continues from the last committed record, and
learners keep what was not merged.
"""

from __future__ import annotations

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
    Alive,
    CertifiedRecord,
    Committed,
    Decline,
    Envelope,
    Evaluation,
    Goodbye,
    Heartbeat,
    Hello,
    IndexPart,
    LeaseRequest,
    Message,
    Push,
    PushHeader,
    Refused,
    Watch,
    Welcome,
)
from protocol.quorum import GraceWindow
from protocol.records import (
    BlocksLeased,
    BlocksReturned,
    Body,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    FragmentMerged,
    RunEnded,
    RunEnding,
    SeatTaken,
    WeightsInitialised,
    sign_record,
)
from protocol.signing import open_envelope
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
from syncer_node.admission import refusal
from syncer_node.archive import Archive, in_messages
from syncer_node.evaluating import Evaluating
from syncer_node.jobs import (
    Append,
    Appended,
    FetchPush,
    InitialiseWeights,
    Keep,
    Merge,
    NameBest,
    TellWatchers,
    WeightsMade,
    WriteCheckpoint,
)
from syncer_node.leasing import Leasing
from syncer_node.merging import Merging
from syncer_node.pacing import Pace
from syncer_node.setup import Recovered, SyncerSetup

LOOK_EVERY_S = 0.02
"""Heartbeats come often; rounds are looked at no more often than this because of them."""

CYCLES_PER_CHECKPOINT = 8
"""Merges of every fragment between two checkpoints, at most: recovery replays what lies between."""

STORE_RETRY_S = 5.0


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
        self.archive = Archive(recovered, self.state)
        self._now_s = 0.0
        self._looked_s = -1.0
        self._said_alive_s = 0.0
        self._reported_s = 0.0
        self.watchers: dict[bytes, None] = {}
        """Hosts that look on, in the order they came."""
        self._retries: list[tuple[float, Append]] = []
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
            wall_offset_s=setup.wall_offset_s,
            propose=self._propose,
            pace=Pace(rounds, setup.genesis.fragments),
            window=GraceWindow(rounds.grace_safety, rounds.overlap_steps),
            last_round=self.state.rounds,
            proposed_step=self.state.global_step,
        )
        self.leasing = Leasing(self.state, self.members, charter.limits, self._propose)
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
        self.leasing.listening_since_s = self._now_s
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
        if now_s - self._said_alive_s >= limits.ALIVE_EVERY_S:
            self._said_alive_s = now_s
            for session in self.members.live():
                self.desk.send(session.peer, Alive(self.state.index))
        if self.watchers and now_s - self._reported_s >= limits.REPORT_EVERY_S:
            self._reported_s = now_s
            self.desk.do(TellWatchers(tuple(self.watchers)))
        for session_key in self.leasing.take_back(now_s):
            self.merging.last_sequence.pop(session_key, None)
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
        self.archive.add(record, entry)
        self.desk.do(Keep(entry, record.index))
        kind = type(record.body).__name__
        self.desk.emit(RecordCommitted(record.index, record.term, proposal.digest, kind))
        self._after(record.body, record.index)
        for session in self.members.live():
            self.desk.send(session.peer, Committed((entry,)))

    def _after(self, body: Body, index: int) -> None:
        """What a committed record sets in motion here."""
        match body:
            case WeightsInitialised():
                self._fire("weights", f"{len(body.fragments)} fragments at version 0")
            case FragmentMerged():
                self._merged(body, index)
            case BlocksLeased():
                self.leasing.on_leased()
            case BlocksReturned(learner, incarnation):
                self.leasing.on_returned((learner, incarnation))
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

    def _merged(self, merged: FragmentMerged, index: int) -> None:
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
            if isinstance(message, Watch):
                self._watch(peer, message)
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
                session.hear(message, self._now_s)
            case Push(envelope):
                self._push(session, envelope)
            case Decline():
                self.merging.on_decline(session.peer, message)
            case LeaseRequest(blocks):
                self.leasing.ask(session.peer, blocks)
            case Evaluation():
                self.evaluating.on_evaluation(session.peer, message)
            case Goodbye(reason):
                self._lose(session.peer, reason or "said goodbye")
                self.desk.out.append(Disconnect(session.peer, "goodbye"))
            case _:
                raise UnexpectedMessage(f"{type(message).__name__} from a learner")

    def _watch(self, peer: bytes, watch: Watch) -> None:
        """Let somebody look on, if there is room and it looks for this project."""
        reason = ""
        if watch.wire_version != limits.WIRE_VERSION:
            reason = f"this swarm speaks wire version {limits.WIRE_VERSION}"
        elif watch.project != self.setup.project:
            reason = "this syncer serves another project"
        elif len(self.watchers) >= limits.WATCHERS_MAX and peer not in self.watchers:
            reason = "too many are looking on already"
        if reason:
            self.desk.send(peer, Refused("watch", reason, None))
            self.desk.out.append(Disconnect(peer, reason))
        else:
            self.watchers[peer] = None
            self._reported_s = -1e9

    def _hello(self, peer: bytes, hello: Hello) -> None:
        refused = refusal(self.setup, self.members, peer, hello, has_weights=self.state.has_weights)
        if refused is not None:
            self.desk.emit(SessionRefused(peer, refused.reason, refused.text))
            if refused.retry_after_s is None:
                self.faults[refused.reason] = self.faults.get(refused.reason, 0) + 1
            self.desk.send(peer, refused)
            self.desk.out.append(Disconnect(peer, refused.reason))
            return
        former = self.members.sessions.get(peer)
        if former is not None and former.incarnation < hello.incarnation:
            self.merging.on_gone(peer)
            self.leasing.give_back(former.key)
        session = self.members.open(peer, hello, self._now_s)
        assert session is not None, "checked by _refusal"
        entries = self.archive.continuation(hello)
        index = self.archive.index() if entries is None else None
        if entries is None:
            for piece in in_messages(self.archive.origins()):
                self.desk.send(peer, IndexPart(piece))
        state = self.state
        welcome = Welcome(self.setup.charter_envelope, state.epoch, state.term, index)
        self.desk.send(peer, welcome)
        for piece in in_messages(entries or []):
            self.desk.send(peer, Committed(piece))
        self.desk.emit(SessionOpened(peer, session.name, entries is not None))

    def _push(self, session: Session, envelope: Envelope) -> None:
        payload = open_envelope(
            "push", self.setup.project, envelope, self.setup.verify, signer=session.peer
        )
        header = wire.decode(payload, PushHeader)
        if header.project != self.setup.project or header.incarnation != session.incarnation:
            raise UnexpectedMessage("push of another project or session")
        self.merging.on_push(session, header, self._now_s)

    def _lose(self, peer: bytes, reason: str) -> None:
        self.watchers.pop(peer, None)
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
