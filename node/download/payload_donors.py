"""Whom a learner asks for a merged payload, so that a syncer sends few copies and not one to each.

The log says who is here: whoever holds leased text. All of them put these keys into one order, by
keyed hashes under the payload's digest, which nobody knows before the merge. The first
`SYNCER_COPIES` ask the syncer. With these, and then with twice as many each time, everybody who has
the payload gives it to one who has not: the learner at place p of the next 16 * 2^k asks the one at
place p of those before, and a few others before it. Nobody is told to give: a donor is asked, and
sends it, or has nothing to send just now.

A donor that has nothing costs nothing but the question: the next one is asked. One that is silent
is not waited for alone for longer than `SILENT_S`. One that could not be reached, or was silent, is
left out for `REST_S`: where most learners are behind routers that let nobody in, all ask the syncer
at once. And it is asked in the end, as if there were no donors: after `PATIENCE_S_MIN`, or later
where many generations come before or payloads usually take long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from blake3 import blake3

from protocol.ids import Digest, NodeKey

SYNCER_COPIES: Final = 16
"""Learners that ask the syncer first. Where there are no more, all of them do."""

DONORS_MAX: Final = 4
"""Learners that are asked for one payload."""

POLL_S: Final = 0.2
"""A donor that has nothing to send is asked again after that."""

SILENT_S: Final = 2.5
"""A donor of which nothing came for so long is not waited for alone."""

PATIENCE_S_MIN, PATIENCE_S_MAX = 15.0, 60.0
"""After how long the syncer is asked. A transfer of the syncer that is stuck takes 20 s to show."""

GENERATION_S: Final = 3.0
"""After so much for each generation that gets a payload before, where that is more."""

PATIENCE_FACTOR: Final = 2.5
"""Of what a learner's latest payloads took in the median: with fewer than half of the donors nobody
makes others wait longer."""

TIMES_KEPT: Final = 16

REST_S: Final = 600.0
"""A donor that could not be reached, or said nothing, is asked again after that."""


def order(payload: Digest, keys: Collection[NodeKey]) -> list[NodeKey]:
    """The keys in the order in which they get this payload."""
    context = blake3(payload, derive_key_context="shoal 1 payload donors").digest()
    return sorted(keys, key=lambda one: blake3(one, key=context).digest())


def donors(payload: Digest, keys: Collection[NodeKey], own: NodeKey) -> tuple[NodeKey, ...]:
    """Whom the learner `own` asks, the first one first; empty where it asks the syncer."""
    if len(keys) <= SYNCER_COPIES:
        return ()
    ranks = order(payload, {*keys, own})
    return donors_at(ranks, ranks.index(own))


def donors_at(ranks: Sequence[NodeKey], rank: int) -> tuple[NodeKey, ...]:
    """The same for the learner at this place, where `ranks` are in order."""
    later = generation(rank)
    if not later:
        return ()
    before = SYNCER_COPIES << later - 1
    first = rank - before
    # The others are spread over those that have it by then, otherwise for each learner.
    step = before // DONORS_MAX + 1
    places = ((first + at * step) % before for at in range(DONORS_MAX))
    return tuple(dict.fromkeys(ranks[place] for place in places))


def generation(rank: int) -> int:
    """How many generations have a payload before the learner at this place asks for it."""
    return (rank // SYNCER_COPIES).bit_length()


@dataclass(slots=True)
class _Donor:
    """One that is asked, or may be."""

    key: NodeKey
    heard_s: float | None = None
    """When it was asked or last sent something; None unless it is asked."""
    again_s: float = -math.inf
    """When it may be asked next."""
    has_sent: bool = False
    """Whether something of the payload came."""


@dataclass(slots=True)
class PayloadHunt:
    """The search for one payload among donors; the syncer comes after it."""

    begun_s: float
    patience_s: float
    _left: list[_Donor] = field(default_factory=list)
    """Those that may still send it, whom to ask next first."""
    lost: list[NodeKey] = field(default_factory=list)
    """Those that could not be reached, or sent something else."""

    @classmethod
    def of(cls, keys: Sequence[NodeKey], patience_s: float, now_s: float) -> PayloadHunt:
        """Begins now."""
        return cls(now_s, patience_s, [_Donor(key) for key in keys])

    def is_over(self, now_s: float) -> bool:
        """Whether to ask the syncer now: nobody is left who could have it, or it takes too long."""
        return not self._left or now_s >= self.begun_s + self.patience_s

    def asks(self, now_s: float) -> list[NodeKey]:
        """Donors to ask now, one at most; each answers, by its payload or by `failed`."""
        if any(now_s < heard_s + SILENT_S for heard_s in self._heard()):
            return []
        for at, one in enumerate(self._left):
            if one.heard_s is None and one.again_s <= now_s:
                one.heard_s = now_s
                self._left.append(self._left.pop(at))
                return [one.key]
        return []

    def heard(self, key: NodeKey, now_s: float) -> None:
        """Some of it came."""
        for one in self._left:
            if one.key == key and one.heard_s is not None:
                one.heard_s, one.has_sent = now_s, True

    def failed(self, key: NodeKey, now_s: float, *, is_waiting: bool) -> None:
        """A donor did not send it. is_waiting: it has nothing to send now, and is asked again."""
        for one in self._left:
            if one.key == key:
                one.heard_s, one.again_s = None, now_s + POLL_S
        if not is_waiting:
            self._left = [one for one in self._left if one.key != key]
            self.lost.append(key)

    def mute(self, now_s: float) -> list[NodeKey]:
        """Those that were asked, and said nothing at all for too long."""
        return [
            one.key
            for one in self._left
            if one.heard_s is not None and not one.has_sent and now_s >= one.heard_s + SILENT_S
        ]

    def deadline_s(self, now_s: float) -> float:
        """When to look again, if nothing happens before."""
        over_s = self.begun_s + self.patience_s
        waits = [heard_s + SILENT_S for heard_s in self._heard()]
        if any(now_s < until_s for until_s in waits):
            return min(over_s, max(waits))
        idle = [one.again_s for one in self._left if one.heard_s is None]
        return max(now_s, min([over_s, *idle]))

    def _heard(self) -> list[float]:
        return [one.heard_s for one in self._left if one.heard_s is not None]


@dataclass(slots=True)
class PayloadDonors:
    """What one learner knows of others as donors, and of how long payloads take."""

    own: NodeKey
    resting: dict[NodeKey, float] = field(default_factory=dict)
    """Donors that are not asked, and until when."""
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))

    def hunt(self, payload: Digest, keys: Collection[NodeKey], now_s: float) -> PayloadHunt | None:
        """The search for this payload; None where the syncer is asked at once."""
        self.resting = {key: until for key, until in self.resting.items() if until > now_s}
        if len(keys) <= SYNCER_COPIES:
            return None
        ranks = order(payload, {*keys, self.own})
        rank = ranks.index(self.own)
        asked = [key for key in donors_at(ranks, rank) if key not in self.resting]
        return PayloadHunt.of(asked, self.patience_s(rank), now_s) if asked else None

    def held(self, hunt: PayloadHunt, now_s: float) -> None:
        """It is here, whoever sent it."""
        self.times_s.append(now_s - hunt.begun_s)
        self.ended(hunt, now_s)

    def ended(self, hunt: PayloadHunt, now_s: float) -> None:
        """A search is over; whoever was not there or said nothing rests."""
        for key in (*hunt.lost, *hunt.mute(now_s)):
            self.resting[key] = now_s + REST_S

    def patience_s(self, rank: int) -> float:
        """After how long the syncer is asked for a payload that it gets at this place."""
        usual_s = median(self.times_s) if self.times_s else 0.0
        before_s = GENERATION_S * generation(rank)
        return min(PATIENCE_S_MAX, max(PATIENCE_S_MIN, before_s, PATIENCE_FACTOR * usual_s))


@dataclass(slots=True)
class Giving:
    """How fast this host gives merged payloads to other learners: one after the other.

    A learner that has the whole of it gives it on; two that have halves of it do not.
    """

    bytes_per_s: float
    """Of its owner's limit."""
    _free_s: float = -math.inf

    def may_give(self, size: int, now_s: float) -> bool:
        """Whether to give a copy of so many bytes now; if so, the next one comes after it."""
        if now_s < self._free_s or self.bytes_per_s <= 0:
            return False
        self._free_s = now_s + size / self.bytes_per_s
        return True
