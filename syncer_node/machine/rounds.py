"""The rounds in flight: whom to ask, what arrived, when to merge, and the fate of every push."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from protocol import limits
from protocol.effect_queue import EffectQueue
from protocol.ids import SessionKey
from protocol.log.records import Body, Contribution, FragmentMerged, counted_tokens
from protocol.log.state import SwarmState, tally_of
from protocol.machine import Failed
from protocol.merge_rules import NORMS_KNOWN_MAX
from protocol.messages import Decline, Outcome, Pull, PushHeader, Settled
from protocol.numerics.merge import push_weight
from protocol.numerics.payload_sizes import payload_bytes
from protocol.peers.membership import Membership, Session
from protocol.project import OuterSpec, RoundSpec
from protocol.quorum import GraceWindow
from protocol.rounds import AWAITED, PullState, PullTicket, Round, RoundState, unsettled
from protocol.trace import PushSettled, QuorumReached, RoundAbandoned, RoundOpened
from syncer_node.machine import jobs
from syncer_node.machine.contributor_notes import ContributorNotes
from syncer_node.machine.merging.mergers import Mergers
from syncer_node.machine.pacing import Pace, median_step_s
from syncer_node.machine.trust.coverage import Coverage
from syncer_node.machine.trust.judge import Judge
from syncer_node.machine.uplinks import Uplinks

RETRY_AFTER_S = 5.0
"""Pause of merging after a merge could not be stored, for example on a full disk."""

GRACE_FACTOR = 2.0
"""A learner whose local step takes longer than so many grace windows is not waited for."""

STEP_S_MIN = 0.01
"""No learner is believed to take local steps faster than this."""

LEAVING_EVERY_S = 2.0
"""Rounds of one fragment for those who leave come no more often: one that they answered left them
nothing on it, and one that they declined is not asked for again at once."""

PAYLOAD_LOST = "its payload is gone, and it cannot be fetched again"
"""Why a push does not count whose merger was lost, with whoever else had it."""

PUT_OUT = "its key may not take part any more"
"""Why a push of a learner that is put out does not count."""

GUARD_PAUSED = "merging is paused: the held-out loss is far above the best"
"""Why a push that is in no proposed merge does not count once the guard paused merging."""

SUSPENDED = "it is suspended: others measured that its pushes are not trained on its text"
"""... and of one that is suspended."""

FATES_MAX = 4096
"""Outcomes kept for learners that ask again after their connection broke."""


def push_id(peer: bytes, header: PushHeader) -> jobs.PushId:
    return (peer, header.incarnation, header.sequence)


def _contributions(job: jobs.Merge, result: jobs.Merged) -> tuple[Contribution, ...]:
    """What the record says of each push. Norms by tensor are of those that it is remembered by."""
    some = len(job.parts)
    told = zip(
        job.parts,
        result.norms,
        result.scales,
        result.cosines,
        result.trusts,
        result.shares,
        result.tensors or (b"",) * some,
        result.tensors_clipped or (0,) * some,
        result.expected or (1.0,) * some,
        result.repeats or (0.0,) * some,
        result.echoes or (0.0,) * some,
        result.novelties or (None,) * some,
        strict=True,
    )
    return tuple(
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
            share=share,
            tensors=tensors if at >= some - NORMS_KNOWN_MAX else b"",
            tensors_clipped=clipped,
            expected=expected,
            repeat=repeat,
            echo=echo,
            novelty=new,
        )
        for at, (
            part,
            norm,
            scale,
            cosine,
            trust,
            share,
            tensors,
            clipped,
            expected,
            repeat,
            echo,
            new,
        ) in enumerate(told)
    )


@dataclass(slots=True)
class Busy:
    """From whom a push is on its way, or was asked for.

    A learner hands in one push at a time to each merger: these have lines of their own, and would
    wait for each other if all of them waited for the same learners. One whose line is slower than
    all of that hands in one at a time.
    """

    merger_of: Callable[[int], bytes]
    by_merger: dict[bytes, set[bytes]] = field(default_factory=dict)

    def add(self, fragment: int, learners: Iterable[bytes]) -> None:
        self.by_merger.setdefault(self.merger_of(fragment), set()).update(learners)

    def for_all(self, fragments: list[int]) -> set[bytes]:
        """Who is busy with the mergers of all these fragments, of which there is one at least."""
        mergers = {self.merger_of(one) for one in fragments}
        return set.intersection(*(self.by_merger.get(one, set()) for one in mergers))

    def has(self, learner: bytes, fragment: int, *, is_slow: bool) -> bool:
        """Whether it should not be asked for this fragment now."""
        if is_slow:
            return any(learner in some for some in self.by_merger.values())
        return learner in self.by_merger.get(self.merger_of(fragment), ())


@dataclass(slots=True)
class Rounds:
    """Up to tau rounds at a time, always on different fragments."""

    effects: EffectQueue
    state: SwarmState
    members: Membership
    spec: RoundSpec
    outer: OuterSpec
    judge: Judge
    numels: tuple[int, ...]
    """Padded length of each fragment, in elements."""
    coverage: Coverage
    wall_offset_s: float
    propose: Callable[[Body], None]
    is_returning: Callable[[SessionKey], bool]
    """Whether the text of a session is about to go back: nothing read in it counts."""
    rng: random.Random
    """Draws what nobody who hands in may foresee."""
    contributor_notes: ContributorNotes
    pace: Pace
    window: GraceWindow
    mergers: Mergers
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
    proposed: dict[int, FragmentMerged] = field(default_factory=dict)
    """Merges that are proposed and not committed, by round."""
    barred: set[bytes] = field(default_factory=set)
    """Learners that were put out and did not come back: what was theirs is not merged."""

    def adopt(self, spec: RoundSpec, outer: OuterSpec) -> None:
        """Go on under another charter; rounds in flight end under the one they began with."""
        self.spec, self.outer, self.judge.outer = spec, outer, outer
        self.pace.spec = spec
        self.mergers.most, self.mergers.pull_timeout_s = spec.mergers_max, spec.pull_timeout_s

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
            session.unanswered += 1
            if fate[0] == "rejected":
                session.did_wrong(fate[1], now_s)
            self._settle(session.peer, header, *fate)
            return
        ticket.state = PullState.SENDING
        left_s = ticket.asked_s + self.spec.pull_timeout_s - now_s
        is_proven = session.merges > 0
        job = jobs.FetchPush(session.peer, header.round, header, left_s, is_proven)
        self.mergers.fetch(job, now_s)

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
        for ticket in self._stragglers_of(peer):
            if ticket.round == number:
                return None, ticket
        return None, None

    def _stragglers_of(self, peer: bytes) -> Iterator[PullTicket]:
        """Found by fragment: with hundreds of learners there may be thousands of others'."""
        if self.stragglers:
            places = ((fragment, peer) for fragment in range(len(self.numels)))
            yield from (self.stragglers[place] for place in places if place in self.stragglers)

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
            self._unanswered(peer)

    def _unanswered(self, peer: bytes) -> None:
        """A pull is over, and brought nothing that could count."""
        session = self.members.sessions.get(peer)
        if session is not None:
            session.unanswered += 1

    def on_fetched(self, job: jobs.FetchPush, result: object, now_s: float) -> None:
        """The payload arrived, or did not."""
        session = self.members.sessions.get(job.peer)
        if session is not None and session.incarnation == job.header.incarnation:
            if isinstance(result, jobs.PushFetched):
                session.misses = session.unanswered = 0
            else:
                session.missed(now_s)
                session.unanswered += 1
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
                self.mergers.forget((push_id(job.peer, job.header),))
            return
        if ticket is not None and is_awaited:
            ticket.state = PullState.FAILED
            if isinstance(result, jobs.PushRefused):
                if session is not None:
                    session.did_wrong(result.reason, now_s)
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
        if self.state.pause is not None:
            self._abandon(current, GUARD_PAUSED)
            return
        if any(part.learner in self.barred for part in job.parts):
            self._merge_again(current, job, now_s)
            return
        current.fire("merged")
        self.proposed_step = max(self.proposed_step, self.state.global_step) + 1
        contributions = _contributions(job, result)
        merged = self.proposed[current.number] = FragmentMerged(
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
            contributions=contributions,
            merger=result.merger,
            copies=self.mergers.copies(result, now_s),
            tally=tally_of(self.state, current.fragment, contributions),
        )
        self.propose(merged)

    def _merge_again(self, current: Round, job: jobs.Merge, now_s: float) -> None:
        """Without those that were put out while this was calculated."""
        for part in job.parts:
            if part.learner in self.barred:
                current.strike(current.tickets[part.learner])
                self._let_go(part.learner, part.header, "abandoned", self._why_barred(part.learner))
        left = tuple(part for part in job.parts if part.learner not in self.barred)
        if left:
            self.mergers.merge(replace(job, parts=left), now_s)
        else:
            self._abandon(current, self._why_barred(job.parts[0].learner))

    def without(self, job: jobs.Merge, lost: list[jobs.PushId]) -> jobs.Merge | None:
        """The merge without pushes that nobody has any more; None, and no round, if none is left.

        As with late ones, their learners hear of it, and hand the local steps in again.
        """
        current = self.rounds.get(job.round)
        if current is None:
            return None
        for part in job.parts:
            if part.push in lost:
                current.strike(current.tickets[part.learner])
                self._let_go(part.learner, part.header, "abandoned", PAYLOAD_LOST)
        left = tuple(part for part in job.parts if part.push not in lost)
        if left:
            return replace(job, parts=left)
        self._abandon(current, PAYLOAD_LOST)
        return None

    def _why_barred(self, peer: bytes) -> str:
        return SUSPENDED if self.state.is_suspended(peer) else PUT_OUT

    def on_committed(self, merged: FragmentMerged, now_s: float) -> None:
        """The new version counts: make it current and close the books of its round."""
        current = self.rounds.pop(merged.round)
        self.proposed.pop(merged.round, None)
        current.fire("committed")
        self.effects.do(jobs.Adopt(merged.fragment, merged.version, merged.payload))
        self.mergers.forget(tuple(push_id(peer, header) for peer, header in current.arrived))
        self.merges_here += 1
        self.stalled = ""
        if current.closed_s is not None:
            self.window.sync.observe(now_s - current.closed_s)
        for part in merged.contributions:
            self._book_claim(part, current)
            session = self.members.sessions.get(part.learner)
            is_here = session is not None and session.incarnation == part.incarnation
            if session is not None and is_here:
                session.share = part.share
                if part.trust > 0:
                    session.merged(merged.fragment, part.steps, now_s)
            outcome: Outcome = "clipped" if part.scale < 1.0 else "merged"
            self._count(outcome)
            self.effects.emit(
                PushSettled(
                    merged.round, part.learner, part.incarnation, part.sequence, outcome, ""
                )
            )

    def _book_claim(self, part: Contribution, current: Round) -> None:
        """The time that the steps of a merged push took at least is used up, for the key."""
        asked_s = current.tickets[part.learner].asked_s
        leased_s = self.state.leases.since_s.get((part.learner, part.incarnation))
        self.members.worked(
            part.learner,
            current.fragment,
            since_s=asked_s if leased_s is None else leased_s - self.wall_offset_s,
            asked_s=asked_s,
            work_s=part.steps * STEP_S_MIN,
        )

    def on_gone(self, peer: bytes) -> None:
        """A learner left: nobody waits for it."""
        collecting = [one.tickets.get(peer) for one in self.rounds.values() if one.is_collecting]
        for ticket in [*collecting, *self._stragglers_of(peer)]:
            if ticket is not None and ticket.state is PullState.ASKED:
                ticket.state = PullState.FAILED

    def put_out(self, peer: bytes) -> None:
        """A learner may not take part any more: nothing of it is waited for, or merged.

        A merge that has it already is done again when it is computed (`on_merged`); one that was
        proposed stands in the log.
        """
        self.barred.add(peer)
        for current in list(self.rounds.values()):
            ticket = current.tickets.get(peer)
            if ticket is None or not current.is_collecting:
                continue
            self._void(peer, ticket)
            current.strike(ticket)
            if current.state is RoundState.GRACE and not current.arrived:
                self._leave_stragglers(current)
                self._abandon(current, self._why_barred(peer))
        for place in [place for place in self.stragglers if place[1] == peer]:
            self._void(peer, self.stragglers.pop(place))

    def pause(self) -> None:
        """The guard found the model wrecked: what is handed in does not count.

        A merge that is being computed is dropped once it is (`on_merged`); one that was proposed
        stands in the log.
        """
        for current in [one for one in self.rounds.values() if one.is_collecting]:
            self._abandon(current, GUARD_PAUSED)
        for place in list(self.stragglers):
            ticket = self.stragglers.pop(place)
            if ticket.header is not None and ticket.state is not PullState.FAILED:
                self._let_go(place[1], ticket.header, "abandoned", GUARD_PAUSED)

    def _leave_stragglers(self, current: Round) -> None:
        """What is on its way to a round that ends goes into the next merge of its fragment."""
        for peer, ticket in list(current.tickets.items()):
            if ticket.state in (PullState.ASKED, PullState.SENDING):
                self.stragglers[current.fragment, peer] = current.tickets.pop(peer)

    def _void(self, peer: bytes, ticket: PullTicket) -> None:
        """The fate of what a learner that is put out had handed in."""
        if ticket.header is not None and ticket.state in (PullState.SENDING, PullState.ARRIVED):
            self._let_go(peer, ticket.header, "abandoned", self._why_barred(peer))

    def in_hand(self, session: tuple[bytes, int]) -> frozenset[int]:
        """Sequences of this session's pushes that are here and have no fate yet."""
        rounds = [(one.tickets.get(session[0]), one.is_collecting) for one in self.rounds.values()]
        late = ((ticket, True) for ticket in self._stragglers_of(session[0]))
        return unsettled([*rounds, *late], session[1])

    # What goes on.

    def look(self, now_s: float, *, may_open: bool) -> None:
        """Move every round on, and open new ones while pace and overlap allow."""
        self._expire(now_s)
        collecting = [current for current in self.rounds.values() if current.is_collecting]
        if collecting:
            able, busy, mute = (
                self.members.handing_in(),
                self._busy(now_s),
                self.judge.without_say(),
            )
            places = {current.fragment: self._places(current) for current in collecting}
            asking = [fragment for fragment, left in places.items() if left]
            taken = busy.for_all(asking) if asking else set()
            free = [one for one in able if one.peer not in taken] if asking else []
            for current in collecting:
                left = places[current.fragment]
                current.trusted = current.trusted_of(able, mute, is_full=not left)
                self._ask(current, free, left, busy, mute, now_s)
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
        asked_s = [one.asked_s for one in self.stragglers.values() if one.state in AWAITED]
        times.extend(at_s + timeout_s for at_s in asked_s if now_s < at_s + timeout_s)
        if self.stalled_until_s > now_s:
            times.append(self.stalled_until_s)
        return min((t for t in times if t is not None), default=None)

    # Which round opens next, and whom it may ask.

    def _next_to_open(self, now_s: float) -> int | None:
        """The fragment whose round opens now; None for none.

        While nobody trains no round is due, however long one waits. Learners that are about to
        leave would then take with them what they did; for them rounds open at once, of every
        fragment on which they have local steps. Those that ran out of text are waited for like
        those that train once they have their H local steps: they may get no text before a merge.
        """
        if len(self.rounds) >= self.spec.overlap_steps:
            return None
        coming = self.coming()
        if not coming:
            return None
        fragment = coming[0]
        version = self.state.fragments[fragment].version
        training, starved = self.members.training(), self.members.starved()
        live = self.pace.live(training, starved, fragment, version)
        if not live:
            leaving = self._of_those_who_leave(coming, now_s)
            if leaving is not None:
                return leaving
        if not self.pace.may_open(fragment, version, live, now_s):
            return self._of_another_merger(coming, training, starved, now_s)
        busy = self._busy(now_s)
        if any(self._can_ask(session, fragment, version, busy) for session in live):
            return fragment
        # Nobody can be asked. If all that there is was here too late for its round, a round of that
        # alone must open: nobody else would ever open one. Else some are busy, and soon are not.
        is_all_here = all(self._has_given(session, fragment) for session in live)
        if live and is_all_here:
            return fragment
        return self._of_another_merger(coming, training, starved, now_s)

    def _of_another_merger(
        self, coming: list[int], training: list[Session], starved: list[Session], now_s: float
    ) -> int | None:
        """The next fragment of a merger that need not wait for the merger of the first.

        Its fragments get at most one merge ahead.
        """
        versions = [one.version for one in self.state.fragments]
        tried = {self.mergers.of(coming[0])}
        for fragment in coming[1:]:
            merger, version = self.mergers.of(fragment), versions[fragment]
            if merger in tried or version > versions[coming[0]] + 1:
                continue
            tried.add(merger)
            live = self.pace.live(training, starved, fragment, version)
            if self.pace.could_open(fragment, version, live, now_s):
                busy = self._busy(now_s)
                if any(self._can_ask(session, fragment, version, busy) for session in live):
                    return fragment
        return None

    def _of_those_who_leave(self, coming: list[int], now_s: float) -> int | None:
        """The first fragment on which somebody who leaves has local steps, or gave some late."""
        leaving, opened_s = self.members.leaving(), self.pace.leaving_opened_s
        busy = self._busy(now_s) if leaving else Busy(self.mergers.of)
        for fragment in coming:
            version = self.state.fragments[fragment].version
            is_due = now_s >= opened_s.get(fragment, -LEAVING_EVERY_S) + LEAVING_EVERY_S
            if is_due and any(
                self._can_ask(one, fragment, version, busy) or self._has_given(one, fragment)
                for one in leaving
            ):
                opened_s[fragment] = now_s
                return fragment
        return None

    def _busy(self, now_s: float) -> Busy:
        """Learners from whom a push is on its way, or was asked for.

        With hundreds of learners nearly all of them are busy most of the time, and a syncer looks
        often: so this is found once for a look, not once for each learner and round. Of stragglers
        there are hundreds; those that came too late are gone by now (`_expire`).
        """
        found = Busy(self.mergers.of)
        for current in self.rounds.values():
            if current.is_collecting:
                found.add(current.fragment, current.pending(now_s))
        for (fragment, peer), one in self.stragglers.items():
            if one.state in AWAITED:
                found.add(fragment, (peer,))
        return found

    def _can_ask(self, session: Session, fragment: int, version: int, busy: Busy) -> bool:
        """Whether a pull would bring something. busy: of `_busy`."""
        is_slow = self.uplinks.spans.get(session.key, 1) > self.spec.overlap_steps
        if busy.has(session.peer, fragment, is_slow=is_slow):
            return False
        if (fragment, session.peer) in self.stragglers or self.is_returning(session.key):
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
        self.mergers.open(fragment)
        self.last_round = max(self.last_round, self.state.rounds) + 1
        members = self.members
        live = self.pace.live(members.training(), members.starved(), fragment, version - 1)
        quorum = self.pace.quorum(fragment, version - 1, live, now_s)
        spec = replace_fields(self.spec, quorum=quorum)
        current = Round(self.last_round, fragment, version, now_s, spec)
        current.quorum = self.judge.quorum_to_begin(fragment, self.spec.participants_max)
        current.is_hurried = not current.quorum and not self.pace.is_patient(now_s)
        self.rounds[current.number] = current
        self._take_stragglers(current)
        self.uplinks.keep({session.key for session in able})
        self.pace.opened(live)
        step_s = median_step_s(live, now_s)
        if step_s > 0:
            self.window.opening.observe(self.pace.spacing * step_s)
        mute = self.judge.without_say()
        current.trusted = current.trusted_of(able, mute)
        self._ask(current, able, self._places(current), self._busy(now_s), mute, now_s)
        if not live:
            # Nobody trains on: those who leave are all that will hand in anything.
            quorum = min(quorum, max(1, current.hoped_for))
            current.spec = replace_fields(self.spec, quorum=quorum)
        self.effects.emit(RoundOpened(current.number, fragment, len(current.tickets), quorum))

    def _ask(
        self,
        current: Round,
        able: list[Session],
        places: int,
        busy: Busy,
        mute: set[bytes],
        now_s: float,
    ) -> None:
        """Ask everybody who can deliver and is not asked by another round right now.

        places: how many more it may ask; nobody looks through a thousand learners for none.
        Slow uplinks are left alone if another fragment is more urgent for them, and so are learners
        whose payloads failed to come, unless the quorum needs them.
        """
        if not places:
            return
        fit = [
            session
            for session in able
            if session.peer not in current.tickets
            and self._can_ask(session, current.fragment, current.version - 1, busy)
        ]
        if not fit:
            return
        coming = [current.fragment, *self.coming()]
        turn = [
            session
            for session in fit
            if session.keeps_word(now_s) and self.uplinks.is_turn(session.key, coming)
        ]
        hoped_for = current.hoped_for + sum(session.peer not in mute for session in turn)
        chosen = turn if hoped_for >= current.required(now_s) else fit
        for session in self._in_turn(chosen, current, places, mute):
            session.asked[current.fragment] = current.number
            is_trusted = session.peer not in mute
            current.ask(session.peer, now_s, newest=self.last_round, is_trusted=is_trusted)
            busy.add(current.fragment, (session.peer,))
            pull = Pull(current.number, current.fragment, current.version - 1)
            self.effects.send(session.peer, pull)

    def _in_turn(
        self, able: list[Session], current: Round, places: int, mute: Collection[bytes]
    ) -> list[Session]:
        """Of these, as many as the round may still ask: whom its fragment asked longest ago first.

        Half of the places are for learners of whom something was merged and who have a say in the
        quorum, as far as there are any: who only says that it trains could otherwise take the
        places of all others. Where some have no say, places are kept for those that train here and
        have one, also while other rounds wait for them.
        """
        most = self.spec.participants_max
        if not most:
            return able
        asked = self._asked(current)
        new_places = most // 2 - sum(not self._is_proven(peer, mute) for peer in asked)
        turn = [(one.asked.get(current.fragment, 0), self.rng.random()) for one in able]
        drawn = [able[at] for at in sorted(range(len(able)), key=turn.__getitem__)]
        proven: list[Session] = []
        new: list[Session] = []
        for one in drawn:
            (proven if self._is_proven(one.peer, mute) else new).append(one)
        hoped_for = len(proven)
        if mute:
            others = (
                one.peer for one in self.members.training() if one.peer not in current.tickets
            )
            hoped_for = sum(self._is_proven(peer, mute) for peer in others)
        begin = max(0, min(new_places, len(new)), places - hoped_for)
        return [*new[:begin], *proven][:places]

    def _is_proven(self, peer: bytes, mute: Collection[bytes]) -> bool:
        return peer not in mute and self.state.has_merges(peer)

    def _asked(self, current: Round) -> list[bytes]:
        """Who takes one of the round's places."""
        return [peer for peer, one in current.tickets.items() if one.state is not PullState.FAILED]

    def _places(self, current: Round) -> int:
        """How many more the round may ask."""
        most = self.spec.participants_max
        return max(0, most - len(self._asked(current))) if most else limits.LEARNERS_MAX

    def _look_at(self, current: Round, able: list[Session], now_s: float) -> None:
        current.live = len(able)
        slowest_step_s = 0.0
        if current.state is RoundState.OPEN:
            if not current.is_ripe(now_s):
                return
            slowest_step_s = self._slowest_step_s(current, able, now_s)
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
            if current.quorum_s is None and self.spec.quorum > 1 and not current.quorum:
                self.pace.ran_out(now_s)
            self._close(current, now_s)
        elif verdict == "abandon":
            for peer in [p for p, one in current.tickets.items() if one.state is PullState.ASKED]:
                self._unanswered(peer)
            self._abandon(current, "no push arrived in time")

    def _slowest_step_s(self, current: Round, able: list[Session], now_s: float) -> float:
        """Of those asked, but for learners whose push a grace window would hardly see.

        They hand in when their local step is over; what comes then is part of the next merge, and
        the others would discard the local steps of the wait. 0 if nobody else is waited for.
        """
        worth_s = GRACE_FACTOR * self.window.grace_s(math.inf)
        slowest_s, is_awaited = 0.0, False
        for session in able:
            ticket, rate = current.tickets.get(session.peer), session.proven_steps_per_s(now_s)
            if ticket is None or rate <= 0:
                continue
            is_pending = ticket.is_pending(now_s, self.spec.pull_timeout_s)
            if is_pending and 1 / rate > worth_s:
                continue
            is_awaited = is_awaited or is_pending
            slowest_s = max(slowest_s, 1 / rate)
        return slowest_s if is_awaited else 0.0

    def _close(self, current: Round, now_s: float) -> None:
        parts = []
        for peer, header in current.arrived:
            lag = current.version - 1 - header.base_version
            weight = push_weight(self.spec.weights, header.tokens, header.steps) / (1 + lag)
            known = self.judge.standing_of(peer), self.judge.novelty_of(peer)
            parts.append(jobs.MergePart(peer, header, weight, *known))
        current.fire("close")
        current.closed_s = now_s
        for peer, ticket in sorted(current.tickets.items()):
            if ticket.is_pending(now_s, self.spec.pull_timeout_s):
                # What is on its way goes into the next merge of this fragment, as a lagging push.
                self.stragglers[current.fragment, peer] = current.tickets.pop(peer)
            elif ticket.state is PullState.ASKED:
                self._unanswered(peer)
            elif ticket.state is PullState.SENDING and ticket.header is not None:
                ticket.state = PullState.FAILED
                self._settle(peer, ticket.header, "late", "the round closed before it arrived")
        judging = self.judge.is_judging
        against = self.judge.against(current, self.rng.getrandbits(64)) if judging else None
        job = jobs.Merge(
            round=current.number,
            fragment=current.fragment,
            version=current.version,
            codec=self.spec.down_codec,
            outer=self._outer_for(parts),
            parts=tuple(parts),
            against=against,
        )
        self.mergers.merge(job, now_s)

    def _outer_for(self, parts: list[jobs.MergePart]) -> OuterSpec:
        """The outer step of a merge: shorter where pushes hold what several rounds left out.

        With all of N learners a merge moves the global value by the mean of H local steps. Asked in
        turn, n of them hand in N / n times as many, as often: the mean of these is as much longer.
        """
        if not self.spec.participants_max or not parts:
            return self.outer
        mean_steps = sum(part.header.steps for part in parts) / len(parts)
        factor = min(1.0, self.spec.local_steps / mean_steps)
        return replace_fields(self.outer, learning_rate=factor * self.outer.learning_rate)

    def uncommitted_tokens(self, peer: bytes) -> int:
        """Tokens that will count for a learner once what is proposed is committed."""
        return sum(
            tokens
            for merged in self.proposed.values()
            for part, tokens in zip(
                merged.contributions, counted_tokens(merged.contributions), strict=True
            )
            if part.learner == peer
        )

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
        self.mergers.forget((push_id(peer, header),))
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
            if ticket.state is PullState.ASKED:
                self._unanswered(place[1])
            if ticket.state is PullState.SENDING and ticket.header is not None:
                self._settle(place[1], ticket.header, "late", "the pull's deadline has passed")

    def _abandon(self, current: Round, reason: str) -> None:
        """End a round without a merge. Whoever handed something in hears so, arrived or not: a
        learner gives nothing more of a fragment while it waits for the fate of its last push."""
        self.rounds.pop(current.number)
        for peer, header in current.arrived:
            self._settle(peer, header, "abandoned", reason)
        for peer, ticket in current.tickets.items():
            if ticket.state is PullState.SENDING and ticket.header is not None:
                ticket.state = PullState.FAILED
                self._settle(peer, ticket.header, "abandoned", reason)
        self.mergers.forget(tuple(push_id(peer, header) for peer, header in current.arrived))
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
        if self.is_returning(session.key):
            return "late", "its text goes back to others", ""
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
        restored = self.state.restored
        if restored is not None and header.base_version < restored.versions[ticket.fragment]:
            return "stale", "stale", "from weights that the guard gave up"
        if header.steps < 1 or header.steps > header.local_step:
            return "rejected", "false-claim", f"{header.steps} steps at step {header.local_step}"
        if header.tokens > header.steps * self.coverage.step_tokens_max:
            return "rejected", "false-claim", f"{header.tokens} tokens in {header.steps} steps"
        since_s = self.state.leases.since_s.get(session.key)
        if since_s is None:
            return "stale", "stale", "its blocks were reassigned while it was away"
        free_s = self.members.free_s(
            session.peer, ticket.fragment, since_s=since_s - self.wall_offset_s
        )
        # The lease may be another leader's, by its clock.
        if header.steps * STEP_S_MIN > now_s - free_s + 2 * limits.CLOCK_SKEW_S_MAX:
            return "rejected", "false-claim", f"{header.steps} steps in too short a time"
        objection = self.coverage.objection(header, session.key, self.state.leases)
        return ("rejected", "false-claim", objection) if objection else None

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
