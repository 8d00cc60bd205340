"""The syncer's machine: a voter with the swarm's state, which leads while it is elected.

    following the log <--deposed-- leading: the seat is open to learners

Nothing is broadcast before it is certified by a majority of the voters. A standby keeps state,
payloads and checkpoints up to date, so that it can take the seat within seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace

from msgspec import structs

from protocol import limits, messages, wire
from protocol.errors import RemoteError
from protocol.ids import short
from protocol.log.accounts import Account
from protocol.log.batching import Telling, apart, telling
from protocol.log.records import CharterAdopted, SeatTaken
from protocol.log.state import SwarmSummary
from protocol.machine import Disconnect, Effect, Event, Failed, Stop, WakeAt
from protocol.project import Charter
from protocol.trace import PhaseChanged
from syncer_node.machine import jobs
from syncer_node.machine.leadership import Leadership
from syncer_node.machine.look_throttle import look_s
from syncer_node.machine.lost_history import LostHistory, lost_history
from syncer_node.machine.merging.merger import Merger
from syncer_node.machine.setup import Recovered, SyncerSetup
from syncer_node.machine.standby import Standby
from syncer_node.machine.telling.recent_entries import RecentEntries
from syncer_node.machine.voter import VoterBase
from syncer_node.raft.log import Entry
from syncer_node.raft.raft import RESTART_EXIT, Raft

HAND_OVER_S_MAX = 4.0
"""A leader that is asked to stop waits no longer than this for another one to take its place."""

YOUNGER_RETRY_S = 8.0
"""Learners come back this often while somebody has to bring a lost history back."""

GOODBYE_CHARS_MAX = 200

UNABLE_S_MAX = 12.0
UNFIT_S = 60.0
"""A leader whose disk takes nothing steps aside after the one, and stands again after the other."""


class SyncerMachine(VoterBase):
    """`handle(event, now_s)` for a host that may hold the seat."""

    ROLE = "a standby"
    OFFERED = "the state"

    def __init__(self, setup: SyncerSetup, recovered: Recovered) -> None:
        super().__init__()
        self.setup = setup
        self.state = recovered.state
        self.recent = RecentEntries(recovered, self.state)
        self.leadership: Leadership | None = None
        self.snapshots = list(recovered.snapshots)
        """Those on this host's disk, oldest first."""
        self.raft = Raft(
            setup.for_raft(),
            effects=self.effects,
            start=recovered.log,
            ballot=recovered.ballot,
            charter_envelope=setup.charter_envelope,
            newest_charter=setup.charter,
            app=self,
        )
        self.standby = Standby(
            effects=self.effects,
            state=self.state,
            leader=self._leader,
            on_payload=self._payload_here,
            is_needed=self._is_needed,
            held=list(recovered.held),
        )
        self.merger = Merger(effects=self.effects, held=lambda at: self.standby.held[at])
        self.networks: dict[bytes, str] = {}
        """Where hosts without a vote that are connected come from."""
        self._looked_s = -1.0
        self._wake_s = math.inf
        self._seat_term = -1
        """Term of our own seat record once it is certified."""
        self._is_over = False
        """The daemon was told to build another machine: this one opens no seat any more."""
        self._offered = 0
        """The checkpoint that is offered to the leader to go back to, by log index; 0 for none."""
        self.lost: LostHistory | None = None
        """What a learner proved that this log does not have: nothing is merged on it any more."""
        self._stop: tuple[str, float] | None = None
        """Asked to stop, and when to stop waiting for a successor."""
        self._was_stored = True
        self._unable_since_s: float | None = None
        self._unfit_until_s = 0.0
        """It stepped aside and does not stand again before."""

    @property
    def is_draining(self) -> bool:
        """Whether this host gives the seat away and does not want it back."""
        return self.raft.election.is_drained

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Effects of one event."""
        self.standby.now_s = now_s
        return super().handle(event, now_s)

    def _look_because(self, event: Event) -> None:
        now_s = self._now_s
        due_s = look_s(event, self.leadership, looked_s=self._looked_s, now_s=now_s)
        if due_s <= now_s:
            self.look()
        elif due_s < self._wake_s:
            self._wake_at(due_s)

    def _stop_asked(self, reason: str) -> None:
        self._stop = (reason, self._now_s + HAND_OVER_S_MAX)

    def drain(self, now_s: float) -> list[Effect]:
        """Hand the seat over as soon as a standby has everything; do not stand again."""
        self.raft.election.is_drained = True
        self._now_s = now_s
        self._look()
        return self.effects.drain()

    def take_snapshot(self, now_s: float) -> list[Effect]:
        """Begin a snapshot of the whole swarm, if this host leads and none is under way."""
        self._now_s = now_s
        if (
            self.leadership is not None
            and self.state.has_weights
            and self.leadership.snapshots.taking is None
        ):
            self.leadership.snapshots.begin(now_s)
        self._wake()
        return self.effects.drain()

    def look(self) -> None:
        self._look()
        self._wake()

    def _look(self) -> None:
        now_s = self._now_s
        self._looked_s = now_s
        self.raft.look(now_s)
        self.standby.look(now_s)
        self.raft.replication.wants_state = self.standby.is_left_behind
        self._tell_store()
        self._step_aside()
        self._offer_checkpoint()
        self.merger.look()
        if self.leadership is None and self._may_open_leadership():
            self.open_leadership()
        if self.leadership is not None:
            log = self.raft.log
            self.leadership.look(
                now_s, may_open=self._was_stored, has_tail=log.certified < log.last
            )
        if self.is_draining and self.raft.is_leading:
            self._hand_over()
        if self._stop is not None:
            self._try_stop(*self._stop)

    def _tell_store(self) -> None:
        """Say once when the log cannot be written, and once when it can again."""
        trouble = self.raft.replication.store_trouble
        if trouble and self._was_stored:
            self.effects.emit(PhaseChanged("merging paused", trouble))
        elif not trouble and not self._was_stored:
            self.effects.emit(PhaseChanged(self.phase, "the log is writable again"))
        self._was_stored = not trouble

    def _offer_checkpoint(self) -> None:
        """While the guard goes back, the leader may need the weights from another syncer's disk."""
        checkpoint, states = self.state.restoring or (0, ())
        if checkpoint != self._offered:
            self._offered = checkpoint
            self.effects.do(jobs.OfferCheckpoint(checkpoint, states))

    def _step_aside(self) -> None:
        """A leader that cannot merge for a while lets one try that perhaps can."""
        leadership, now_s = self.leadership, self._now_s
        is_stalled = leadership is not None and bool(leadership.rounds.stalled)
        if not self.raft.is_leading or (self._was_stored and not is_stalled):
            self._unable_since_s = None
            return
        if self._unable_since_s is None:
            self._unable_since_s = now_s
        elif now_s - self._unable_since_s >= UNABLE_S_MAX and self.raft.replication.standbys():
            self._unable_since_s, self._unfit_until_s = None, now_s + UNFIT_S
            self.raft.election.depose("this host cannot write merges; another may be able to")

    def _wake(self) -> None:
        times = [self._now_s + limits.ALIVE_EVERY_S, self.raft.deadline_s()]
        times.append(self.standby.deadline_s())
        if self.leadership is not None:
            times.append(self.leadership.deadline_s())
        self._wake_at(max(self._now_s + 0.001, min(times)))

    def _wake_at(self, at_s: float) -> None:
        self._wake_s = at_s
        self.effects.out.append(WakeAt(at_s))

    @property
    def phase(self) -> str:
        """What this host is in the swarm, in a word."""
        if self.leadership is not None:
            return self.leadership.phase.value
        if self.lost is not None:
            return "stopped"
        if self.raft.is_leading:
            return "taking the seat"
        if self.is_installing or self.standby.missing:
            return "syncing"
        return "standby" if self.raft.leader is not None else "electing"

    # The seat.

    def _may_open_leadership(self) -> bool:
        is_certain = self.raft.is_leading and self._seat_term == self.raft.context.term
        is_over = self._is_over or self.lost is not None
        return not is_over and is_certain and self.standby.is_idle

    def open_leadership(self) -> None:
        self.merger.drop()
        # What was merged for a former leader is none of this seat's rounds.
        self.effects.forget((jobs.FetchPush, jobs.Merge))
        context = self.raft.context
        self.leadership = Leadership(
            self.setup,
            effects=self.effects,
            state=self.state,
            recent=self.recent,
            faults=self.faults,
            propose=self.raft.propose,
            snapshots=self.snapshots,
            networks=self.networks,
            able=self._able_mergers,
            seat=(context.epoch, context.term),
            now_s=self._now_s,
        )

    def _able_mergers(self) -> tuple[bytes, ...]:
        """Other syncers that are here and have the log, up to what is under way."""
        return tuple(peer.key for peer in self.raft.replication.standbys())

    def _hand_over(self) -> None:
        if self.leadership is not None:
            self.leadership.is_closing = True
            if self.leadership.rounds.rounds:
                return  # The rounds in flight end first: nothing of them is lost.
            self.leadership.contributor_notes.flush()
        successor = self.raft.hand_over(self._now_s)
        if successor is not None:
            self.effects.emit(PhaseChanged("handing over", f"to {short(successor)}"))

    def _try_stop(self, reason: str, until_s: float) -> None:
        """Stop, after another syncer took the seat if there is one that can."""
        if self.raft.is_leading and self._now_s < until_s and self.raft.replication.standbys():
            self.raft.election.is_drained = True
            self._hand_over()
            return
        if self.leadership is not None:
            self.leadership.close(reason)
        self.effects.out.append(Stop(reason))

    # What the log asks for: `RaftApp`.

    def can_lead(self) -> bool:
        is_writable = not self.raft.replication.store_trouble
        is_whole = not self.is_installing and not self.standby.missing
        is_fit = self._now_s >= self._unfit_until_s and self._stop is None
        return is_writable and is_whole and is_fit

    def on_elected(self) -> None:
        self.raft.take_seat()

    def on_deposed(self, reason: str) -> None:
        self._seat_term = -1
        self._close_leadership(f"this syncer no longer leads: {reason}")
        self.effects.emit(PhaseChanged(self.phase, reason))

    def _close_leadership(self, reason: str) -> None:
        if self.leadership is None:
            return
        self.leadership.close(reason)
        self.leadership = None
        # Rounds are numbered anew by the next seat: late answers must not meet its rounds.
        self.effects.forget(
            (
                *(jobs.InitialiseWeights, jobs.FetchPush, jobs.Merge, jobs.WriteSnapshot),
                *(jobs.HoldCheckpoint, jobs.TakeMerge),
            )
        )

    def on_certified(self, entry: Entry) -> None:
        record, body = entry.record, entry.record.body
        certified = entry.certified
        self.state.apply(record, entry.digest)
        self.recent.add(record, certified)
        self._keep(entry)
        if isinstance(body, CharterAdopted):
            self._adopt(body.charter)
        if self.leadership is not None:
            self.leadership.on_committed(certified, body, record.index, self._now_s)
            return
        is_own_term = self.raft.is_leading and record.term == self.raft.context.term
        if isinstance(body, SeatTaken) and is_own_term:
            self._seat_term = record.term
        self.standby.on_certified(certified, record.index, body)

    def _adopt(self, envelope: messages.Envelope) -> None:
        charter = wire.decode(envelope.payload, Charter)
        self.setup = replace(self.setup, charter=charter, charter_envelope=envelope)
        self.raft.voter_streams.follow_charter()
        if self.leadership is not None:
            self.leadership.adopt(self.setup)

    def fetch_payload(self, entry: Entry) -> bool:
        return self.standby.fetch(entry)

    def _leader(self) -> bytes | None:
        return self.raft.leader

    def _payload_here(self, index: int) -> None:
        self.raft.payload_here(index, self._now_s)

    def _is_needed(self, index: int, digest: bytes) -> bool:
        log = self.raft.log
        is_there = log.holds(index) and index > log.stable
        return is_there and log.entry(index).digest == digest

    def state_to_tell(self, peer: bytes) -> Telling | None:
        newest = self.recent.newest
        if newest is None:
            return None
        context = self.raft.context
        _, summary = apart(self.state.summary(with_accounts=False))
        offer = messages.StateOffer(context.epoch, context.term, newest, summary)
        voter = context.log.charter.voter(peer)
        is_witness = voter is not None and voter.role == "witness"
        # It takes a while to tell, in which more is merged; a witness keeps no accounts.
        accounts = {} if is_witness else self.state.accounts.shared()
        return telling(self.recent.origins(), self.state.charters, accounts, offer)

    def on_state_offer(
        self,
        offer: messages.StateOffer,
        origins: list[messages.CertifiedRecord],
        charters: list[messages.AdoptedCharter],
        accounts: dict[bytes, Account],
    ) -> None:
        said = wire.decode(offer.summary, SwarmSummary)
        summary = structs.replace(said, charters=tuple(charters), accounts=accounts)
        if self.is_installing or summary.index <= self.state.index:
            return
        self.is_installing = self.raft.replication.is_held = True
        self.effects.start(jobs.InstallState(offer.entry, summary, tuple(origins)))

    def on_newer_charter(self, envelope: messages.Envelope, charter: Charter) -> None:
        self.effects.do(jobs.KeepCharter(envelope))
        if charter.epoch > self.raft.context.epoch:
            words = f"the owner began epoch {charter.epoch}"
            self._close_leadership(words)
            self._is_over = True
            self.effects.out.append(Stop(words, RESTART_EXIT))

    def on_merging(
        self, peer: bytes, message: messages.OrderMessage | messages.OrderAnswer
    ) -> None:
        """An order of the leader, or an answer to one of ours; of another term it means nothing."""
        context = self.raft.context
        is_now = (message.epoch, message.term) == (context.epoch, context.term)
        if isinstance(message, messages.OrderAnswer):
            if self.leadership is not None and is_now:
                self.leadership.on_answer(peer, message, self._now_s)
        elif is_now and peer == self.raft.leader:
            self.merger.receive((peer, context.epoch, context.term), message)
        elif isinstance(message, messages.FetchOrder | messages.MergeOrder):
            where = (message.epoch, message.term, message.order)
            self.effects.send(peer, messages.OrderFailed(*where, "it follows another leader"))

    # Peers.

    def _peer_up(self, peer: bytes, network: str) -> None:
        super()._peer_up(peer, network)
        if not self.raft.is_voter(peer):
            self.networks[peer] = network

    def _peer_down(self, peer: bytes, reason: str) -> None:
        super()._peer_down(peer, reason)
        self.networks.pop(peer, None)
        if self.merger.seat is not None and peer == self.merger.seat[0]:
            self.merger.drop()
        if self.leadership is not None and self.raft.is_voter(peer):
            self.leadership.lose_merger(peer, self._now_s)
        if self.leadership is not None and not self.raft.is_voter(peer):
            self.leadership.lose(peer, reason, self._now_s)

    def _receive_other(self, peer: bytes, message: messages.Message) -> None:
        if self.leadership is not None and isinstance(message, messages.Hello):
            self._look_for_loss(peer, message)
        if self.leadership is not None:
            self.leadership.receive(peer, message, self._now_s)
        elif self.lost is not None and isinstance(message, messages.Hello | messages.Watch):
            text = self.lost.text
            refused = messages.Refused(messages.YOUNGER, text, YOUNGER_RETRY_S)
            self.effects.send(peer, refused)
            self.effects.out.append(Disconnect(peer, messages.YOUNGER))
        else:
            super()._receive_other(peer, message)

    def _look_for_loss(self, peer: bytes, hello: messages.Hello) -> None:
        """Lead no further if this learner proves a record that this log does not have.

        It stays the leader of the voters, who have no more than it has, so that whoever looks for
        the swarm is told here what happened.
        """
        setup = self.setup
        if hello.project != setup.project:
            return
        self.lost = lost_history(peer, hello.proof, self.raft.log, setup.charter, setup.verify)
        if self.lost is not None:
            self._close_leadership(self.lost.text[:GOODBYE_CHARS_MAX])
            self.effects.emit(PhaseChanged(self.phase, self.lost.text))

    def _blame(self, peer: bytes, error: RemoteError) -> None:
        super()._blame(peer, error)
        if self.leadership is not None:
            self.leadership.count_fault(peer, error)

    # Jobs.

    def _other_job_done(self, job: object, result: object) -> None:
        match job:
            case jobs.FetchPayload() | jobs.FetchWeights() | jobs.FetchRestored():
                self.standby.on_fetched(job, result)
            case jobs.RepairFragment():
                self.standby.on_repaired(job, result)
            case jobs.Replay() | jobs.LoadWeights() | jobs.Restore():
                self.standby.on_replayed(job, result)
            case jobs.WriteCheckpoint() if self.leadership is None:
                self.standby.on_replayed(job, result)
            case _:
                self._leader_job_done(job, result)

    def _leader_job_done(self, job: object, result: object) -> None:
        """The answer to something a seat asked for; one of a former seat means nothing."""
        if isinstance(job, jobs.WriteCheckpoint) and isinstance(result, Failed):
            self.effects.emit(PhaseChanged("checkpoint failed", result.reason))
        if isinstance(job, jobs.KeepSnapshot) and isinstance(result, jobs.SnapshotKept):
            self.snapshots.append(job.manifest.outline)
            self.snapshots[:] = [one for one in self.snapshots if one.snapshot in job.kept]
        if self.leadership is None:
            self._merger_job_done(job, result)
            return
        match job:
            case jobs.FetchPush() | jobs.Merge() | jobs.TakeMerge():
                self.leadership.on_merging_job(job, result, self._now_s)
            case jobs.InitialiseWeights():
                self.leadership.on_weights(result)
            case jobs.WriteSnapshot():
                self.leadership.snapshots.on_written(job, result, self._now_s)
            case jobs.KeepSnapshot():
                self.leadership.snapshots.on_kept(job, result, self._now_s)
            case jobs.HoldCheckpoint():
                self.leadership.restoring.on_held(job, result, self._now_s)
            case _:
                pass  # Answered before.

    def _merger_job_done(self, job: object, result: object) -> None:
        """The answer to something that a leader ordered."""
        match job:
            case jobs.FetchPush():
                self.merger.on_fetched(job, result)
            case jobs.Merge():
                self.merger.on_merged(job, result)
