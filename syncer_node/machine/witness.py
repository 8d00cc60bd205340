"""The witness's machine: it votes and keeps the log, and never leads. A few megabytes of disk.

following the log --Stop(RESTART_EXIT)--> built anew from the disk: another floor, another epoch
"""

from __future__ import annotations

from msgspec import structs

from protocol import limits, messages, wire
from protocol.errors import UnexpectedMessage
from protocol.log.accounts import Account
from protocol.log.batching import Telling
from protocol.log.records import CharterAdopted
from protocol.log.state import SwarmSummary
from protocol.machine import Stop, WakeAt
from protocol.project import Charter
from protocol.trace import PhaseChanged
from syncer_node.machine.jobs import InstallState, KeepCharter
from syncer_node.machine.voter import VoterBase
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.log import Entry, LogStart
from syncer_node.raft.raft import RESTART_EXIT, Raft


class WitnessMachine(VoterBase):
    """`handle(event, now_s)` for a host that only votes."""

    ROLE = "a witness"
    OFFERED = "the floor"

    def __init__(
        self,
        setup: RaftSetup,
        *,
        start: LogStart,
        ballot: Ballot,
        charter_envelope: messages.Envelope,
        charter: Charter,
    ) -> None:
        super().__init__()
        self.raft = Raft(
            setup,
            effects=self.effects,
            start=start,
            ballot=ballot,
            charter_envelope=charter_envelope,
            newest_charter=charter,
            app=self,
        )
        self._trouble = ""

    def _stop_asked(self, reason: str) -> None:
        self.effects.out.append(Stop(reason))

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
        self._keep(entry)
        if isinstance(entry.record.body, CharterAdopted):
            self.raft.voter_streams.follow_charter()

    def on_elected(self) -> None:
        raise AssertionError("a witness does not stand for election")

    def on_deposed(self, reason: str) -> None:
        raise AssertionError("a witness does not lead")

    def fetch_payload(self, entry: Entry) -> bool:
        return False

    def state_to_tell(self, peer: bytes) -> Telling | None:
        raise AssertionError("a witness does not lead")

    def on_state_offer(
        self,
        offer: messages.StateOffer,
        origins: list[messages.CertifiedRecord],
        charters: list[messages.AdoptedCharter],
        accounts: dict[bytes, Account],
    ) -> None:
        """Begin behind the offered record; the tensors that go with it are for syncers."""
        said = wire.decode(offer.summary, SwarmSummary)
        summary = structs.replace(said, charters=tuple(charters))
        if self.is_installing or summary.index <= self.raft.log.certified:
            return
        self.is_installing = self.raft.replication.is_held = True
        self.effects.start(InstallState(offer.entry, summary, tuple(origins)))

    def on_merging(
        self, peer: bytes, message: messages.OrderMessage | messages.OrderAnswer
    ) -> None:
        raise UnexpectedMessage(f"{type(message).__name__} to a witness")

    def on_newer_charter(self, envelope: messages.Envelope, charter: Charter) -> None:
        self.effects.do(KeepCharter(envelope))
        if charter.epoch > self.raft.context.epoch:
            self.effects.out.append(Stop(f"the owner began epoch {charter.epoch}", RESTART_EXIT))

    def _other_job_done(self, job: object, result: object) -> None:
        """A witness asks for no other jobs."""
