"""The rounds in flight: whom to ask, what arrived, when to merge, and the fate of every push."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol import limits, standing
from protocol.effect_queue import EffectQueue
from protocol.log.records import Body, Contribution, FragmentMerged
from protocol.log.state import SwarmState
from protocol.machine import Failed
from protocol.messages import Decline, Outcome, Pull, PushHeader, Settled
from protocol.numerics.codecs import payload_bytes
from protocol.numerics.merge import push_weight
from protocol.peers.membership import Membership, Session
from protocol.project import OuterSpec, RoundSpec
from protocol.quorum import GraceWindow
from protocol.rounds import PullState, PullTicket, Round, RoundState, unsettled
from protocol.standing import NOBODY, Standing
from protocol.trace import PushSettled, QuorumReached, RoundAbandoned, RoundOpened
from syncer_node.machine import jobs
from syncer_node.machine.contributor_notes import ContributorNotes
from syncer_node.machine.pacing import Pace, median_step_s
from syncer_node.machine.uplinks import Uplinks

RETRY_AFTER_S = 5.0
"""Pause of merging after a merge could not be stored, for example on a full disk."""

STEP_S_MIN = 0.01
"""No learner is believed to take local steps faster than this."""

LEAVING_EVERY_S = 2.0
"""Rounds of one fragment for those who leave come no more often: one that they answered left them
nothing on it, and one that they declined is not asked for again at once."""

FATES_MAX = 4096
"""Outcomes kept for learners that ask again after their connection broke."""


def push_id(peer: bytes, header: PushHeader) -> jobs.PushId:
    return (peer, header.incarnation, header.sequence)


@dataclass(slots=True)
class Rounds:
    """Up to tau rounds at a time, always on different fragments."""

    effects: EffectQueue
    state: SwarmState
    members: Membership
    spec: RoundSpec
    outer: OuterSpec
    numels: tuple[int, ...]
    """Padded length of each fragment, in elements."""
    tokens_per_step: int
    wall_offset_s: float
    propose: Callable[[Body], None]
    contributor_notes: ContributorNotes
    pace: Pace
    window: GraceWindow
    rounds: dict[int, Round] = field(default_factory=dict)
    last_round: int = 0
    proposed_step: int = 0
    last_sequence: dict[tuple[bytes, int], int] = field(default_factory=dict)
    stalled: str = ""
    """Why merging pauses, in words; empty when it does not."""
    stalled_until_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    _fates: dict[tuple[tuple[bytes, int], int], tuple[Outcome, str]] = field(default_factory=dict)
    """Outcomes lately told, by session and sequence."""
    merges_here: int = 0
    stragglers: dict[tuple[int, bytes], PullTicket] = field(default_factory=dict)
    """Pulls that their round did not wait for, by fragment and learner: at most one each."""
    uplinks: Uplinks = field(default_factory=Uplinks)

    def adopt(self, spec: RoundSpec, outer: OuterSpec) -> None:
        """Go on under another charter; rounds in flight end under the one they began with."""
        self.spec, self.outer = spec, outer
        self.pace.spec = spec

    # What comes in.

    def on_push(self, session: Session, header: PushHeader, now_s: float) -> None:
        """A signed push header; its payload is fetched if the push can still count."""
        if header.sequence <= self.last_sequence.get(session.key, 0):
            self._answer_again(session, header)
            return
        self.last_sequence[session.key] = header.sequence
        self._forget_sequences()
        current, ticket = self._find(session.peer, header.round)
        is_open = current is None or current.is_collecting
        if ticket is None or not is_open or ticket.state is not PullState.ASKED:
            self._settle(session.peer, header, "late", "the round is closed")
            return
        if not ticket.is_pending(now_s, self.spec.pull_timeout_s):
            self._settle(session.peer, header, "late", "the pull's deadline has passed")
            return
        ticket.header = header
        version = current.version if current else self._version_after(ticket.fragment)
        fate = self._judge(ticket, version, header, session, now_s)
        if fate is not None:
            ticket.state = PullState.FAILED
            self._settle(session.peer, header, *fate)
            return
        ticket.state = PullState.SENDING
        left_s = ticket.asked_s + self.spec.pull_timeout_s - now_s
        is_proven = session.merges > 0
        self.effects.start(jobs.FetchPush(session.peer, header.round, header, left_s, is_proven))

    def _forget_sequences(self) -> None:
        """Of sessions that are over: their pulls are void, so nothing of theirs can count again."""
        known = self.members.sessions
        if len(self.last_sequence) > 2 * len(known):
            live = {session.key for session in known.values()}
            kept = {key: at for key, at in self.last_sequence.items() if key in live}
            self.last_sequence = kept

    def _find(self, peer: bytes, number: int) -> tuple[Round | None, PullTicket | None]:
        """The pull that this round sent to a learner, and the round that waits for it now."""
        for current in self.rounds.values():
            ticket = current.tickets.get(peer)
            if ticket is not None and ticket.round == number:
                return current, ticket
        for (_, asked), ticket in self.stragglers.items():
            if asked == peer and ticket.round == number:
                return None, ticket
        return None, None

    def _answer_again(self, session: Session, header: PushHeader) -> None:
        """A push that was handed in before: a learner asks what became of it.

        One still in a round gets its fate in time, and a merged one is in the log already.
        """
        _, ticket = self._find(session.peer, header.round)
        is_under_way = ticket is not None and ticket.state in (PullState.SENDING, PullState.ARRIVED)
        if is_under_way and ticket is not None and ticket.header == header:
            return
        outcome, reason = self._fates.get(
            (session.key, header.sequence), ("abandoned", "not in any round")
        )
        answer = Settled(header.incarnation, header.sequence, outcome, reason)
        self.effects.send(session.peer, answer)

    def on_decline(self, peer: bytes, decline: Decline) -> None:
        """The learner has nothing for this round."""
        _, ticket = self._find(peer, decline.round)
        if ticket is not None and ticket.state is PullState.ASKED:
            ticket.state = PullState.FAILED

    def on_fetched(self, job: jobs.FetchPush, result: object, now_s: float) -> None:
        """The payload arrived, or did not."""
        session = self.members.sessions.get(job.peer)
        if session is not None and session.incarnation == job.header.incarnation:
            if isinstance(result, jobs.PushFetched):
                session.misses = 0
            else:
                session.missed(now_s)
        current, ticket = self._find(job.peer, job.round)
        is_awaited = (
            (current is None or current.is_collecting)
            and ticket is not None
            and ticket.header == job.header
            and ticket.state is PullState.SENDING
        )
        if isinstance(result, jobs.PushFetched):
            if is_awaited and ticket is not None:
                if current is not None:
                    current.arrive(ticket)
                else:
                    ticket.state = PullState.ARRIVED
                self.uplinks.arrived(
                    (job.peer, job.header.incarnation),
                    job.header.fragment,
                    asked_after=ticket.newest,
                    newest=self.last_round,
                )
            else:
                self.effects.do(jobs.Forget((push_id(job.peer, job.header),)))
            return
        if ticket is not None and is_awaited:
            ticket.state = PullState.FAILED
            if isinstance(result, jobs.PushRefused):
                self._settle(job.peer, job.header, "rejected", result.reason, result.detail)
            else:
                reason = result.reason if isinstance(result, Failed) else "fetch failed"
                self._settle(job.peer, job.header, "abandoned", reason)

    def on_merged(self, job: jobs.Merge, result: object, now_s: float) -> None:
        """The merge is computed and its payload is on disk, or it failed."""
        current = self.rounds.get(job.round)
        if current is None:
            return
        if not isinstance(result, jobs.Merged):
            reason = result.reason if isinstance(result, Failed) else "merge failed"
            self.stalled, self.stalled_until_s = reason, now_s + RETRY_AFTER_S
            self._abandon(current, reason)
            return
        current.fire("merged")
        self.proposed_step = max(self.proposed_step, self.state.global_step) + 1
        self.propose(
            FragmentMerged(
                round=current.number,
                global_step=self.proposed_step,
                fragment=current.fragment,
                version=current.version,
                payload=result.payload,
                payload_bytes=result.payload_bytes,
                codec=job.codec,
                learning_rate=job.outer.learning_rate,
                momentum=job.outer.momentum,
                nesterov=job.outer.nesterov,
                state=result.state,
                contributions=tuple(
                    Contribution(
                        learner=part.learner,
                        incarnation=part.header.incarnation,
                        sequence=part.header.sequence,
                        base_version=part.header.base_version,
                        steps=part.header.steps,
                        tokens=part.header.tokens,
                        weight=part.weight,
                        norm=norm,
                        scale=scale,
                        cursor=part.header.cursor,
                        cosine=cosine,
                        trust=trust,
                    )
                    for part, norm, scale, cosine, trust in zip(
                        job.parts,
                        result.norms,
                        result.scales,
                        result.cosines,
                        result.trusts,
                        strict=True,
                    )
                ),
            )
        )

    def on_committed(self, merged: FragmentMerged, now_s: float) -> None:
        """The new version counts: make it current and close the books of its round."""
        current = self.rounds.pop(merged.round)
        current.fire("committed")
        self.effects.do(jobs.Adopt(merged.fragment, merged.version, merged.payload))
        self.effects.do(
            jobs.Forget(tuple(push_id(peer, header) for peer, header in current.arrived))
        )
        self.merges_here += 1
        self.stalled = ""
        if current.closed_s is not None:
            self.window.sync.observe(now_s - current.closed_s)
        for part in merged.contributions:
            session = self.members.sessions.get(part.learner)
            is_here = session is not None and session.incarnation == part.incarnation
            if session is not None and is_here and part.trust > 0:
                session.merged(merged.fragment, part.steps, now_s)
            outcome: Outcome = "clipped" if part.scale < 1.0 else "merged"
            self._count(outcome)
            self.effects.emit(
                PushSettled(
                    merged.round, part.learner, part.incarnation, part.sequence, outcome, ""
                )
            )

    def on_gone(self, peer: bytes) -> None:
        """A learner left: nobody waits for it."""
        collecting = [one.tickets.get(peer) for one in self.rounds.values() if one.is_collecting]
        late = [ticket for (_, asked), ticket in self.stragglers.items() if asked == peer]
        for ticket in [*collecting, *late]:
            if ticket is not None and ticket.state is PullState.ASKED:
                ticket.state = PullState.FAILED

    def in_hand(self, session: tuple[bytes, int]) -> frozenset[int]:
        """Sequences of this session's pushes that are here and have no fate yet."""
        rounds = [(one.tickets.get(session[0]), one.is_collecting) for one in self.rounds.values()]
        late = self.stragglers.items()
        return unsettled(
            [*rounds, *((ticket, True) for (_, peer), ticket in late if peer == session[0])],
            session[1],
        )

    # What goes on.

    def look(self, now_s: float, *, may_open: bool) -> None:
        """Move every round on, and open new ones while pace and overlap allow."""
        self._expire(now_s)
        collecting = [current for current in self.rounds.values() if current.is_collecting]
        if collecting:
            able, taken, doubted = self.members.handing_in(), self._busy(now_s), self.doubted()
            for current in collecting:
                self._ask(current, able, taken, doubted, now_s)
                self._look_at(current, able, now_s)
        while may_open and now_s >= self.stalled_until_s:
            fragment = self._next_to_open(now_s)
            if fragment is None:
                break
            version = self.state.fragments[fragment].version
            self._open(fragment, version + 1, self.members.handing_in(), now_s)

    def deadline_s(self, now_s: float) -> float | None:
        """The next time at which something happens by itself."""
        times = [current.deadline_s(now_s) for current in self.rounds.values()]
        times.append(self.pace.deadline_s(now_s))
        timeout_s = self.spec.pull_timeout_s
        late = (one for one in self.stragglers.values() if one.is_pending(now_s, timeout_s))
        times.extend(ticket.asked_s + timeout_s for ticket in late)
        if self.stalled_until_s > now_s:
            times.append(self.stalled_until_s)
        return min((t for t in times if t is not None), default=None)

    # Which round opens next, and whom it may ask.

    def _next_to_open(self, now_s: float) -> int | None:
        """The fragment whose round opens now; None for none.

        While nobody trains no round is due, however long one waits. Learners that are about to
        leave would then take with them what they did; for them rounds open at once, of every
        fragment on which they have local steps.
        """
        if len(self.rounds) >= self.spec.overlap_steps:
            return None
        coming = self.coming()
        if not coming:
            return None
        training = self.members.training()
        if not training:
            fragment = self._of_those_who_leave(coming, now_s)
            if fragment is not None:
                return fragment
        fragment = coming[0]
        version = self.state.fragments[fragment].version
        if not self.pace.may_open(fragment, version, training, now_s):
            return None
        taken = self._busy(now_s)
        if any(self._can_ask(session, fragment, version, taken) for session in training):
            return fragment
        # Nobody can be asked. If all that there is was here too late for its round, a round of that
        # alone must open: nobody else would ever open one. Else some are busy, and soon are not.
        is_all_here = all(self._has_given(session, fragment) for session in training)
        return fragment if training and is_all_here else None

    def _of_those_who_leave(self, coming: list[int], now_s: float) -> int | None:
        """The first fragment on which somebody who leaves has local steps, or gave some late."""
        leaving, opened_s = self.members.leaving(), self.pace.leaving_opened_s
        taken = self._busy(now_s) if leaving else set()
        for fragment in coming:
            version = self.state.fragments[fragment].version
            is_due = now_s >= opened_s.get(fragment, -LEAVING_EVERY_S) + LEAVING_EVERY_S
            if is_due and any(
                self._can_ask(one, fragment, version, taken) or self._has_given(one, fragment)
                for one in leaving
            ):
                opened_s[fragment] = now_s
                return fragment
        return None

    def _busy(self, now_s: float) -> set[bytes]:
        """Learners from whom a push is on its way, or was asked for.

        With hundreds of learners nearly all of them are busy most of the time, and a syncer looks
        often: so this is found once for a look, not once for each learner and round.
        """
        found: set[bytes] = set()
        for current in self.rounds.values():
            if current.is_collecting:
                found.update(current.pending(now_s))
        timeout_s = self.spec.pull_timeout_s
        late = self.stragglers.items()
        found.update(peer for (_, peer), one in late if one.is_pending(now_s, timeout_s))
        return found

    def _can_ask(self, session: Session, fragment: int, version: int, taken: set[bytes]) -> bool:
        """Whether a pull would bring something. taken: who is `_busy`."""
        if session.peer in taken or (fragment, session.peer) in self.stragglers:
            return False
        return session.can_push(fragment, version)

    def _has_given(self, session: Session, fragment: int) -> bool:
        """Whether its push for this fragment is here, too late for the round that asked for it."""
        ticket = self.stragglers.get((fragment, session.peer))
        return ticket is not None and ticket.state is PullState.ARRIVED

    def coming(self) -> list[int]:
        """Fragments that are not in flight, those with the fewest merges first, then by index."""
        busy = {current.fragment for current in self.rounds.values()}
        free = [(f.version, at) for at, f in enumerate(self.state.fragments) if at not in busy]
        return [at for _, at in sorted(free)]

    def _open(self, fragment: int, version: int, able: list[Session], now_s: float) -> None:
        self.last_round = max(self.last_round, self.state.rounds) + 1
        current = Round(self.last_round, fragment, version, now_s, self.spec)
        current.quorum = self._quorum_to_begin(fragment)
        self.rounds[current.number] = current
        self._take_stragglers(current)
        self.uplinks.keep({session.key for session in able})
        training = self.members.training()
        self.pace.opened(training)
        step_s = median_step_s(training, now_s)
        if step_s > 0:
            self.window.opening.observe(self.pace.spacing * step_s)
        self._ask(current, able, self._busy(now_s), self.doubted(), now_s)
        self.effects.emit(
            RoundOpened(current.number, fragment, len(current.tickets), self.spec.quorum)
        )

    def _ask(
        self,
        current: Round,
        able: list[Session],
        taken: set[bytes],
        doubted: set[bytes],
        now_s: float,
    ) -> None:
        """Ask everybody who can deliver and is not asked by another round right now.

        Slow uplinks are left alone if another fragment is more urgent for them, and so are learners
        whose payloads failed to come, unless the quorum needs them.
        """
        trusted = sum(session.peer not in doubted for session in able)
        current.trusted = trusted if trusted < len(able) else None
        fit = [
            session
            for session in able
            if session.peer not in current.tickets
            and self._can_ask(session, current.fragment, current.version - 1, taken)
        ]
        if not fit:
            return
        coming = [current.fragment, *self.coming()]
        turn = [
            session
            for session in fit
            if session.keeps_word(now_s) and self.uplinks.is_turn(session.key, coming)
        ]
        hoped_for = current.hoped_for + sum(session.peer not in doubted for session in turn)
        for session in turn if hoped_for >= current.required(now_s) else fit:
            is_trusted = session.peer not in doubted
            current.ask(session.peer, now_s, newest=self.last_round, is_trusted=is_trusted)
            taken.add(session.peer)
            pull = Pull(current.number, current.fragment, current.version - 1)
            self.effects.send(session.peer, pull)

    def _look_at(self, current: Round, able: list[Session], now_s: float) -> None:
        current.live = len(able)
        if current.state is RoundState.OPEN and not current.is_ripe(now_s):
            return
        rates = (s.proven_steps_per_s(now_s) for s in able if s.peer in current.tickets)
        slowest_step_s = max((1 / rate for rate in rates if rate > 0), default=0.0)
        verdict = current.look(
            now_s, live=len(able), window=self.window, slowest_step_s=slowest_step_s
        )
        if verdict == "quorum":
            waited_s = now_s - current.opened_s
            self.window.quorum.observe(waited_s)
            arrived = len(current.arrived)
            self.effects.emit(QuorumReached(current.number, arrived, waited_s, current.grace_s))
            if current.grace_s == 0.0:
                verdict = "close"
        if verdict == "close":
            self._close(current, now_s)
        elif verdict == "abandon":
            self._abandon(current, "no push arrived")

    def _close(self, current: Round, now_s: float) -> None:
        parts = []
        for peer, header in current.arrived:
            lag = current.version - 1 - header.base_version
            weight = push_weight(self.spec.weights, header.tokens, header.steps) / (1 + lag)
            parts.append(jobs.MergePart(peer, header, weight, self.standing_of(peer)))
        current.fire("close")
        current.closed_s = now_s
        for peer, ticket in sorted(current.tickets.items()):
            if ticket.is_pending(now_s, self.spec.pull_timeout_s):
                # What is on its way goes into the next merge of this fragment, as a lagging push.
                self.stragglers[current.fragment, peer] = current.tickets.pop(peer)
            elif ticket.state is PullState.SENDING and ticket.header is not None:
                self._settle(peer, ticket.header, "late", "the round closed before it arrived")
        self.effects.start(
            jobs.Merge(
                round=current.number,
                fragment=current.fragment,
                version=current.version,
                codec=self.spec.down_codec,
                outer=self.outer,
                parts=tuple(parts),
                typical=self.typical() if self.is_judging else 0.0,
                norms=self._norms_of_others(current) if self.is_judging else (),
            )
        )

    # How far whose push counts.

    @property
    def is_judging(self) -> bool:
        """Whether trust is earned under the charter in force."""
        return self.outer.trust == "earned"

    def standing_of(self, peer: bytes) -> Standing:
        """What the log says of a learner."""
        account = self.state.accounts.get(peer)
        return account.standing if account is not None else NOBODY

    def typical(self) -> float:
        """The median direction of the learners that are here."""
        standings = map(self.standing_of, self.members.sessions)
        return standing.typical(standings, sorted(self.numels)[len(self.numels) // 2])

    def trusts(self) -> dict[bytes, float]:
        """How far a push of each learner that is here would count; empty where all count."""
        if not self.is_judging:
            return {}
        typical = self.typical()
        here = self.members.sessions
        return {peer: standing.trust(self.standing_of(peer), typical) for peer in here}

    def doubted(self) -> set[bytes]:
        """Learners that are here and whose pushes would not count."""
        return {peer for peer, trust in self.trusts().items() if not trust}

    def _quorum_to_begin(self, fragment: int) -> int:
        """The first merges of a fragment need so many pushes that a median exists.

        Before that nothing says how long a push should be, or where it should point.
        """
        needed = standing.LEARNERS_COMPARED_MIN
        is_known = len(self.state.norms[fragment]) >= needed
        has_enough = len(self.members.sessions) > needed
        return needed if self.is_judging and has_enough and not is_known else 0

    def _norms_of_others(self, current: Round) -> tuple[float, ...]:
        """Of learners with a push of this fragment in the log, and none in this round."""
        here = {peer for peer, _ in current.arrived}
        known = self.state.norms[current.fragment]
        return tuple(norm for peer, norm in known.items() if peer not in here)

    def _take_stragglers(self, current: Round) -> None:
        """What an earlier round of this fragment did not wait for is part of this one."""
        found = [place for place in self.stragglers if place[0] == current.fragment]
        for place in sorted(found, key=lambda one: self.stragglers[one].asked_s):
            ticket, peer = self.stragglers.pop(place), place[1]
            header = ticket.header
            if ticket.state is PullState.FAILED:
                continue
            if header is None:
                current.take(peer, ticket)
            elif current.version - 1 - header.base_version > limits.PUSH_LAG_MAX:
                self._let_go(
                    peer, header, "stale", "too many merges happened while it was in transit"
                )
            elif self.state.leases.since_s.get((peer, header.incarnation)) is None:
                self._let_go(peer, header, "abandoned", "its session ended before it was merged")
            else:
                current.take(peer, ticket)

    def _let_go(self, peer: bytes, header: PushHeader, outcome: Outcome, reason: str) -> None:
        self.effects.do(jobs.Forget((push_id(peer, header),)))
        self._settle(peer, header, outcome, reason)

    def _version_after(self, fragment: int) -> int:
        """The version that the next merge of this fragment makes."""
        return self.state.fragments[fragment].version + 1

    def _expire(self, now_s: float) -> None:
        """No pull is waited for beyond its deadline, in a round or after it."""
        for place, ticket in list(self.stragglers.items()):
            is_here = ticket.state is PullState.ARRIVED
            if is_here or ticket.is_pending(now_s, self.spec.pull_timeout_s):
                continue
            del self.stragglers[place]
            if ticket.state is PullState.SENDING and ticket.header is not None:
                self._settle(place[1], ticket.header, "late", "the pull's deadline has passed")

    def _abandon(self, current: Round, reason: str) -> None:
        self.rounds.pop(current.number)
        for peer, header in current.arrived:
            self._settle(peer, header, "abandoned", reason)
        self.effects.do(
            jobs.Forget(tuple(push_id(peer, header) for peer, header in current.arrived))
        )
        current.fire("abandon")
        self.effects.emit(RoundAbandoned(current.number, current.fragment, reason))

    def _judge(
        self,
        ticket: PullTicket,
        version: int,
        header: PushHeader,
        session: Session,
        now_s: float,
    ) -> tuple[Outcome, str, str] | None:
        """The outcome of a push that cannot count in this version, and None for one that can."""
        numel = self.numels[ticket.fragment]
        if header.fragment != ticket.fragment:
            return "rejected", "wrong-fragment", f"{header.fragment}, pulled {ticket.fragment}"
        if header.codec not in (self.spec.up_codec, ticket.codec):
            # A round may have begun under another charter than the one in force now.
            return "rejected", "wrong-codec", f"{header.codec}, charter says {self.spec.up_codec}"
        if header.payload_bytes != payload_bytes(header.codec, numel):
            return "rejected", "malformed-payload", f"{header.payload_bytes} bytes announced"
        lag = version - 1 - header.base_version
        if lag < 0:
            return "rejected", "unknown-version", f"base version {header.base_version}"
        if lag > limits.PUSH_LAG_MAX:
            return "stale", "stale", f"{lag} versions behind"
        if header.steps < 1 or header.steps > header.local_step:
            return "rejected", "false-claim", f"{header.steps} steps at step {header.local_step}"
        if header.tokens > header.steps * self.tokens_per_step:
            return "rejected", "false-claim", f"{header.tokens} tokens in {header.steps} steps"
        since_s = self.state.leases.since_s.get(session.key)
        if since_s is None:
            return "stale", "stale", "its blocks were reassigned while it was away"
        # The lease may be another leader's, by its clock.
        held_s = now_s + self.wall_offset_s - since_s + 2 * limits.CLOCK_SKEW_S_MAX
        possible = held_s / STEP_S_MIN
        if session.merged_steps.get(ticket.fragment, 0) + header.steps > possible:
            return "rejected", "false-claim", f"{header.steps} steps in too short a time"
        return None

    def _settle(
        self, peer: bytes, header: PushHeader, outcome: Outcome, reason: str, detail: str = ""
    ) -> None:
        words = f"{reason}: {detail}" if detail else reason
        name = reason if outcome == "rejected" else outcome
        self._count(name)
        self.contributor_notes.on_refused(peer, outcome, reason)
        session = self.members.sessions.get(peer)
        if session is not None:
            session.rejected[name] = session.rejected.get(name, 0) + 1
        settled = Settled(header.incarnation, header.sequence, outcome, words[:200])
        self._fates[(peer, header.incarnation), header.sequence] = (outcome, words[:200])
        if len(self._fates) > FATES_MAX:
            del self._fates[next(iter(self._fates))]
        self.effects.send(peer, settled)
        self.effects.emit(
            PushSettled(header.round, peer, header.incarnation, header.sequence, outcome, words)
        )

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
