"""The witness's machine: it votes and keeps the log, and never leads. A few megabytes of disk.

following the log --Stop(RESTART_EXIT)--> built anew from the disk: another floor, another epoch
"""

from __future__ import annotations

from protocol import limits, wire
from protocol.effect_queue import EffectQueue
from protocol.errors import RemoteError, UnexpectedMessage
from protocol.ids import JobId, short
from protocol.log.accounts import Account
from protocol.log.records import CharterAdopted
from protocol.log.state import SwarmSummary
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
from protocol.messages import (
    CertifiedRecord,
    CharterOffer,
    Envelope,
    Hello,
    Message,
    Refused,
    StateOffer,
    Watch,
)
from protocol.project import Charter
from protocol.trace import PeerMisbehaved, PhaseChanged, RecordCommitted
from syncer_node.machine.jobs import Installed, InstallState, Keep, KeepCharter
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.jobs import Append, KeepProofs, SaveBallot
from syncer_node.raft.log import Entry, LogStart
from syncer_node.raft.raft import RESTART_EXIT, Raft

NOT_LEADING_RETRY_S = 1.0


class WitnessMachine:
    """`handle(event, now_s)` for a host that only votes."""

    def __init__(
        self,
        setup: RaftSetup,
        *,
        start: LogStart,
        ballot: Ballot,
        charter_envelope: Envelope,
        charter: Charter,
    ) -> None:
        self.effects = EffectQueue()
        self.faults: dict[str, int] = {}
        self.is_installing = False
        """A floor is being taken in place of a log that was left behind."""
        self.raft = Raft(
            setup,
            effects=self.effects,
            start=start,
            ballot=ballot,
            charter_envelope=charter_envelope,
            newest_charter=charter,
            app=self,
        )
        self._now_s = 0.0
        self._trouble = ""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Effects of one event."""
        self._now_s = now_s
        match event:
            case Started():
                self.raft.start(now_s)
            case PeerUp(peer):
                if self.raft.is_voter(peer):
                    self.raft.on_up(peer, now_s)
            case PeerDown(peer, _):
                if self.raft.is_voter(peer):
                    self.raft.on_down(peer, now_s)
            case Received(peer, message):
                self._receive(peer, message)
            case JobDone(number, result):
                self._job_done(number, result)
            case StopAsked(reason):
                self.effects.out.append(Stop(reason))
            case Woke() | Note():
                pass
        self.look()
        return self.effects.drain()

    def fault(self, peer: bytes, error: RemoteError) -> list[Effect]:
        """Count a peer's offence that was found while reading its bytes."""
        self._blame(peer, error)
        return self.effects.drain()

    def offer_charter(self, envelope: Envelope, now_s: float) -> list[Effect]:
        """Take a newer charter from the owner's hand. Raises RemoteError if it is not valid."""
        self._now_s = self.raft.context.now_s = now_s
        self.raft.voter_streams.take_charter(envelope)
        self.look()
        return self.effects.drain()

    def look(self) -> None:
        """Time passes."""
        self.raft.look(self._now_s)
        trouble = self.raft.replication.store_trouble
        if trouble != self._trouble:
            self._trouble = trouble
            self.effects.emit(PhaseChanged(self.phase, trouble or "the log is writable again"))
        deadline_s = min(self._now_s + limits.ALIVE_EVERY_S, self.raft.deadline_s())
        self.effects.out.append(WakeAt(max(self._now_s + 0.001, deadline_s)))

    @property
    def phase(self) -> str:
        """What this host is in the swarm, in a word."""
        return "witness" if self.raft.leader is not None else "electing"

    # What the log asks for: `RaftApp`.

    def can_lead(self) -> bool:
        return False

    def on_certified(self, entry: Entry) -> None:
        record = entry.record
        self.effects.do(Keep(entry.certified, record.index))
        kind = type(record.body).__name__
        self.effects.emit(RecordCommitted(record.index, record.term, entry.digest, kind))
        if isinstance(record.body, CharterAdopted):
            self.raft.voter_streams.follow_charter()

    def on_elected(self) -> None:
        raise AssertionError("a witness does not stand for election")

    def on_deposed(self, reason: str) -> None:
        raise AssertionError("a witness does not lead")

    def fetch_payload(self, entry: Entry) -> bool:
        return False

    def offer_state(self, peer: bytes) -> None:
        raise AssertionError("a witness does not lead")

    def on_state_offer(
        self,
        offer: StateOffer,
        origins: list[CertifiedRecord],
        accounts: dict[bytes, Account],
    ) -> None:
        """Begin behind the offered record; the tensors that go with it are for syncers."""
        summary = wire.decode(offer.summary, SwarmSummary)
        if self.is_installing or summary.index <= self.raft.log.certified:
            return
        self.is_installing = self.raft.replication.is_held = True
        self.effects.start(InstallState(offer.entry, summary, tuple(origins)))

    def on_newer_charter(self, envelope: Envelope, charter: Charter) -> None:
        self.effects.do(KeepCharter(envelope))
        if charter.epoch > self.raft.context.epoch:
            self.effects.out.append(Stop(f"the owner began epoch {charter.epoch}", RESTART_EXIT))

    # Peers.

    def _receive(self, peer: bytes, message: Message) -> None:
        try:
            if self.raft.is_voter(peer):
                self.raft.receive(peer, message, self._now_s)
            elif isinstance(message, CharterOffer):
                # From the owner's hand, whoever carries it: the signature is what counts.
                self.raft.voter_streams.take_charter(message.charter)
            elif isinstance(message, Hello | Watch):
                self._send_away(peer)
            else:
                raise UnexpectedMessage(f"{type(message).__name__} to a witness")
        except RemoteError as error:
            self._blame(peer, error)

    def _send_away(self, peer: bytes) -> None:
        leader = self.raft.leader
        words = f"the leader is {short(leader)}" if leader else "no leader is elected yet"
        refused = Refused("not-leading", f"this host is a witness; {words}", NOT_LEADING_RETRY_S)
        self.effects.send(peer, refused)
        self.effects.out.append(Disconnect(peer, "not-leading"))

    def _blame(self, peer: bytes, error: RemoteError) -> None:
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1
        self.effects.emit(PeerMisbehaved(peer, error.reason, str(error)))

    # Jobs.

    def _job_done(self, number: JobId, result: object) -> None:
        job = self.effects.finish(number)
        match job:
            case SaveBallot():
                self.raft.on_saved(job, result, self._now_s)
            case Append():
                self.raft.on_appended(job, result, self._now_s)
            case KeepProofs():
                self.raft.on_kept(job, result, self._now_s)
            case InstallState():
                self._installed(job, result)
            case _:
                self._other_job_done(job, result)

    def _other_job_done(self, job: object, result: object) -> None:
        """The answer to a job that only another kind of host asks for."""

    def _installed(self, job: InstallState, result: object) -> None:
        """The disk begins behind the offered record: build everything anew from it."""
        self.is_installing = False
        if isinstance(result, Installed):
            words = f"this log fell behind; it continues after record {job.summary.index}"
            self.effects.out.append(Stop(words, RESTART_EXIT))
        else:
            self.raft.replication.release()
            reason = result.reason if isinstance(result, Failed) else "not installed"
            self.effects.emit(PhaseChanged(self.phase, f"the floor was not installed: {reason}"))
