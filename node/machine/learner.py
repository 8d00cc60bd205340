"""The learner's machine: find the syncer, follow its log, and keep the inner loop busy meanwhile.

The inner loop never waits for anybody: messages go out when there is something to say, pulls are
answered at local-step boundaries, committed fragments are applied at boundaries, and while the
syncer is away the loop goes on with the blocks it has.
"""

from __future__ import annotations

from node.machine import jobs
from node.machine.bookmark import Bookmark, prove_bookmark
from node.machine.context import LearnerContext, LearnerSetup
from node.machine.fragment_sync import FragmentSync
from node.machine.going_back import going_back, sentence
from node.machine.index_proof import prove_index, read_charter
from node.machine.moments_client import MomentsClient
from node.machine.peer_exchange import PeerExchange
from node.machine.prober import Prober
from node.machine.receipts import Receipts
from node.machine.snapshot_participant import SnapshotParticipant
from node.machine.syncer_link import LINK_TRANSITIONS, Link, suspect_s
from node.machine.trainer_control import TrainerControl
from protocol import first_weights, limits, machine, messages
from protocol.backoff import Backoff
from protocol.effect_queue import EffectQueue
from protocol.errors import LimitExceeded, RemoteError, UnexpectedMessage
from protocol.ids import JobId, short
from protocol.log import records
from protocol.log.accounts import suspended_words
from protocol.log.restoring import restored_words
from protocol.log.state import SwarmState
from protocol.project import Charter
from protocol.snapshots.manifest import Marker
from protocol.trace import (
    BookmarkRead,
    CheckpointScored,
    GuardWentBack,
    LearnerSuspended,
    LinkChanged,
    RecordCommitted,
    RestoreGivenUp,
)

SEEK_AGAIN = Backoff((0.5, 1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 12.0), jitter=0.3)
YOUNGER_RETRY_S = 8.0
"""A leader of a younger history stays one until somebody does something about it."""

REFUSED_EXIT = 4
"""Exit code of a daemon that the project does not want."""


class LearnerMachine:
    """`handle(event, now_s)` for a volunteer's host."""

    def __init__(self, setup: LearnerSetup) -> None:
        self.setup = setup
        self.effects = EffectQueue()
        state = SwarmState(setup.genesis.data.block_sequences, setup.signer.key)
        self.context = LearnerContext(setup=setup, effects=self.effects, state=state)
        self.fragment_sync = FragmentSync(self.context, setup.genesis.fragments)
        self.moments_client = MomentsClient(self.context)
        self.receipts = Receipts(self.context)
        self.peer_exchange = PeerExchange(self.context, self.fragment_sync, self.moments_client)
        self.trainer_control = TrainerControl(self.context, self.fragment_sync, self.moments_client)
        self.snapshot_participant = SnapshotParticipant(
            self.context, self.fragment_sync, self.trainer_control
        )
        self.prober = Prober(
            self.context, self.fragment_sync, self.trainer_control, self.snapshot_participant
        )
        self.link = Link.WAITING
        self.link_detail = ""
        self.heard_s = 0.0
        self._failures = 0
        self._retry_s = 0.0
        self._refused_until_s = 0.0
        self._is_stopping = False
        self._log_charter: Charter | None = None
        """In force where our log stands; its voters prove the next record."""
        self._told_index = 0
        """Where our log stood when we last introduced ourselves."""
        self._found_s = 0.0
        self._is_looking = False
        self._seat = (0, 0)
        """Epoch and term of the leader that we follow."""
        self._origins: list[messages.CertifiedRecord] = []
        """Proofs of the newest fragment states, collected before the welcome."""
        self._charters: dict[int, messages.AdoptedCharter] = {}
        """By revision: those that came with these."""
        self._told = 0
        """How many of both came."""
        self.younger = ""
        """What is wrong with the history that the leader shows, and the way out; empty if nothing
        is."""

    def handle(self, event: machine.Event, now_s: float) -> list[machine.Effect]:
        """Effects of one event."""
        self.context.now_s = now_s
        if isinstance(event, machine.Received) and self._is_mere_sign_of_life(event):
            self.heard_s = now_s
            return self.effects.drain()
        match event:
            case machine.Started():
                self._go_on_from_bookmark()
                self._seek()
            case machine.PeerUp(peer):
                self._peer_up(peer)
                self.moments_client.on_peer_up(peer)
            case machine.PeerDown(peer, reason):
                self._peer_down(peer, reason)
                self.peer_exchange.on_peer_down(peer, reason)
            case machine.Received(peer, message) if peer != self.context.leader:
                self.peer_exchange.on_message(peer, message)
            case machine.Received(peer, message):
                self._receive(peer, message)
            case machine.JobDone(number, result):
                self._job_done(number, result)
            case machine.Note(value):
                self._on_note(value)
            case machine.StopAsked(reason):
                self._leave(reason, reason)
            case machine.Woke():
                pass
        self.snapshot_participant.release(self._take)
        if not self._is_stopping:
            self._look()
        return self.effects.drain()

    def _is_mere_sign_of_life(self, event: machine.Received) -> bool:
        """Whether nothing follows from it now: whatever is due has its wake-up already."""
        message = event.message
        if not isinstance(message, messages.Alive) or event.peer != self.context.leader:
            return False
        self.trainer_control.beat_every_s = message.beat_every_s
        return self.link is Link.FOLLOWING and not self._is_stopping

    def fault(self, peer: bytes, error: RemoteError) -> list[machine.Effect]:
        """Count the syncer's offence that was found while reading its bytes."""
        self.context.blame(peer, error)
        return self.effects.drain()

    # The link.

    def _fire(self, trigger: str, detail: str = "") -> None:
        self.link = LINK_TRANSITIONS[self.link, trigger]
        self.link_detail = detail
        self.context.is_following = self.link is Link.FOLLOWING
        self.effects.emit(LinkChanged(self.link.value, detail))

    def _go_on_from_bookmark(self) -> None:
        """The log stands where a former life of this daemon ended; its weights are on this disk."""
        setup = self.setup
        if setup.bookmark is None:
            return
        try:
            state = prove_bookmark(
                setup.bookmark,
                project=setup.project,
                genesis=setup.genesis,
                verify=setup.verify,
                own=setup.signer.key,
            )
        except RemoteError as error:
            self.effects.emit(BookmarkRead(0, str(error)))
            return
        envelope = state.charters[-1].charter
        self._adopt_charter(envelope)
        self._log_charter = self._read_charter(envelope)
        self.context.state = state
        self.context.proofs.go_on(setup.bookmark.head, setup.bookmark.origins)
        self.fragment_sync.go_on()
        self.trainer_control.on_index()
        self.effects.emit(BookmarkRead(state.index))

    def bookmark(self, held: tuple[int, ...]) -> Bookmark | None:
        """Where the next life of this daemon can go on with the weights that are here; None where
        nothing proves it, or nothing is to come.

        held: the version of each fragment in the bank, which may have got one more since the
        machine was told to stop; NONE for none.
        """
        state = self.context.state
        if not state.has_weights or state.ended is not None:
            return None
        told = self.context.proofs.newest_held(state, held)
        return None if told is None else Bookmark(told.head, tuple(told.origins), told.summary)

    def _seek(self) -> None:
        self._fire("retry")
        self.effects.start(jobs.FindSeat(self._seat, self.context.charter))

    def _lost(self, reason: str, retry_after_s: float | None = None) -> None:
        """No link for now: try again after a growing, spread-out pause."""
        if (self.link, "lost") not in LINK_TRANSITIONS:
            return  # It is lost already.
        pause_s = SEEK_AGAIN.pause_s(self._failures, self.setup.rng.uniform)
        if retry_after_s is not None:
            self._refused_until_s = self.context.now_s + retry_after_s
            pause_s = max(pause_s, retry_after_s)
        self._failures += 1
        self._retry_s = self.context.now_s + pause_s
        self._fire("lost", reason)
        self.trainer_control.on_link()
        self.snapshot_participant.on_link_lost()
        self.prober.on_link_lost()

    def _hurry(self) -> None:
        """The next try is due, as after a first failure; not sooner than a leader asked for."""
        self._failures = 0
        soon_s = self.context.now_s + SEEK_AGAIN.pause_s(0, self.setup.rng.uniform)
        self._retry_s = max(min(self._retry_s, soon_s), self._refused_until_s)

    def _seat_found(self, found: jobs.SeatFound) -> None:
        self._is_looking = False
        if self.link in (Link.GREETING, Link.FOLLOWING):
            self._compare(found)
            return
        if self.link is not Link.SEEKING:
            return  # Found meanwhile, or no longer looked for.
        try:
            self._adopt_charter(found.charter)
        except RemoteError as error:
            self.context.blame(found.leader, error)
            self._lost(f"the charter that was found is not valid: {error}")
            return
        if self.snapshot_participant.wants_restart():
            return
        if self.context.leader != found.leader:
            self.context.leader = found.leader
            self.effects.do(jobs.FollowLeader(found.leader))
        self._seat = (found.epoch, found.term)
        self._fire("found", short(found.leader))
        self.effects.out.append(machine.Connect(found.leader))

    def _compare(self, found: jobs.SeatFound) -> None:
        """Another leader was elected while ours was silent: go over to it."""
        former = self.context.leader
        if found.leader == former or (found.epoch, found.term) <= self._seat or former is None:
            return
        self.effects.out.append(machine.Disconnect(former, "another leader was elected"))
        self._failures = 0
        self._lost(f"{short(found.leader)} leads in term {found.term}")
        # Not looked for once more: with a host that is silent, looking takes seconds.
        self._fire("retry")
        self._seat_found(found)

    def _peer_up(self, peer: bytes) -> None:
        if peer != self.context.leader or self.link is not Link.CONNECTING:
            return
        self._fire("up")
        self._forget_told()
        self.heard_s = self.context.now_s
        self._told_index = self._head_index()
        self._say_hello(peer)

    def _say_hello(self, peer: bytes, *, told_index: int = 0) -> None:
        """told_index: how far we were told of proofs of fragments in this link."""
        setup = self.setup
        hello = messages.Hello(
            wire_version=limits.WIRE_VERSION,
            project=setup.project,
            layout=setup.layout_digest,
            incarnation=setup.incarnation,
            agent=setup.agent,
            name=setup.name,
            evaluates=setup.evaluates,
            head_index=self._told_index,
            head=self.context.state.head,
            proof=self._proof(),
            invite=setup.invite,
            told_index=told_index,
            follows="brief" if self.context.state.is_brief else "whole",
        )
        self.effects.send(peer, hello)

    def _proof(self) -> messages.Certificate | None:
        """Of our newest certified record, where it is of the newest epoch that we know."""
        newest, charter = self.context.proofs.newest, self.context.charter
        if newest is None or charter is None or newest.certificate.epoch != charter.epoch:
            return None
        return newest.certificate

    def _head_index(self) -> int:
        """Where our log stands; 0 where it cannot be continued, as after a new epoch."""
        state, charter = self.context.state, self.context.charter
        is_same_epoch = charter is not None and charter.epoch == state.epoch
        return state.index if state.has_weights and is_same_epoch else 0

    def _peer_down(self, peer: bytes, reason: str) -> None:
        if peer == self.context.leader and self.link in (
            Link.CONNECTING,
            Link.GREETING,
            Link.FOLLOWING,
        ):
            self._lost(reason)

    def _receive(self, peer: bytes, message: messages.Message) -> None:
        if self.link not in (Link.GREETING, Link.FOLLOWING):
            return  # What was on its way when the link ended.
        self.heard_s = self.context.now_s
        if not self.snapshot_participant.holds(message):
            self._take(peer, message)

    def _take(self, peer: bytes, message: messages.Message) -> None:
        if self.link not in (Link.GREETING, Link.FOLLOWING):
            return  # It was held back, and the link ended meanwhile.
        try:
            self._dispatch(peer, message)
        except RemoteError as error:
            self.context.blame(peer, error)
            self.effects.out.append(machine.Disconnect(peer, error.reason))
            if self.link in (Link.GREETING, Link.FOLLOWING):
                self._lost(str(error))

    def _dispatch(self, peer: bytes, message: messages.Message) -> None:
        match message:
            case messages.IndexPart() if self.link is Link.GREETING:
                self._collect(peer, message)
            case messages.Welcome():
                self._welcome(peer, message)
            case messages.Refused():
                self._refused(peer, message)
            case messages.Committed(entries) if self.link is Link.FOLLOWING:
                for entry in entries:
                    self._apply(entry)
            case messages.Alive():
                pass  # That it was heard is all it says.
            case messages.Pull() if self.link is Link.FOLLOWING:
                self.fragment_sync.on_pull(message)
            case messages.Settled() if self.link is Link.FOLLOWING:
                self.fragment_sync.on_settled(message)
            case Marker() | messages.Probe() if self.link is Link.FOLLOWING:
                self._take_part(message)
            case messages.Receipt() | messages.Report() if self.link is Link.FOLLOWING:
                self._take_word(peer, message)
            case messages.Goodbye(reason):
                self._lost(f"the syncer closed: {reason}")
                self.effects.out.append(machine.Disconnect(peer, "goodbye"))
            case _:
                raise UnexpectedMessage(f"{type(message).__name__} while {self.link.value}")

    def _on_note(self, value: object) -> None:
        if isinstance(value, jobs.LookAtSwarm):
            self._look_at_swarm()
        if isinstance(value, jobs.SyncerAnswers):
            self._hurry()
        self.snapshot_participant.on_note(value)
        self.trainer_control.on_note(value)

    def _look_at_swarm(self) -> None:
        """Ask the leader for one report; without a leader nobody could say."""
        if self.link is Link.FOLLOWING and self.context.leader is not None:
            setup = self.setup
            look = messages.Watch(limits.WIRE_VERSION, setup.project, is_once=True)
            self.effects.send(self.context.leader, look)

    def _take_word(self, peer: bytes, message: messages.Receipt | messages.Report) -> None:
        """What the leader says of us, or of all."""
        if isinstance(message, messages.Receipt):
            self.receipts.take(peer, message.credit)
        else:
            self.effects.do(jobs.ShowReport(message.status))

    def _take_part(self, message: Marker | messages.Probe) -> None:
        """The leader wants something beside training."""
        if isinstance(message, Marker):
            self.snapshot_participant.on_marker(message)
        else:
            self.prober.on_probe(message)

    def _welcome(self, peer: bytes, welcome: messages.Welcome) -> None:
        if self.link is not Link.GREETING:
            raise UnexpectedMessage("welcome out of turn")
        if welcome.index is None and self._told_index == 0:
            raise UnexpectedMessage("a welcome that goes on from no record")
        self._adopt_charter(welcome.charter)
        if self.snapshot_participant.wants_restart():
            self.effects.out.append(machine.Disconnect(peer, "another machine enters this epoch"))
            self._lost("the owner went back to a snapshot")
            return
        if welcome.index is not None and not self._take_index(peer, welcome):
            return
        if welcome.is_brief:
            self.context.state.follow_in_brief()
        self._forget_told()
        self.younger = ""
        self._failures = 0
        self._fire("welcome")
        self.effects.do(jobs.NoteReached(peer))
        self.trainer_control.on_link()
        self.fragment_sync.on_link()
        self.snapshot_participant.tell()
        self._end_if_over()

    def _forget_told(self) -> None:
        self._origins, self._charters, self._told = [], {}, 0

    def _collect(self, peer: bytes, part: messages.IndexPart) -> None:
        """Keep some proofs, and ask for the rest where they were more than go at once."""
        told = [one.certificate.index for one in part.entries[-1:]]
        told += [one.index for one in part.charters[-1:]]
        if not told:
            raise UnexpectedMessage("a part of an index with nothing in it")
        self._told += len(part.entries) + len(part.charters)
        if self._told > limits.INDEX_ENTRIES_MAX:
            raise LimitExceeded(f"more than {limits.INDEX_ENTRIES_MAX} index entries")
        self._origins.extend(part.entries)
        for one in part.charters:
            # One can be of 700 kB, but all of them are the owner's.
            self._charters[self._read_charter(one.charter).revision] = one
        if part.is_more:
            self._say_hello(peer, told_index=max(told))

    def _refused(self, peer: bytes, refused: messages.Refused) -> None:
        words = f"the syncer refused: {refused.text}"
        self.effects.out.append(machine.Disconnect(peer, refused.reason))
        if refused.retry_after_s is None and not self.snapshot_participant.on_refused(refused):
            self._is_stopping = True
            self.effects.out.append(machine.Stop(words, REFUSED_EXIT))
        elif refused.retry_after_s is not None:
            is_younger = refused.reason == messages.YOUNGER
            self.younger = f"The syncer {short(peer)} stopped. {refused.text}" * is_younger
            self._lost(words, refused.retry_after_s)

    def _adopt_charter(self, envelope: messages.Envelope) -> None:
        charter = self._read_charter(envelope)
        former = self.context.charter
        if former is not None and charter.revision < former.revision:
            return
        if charter != former:
            rule = self.context.outliving
            self.context.charter = charter
            self.effects.do(jobs.UseCharter(charter))
            if rule != self.context.outliving:
                self.fragment_sync.on_rule_changed()
        if former is not None and not former.inner.trains_as(charter.inner):
            self.trainer_control.on_inner_changed()

    def _read_charter(self, envelope: messages.Envelope) -> Charter:
        setup = self.setup
        charter = read_charter(
            envelope, project=setup.project, owner=setup.genesis.owner, verify=setup.verify
        )
        self.receipts.learn(charter, envelope)
        return charter

    def _take_index(self, peer: bytes, welcome: messages.Welcome) -> bool:
        """Start from certified fragment states instead of the whole log, unless that would take us
        back: whether it did."""
        assert welcome.index is not None, "checked by the caller"
        genesis, former = self.setup.genesis, self.context.state
        adopted = [one for _, one in sorted(self._charters.items())]
        now = self._read_charter(welcome.charter)
        offered = prove_index(
            welcome.index,
            self._origins,
            adopted=adopted,
            charters=[now, *(self._read_charter(one.charter) for one in adopted)],
            fragments=genesis.fragments,
            block_sequences=genesis.data.block_sequences,
            verify=self.setup.verify,
            own=self.setup.signer.key,
        )
        versions = enumerate(offered.fragments)
        first = {at: one.state for at, one in versions if one.version == 0}
        if wrong := first_weights.trouble(genesis, first):
            raise UnexpectedMessage(wrong)
        newest, charter = self.context.proofs.newest, self.context.charter
        assert charter is not None, "a charter came with the welcome"
        if because := going_back(former, newest, offered, charter):
            self._stay(peer, because)
            return False
        self.context.state = offered
        self.context.proofs.start(self._origins)
        self.receipts.restart()
        if self.fragment_sync.restart_from_index(former):
            self.trainer_control.on_went_back()
        self.trainer_control.on_index()
        self._log_charter = now
        return True

    def _stay(self, peer: bytes, because: str) -> None:
        """Keep what we hold, say why, and look for another leader now and then."""
        self.younger = sentence(peer, because)
        self._forget_told()
        self.effects.out.append(machine.Disconnect(peer, messages.YOUNGER))
        self._lost(self.younger, YOUNGER_RETRY_S)

    def _end_if_over(self) -> None:
        """A run that ended before this learner came has nothing for it to do."""
        ended = self.context.state.ended
        if ended is not None and self.link is Link.FOLLOWING:
            self._end(ended)

    # The log.

    def _open(self, entry: messages.CertifiedRecord) -> records.Record:
        charter = self._log_charter
        assert charter is not None, "a charter comes with the index"
        return records.open_record(entry, self.setup.project, charter, self.setup.verify)

    def _apply(self, entry: messages.CertifiedRecord) -> None:
        """The next committed record; nothing takes effect before its certificate is proven."""
        record = self._open(entry)
        digest = records.record_hash(entry.record)
        state = self.context.state
        self.context.proofs.before(record.body, state, self.fragment_sync.held)
        state.apply(record, digest)
        self.context.proofs.add(entry, record.index, state)
        kind = type(record.body).__name__
        self.effects.emit(RecordCommitted(record.index, record.term, digest, kind))
        self.receipts.on_record()
        match record.body:
            case records.FragmentMerged() as merged:
                self.fragment_sync.on_committed(merged)
                self.trainer_control.on_progress()
            case records.TokensTakenBack() | records.TokensGivenBack():
                self.trainer_control.on_progress()
            case records.BlocksLeased() as leased:
                self.trainer_control.on_leased(leased)
            case records.BlocksReturned() as returned:
                self.trainer_control.on_returned(returned)
            case records.CheckpointMarked() | records.CheckpointEvaluated():
                self._checkpoint(record.body, record.index)
            case records.WeightsRestored() | records.RestoreGivenUp():
                self._went_back(record.body)
            case records.PushProbed(learner, suspends=True):
                if learner == self.setup.signer.key:
                    account = self.context.state.accounts[learner]
                    self.effects.emit(LearnerSuspended(learner, suspended_words(account)))
            case records.SeatTaken():
                self.fragment_sync.on_new_term()
            case records.CharterAdopted(envelope):
                self._adopt_charter(envelope)
                self._log_charter = self._read_charter(envelope)
            case records.RunEnded() as ended:
                self._end(ended)
            case _:
                pass

    def _checkpoint(
        self, body: records.CheckpointMarked | records.CheckpointEvaluated, index: int
    ) -> None:
        if isinstance(body, records.CheckpointMarked):
            self.trainer_control.on_marked(body, index)
            return
        self.trainer_control.on_measured(body.checkpoint)
        self.effects.emit(CheckpointScored(body.global_step, body.loss, body.evaluator))

    def _went_back(self, body: records.WeightsRestored | records.RestoreGivenUp) -> None:
        """The guard went back, or cannot; the log says so already."""
        state = self.context.state
        if isinstance(body, records.RestoreGivenUp):
            self.effects.emit(RestoreGivenUp(state.restore_refusal))
            return
        assert state.restored is not None, "the record says so"
        self.effects.emit(GuardWentBack(restored_words(state.restored, state.accounts)))
        self.trainer_control.on_restored()

    def _end(self, ended: records.RunEnded) -> None:
        loss = f", held-out loss {ended.best_loss:.4f}" if ended.best_loss is not None else ""
        words = f"the run is complete after {ended.global_step} global steps{loss}"
        self._fire("over", words)
        self._leave(messages.RUN_COMPLETE, words)

    def _leave(self, reason: str, words: str) -> None:
        if self.context.leader is not None and self.link in (Link.FOLLOWING, Link.ENDED):
            self.effects.send(self.context.leader, messages.Goodbye(reason))
        self._is_stopping = True
        self.effects.out.append(machine.Stop(words))

    # Everything else.

    def _look(self) -> None:
        silent_s = self.context.now_s - self.heard_s
        leader = self.context.leader
        if self.link in (Link.GREETING, Link.FOLLOWING) and silent_s > limits.GONE_AFTER_S:
            assert leader is not None, "there is nobody to be greeted without a leader"
            self.effects.out.append(machine.Disconnect(leader, "silent"))
            self._lost(f"the syncer was not heard for {silent_s:.0f} s")
        is_quiet = silent_s > limits.LEADER_SUSPECT_AFTER_S
        is_due = self.context.now_s - self._found_s >= limits.LEADER_SUSPECT_AFTER_S / 2
        if is_quiet and is_due and self.link is Link.FOLLOWING and not self._is_looking:
            # Perhaps another one was elected; until that is known we stay where we are.
            self._found_s, self._is_looking = self.context.now_s, True
            self.effects.start(jobs.FindSeat(self._seat, self.context.charter))
        if self.link is Link.WAITING and self.context.now_s >= self._retry_s:
            self._seek()
        self.fragment_sync.look()
        self.peer_exchange.look()
        self.snapshot_participant.look()
        self.trainer_control.look()
        if words := self.trainer_control.graceful_leave.look(has_receipt=self.receipts.is_complete):
            self._leave("finished", words)
        times = [
            self.trainer_control.deadline_s(),
            self.fragment_sync.deadline_s(),
            self._deadline_s(),
            self.snapshot_participant.deadline_s(),
            *self.peer_exchange.deadlines_s(),
        ]
        self.effects.out.append(machine.WakeAt(min(t for t in times if t is not None)))

    def _deadline_s(self) -> float | None:
        """When the silence of the leader means something, or another try is due."""
        if self.link is Link.WAITING:
            return self._retry_s
        found_s = None if self._is_looking else self._found_s
        return suspect_s(self.link, self.context.now_s, heard_s=self.heard_s, found_s=found_s)

    def _job_done(self, number: JobId, result: object) -> None:
        job = self.effects.finish(number)
        match job:
            case jobs.FindSeat():
                if isinstance(result, jobs.SeatFound):
                    self._seat_found(result)
                elif self._is_looking and self.link in (Link.GREETING, Link.FOLLOWING):
                    self._is_looking = False  # Nobody else either: stay where we are.
                else:
                    self._lost(result.reason if isinstance(result, machine.Failed) else "not found")
            case jobs.FetchState() | jobs.Advance() | jobs.Deliver() | jobs.Capture():
                self.fragment_sync.on_job(job, result)
            case jobs.StartTrainer():
                self.snapshot_participant.on_trainer(result)
                self.trainer_control.on_ready(result)
            case jobs.SuspendTrainer():
                self.trainer_control.on_suspended(result)
            case jobs.WakeTrainer():
                self.trainer_control.on_woken(result)
            case jobs.Evaluate():
                self.trainer_control.on_evaluated(job, result)
            case jobs.ProbePush():
                self.prober.on_job(number, result)
            case jobs.CutPart() | jobs.WritePart() | jobs.LoadPart():
                self.snapshot_participant.on_job(number, job, result)
            case None:
                pass  # Answered before.
            case _:
                self.peer_exchange.on_job(number, job, result)
