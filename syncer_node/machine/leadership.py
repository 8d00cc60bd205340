"""The seat: what the leading syncer does for learners. Sessions, rounds, leases, checkpoints.

    starting --weights--> training --budget--> draining --drained--> ended

A seat is opened when its leader's term is certain and everything before it is applied, and closed
with the term. Whatever is volatile here (rounds in flight, who is asked) may be lost at any moment:
the next leader continues from the last committed record, and learners keep what was not merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from msgspec import structs

from protocol import limits, messages, trace, wire
from protocol.effect_queue import EffectQueue
from protocol.errors import RemoteError, UnexpectedMessage
from protocol.log import records
from protocol.log.batching import in_messages, index_parts
from protocol.log.leases import TextShape
from protocol.log.restoring import restored_words
from protocol.log.state import SwarmState
from protocol.machine import Disconnect, Failed, Stop
from protocol.peers.membership import BARRED, Membership, Session
from protocol.quorum import GraceWindow
from protocol.shards import order_of
from protocol.signing import open_envelope
from protocol.snapshots.manifest import Marker, PartKept, PartRefused, PartRestored, SnapshotOutline
from syncer_node.machine import jobs
from syncer_node.machine.contributor_notes import ContributorNotes
from syncer_node.machine.evaluating import Evaluating
from syncer_node.machine.leasing import Leasing
from syncer_node.machine.merging.assignment import Assignment
from syncer_node.machine.merging.mergers import Mergers
from syncer_node.machine.pacing import Pace
from syncer_node.machine.restoring import Restoring
from syncer_node.machine.rounds import Rounds
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.snapshots import Snapshots
from syncer_node.machine.telling.followers import Followers
from syncer_node.machine.telling.receipt_issuer import Receipts
from syncer_node.machine.telling.recent_entries import RecentEntries
from syncer_node.machine.text_supply import TextSupply
from syncer_node.machine.trust import admission, progress
from syncer_node.machine.trust.coverage import Coverage
from syncer_node.machine.trust.invites import Invites
from syncer_node.machine.trust.judge import Judge
from syncer_node.machine.trust.probing import Probing
from syncer_node.machine.trust.reading_trails import ReadingTrails

CYCLES_PER_CHECKPOINT = 8
"""Merges of every fragment between two checkpoints, at most: recovery replays what lies between."""


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


class Leadership:
    """One term of leading."""

    def __init__(
        self,
        setup: SyncerSetup,
        *,
        effects: EffectQueue,
        state: SwarmState,
        recent: RecentEntries,
        faults: dict[str, int],
        propose: Callable[[records.Body], None],
        snapshots: list[SnapshotOutline],
        networks: Mapping[bytes, str],
        able: Callable[[], tuple[bytes, ...]],
        seat: tuple[int, int],
        now_s: float,
    ) -> None:
        """snapshots: those on this host's disk. networks: where connected hosts come from. able:
        other syncers that could merge. seat: epoch and term."""
        self.setup = setup
        self.effects = effects
        self.state = state
        self.recent = recent
        self.faults, self.networks = faults, networks
        self.members = Membership()
        self.phase = Phase.STARTING
        self.watchers: dict[bytes, None] = {}
        """Hosts that look on, in the order they came."""
        self.asking: dict[bytes, None] = {}
        """Learners that want one report, in the order they asked."""
        self.is_closing = False
        """The seat is about to be handed over: no new rounds."""
        self._propose = propose
        self._now_s = now_s
        self._said_alive_s = self._told_all_s = self._reported_s = 0.0
        self._is_ending_proposed = self._is_end_proposed = False
        charter = setup.charter
        self.invites = Invites(state, propose)
        self.contributor_notes = ContributorNotes(state, self.members, propose)
        self.mergers = self._new_mergers(able, *seat)
        self.rounds = self._new_rounds()
        self.leasing = self._new_leasing()
        self.followers = Followers(effects, state, self.members, recent)
        self.receipts = Receipts(effects, state, self.members, self.followers.bring_up)
        self.evaluating = Evaluating(
            state=state,
            members=self.members,
            every=charter.limits.evaluate_every,
            checkpoint_every=CYCLES_PER_CHECKPOINT * setup.genesis.fragments,
            propose=propose,
        )
        self.restoring = Restoring(effects, state, propose)
        self.snapshots = Snapshots(
            setup, effects, recent, self.followers, self.members, self.rounds, snapshots
        )
        self.probing = self._new_probing()
        self._begin()

    def _new_mergers(self, able: Callable[[], tuple[bytes, ...]], epoch: int, term: int) -> Mergers:
        spec = self.setup.charter.rounds
        return Mergers(
            effects=self.effects,
            own=self.setup.signer.key,
            epoch=epoch,
            term=term,
            able=able,
            fetched=lambda job, result: self.on_fetched(job, result, self._now_s),
            merged=lambda job, result: self.rounds.on_merged(job, result, self._now_s),
            lose=lambda job, pushes: self.rounds.without(job, pushes),
            most=spec.mergers_max,
            pull_timeout_s=spec.pull_timeout_s,
            assignment=Assignment(self.setup.numels),
            now_s=self._now_s,
        )

    def _new_rounds(self) -> Rounds:
        setup, state, rounds = self.setup, self.state, self.setup.charter.rounds
        return Rounds(
            effects=self.effects,
            state=state,
            members=self.members,
            spec=rounds,
            outer=setup.charter.outer,
            judge=Judge(state, self.members, setup.charter.outer, setup.numels, setup.rules),
            numels=setup.numels,
            coverage=self._coverage(),
            wall_offset_s=_wall_offset_s(setup, state, self._now_s),
            propose=self._propose,
            is_returning=lambda session: self.leasing.is_returning(session),
            rng=setup.rng,
            contributor_notes=self.contributor_notes,
            pace=Pace(rounds, setup.genesis.fragments),
            window=GraceWindow(rounds.grace_safety, rounds.overlap_steps),
            mergers=self.mergers,
            last_round=state.rounds,
            proposed_step=state.global_step,
        )

    def _coverage(self) -> Coverage:
        data = self.setup.genesis.data
        shape = TextShape(data.sequence_tokens, data.block_sequences)
        return Coverage(shape, *self.step_tokens)

    @property
    def step_tokens(self) -> tuple[int, int]:
        """Fewest and most tokens of one local step."""
        fewest, most = self.setup.charter.inner.batch_range
        tokens = self.setup.genesis.data.sequence_tokens
        return fewest * tokens, most * tokens

    def _new_leasing(self) -> Leasing:
        setup, charter = self.setup, self.setup.charter
        return Leasing(
            state=self.state,
            members=self.members,
            limits=charter.limits,
            propose=self._propose,
            supply=TextSupply(
                charter.rounds.local_steps,
                charter.inner.batch_range[1],
                setup.genesis.data.block_sequences,
            ),
            has_in_hand=lambda session: bool(self.rounds.in_hand(session)),
            step_tokens=self.step_tokens,
            sequence_tokens=setup.genesis.data.sequence_tokens,
            listening_since_s=self._now_s,
            order=order_of(setup.genesis) if setup.genesis.published is not None else None,
        )

    def _new_probing(self) -> Probing:
        data, count = self.setup.genesis.data, self.setup.genesis.fragments
        return Probing(
            effects=self.effects,
            state=self.state,
            members=self.members,
            rounds=self.rounds,
            setup=self.setup,
            propose=self._propose,
            trails=ReadingTrails(self.state, data.block_sequences, count),
        )

    # Life of the run.

    def _begin(self) -> None:
        if self.state.ended is not None:
            self.phase = Phase.ENDED
        elif self.state.is_ending:
            self.phase = Phase.DRAINING
        elif self.state.has_weights:
            self.phase = Phase.TRAINING
        else:
            self.effects.start(jobs.InitialiseWeights())
        self.effects.emit(trace.PhaseChanged(self.phase.value, f"log at record {self.state.index}"))

    def _fire(self, trigger: str, detail: str) -> None:
        self.phase = PHASE_TRANSITIONS[self.phase, trigger]
        self.effects.emit(trace.PhaseChanged(self.phase.value, detail))

    def adopt(self, setup: SyncerSetup) -> None:
        """Go on under another charter."""
        self.setup = setup
        charter = setup.charter
        self.rounds.adopt(charter.rounds, charter.outer)
        self.rounds.coverage.adopt(*self.step_tokens)
        self.leasing.limits = charter.limits
        self.leasing.step_tokens = self.step_tokens
        self.leasing.supply.local_steps = charter.rounds.local_steps
        self.leasing.supply.step_sequences = charter.inner.batch_range[1]
        self.evaluating.every = charter.limits.evaluate_every
        self.snapshots.setup = self.probing.setup = setup
        self._follow_suspensions()
        for peer in list(self.members.sessions):
            refused = self.invites.standing_refusal(charter, peer)
            if refused is not None:
                self._put_out(peer, refused)

    def _put_out(self, peer: bytes, refused: messages.Refused) -> None:
        """End what there is of a learner: its session, its pushes that are not merged, its leases.

        One that is not connected may still have pushes here.
        """
        self.rounds.put_out(peer)
        if self.members.sessions[peer].is_connected:
            self.effects.send(peer, refused)
            self.effects.out.append(Disconnect(peer, refused.reason))
            self.lose(peer, f"{BARRED}{refused.reason}", self._now_s, has_left=True)
        self._return_leases(peer)

    def _follow_suspensions(self) -> None:
        """Who is suspended takes no part from here on, and who no longer is does again.

        Others read what it was leased; it is leased text again once its owner lifts that.
        """
        before = {peer for peer, one in self.members.sessions.items() if one.is_suspended}
        self.probing.mark_suspended()
        for peer, session in self.members.sessions.items():
            if session.is_suspended and peer not in before:
                self.rounds.put_out(peer)
                self._return_leases(peer)
            elif peer in before and not session.is_suspended:
                self.rounds.barred.discard(peer)

    def _return_leases(self, peer: bytes) -> None:
        for held in [key for key in self.state.leases.held if key[0] == peer]:
            self.leasing.give_back(held)

    def look(self, now_s: float, *, may_open: bool, has_tail: bool) -> None:
        """Time passes. may_open: the log can be written. has_tail: records wait for certificates"""
        self._now_s = now_s
        for session in self.members.silent(now_s):
            self.effects.out.append(Disconnect(session.peer, "silent"))
            self.lose(session.peer, f"not heard for {limits.GONE_AFTER_S:.0f} s", now_s)
        self._say_alive(now_s)
        self._report(now_s)
        for session_key in self.leasing.take_back(now_s):
            self.rounds.last_sequence.pop(session_key, None)
        self.leasing.look(now_s)
        is_paused = self.state.pause is not None
        is_resting = self.state.is_resting
        is_open = self.phase is Phase.TRAINING and not self.is_closing and not is_resting
        self.mergers.look(now_s)
        self.rounds.look(now_s, may_open=is_open and may_open)
        self.snapshots.look(now_s, may_begin=is_open and may_open)
        self.probing.look(now_s)
        if may_open and not self._is_end_proposed and self.phase is not Phase.ENDED:
            self.contributor_notes.look(now_s)
        if is_paused and may_open and self.phase is Phase.TRAINING and not self.is_closing:
            self.restoring.look(now_s, is_quiet=not has_tail and not self.rounds.rounds)
        if is_open:
            self._check_budget()
            self.evaluating.look(now_s)
        elif (
            self.phase is Phase.DRAINING
            and not self.rounds.rounds
            and not has_tail
            and not self._is_end_proposed
            and self.evaluating.finish(now_s)
        ):
            self._end()

    def _say_alive(self, now_s: float) -> None:
        """Silence must mean something; where records come in between, there is none."""
        is_quiet = now_s - max(self._told_all_s, self._said_alive_s) >= limits.ALIVE_EVERY_S
        if not is_quiet and now_s - self._said_alive_s < limits.ALIVE_EVERY_S_MAX:
            return
        self._said_alive_s = now_s
        live = list(self.members.live())
        every_s = min(limits.HEARTBEAT_S, len(live) / limits.HEARTBEATS_PER_S)
        alive = messages.Alive(self.state.index, every_s)
        for session in live:
            self.effects.send(session.peer, alive)

    def _report(self, now_s: float) -> None:
        """Tell those that look on how the swarm is, if it is time."""
        is_wanted = self.watchers or self.asking
        if is_wanted and now_s - self._reported_s >= limits.REPORT_EVERY_S:
            self._reported_s = now_s
            self.effects.do(jobs.TellWatchers(tuple(self.watchers), tuple(self.asking)))
            self.asking.clear()

    def _check_budget(self) -> None:
        budget = self.setup.charter.limits.tokens
        if self.state.tokens >= budget and not self._is_ending_proposed:
            self._is_ending_proposed = True
            self._propose(records.RunEnding("token-budget"))

    def _end(self) -> None:
        self._is_end_proposed = True
        self.contributor_notes.flush()
        best = self.state.best
        body = records.RunEnded(
            global_step=self.state.global_step,
            tokens=self.state.tokens,
            best=best.checkpoint if best else self.state.checkpoint,
            best_loss=best.loss if best else None,
        )
        self._propose(body)

    def close(self, reason: str) -> None:
        """Say goodbye; learners go on by themselves and come back when somebody leads again."""
        for session in self.members.live():
            self.effects.send(session.peer, messages.Goodbye(reason))
            self.effects.out.append(Disconnect(session.peer, "goodbye"))
        for peer in self.watchers:
            self.effects.out.append(Disconnect(peer, "goodbye"))
        self.snapshots.close()
        self.probing.close()

    def deadline_s(self) -> float:
        """When something happens here by itself."""
        times = [self.rounds.deadline_s(self._now_s), self.evaluating.deadline_s()]
        times += [self.snapshots.deadline_s(), self.contributor_notes.deadline_s()]
        times.append(self.probing.deadline_s())
        times.append(self.mergers.deadline_s())
        times.append(self.restoring.deadline_s())
        times.append(self.leasing.deadline_s())
        times.append(max(self._told_all_s, self._said_alive_s) + limits.ALIVE_EVERY_S)
        return min((t for t in times if t is not None), default=1e18)

    # The log.

    def on_committed(
        self, entry: messages.CertifiedRecord, body: records.Body, index: int, now_s: float
    ) -> None:
        """What a committed record sets in motion here; then everybody hears of it."""
        self._now_s = now_s
        match body:
            case records.WeightsInitialised():
                self._fire("weights", f"{len(body.fragments)} fragments at version 0")
            case records.FragmentMerged():
                self._merged(body, index)
            case records.BlocksLeased() | records.BlocksReturned():
                self._on_leases(body)
            case records.PushProbed():
                self.probing.on_committed(body)
                self._follow_suspensions()
            case records.InviteUsed() | records.TokensTakenBack() | records.TokensGivenBack():
                self._noted(body)
            case records.CheckpointMarked() | records.CheckpointEvaluated():
                self._checkpoint(body, index)
            case records.WeightsRestored() | records.RestoreGivenUp():
                self._went_back(body, index)
            case records.RunEnding():
                self._fire("budget", f"{self.state.tokens:,} tokens committed")
            case records.RunEnded():
                self.receipts.on_ended(self.setup, now_s)
                self._fire("drained", f"global step {body.global_step}, best {body.best}")
        if self.followers.tell(entry, body):
            self._told_all_s = now_s

    def _noted(
        self, body: records.InviteUsed | records.TokensTakenBack | records.TokensGivenBack
    ) -> None:
        """Something about one learner."""
        match body:
            case records.InviteUsed():
                self.invites.on_committed(body)
            case records.TokensTakenBack(learner, tokens):
                whole = tokens // len(self.state.fragments)
                self.effects.emit(trace.ProgressTakenBack(learner, whole))
            case records.TokensGivenBack(learner):
                self.effects.emit(trace.ProgressGivenBack(learner))

    def _on_leases(self, body: records.BlocksLeased | records.BlocksReturned) -> None:
        session = (body.learner, body.incarnation)
        if isinstance(body, records.BlocksReturned):
            self.leasing.on_returned(session, self._now_s)
            self.probing.trails.on_returned(session)
            return
        self.leasing.on_leased(self._now_s)
        self.probing.trails.on_leased(session, body.spans)
        if body.learner in self.rounds.barred:
            self._return_leases(body.learner)  # Proposed before it was put out.

    def _checkpoint(
        self, body: records.CheckpointMarked | records.CheckpointEvaluated, index: int
    ) -> None:
        if isinstance(body, records.CheckpointEvaluated):
            self._scored(body)
            return
        self.evaluating.on_marked(index, body.evaluator, self._now_s)
        self.effects.start(jobs.WriteCheckpoint(index, self.state.summary()))

    def _went_back(
        self, body: records.WeightsRestored | records.RestoreGivenUp, index: int
    ) -> None:
        """Merging goes on from an earlier checkpoint, or the owner has to decide."""
        if isinstance(body, records.RestoreGivenUp):
            self.effects.emit(trace.RestoreGivenUp(self.state.restore_refusal))
            return
        self.effects.do(jobs.AdoptRestored(body))
        self.evaluating.on_restored()
        self.effects.start(jobs.WriteCheckpoint(index, self.state.summary()))
        for at, state in enumerate(self.state.fragments):
            self.effects.emit(
                trace.FragmentAdvanced(at, state.version, state.state.theta, "the guard went back")
            )
        if self.state.restored is not None:
            self.effects.emit(
                trace.GuardWentBack(restored_words(self.state.restored, self.state.accounts))
            )

    def _scored(self, scored: records.CheckpointEvaluated) -> None:
        self.evaluating.on_scored(scored.checkpoint, self._now_s)
        if self.state.pause is not None:
            self.rounds.pause()
        if self.state.best is not None:
            self.effects.do(jobs.NameBest(self.state.best.checkpoint))
        self.effects.emit(trace.CheckpointScored(scored.global_step, scored.loss, scored.evaluator))
        point = self.state.point(scored.checkpoint)
        if point is not None and point.is_disputed:
            first, second = zip((point.evaluator, point.second), point.losses, strict=True)
            self.effects.emit(trace.LossesDiffer(point.global_step, *first, *second))

    def _merged(self, merged: records.FragmentMerged, index: int) -> None:
        parts = merged.contributions
        self.rounds.on_committed(merged, self._now_s)
        self.probing.on_merged(merged)
        self.leasing.on_merged(parts, self._now_s)
        self.receipts.on_merged(merged, self.setup, self._now_s)
        self.contributor_notes.on_merged(merged)
        self._revise(merged)
        self.effects.emit(
            trace.FragmentCommitted(
                index=index,
                global_step=merged.global_step,
                fragment=merged.fragment,
                version=merged.version,
                participants=len(parts),
                mean_steps=sum(part.steps for part in parts) / len(parts),
                merge_s=self.rounds.window.sync.value_s or 0.0,
            )
        )

    def _revise(self, merged: records.FragmentMerged) -> None:
        """A run that is ending is not made longer any more."""
        if not self.state.is_ending and not self._is_ending_proposed:
            for body in progress.revisions(self.state, merged, self.setup.rules):
                if isinstance(body, records.TokensTakenBack):
                    more = self.rounds.uncommitted_tokens(body.learner)
                    body = structs.replace(body, tokens=body.tokens + more)
                self._propose(body)

    # Sessions.

    def receive(self, peer: bytes, message: messages.Message, now_s: float) -> None:
        """What a learner or a watcher says. Raises RemoteError for what means nothing."""
        self._now_s = now_s
        if isinstance(message, messages.Hello):
            self._hello(peer, message)
            return
        if isinstance(message, messages.Watch):
            self._watch(peer, message)
            return
        session = self.members.sessions.get(peer)
        if session is None or not session.is_connected:
            self.effects.out.append(Disconnect(peer, "no session"))
            raise UnexpectedMessage(f"{type(message).__name__} before hello")
        session.heard_s = now_s
        self._dispatch(session, message)

    def _dispatch(self, session: Session, message: messages.Message) -> None:
        match message:
            case messages.Heartbeat():
                self.members.hear(session, message, self._now_s)
                if message.state == "finishing":
                    self.receipts.on_leaving(session, self.setup, self._now_s)
            case messages.Push(envelope):
                self._push(session, envelope)
            case messages.Decline():
                self.rounds.on_decline(session.peer, message)
            case messages.LeaseRequest(blocks, is_spent):
                if not session.is_suspended:
                    self.leasing.ask(session.peer, blocks, self._now_s, is_spent=is_spent)
            case messages.Probed() | messages.ProbeDeclined():
                self._probe_answered(session, message)
            case messages.Evaluation():
                self.evaluating.on_evaluation(session.peer, message)
            case Marker() | PartKept() | PartRefused() | PartRestored():
                self.snapshots.on_message(session, message, self._now_s)
            case messages.Goodbye(reason):
                words = reason or "said goodbye"
                self.lose(session.peer, words, self._now_s, has_left=True)
                self.effects.out.append(Disconnect(session.peer, "goodbye"))
            case _:
                raise UnexpectedMessage(f"{type(message).__name__} from a learner")

    def _watch(self, peer: bytes, watch: messages.Watch) -> None:
        """Let somebody look on, if there is room and it looks for this project."""
        if watch.is_once:
            self._look_once(peer, watch)
            return
        reason = ""
        if watch.wire_version != limits.WIRE_VERSION:
            reason = f"this swarm speaks wire version {limits.WIRE_VERSION}"
        elif watch.project != self.setup.project:
            reason = "this syncer serves another project"
        elif len(self.watchers) >= limits.WATCHERS_MAX and peer not in self.watchers:
            reason = "too many watchers are connected"
        if reason:
            self.effects.send(peer, messages.Refused("watch", reason, None))
            self.effects.out.append(Disconnect(peer, reason))
        else:
            self.watchers[peer] = None
            self._reported_s = -1e9

    def _look_once(self, peer: bytes, watch: messages.Watch) -> None:
        """A learner wants a report. Where too many do, it asks again: refusals end sessions."""
        session = self.members.sessions.get(peer)
        if session is None or not session.is_connected or watch.project != self.setup.project:
            self.effects.out.append(Disconnect(peer, "no session"))
            raise UnexpectedMessage("a look at the swarm before hello")
        if len(self.asking) < limits.WATCHERS_MAX:
            self.asking[peer] = None

    def _hello(self, peer: bytes, hello: messages.Hello) -> None:
        known = self.members.sessions.get(peer)
        is_lower = known is not None and known.incarnation > hello.incarnation
        if is_lower and self.snapshots.may_resume(peer, hello.incarnation):
            self.members.forget(peer)
        network, at_s = self.networks.get(peer, ""), self._now_s + self.setup.wall_offset_s
        refused = admission.refusal(
            self.setup, self.members, self.invites, peer, hello, self.state, network, self._now_s
        )
        if refused is not None:
            self._refuse(peer, refused)
            return
        entries = self.followers.missed(peer, hello, self._now_s - self.leasing.listening_since_s)
        if entries is None and not self._tell_origins(peer, hello.told_index):
            return  # It says hello again once it has these.
        self._make_room(peer, network)
        former = self.members.sessions.get(peer)
        if former is not None:
            self.snapshots.on_gone(peer, "it reconnected", self._now_s)
        if former is not None and former.incarnation < hello.incarnation:
            self.rounds.on_gone(peer)
            self.leasing.give_back(former.key)
        session = self.members.open(peer, hello, self._now_s, network)
        assert session is not None, "checked by _refusal"
        self.followers.admit(session, hello, is_anew=entries is None)
        session.is_suspended = self.state.is_suspended(peer)
        if session.is_suspended:
            self._return_leases(peer)  # A former leader may have ended before it did.
        else:
            self.rounds.barred.discard(peer)
        if not self._is_end_proposed and self.phase is not Phase.ENDED:
            self.invites.bind(self.setup, peer, hello.invite, at_s)
        self._welcome(peer, entries, session)

    def _refuse(self, peer: bytes, refused: messages.Refused) -> None:
        self.effects.emit(trace.SessionRefused(peer, refused.reason, refused.text))
        if refused.retry_after_s is None:
            self.faults[refused.reason] = self.faults.get(refused.reason, 0) + 1
        self.effects.send(peer, refused)
        self.effects.out.append(Disconnect(peer, refused.reason))

    def _make_room(self, peer: bytes, network: str) -> None:
        """Whoever gives way to this newcomer hears why, and when to come again."""
        learners = self.setup.charter.limits.learners
        if admission.has_room(self.members, peer, learners):
            return
        leaving = admission.gives_way(self.members, learners, network, self._now_s)
        assert leaving is not None, "checked by `refusal`"
        session, text = leaving
        self.effects.send(session.peer, messages.Refused("full", text, admission.FULL_RETRY_S))
        self.effects.out.append(Disconnect(session.peer, "full"))
        self.lose(session.peer, text, self._now_s)

    def _tell_origins(self, peer: bytes, told_index: int) -> bool:
        """Send what proves the fragments' newest states, charters included, of all that is after
        this record; whether that was all of it."""
        charters = [one for one in self.state.charters if one.index > told_index]
        pieces = list(index_parts(self.recent.origins(told_index), charters))
        most = limits.PIECES_AT_ONCE_MAX
        for at, piece in enumerate(pieces[:most], 1):
            is_more = most == at < len(pieces)
            self.effects.send(peer, structs.replace(piece, is_more=is_more))
        return len(pieces) <= most

    def _welcome(
        self, peer: bytes, entries: tuple[messages.CertifiedRecord, ...] | None, session: Session
    ) -> None:
        """entries: behind those that it has; None if it begins with an index."""
        state = self.state
        index = self.recent.index(peer) if entries is None else None
        charter = state.charter or self.setup.charter_envelope
        place = (state.epoch, state.term, index)
        self.effects.send(peer, messages.Welcome(charter, *place, session.is_brief))
        for piece in in_messages(entries or ()):
            self.effects.send(peer, messages.Committed(piece))
        self.receipts.on_welcome(session, self.setup, self._now_s)
        self.effects.emit(trace.SessionOpened(peer, session.name, entries is not None))

    def _probe_answered(
        self, session: Session, message: messages.Probed | messages.ProbeDeclined
    ) -> None:
        if isinstance(message, messages.ProbeDeclined):
            self.probing.on_declined(session, message, self._now_s)
        elif not self._is_end_proposed:
            self.probing.on_probed(session, message)

    def _push(self, session: Session, envelope: messages.Envelope) -> None:
        payload = open_envelope(
            "push", self.setup.project, envelope, self.setup.verify, signer=session.peer
        )
        header = wire.decode(payload, messages.PushHeader)
        if header.project != self.setup.project or header.incarnation != session.incarnation:
            raise UnexpectedMessage("push of another project or session")
        self.snapshots.on_push(session, header.sequence)
        self.rounds.on_push(session, header, self._now_s)

    def on_fetched(self, job: jobs.FetchPush, result: object, now_s: float) -> None:
        """The payload of a push is here, or did not come."""
        self._now_s = now_s
        self.rounds.on_fetched(job, result, now_s)
        session, header = self.members.sessions.get(job.peer), job.header
        is_its = session is not None and session.incarnation == header.incarnation
        if session is not None and is_its and header.sequence in self.rounds.in_hand(session.key):
            may = self.phase is Phase.TRAINING and not self.is_closing
            self.probing.on_arrived(session, header, now_s, may=may)

    def on_merging_job(
        self, job: jobs.FetchPush | jobs.Merge | jobs.TakeMerge, result: object, now_s: float
    ) -> None:
        """What this host fetched or merged is here, or is not."""
        self._now_s = now_s
        match job:
            case jobs.FetchPush():
                self.mergers.on_fetched_here(job, result, now_s)
            case jobs.Merge():
                self.mergers.on_merged_here(job, result, now_s)
            case jobs.TakeMerge():
                self.mergers.on_taken(job, result, now_s)

    def on_answer(self, merger: bytes, answer: messages.OrderAnswer, now_s: float) -> None:
        """What a merger says to an order. Raises UnexpectedMessage."""
        self._now_s = now_s
        self.mergers.receive(merger, answer, now_s)

    def lose_merger(self, merger: bytes, now_s: float) -> None:
        """The stream to another syncer ended."""
        self._now_s = self.mergers.now_s = now_s
        self.mergers.on_down(merger)

    def lose(self, peer: bytes, reason: str, now_s: float, *, has_left: bool = False) -> None:
        """A stream ended, or somebody left."""
        self._now_s = now_s
        self.watchers.pop(peer, None)
        self.asking.pop(peer, None)
        session = self.members.close(peer, reason, has_left=has_left)
        if session is not None:
            session.lost_s = now_s
            self.rounds.on_gone(peer)
            self.snapshots.on_gone(peer, reason, now_s)
            self.effects.emit(trace.SessionClosed(peer, session.name, reason, has_left))

    def count_fault(self, peer: bytes, error: RemoteError) -> None:
        """Write an offence down against its session."""
        session = self.members.sessions.get(peer)
        if session is not None:
            session.faults[error.reason] = session.faults.get(error.reason, 0) + 1

    def on_weights(self, result: object) -> None:
        """The first weights are made, or could not be."""
        if isinstance(result, jobs.WeightsMade):
            self._propose(records.WeightsInitialised(result.fragments))
        else:
            reason = result.reason if isinstance(result, Failed) else "unknown"
            self.effects.out.append(Stop(f"the first weights could not be created: {reason}", 1))


def _wall_offset_s(setup: SyncerSetup, state: SwarmState, now_s: float) -> float:
    """From this host's monotonic clock to the time by which leases are dated.

    A lease from the future means that the clock was set back, here or at a former leader's host;
    whoever went by it would call every claim false until that time came again.
    """
    latest_s = max(state.leases.since_s.values(), default=0.0)
    return max(setup.wall_offset_s, latest_s - now_s)
