"""Which shard to ask of whom, what may be thrown away, and which leased text the trainer may have.

Sans-IO: it is told what is leased, read, here and who answered how, and says what to do next. Text
reaches the trainer in the order of its leases, each piece once its shard is here: a trainer whose
shard is on its way waits as it does for a lease.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from node.download.donors import Donor
from protocol.ids import NodeKey
from protocol.log.leases import behind
from protocol.log.records import Span
from protocol.messages import Cursor
from protocol.shards import ShardTable

AT_ONCE = 4
"""Shards on their way, of different hosts where there are several."""

AHEAD_MAX = 64
"""Shards of leased text that are looked at ahead of the trainer: a lease may be long."""

LEARNERS_FIRST = 2
"""Other learners that are asked before the hosts that the link names, which serve everybody."""

LOOK_EVERY_S = 1.0
"""While something is wanted."""

SLOW_S = 2.0
"""A shard that a trainer waits for is asked of another host too once it was longer on its way, and
longer than twice what is usual. Learners that take so long are asked behind the others."""

SLOW_BYTES_PER_S = 250e3
"""Where nothing is usual yet: less than this is slow."""

ASKED_MAX = 3
"""Hosts that one shard is asked of."""

Refusal = Literal["lacks", "busy", "gone", "wrong"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Fetch this shard from this host; the answer is `came` or `failed`."""

    number: int
    peer: NodeKey


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer to this is of no more use, and nobody waits for it."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class Evict:
    """Throw this shard away."""

    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """The trainer may read this."""

    span: Span


Order = Ask | Cancel | Evict | Release


def is_slow(donor: Donor) -> bool:
    """Whether it takes long over a shard."""
    return donor.chunk_s is not None and donor.chunk_s > SLOW_S


@dataclass(slots=True)
class ShardFeed:
    """What one learner does about shards."""

    table: ShardTable
    block_sequences: int
    rng: random.Random
    room_bytes: int | None = None
    """For all shards together; None for whatever the disk has."""
    is_looking: bool = True
    """Nobody knows yet what is here."""
    is_full: bool = False
    """What is leased now leaves no room for what is wanted next."""
    asked_bytes: int = 0
    """Of shards that came from other hosts."""
    released_bytes: int = 0
    """Of text that the trainer was given."""
    _held: dict[int, int] = field(default_factory=dict)
    """Shards that are here, and when each was last of use."""
    _queue: deque[Span] = field(default_factory=deque)
    """Leased, and not with the trainer yet."""
    _fed: list[Span] = field(default_factory=list)
    """With the trainer, and not read yet, as far as is known."""
    _needs: Counter[int] = field(default_factory=Counter)
    """Shards that somebody waits for or reads, for other reasons than training."""
    _under_way: dict[int, dict[Ask, float]] = field(default_factory=dict)
    """By shard, and when each host was asked for it."""
    _cancelled: list[Ask] = field(default_factory=list)
    _usual_s: float | None = None
    """About how long a shard takes."""
    _donors: dict[NodeKey, Donor] = field(default_factory=dict)
    _named: list[NodeKey] = field(default_factory=list)
    _learners: list[NodeKey] = field(default_factory=list)
    _uses: int = 0

    # What is wanted.

    def begin(self) -> None:
        """A trainer starts, or what it had was leased to others: it has nothing to read."""
        self._queue.clear()
        self._fed.clear()

    def feed(self, spans: Iterable[Span]) -> None:
        """Text for the trainer, behind what it has."""
        self._queue.extend(spans)

    def queued(self) -> tuple[Span, ...]:
        """Leased text that the trainer does not have yet."""
        return tuple(self._queue)

    def read(self, cursor: Cursor) -> None:
        """The trainer has read so far."""
        left = behind(self._fed, cursor, self.block_sequences)
        if left is not None:
            self._fed = left

    def need(self, numbers: Iterable[int]) -> None:
        """These shards are wanted, and stay, until as many calls of `let_go`."""
        self._needs.update(numbers)

    def let_go(self, numbers: Iterable[int]) -> None:
        """They are of no more use."""
        self._needs.subtract(numbers)
        self._needs = +self._needs

    # What is known.

    def found(self, numbers: Iterable[int]) -> None:
        """These shards are on the disk, and intact. Nothing is asked before."""
        self.is_looking = False
        for number in numbers:
            self._use(number)

    def lost(self, numbers: Iterable[int]) -> None:
        """These shards are no longer on the disk; they are fetched again if they are wanted."""
        for number in numbers:
            self._held.pop(number, None)

    def is_here(self, numbers: Iterable[int]) -> bool:
        """Whether all of them are."""
        return all(number in self._held for number in numbers)

    def peers(self, named: Sequence[NodeKey], learners: Sequence[NodeKey]) -> None:
        """Who may be asked now. named: hosts of the join link. learners: in random order."""
        self._named = list(named)
        self._learners = [one for one in learners if one not in self._named]
        here = {*self._named, *self._learners}
        for key in here - self._donors.keys():
            self._donors[key] = Donor(key)
        for key in [one for one in self._donors if one not in here and not self._donors[one].asks]:
            del self._donors[key]

    def came(self, ask: Ask, now_s: float, *, is_copy: bool = False) -> None:
        """A shard is here. is_copy: it lay elsewhere on this machine."""
        asked = self._under_way.pop(ask.number, {})
        self._use(ask.number)
        for other, asked_s in asked.items():
            donor = self._donors.get(other.peer)
            if donor is not None:
                donor.ended(ask.number)
                donor.took(now_s - asked_s)
        self._cancelled += [other for other in asked if other != ask]
        if is_copy:
            return
        self.asked_bytes += self.table.shards[ask.number].bytes
        if (donor := self._donors.get(ask.peer)) is not None and ask in asked:
            took_s = now_s - asked[ask]
            self._usual_s = took_s if self._usual_s is None else 0.7 * self._usual_s + 0.3 * took_s
            donor.hold(ask.number)
            donor.served(None)

    def failed(self, ask: Ask, why: Refusal, now_s: float) -> None:
        """A shard did not come."""
        asked = self._under_way.get(ask.number, {})
        asked.pop(ask, None)
        if not asked:
            self._under_way.pop(ask.number, None)
        donor = self._donors.get(ask.peer)
        if donor is None:
            return
        donor.ended(ask.number)
        match why:
            case "lacks":
                donor.lack(ask.number, now_s)
            case "busy":
                donor.busy(now_s)
            case "gone":
                donor.shun(now_s)
            case "wrong":
                donor.blame(now_s)

    def _use(self, number: int) -> None:
        self._uses += 1
        self._held[number] = self._uses

    # What to do.

    def orders(self, now_s: float) -> list[Order]:
        """What to do now, in this order."""
        if self.is_looking:
            return []
        orders: list[Order] = [Cancel(ask) for ask in self._cancelled]
        self._cancelled.clear()
        orders += [Release(span) for span in self._released()]
        self.is_full = False
        pinned = set(self._needs)
        if self.room_bytes is not None:  # Otherwise nothing is thrown away.
            pinned.update(self._numbers(self._fed))
            orders += [Evict(one) for one in self._evict(self._excess(), pinned)]
        for number in self._ahead():
            pinned.add(number)
            if number in self._held:
                continue
            if number in self._under_way:
                if number == self.awaited and self._is_late(number, now_s):
                    orders += self._ask(number, now_s)
                continue
            if len(self._under_way) >= AT_ONCE:
                break
            if self._donor_for(number, now_s) is None:
                continue
            evicted = self._make_room(number, pinned)
            if evicted is None:
                self.is_full = True
                break
            orders += [Evict(one) for one in evicted]
            orders += self._ask(number, now_s)
        return orders

    def _is_late(self, number: int, now_s: float) -> bool:
        """Whether it is time to ask one host more for a shard that is on its way."""
        asked = self._under_way[number]
        usual_s = self._usual_s
        if usual_s is None:
            usual_s = self.table.shards[number].bytes / SLOW_BYTES_PER_S
        return len(asked) < ASKED_MAX and now_s - max(asked.values()) > max(SLOW_S, 2 * usual_s)

    def _ask(self, number: int, now_s: float) -> list[Ask]:
        """Asks one host more, if there is one."""
        donor = self._donor_for(number, now_s)
        if donor is None:
            return []
        ask = Ask(number, donor.key)
        self._under_way.setdefault(number, {})[ask] = now_s
        donor.asked(number, now_s, is_chunk=False)
        return [ask]

    def deadline_s(self, now_s: float) -> float | None:
        """When to ask for orders again if nothing happens before; None if nothing is wanted."""
        return now_s + LOOK_EVERY_S if self.wanted() else None

    def wanted(self) -> int:
        """How many shards are wanted next and not here."""
        return sum(number not in self._held for number in self._ahead())

    @property
    def awaited(self) -> int | None:
        """The shard without which the trainer gets no more text; None if it lies not in that."""
        if not self._queue:
            return None
        number = self.table.at(self._queue[0].start)
        return None if number in self._held else number

    @property
    def held_bytes(self) -> int:
        return sum(self.table.shards[number].bytes for number in self._held)

    @property
    def held(self) -> int:
        """How many shards are here."""
        return len(self._held)

    def _released(self) -> Iterator[Span]:
        """Text whose shards are here, taken off the queue."""
        while self._queue:
            span = self._queue[0]
            number = self.table.at(span.start)
            if number not in self._held:
                return
            self._use(number)
            _, end = self.table.order.run(span.start)
            stop = min(end, span.stop)
            self._queue.popleft()
            if stop < span.stop:
                self._queue.appendleft(Span(stop, span.stop, 0))
            first = Span(span.start, stop, span.skip)
            self._fed.append(first)
            sequences = (stop - span.start) * self.block_sequences - span.skip
            self.released_bytes += sequences * self.table.sequence_bytes
            yield first

    def _ahead(self) -> list[int]:
        """Shards that are wanted, the most urgent first."""
        queued = self._numbers(self._queue, AHEAD_MAX)
        return list(dict.fromkeys([*queued[:1], *sorted(self._needs), *queued]))

    def _numbers(self, spans: Iterable[Span], most: float = math.inf) -> list[int]:
        """Shards of these spans, each once, and the first ones at most."""
        found: dict[int, None] = {}
        for span in spans:
            at = span.start
            while at < span.stop and len(found) < most:
                found[self.table.at(at)] = None
                at = self.table.order.run(at)[1]
        return list(found)

    def _donor_for(self, number: int, now_s: float) -> Donor | None:
        """Whom to ask for a shard: a few learners, then the hosts of the link, then the others.

        What is late at one is asked of the hosts of the link first.
        """
        learners = [self._donors[key] for key in self._learners]
        learners.sort(key=lambda one: number not in one.holds)
        named = [self._donors[key] for key in self._named]
        self.rng.shuffle(named)
        lacked = sum(one.lacked(number) for one in learners)
        first = max(0, LEARNERS_FIRST - lacked)
        fresh = [one for one in learners if not one.lacked(number) and not is_slow(one)]
        slow = [one for one in learners if not one.lacked(number) and is_slow(one)]
        stale = [one for one in learners if one.lacked(number)]
        asked = {ask.peer for ask in self._under_way.get(number, ())}
        order = (*named, *fresh) if asked else (*fresh[:first], *named, *fresh[first:])
        for donor in (*order, *slow, *stale):
            if donor.key in asked:
                continue
            if donor.is_ready(now_s) and not donor.lacks_now(number, now_s):
                return donor
        return None

    def _make_room(self, number: int, pinned: set[int]) -> list[int] | None:
        """What is thrown away for a shard; None, and nothing, if that is not enough."""
        excess = self._excess(number)
        spare = sum(self.table.shards[one].bytes for one in self._held if one not in pinned)
        return self._evict(excess, pinned) if excess <= spare else None

    def _excess(self, *coming: int) -> int:
        """Bytes beyond the room, once these shards are here and those on their way."""
        if self.room_bytes is None:
            return 0
        sizes = self.table.shards
        return (
            self.held_bytes
            + sum(sizes[one].bytes for one in (*self._under_way, *coming))
            - self.room_bytes
        )

    def _evict(self, excess: int, pinned: set[int]) -> list[int]:
        """Forgets shards of so many bytes, as far as they may go: last used first thrown."""
        evicted: list[int] = []
        for one in sorted(self._held, key=lambda one: self._held[one]) if excess > 0 else ():
            if excess > 0 and one not in pinned:
                evicted.append(one)
                excess -= self.table.shards[one].bytes
        for one in evicted:
            del self._held[one]
        return evicted
