"""What machines of syncer and witness have in common: they vote, keep the log, take charters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from protocol import machine
from protocol.effect_queue import EffectQueue
from protocol.errors import RemoteError, UnexpectedMessage
from protocol.ids import JobId, short
from protocol.machine import Disconnect, Effect, Failed, Stop
from protocol.messages import CharterOffer, Envelope, Hello, Message, Refused, Watch
from protocol.trace import PeerMisbehaved, PhaseChanged, RecordCommitted
from syncer_node.machine.jobs import Installed, InstallState, Keep
from syncer_node.raft.jobs import Append, KeepProofs, SaveBallot
from syncer_node.raft.log import Entry
from syncer_node.raft.raft import RESTART_EXIT, Raft

NOT_LEADING_RETRY_S = 1.0


class VoterBase(ABC):
    """Messages, charters, faults and the jobs of the log, the same for every host that votes."""

    ROLE: ClassVar[str]
    """What this host is while it does not lead, with its article."""

    OFFERED: ClassVar[str]
    """What a leader offers in place of a log that was left behind."""

    raft: Raft

    def __init__(self) -> None:
        self.effects = EffectQueue()
        self.faults: dict[str, int] = {}
        self.is_installing = False
        """What a leader offers is being taken in place of a log that was left behind."""
        self._now_s = 0.0

    @property
    @abstractmethod
    def phase(self) -> str:
        """What this host is in the swarm, in a word."""

    @abstractmethod
    def look(self) -> None:
        """Time passes: do what is due, and say when to look again."""

    def handle(self, event: machine.Event, now_s: float) -> list[Effect]:
        """Effects of one event."""
        self._now_s = now_s
        match event:
            case machine.Started():
                self.raft.start(now_s)
            case machine.PeerUp(peer, network):
                self._peer_up(peer, network)
            case machine.PeerDown(peer, reason):
                self._peer_down(peer, reason)
            case machine.Received(peer, message):
                self._receive(peer, message)
            case machine.JobDone(number, result):
                self._job_done(number, result)
            case machine.StopAsked(reason):
                self._stop_asked(reason)
            case machine.Woke() | machine.Note():
                pass
        self._look_because(event)
        return self.effects.drain()

    def _look_because(self, event: machine.Event) -> None:
        """Something happened: do what is due."""
        self.look()

    @abstractmethod
    def _stop_asked(self, reason: str) -> None:
        """Whoever runs this daemon wants it to stop."""

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

    def _keep(self, entry: Entry) -> None:
        """Store the proof of a record that counts now, and tell of it."""
        record = entry.record
        self.effects.do(Keep(entry.certified, record.index))
        kind = type(record.body).__name__
        self.effects.emit(RecordCommitted(record.index, record.term, entry.digest, kind))

    # Peers.

    def _peer_up(self, peer: bytes, network: str) -> None:
        """network: of `machine.PeerUp`."""
        if self.raft.is_voter(peer):
            self.raft.on_up(peer, self._now_s)

    def _peer_down(self, peer: bytes, reason: str) -> None:
        if self.raft.is_voter(peer):
            self.raft.on_down(peer, self._now_s)

    def _receive(self, peer: bytes, message: Message) -> None:
        try:
            if self.raft.is_voter(peer):
                self.raft.receive(peer, message, self._now_s)
            elif isinstance(message, CharterOffer):
                # From the owner's hand, whoever carries it: the signature is what counts.
                self.raft.voter_streams.take_charter(message.charter)
            else:
                self._receive_other(peer, message)
        except RemoteError as error:
            self._blame(peer, error)

    def _receive_other(self, peer: bytes, message: Message) -> None:
        """Of a host without a vote: it is sent to the leader."""
        if not isinstance(message, Hello | Watch):
            raise UnexpectedMessage(f"{type(message).__name__} to {self.ROLE}")
        leader = self.raft.leader
        words = f"the leader is {short(leader)}" if leader else "no leader is elected yet"
        text = f"this host is {self.ROLE}; {words}"
        self.effects.send(peer, Refused("not-leading", text, NOT_LEADING_RETRY_S))
        self.effects.out.append(Disconnect(peer, "not-leading"))

    def _blame(self, peer: bytes, error: RemoteError) -> None:
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1
        self.effects.emit(PeerMisbehaved(peer, error.reason, str(error)))

    # Jobs.

    def _job_done(self, number: JobId, result: object) -> None:
        job = self.effects.finish(number)
        match job:
            case SaveBallot() | Append() | KeepProofs():
                self.raft.on_stored(job, result, self._now_s)
            case InstallState():
                self._installed(job, result)
            case _:
                self._other_job_done(job, result)

    @abstractmethod
    def _other_job_done(self, job: object, result: object) -> None:
        """The answer to a job that only one kind of host asks for."""

    def _installed(self, job: InstallState, result: object) -> None:
        """The disk begins behind the offered record: build everything anew from it."""
        self.is_installing = False
        if isinstance(result, Installed):
            words = f"this log fell behind; it continues after record {job.summary.index}"
            self.effects.out.append(Stop(words, RESTART_EXIT))
        else:
            self.raft.replication.release()
            reason = result.reason if isinstance(result, Failed) else "not installed"
            self.effects.emit(
                PhaseChanged(self.phase, f"{self.OFFERED} was not installed: {reason}")
            )
