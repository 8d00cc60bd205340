"""The leader's side of merging: which syncer fetches and merges what, and what if it does not.

    gathering --all there--> ordered --done--> taking --candidate here--> merged
    gathering, ordered and taking go back to gathering, at another merger, when one fails

The leader opens rounds, judges headers and closes rounds; pushes are fetched and merged by the
merger of their fragment. What it merged becomes a candidate here as well, by the same outer step
from the published payload, before its record is proposed. A merger that is gone, fails or takes too
long is passed over, and in the end the leader merges itself: always the pushes that the round
closed with, in one merge. Where no other syncer may merge, all of this is jobs of the leader's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from protocol import messages, wire
from protocol.effect_queue import EffectQueue
from protocol.errors import LimitExceeded, UnexpectedMessage
from protocol.machine import Failed
from protocol.numerics.payload_sizes import payload_bytes
from protocol.trace import MergerAssigned, MergerFailed
from syncer_node.machine import jobs
from syncer_node.machine.merging import orders
from syncer_node.machine.merging.assignment import Assignment
from syncer_node.machine.merging.copies import Sending

FETCH_SLACK_S = 2.0
"""A merger's answer may come so much later than the deadline of the fetch."""

GATHER_S_MIN = 30.0
"""Within this, or a pull's deadline if that is longer, a merge's pushes must be at the merger that
takes it over."""

MERGE_S, MERGE_S_MIN = 60.0, 20.0
"""How long a merge may take at a merger while nobody knows what is usual, and at least."""

USUAL_TIMES = 4.0
"""... and otherwise so many times as long as usual."""

TAKE_S = 120.0
"""Within this the leader must have the payload of a merge. Where nothing comes, its fetch ends
earlier by itself."""

REST_S, REST_S_MAX = 60.0, 3600.0
"""A merger that failed gets no merges for this long at first, and at most: twice as long each time
that it fails again before it merged anything."""

CARRIED_S = 300.0
"""A learner that a merger could not reach is left to the leader for this long."""

HERE_S_MIN = 0.5
"""With less time left nobody begins to fetch a push."""


@dataclass(slots=True)
class Fetching:
    """A push that a merger was asked to fetch."""

    job: jobs.FetchPush
    merger: bytes
    until_s: float
    round: int | None
    """Of the merge that gathers it; None for a push that was just handed in."""


@dataclass(slots=True)
class Merging:
    """A merge that is under way."""

    job: jobs.Merge
    merger: bytes
    begun_s: float
    until_s: float = math.inf
    order: int = 0
    """Of the merge, at the merger; 0 while its pushes are gathered."""
    missing: dict[jobs.PushId, list[bytes]] = field(default_factory=dict)
    """Pushes that are not there yet, and who else may have them."""
    lost: list[jobs.PushId] = field(default_factory=list)
    """Pushes that nobody has any more."""
    tried: set[bytes] = field(default_factory=set)
    offered: list[bytes] = field(default_factory=list)
    """Digests of pushes that the merger fetches from here."""
    is_taking: bool = False
    """The payload is being fetched."""


@dataclass(slots=True)
class Mergers:
    """Of one term."""

    effects: EffectQueue
    own: bytes
    epoch: int
    term: int
    able: Callable[[], tuple[bytes, ...]]
    """Other syncers that are here and keep up."""
    fetched: Callable[[jobs.FetchPush, object], None]
    merged: Callable[[jobs.Merge, object], None]
    """Told what became of a fetch or a merge, wherever it was done."""
    lose: Callable[[jobs.Merge, list[jobs.PushId]], jobs.Merge | None]
    """Told of pushes that are nowhere; the merge without them, None for none."""
    most: int
    """Mergers; 0 for all."""
    pull_timeout_s: float
    assignment: Assignment
    sending: dict[bytes, Sending] = field(default_factory=dict)
    """By merger."""
    holders: dict[jobs.PushId, dict[bytes, None]] = field(default_factory=dict)
    """Who has each push that has no fate yet."""
    fetching: dict[int, Fetching] = field(default_factory=dict)
    """By order."""
    gathering: dict[jobs.PushId, int] = field(default_factory=dict)
    """Pushes that this host fetches for a merge of that round."""
    merging: dict[int, Merging] = field(default_factory=dict)
    """By round."""
    resting: dict[bytes, float] = field(default_factory=dict)
    """Mergers that failed, and until when they get nothing."""
    rests_s: dict[bytes, float] = field(default_factory=dict)
    """How long each rested when it failed last, of those that merged nothing since."""
    lent: dict[bytes, tuple[bytes, jobs.PushId]] = field(default_factory=dict)
    """Pushes that are probed, by digest: who lends them."""
    carried: dict[tuple[bytes, bytes], float] = field(default_factory=dict)
    """(merger, learner) that do not reach each other, and until when that is believed."""
    last_order: int = 0
    usual_s: float | None = None
    """Of a merge, from the order to the candidate."""
    now_s: float = 0.0

    @property
    def _gather_s(self) -> float:
        return max(GATHER_S_MIN, self.pull_timeout_s)

    # Who merges what.

    def of(self, fragment: int) -> bytes:
        """Who merges this fragment."""
        return self.assignment.mergers.get(fragment, self.own)

    def candidates(self) -> list[bytes]:
        """Who may merge now, this host first."""
        if self.most == 1:
            return [self.own]
        others = [one for one in self.able() if self.now_s >= self.resting.get(one, -math.inf)]
        return [self.own, *(others[: self.most - 1] if self.most else others)]

    def open(self, fragment: int) -> None:
        """A round of this fragment opens: it may move to another merger."""
        self._assign(fragment, self.candidates())

    def _assign(self, fragment: int, able: list[bytes]) -> None:
        former = self.of(fragment)
        chosen = self.assignment.choose(fragment, able)
        if chosen != former:
            self.effects.emit(MergerAssigned(fragment, chosen))

    # What a round asks for.

    def fetch(self, job: jobs.FetchPush, now_s: float) -> None:
        """Have this push fetched by whoever merges its fragment."""
        self.now_s = now_s
        merger = self.of(job.header.fragment)
        is_carried = self.carried.get((merger, job.peer), -math.inf) > now_s
        if merger == self.own or is_carried:
            self._start_fetch(job)
        else:
            self._order_fetch(job, merger, job.peer, now_s + job.left_s + FETCH_SLACK_S, None)

    def merge(self, job: jobs.Merge, now_s: float) -> None:
        """Have these pushes merged."""
        self.now_s = now_s
        current = Merging(job, self.of(job.fragment), now_s)
        self.merging[job.round] = current
        self._gather(current)

    def forget(self, pushes: tuple[jobs.PushId, ...]) -> None:
        """They have their fate: whoever holds them need not any more."""
        here, away = [], dict[bytes, list[jobs.PushId]]()
        for push in pushes:
            holders = self.holders.pop(push, None)
            if holders is None or self.own in holders:
                here.append(push)
            for holder in holders or ():
                if holder != self.own:
                    away.setdefault(holder, []).append(push)
        if here or not away:
            self.effects.do(jobs.Forget(tuple(here)))
        for holder, some in away.items():
            names = tuple(map(orders.push_name, some))
            self.effects.send(holder, messages.DropPushes(self.epoch, self.term, names))

    def lend(self, push: jobs.PushId, payload: bytes) -> bytes | None:
        """Let a prober fetch this push; the merger that lends it, None for this host."""
        holders = self.holders.get(push)
        if holders is None or self.own in holders or not holders:
            self.lent[payload] = (self.own, push)
            self.effects.do(jobs.OfferPush(push, payload))
            return None
        holder = next(iter(holders))
        self.lent[payload] = (holder, push)
        self._say_lent(holder, push, payload, is_over=False)
        return holder

    def retract(self, payload: bytes) -> None:
        """Nobody probes it any more."""
        holder, push = self.lent.pop(payload, (self.own, None))
        if holder == self.own or push is None:
            self.effects.do(jobs.RetractPush(payload))
        else:
            self._say_lent(holder, push, payload, is_over=True)

    def _say_lent(self, to: bytes, push: jobs.PushId, payload: bytes, *, is_over: bool) -> None:
        name = orders.push_name(push)
        self.effects.send(to, messages.LendPush(self.epoch, self.term, name, payload, is_over))

    # Fetching.

    def _start_fetch(self, job: jobs.FetchPush) -> None:
        self.assignment.load(self.own).begin(self.now_s)
        self.effects.start(job)

    def _order_fetch(
        self, job: jobs.FetchPush, merger: bytes, source: bytes, until_s: float, number: int | None
    ) -> None:
        self.last_order += 1
        self.fetching[self.last_order] = Fetching(job, merger, until_s, number)
        self.assignment.load(merger).begin(self.now_s)
        left_s = max(0.0, until_s - FETCH_SLACK_S - self.now_s)
        where = (self.epoch, self.term, self.last_order)
        self.effects.send(
            merger,
            messages.FetchOrder(*where, job.peer, source, job.header, left_s, job.is_proven),
        )

    def on_fetched_here(self, job: jobs.FetchPush, result: object, now_s: float) -> None:
        """This host's own job is done."""
        self.now_s = now_s
        is_here = isinstance(result, jobs.PushFetched)
        self.assignment.load(self.own).end(now_s, job.header.payload_bytes if is_here else 0)
        if is_here:
            self.holders.setdefault(job.push, {})[self.own] = None
        number = self.gathering.pop(job.push, None)
        if number is not None:
            self._gathered(number, self.own, job.push, is_here=is_here)
        else:
            self.fetched(job, result)

    def receive(self, merger: bytes, answer: messages.OrderAnswer, now_s: float) -> None:
        """A merger's answer; one that nobody waits for any more means nothing.

        Raises UnexpectedMessage for one that does not fit what was ordered.
        """
        self.now_s = now_s
        match answer:
            case messages.PushHeld():
                self._on_held(merger, answer)
            case messages.MergeDone():
                self._on_done(merger, answer)
            case messages.OrderFailed(order=order, reason=reason):
                fetch = self.fetching.get(order)
                if fetch is not None and fetch.merger == merger:
                    self._fetch_failed(order, reason, is_gone=False)
                current = self._ordered(merger, order)
                if current is not None:
                    self._pass_on(current, reason)

    def _on_held(self, merger: bytes, held: messages.PushHeld) -> None:
        fetch = self.fetching.get(held.order)
        if fetch is None or fetch.merger != merger:
            return
        del self.fetching[held.order]
        job = fetch.job
        size = 0 if held.refusal else job.header.payload_bytes
        self.assignment.load(merger).end(self.now_s, size)
        if not held.refusal:
            self.holders.setdefault(job.push, {})[merger] = None
        if fetch.round is not None:
            self._gathered(fetch.round, merger, job.push, is_here=not held.refusal)
        elif held.refusal:
            self.fetched(job, jobs.PushRefused(held.refusal, held.detail))
        else:
            self.fetched(job, jobs.PushFetched())

    def _fetch_failed(self, order: int, reason: str, *, is_gone: bool) -> None:
        """is_gone: the merger is, so that another one may do better; else the leader tries."""
        fetch = self.fetching.pop(order)
        self.assignment.load(fetch.merger).end(self.now_s)
        if fetch.round is not None:
            self._gathered(fetch.round, fetch.merger, fetch.job.push, is_here=False)
            return
        job, left_s = fetch.job, fetch.until_s - FETCH_SLACK_S - self.now_s
        merger = self.of(job.header.fragment)
        if left_s < HERE_S_MIN:
            self.fetched(job, Failed(reason))
        elif is_gone and merger not in (fetch.merger, self.own):
            self._order_fetch(job, merger, job.peer, fetch.until_s, None)
        else:
            if not is_gone:
                self.carried[fetch.merger, job.peer] = self.now_s + CARRIED_S
            self._start_fetch(replace(job, left_s=left_s))

    # Merging.

    def _is_at(self, push: jobs.PushId, merger: bytes) -> bool:
        holders = self.holders.get(push)
        return merger == self.own if holders is None else merger in holders

    def _gather(self, current: Merging) -> None:
        """Have all pushes of a merge where it is to be done."""
        merger = current.merger
        current.order, current.is_taking = 0, False
        current.until_s = self.now_s + self._gather_s if merger != self.own else math.inf
        away = [part for part in current.job.parts if not self._is_at(part.push, merger)]
        current.missing = {part.push: self._sources(part.push, merger) for part in away}
        for part in away:
            if current.merger != merger:
                return  # It was passed on meanwhile.
            self._gather_one(current, part)
        if current.merger == merger and not current.missing:
            self._begin(current)

    def _sources(self, push: jobs.PushId, merger: bytes) -> list[bytes]:
        """Who may have it: this host, its learner, those who fetched it before."""
        holders = [one for one in self.holders.get(push, {}) if one not in (merger, self.own)]
        own = [self.own] if self._is_at(push, self.own) else []
        return [*own, push[0], *holders]

    def _gather_one(self, current: Merging, part: jobs.MergePart) -> None:
        sources = current.missing[part.push]
        if not sources and current.merger == self.own:
            del current.missing[part.push]
            current.lost.append(part.push)
            return
        if not sources:
            self._pass_on(current, "it cannot fetch a push", to=self.own)
            return
        source, number = sources.pop(0), current.job.round
        job = jobs.FetchPush(part.learner, number, part.header, self._gather_s, True)
        if current.merger == self.own:
            is_from_learner = source == part.learner
            self.gathering[part.push] = number
            self._start_fetch(job if is_from_learner else replace(job, source=source))
            return
        if source == self.own:
            current.offered.append(part.header.digest)
            self.effects.do(jobs.OfferPush(part.push, part.header.digest))
        until_s = self.now_s + self._gather_s + FETCH_SLACK_S
        self._order_fetch(job, current.merger, source, until_s, number)

    def _gathered(self, number: int, merger: bytes, push: jobs.PushId, *, is_here: bool) -> None:
        current = self.merging.get(number)
        if current is None or current.merger != merger or push not in current.missing:
            return
        if is_here:
            del current.missing[push]
        else:
            part = next(part for part in current.job.parts if part.push == push)
            self._gather_one(current, part)
        if not current.missing and current.merger == merger and not current.order:
            self._begin(current)

    def _begin(self, current: Merging) -> None:
        """All that there is of its pushes is where it is to be merged."""
        if current.lost:
            left, current.lost = self.lose(current.job, current.lost), []
            if left is None:
                self._end(current)
                return
            current.job = left
        if current.merger == self.own:
            self.effects.start(current.job)
            return
        self.last_order += 1
        order = orders.merge_order(current.job, self.epoch, self.term, self.last_order)
        try:
            wire.encode(order)
        except LimitExceeded as error:
            self._pass_on(current, str(error), to=self.own)
            return
        current.order = self.last_order
        usual_s = MERGE_S if self.usual_s is None else USUAL_TIMES * self.usual_s
        current.until_s = self.now_s + max(MERGE_S_MIN, usual_s)
        self.effects.send(current.merger, order)

    def _ordered(self, merger: bytes, order: int) -> Merging | None:
        """The merge that was ordered so and is not done."""
        for current in self.merging.values():
            if (current.merger, current.order) == (merger, order) and not current.is_taking:
                return current
        return None

    def _on_done(self, merger: bytes, done: messages.MergeDone) -> None:
        current = self._ordered(merger, done.order)
        if current is None:
            return
        job = current.job
        numel = self.assignment.sizes[job.fragment]
        is_whole = len(done.parts) == len(job.parts)
        if not is_whole or done.payload_bytes != payload_bytes(job.codec, numel):
            self._pass_on(current, "it answered with another merge")
            raise UnexpectedMessage(f"a merge of {len(done.parts)} pushes, not {len(job.parts)}")
        self._measure(merger, job, done.seconds)
        current.is_taking, current.until_s = True, self.now_s + TAKE_S
        self.effects.start(jobs.TakeMerge(done.order, job, orders.merged(done, merger)))

    def on_taken(self, job: jobs.TakeMerge, result: object, now_s: float) -> None:
        """What was merged elsewhere is a candidate here, or is not what it should be."""
        self.now_s = now_s
        current = self.merging.get(job.merge.round)
        if current is None or not current.is_taking or current.order != job.order:
            return
        if not isinstance(result, jobs.MergeTaken):
            self._pass_on(current, result.reason if isinstance(result, Failed) else "not taken")
            return
        took_s = now_s - current.begun_s
        self.usual_s = took_s if self.usual_s is None else 0.75 * self.usual_s + 0.25 * took_s
        self.rests_s.pop(current.merger, None)
        self._end(current)
        self.merged(job.merge, job.result)

    def on_merged_here(self, job: jobs.Merge, result: object, now_s: float) -> None:
        """This host's own merge is done, or failed."""
        self.now_s = now_s
        if isinstance(result, jobs.Merged):
            self._measure(self.own, job, result.seconds)
        current = self.merging.get(job.round)
        if current is not None:
            self._end(current)
        self.merged(job, result)

    def _measure(self, merger: bytes, job: jobs.Merge, seconds: float) -> None:
        size = sum(part.header.payload_bytes for part in job.parts)
        self.assignment.load(merger).merged(size, seconds)

    def copies(self, result: jobs.Merged, now_s: float) -> int:
        """How many learners ask its merger for the payload of this merge first."""
        sending = self.sending.setdefault(result.merger or self.own, Sending())
        sending.merged(result.payload_bytes, now_s)
        sending.up_bytes_per_s = result.up_bytes_per_s
        sending.up_backlog_s = result.up_backlog_s
        return sending.copies

    def _end(self, current: Merging) -> None:
        self._retract_offered(current)
        del self.merging[current.job.round]

    def _retract_offered(self, current: Merging) -> None:
        for payload in current.offered:
            if payload not in self.lent:
                self.effects.do(jobs.RetractPush(payload))
        current.offered.clear()

    def _pass_on(self, current: Merging, reason: str, to: bytes | None = None) -> None:
        """Another merger does it, from the same pushes; at last this host."""
        failed, number = current.merger, current.job.round
        current.tried.add(failed)
        self._rest(failed)
        self.effects.emit(MergerFailed(failed, number, reason))
        self._retract_offered(current)
        for order in [at for at, one in self.fetching.items() if one.round == number]:
            self.assignment.load(failed).end(self.now_s)
            del self.fetching[order]
        left = [one for one in self.candidates() if one not in current.tried]
        current.merger = to or (left[-1] if left else self.own)
        self.assignment.mergers[current.job.fragment] = current.merger
        self._gather(current)

    def _rest(self, failed: bytes) -> None:
        """It gets no merges for a while; all that it had when it failed are one failure."""
        if self.now_s >= self.resting.get(failed, -math.inf):
            self.rests_s[failed] = min(2.0 * self.rests_s.get(failed, REST_S / 2), REST_S_MAX)
            self.resting[failed] = self.now_s + self.rests_s[failed]

    # Who is gone, and what takes too long.

    def on_down(self, merger: bytes) -> None:
        """The stream to another syncer ended: it drops all that it held for us."""
        for holders in self.holders.values():
            holders.pop(merger, None)
        self.carried = {key: at_s for key, at_s in self.carried.items() if key[0] != merger}
        self._give_up((merger,), "its stream ended")
        # What it did not get done since it was gone says nothing of how fast it is.
        self.assignment.loads.pop(merger, None)
        self.rests_s.pop(merger, None)

    def look(self, now_s: float) -> None:
        """Time passes."""
        self.now_s = now_s
        if self.most == 1 and not self.fetching and not self.merging:
            return
        able = {self.own, *self.able()}
        used = {*self.assignment.mergers.values(), *(one.merger for one in self.merging.values())}
        self._give_up(sorted({*used, *(one.merger for one in self.fetching.values())} - able), "")
        for order, fetch in list(self.fetching.items()):
            if now_s >= fetch.until_s and order in self.fetching:
                self._fetch_failed(order, "its merger did not answer", is_gone=True)
        for current in list(self.merging.values()):
            if now_s >= current.until_s:
                self._pass_on(current, "it takes too long")

    def _give_up(self, gone: Iterable[bytes], reason: str) -> None:
        """These merge nothing any more."""
        for merger in gone:
            able = [one for one in self.candidates() if one != merger]
            for fragment, former in list(self.assignment.mergers.items()):
                if former == merger:
                    self._assign(fragment, able)
            for order, fetch in list(self.fetching.items()):
                if fetch.merger == merger and fetch.round is None:
                    self._fetch_failed(order, reason or "its merger is away", is_gone=True)
            for current in list(self.merging.values()):
                if current.merger == merger:
                    self._pass_on(current, reason or "it is away")

    def deadline_s(self) -> float | None:
        """When something happens here by itself."""
        times = [one.until_s for one in self.fetching.values()]
        times += [one.until_s for one in self.merging.values()]
        return min((at_s for at_s in times if at_s < math.inf), default=None)
