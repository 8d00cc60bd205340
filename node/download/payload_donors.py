"""Whom a learner asks for a merged payload, so that a syncer sends few copies and not one to each.

The log says who is here: whoever holds leased text. All of them put these keys into one order, by
hashes that are mixed with one of the payload's digest, which nobody knows before the merge. The
first c ask the syncer; the record of the merge says how many these are, 16 unless the syncer's line
is too slow for that. With these, and then with twice as many each time, everybody who has the
payload gives it to one who has not: the learner at place p of the next c * 2^k asks the one at
place p of those before, and a few others before it. Nobody is told to give: a donor is asked, and
sends it, or has nothing to send just now.

A donor that has nothing costs nothing but the question: the next one is asked. One that is silent
is not waited for alone for longer than `SILENT_S`, and neither is one that would need much longer
than payloads usually do. One that could not be reached, or was silent, is left out for `REST_S`,
if others or the syncer answered: where nobody does it is the learner's own line. A learner that has
no other left, as many have where most are behind routers that let nobody in, asks the syncer at
once. And it is asked in the end, as if there were no donors: after
`PATIENCE_S_MIN`, or later where many generations come before or payloads usually take long.

A syncer whose line is behind says no, and nobody adds to the queue before it. Whoever hears that
looks for the payload among all the others, a few at a time, and asks the syncer again and again.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.ids import Digest, NodeKey
from protocol.limits import SYNCER_COPIES

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

AGAIN_S: Final = 2.0
"""Where the syncer said no, others are asked for that long before it is asked again."""

REFUSED_S: Final = 60.0
"""Who hears nothing but no for so long looks among those that give weights."""

TIMES_KEPT: Final = 16

REST_S: Final = 600.0
"""A donor that could not be reached, or said nothing, is asked again after that."""


_MIXERS: Final = tuple(
    (np.uint64(shift), np.uint64(factor))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
)
_LAST_SHIFT: Final = np.uint64(31)
"""The finalizer of splitmix64 (https://prng.di.unimi.it/splitmix64.c)."""


def order(payload: Digest, keys: Collection[NodeKey]) -> list[NodeKey]:
    """The keys in the order in which they get this payload."""
    known, mixed = _mixed(payload, keys)
    return [known[at] for at in mixed.argsort().tolist()]


def _mixed(payload: Digest, keys: Collection[NodeKey]) -> tuple[list[NodeKey], NDArray[np.uint64]]:
    """The keys in their own order, and a number for each: the smallest gets the payload first.

    One for each merge at each of a thousand learners: a hash for each of the keys would cost a
    hundred times as much. With a number that nobody foresees all places are equally likely. No two
    are alike, as no two digests of keys are.
    """
    known, marks = _marked(keys if isinstance(keys, frozenset) else frozenset(keys))
    mixed = marks ^ np.uint64(_number(payload))
    shifted = np.empty_like(mixed)
    for shift, factor in _MIXERS:
        np.right_shift(mixed, shift, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, factor, out=mixed)
    np.right_shift(mixed, _LAST_SHIFT, out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)
    return known, mixed


@functools.lru_cache(maxsize=4)
def _marked(keys: frozenset[NodeKey]) -> tuple[list[NodeKey], NDArray[np.uint64]]:
    """The keys in their own order, and the number of each."""
    known = sorted(keys)
    return known, np.array([_number(one) for one in known], np.uint64)


def _number(value: bytes) -> int:
    """Of 64 bits."""
    found = blake3(value, derive_key_context="shoal 1 payload donors").digest(8)
    return int.from_bytes(found, "little")


def _with(keys: Collection[NodeKey], own: NodeKey) -> Collection[NodeKey]:
    return keys if own in keys else {*keys, own}


def donors(
    payload: Digest, keys: Collection[NodeKey], own: NodeKey, copies: int = SYNCER_COPIES
) -> tuple[NodeKey, ...]:
    """Whom the learner `own` asks, the first one first; empty where it asks the syncer."""
    if len(keys) <= copies:
        return ()
    return _rank_and_donors(payload, _with(keys, own), own, copies)[1]


def _rank_and_donors(
    payload: Digest, keys: Collection[NodeKey], own: NodeKey, copies: int
) -> tuple[int, tuple[NodeKey, ...]]:
    """The place of a learner in the order, and whom it asks."""
    known, mixed = _mixed(payload, keys)
    rank = int(np.count_nonzero(mixed < mixed[bisect_left(known, own)]))
    asked = _asked(rank, copies)
    if not asked:
        return rank, ()
    places = mixed.argpartition(asked)
    return rank, tuple(known[places[place]] for place in asked)


def donors_at(
    ranks: Sequence[NodeKey], rank: int, copies: int = SYNCER_COPIES
) -> tuple[NodeKey, ...]:
    """The same for the learner at this place, where `ranks` are in order."""
    return tuple(ranks[place] for place in _asked(rank, copies))


def _asked(rank: int, copies: int) -> list[int]:
    """The places of those whom the learner at this place asks."""
    later = generation(rank, copies)
    if not later:
        return []
    before = copies << later - 1
    first = rank - before
    # The others are spread over those that have it by then, otherwise for each learner.
    step = before // DONORS_MAX + 1
    return list(dict.fromkeys((first + at * step) % before for at in range(DONORS_MAX)))


def generation(rank: int, copies: int = SYNCER_COPIES) -> int:
    """How many generations have a payload before the learner at this place asks for it."""
    return (rank // copies).bit_length()


@dataclass(slots=True)
class _Donor:
    """One that is asked, or may be."""

    key: NodeKey
    heard_s: float | None = None
    """When it was asked or last sent something; None unless it is asked."""
    again_s: float = -math.inf
    """When it may be asked next."""
    asked_s: float = 0.0
    """When it was asked last."""
    share: float = 0.0
    """Of the payload, that came."""
    has_sent: bool = False
    """Whether something of the payload came."""

    def alone_until_s(self, usual_s: float) -> float:
        """Until when nobody else is asked, if nothing more comes; of one that was asked.

        What has come by then says how long the rest takes: no longer than is usual, or no longer
        than silence would be borne.
        """
        assert self.heard_s is not None, "it was asked"
        left = 1.0 - self.share
        fair_s = max(usual_s, SILENT_S) * self.share / left if left else math.inf
        return min(self.heard_s, self.asked_s + fair_s) + SILENT_S


@dataclass(slots=True)
class PayloadHunt:
    """The search for one payload among donors; the syncer comes after it."""

    begun_s: float
    patience_s: float
    usual_s: float = 0.0
    """What payloads usually take."""
    is_patient: bool = False
    """The syncer is asked no sooner, also where nobody is left."""
    _left: list[_Donor] = field(default_factory=list)
    """Those that may still send it, whom to ask next first."""
    lost: list[NodeKey] = field(default_factory=list)
    """Those that could not be reached, or sent something else."""

    @classmethod
    def of(
        cls, keys: Sequence[NodeKey], patience_s: float, now_s: float, usual_s: float = 0.0
    ) -> PayloadHunt:
        """Begins now."""
        return cls(now_s, patience_s, usual_s, _left=[_Donor(key) for key in keys])

    def is_over(self, now_s: float) -> bool:
        """Whether to ask the syncer now: nobody is left who could have it, or it takes too long."""
        is_alone = not self._left and not self.is_patient
        return is_alone or now_s >= self.begun_s + self.patience_s

    def asks(self, now_s: float) -> list[NodeKey]:
        """Donors to ask now, one at most; each answers, by its payload or by `failed`."""
        if any(now_s < until_s for until_s in self._waits()):
            return []
        for at, one in enumerate(self._left):
            if one.heard_s is None and one.again_s <= now_s:
                one.heard_s = one.asked_s = now_s
                one.share = 0.0
                self._left.append(self._left.pop(at))
                return [one.key]
        return []

    def heard(self, key: NodeKey, now_s: float, share: float) -> None:
        """Some of it came; share: of the payload, with what came before."""
        for one in self._left:
            if one.key == key and one.heard_s is not None:
                one.heard_s, one.has_sent, one.share = now_s, True, share

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

    def end(self, now_s: float) -> None:
        """Nobody is asked any more; whoever said nothing for too long is lost as well."""
        self.lost += self.mute(now_s)
        self._left.clear()

    def deadline_s(self, now_s: float) -> float:
        """When to look again, if nothing happens before."""
        over_s = self.begun_s + self.patience_s
        waits = self._waits()
        if any(now_s < until_s for until_s in waits):
            return min(over_s, max(waits))
        idle = [one.again_s for one in self._left if one.heard_s is None]
        return max(now_s, min([over_s, *idle]))

    def _waits(self) -> list[float]:
        return [one.alone_until_s(self.usual_s) for one in self._left if one.heard_s is not None]


@dataclass(slots=True)
class PayloadDonors:
    """What one learner knows of others as donors, and of how long payloads take."""

    own: NodeKey
    resting: dict[NodeKey, float] = field(default_factory=dict)
    """Donors that are not asked, and until when."""
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))

    def hunt(
        self,
        payload: Digest,
        keys: Collection[NodeKey],
        now_s: float,
        copies: int = SYNCER_COPIES,
    ) -> PayloadHunt | None:
        """The search for this payload; None where the syncer is asked at once."""
        self.resting = {key: until for key, until in self.resting.items() if until > now_s}
        if len(keys) <= copies:
            return None
        rank, known = _rank_and_donors(payload, _with(keys, self.own), self.own, copies)
        asked = [key for key in known if key not in self.resting]
        if not asked:
            return None
        return PayloadHunt.of(asked, self.patience_s(rank, copies), now_s, self.usual_s)

    def again(
        self, payload: Digest, keys: Collection[NodeKey], now_s: float, refusals: int
    ) -> PayloadHunt:
        """The search where the syncer said no so many times: among others than in the last one."""
        ranks = order(payload, _with(keys, self.own))
        after = ranks.index(self.own) + 1
        others = [key for key in (*ranks[after:], *ranks[: after - 1]) if key not in self.resting]
        first = (refusals - 1) * DONORS_MAX % max(1, len(others))
        asked = (*others[first:], *others[:first])[:DONORS_MAX]
        hunt = PayloadHunt.of(asked, AGAIN_S, now_s, self.usual_s)
        hunt.is_patient = True
        return hunt

    def held(self, hunt: PayloadHunt, now_s: float) -> None:
        """One of those that were asked has sent it."""
        self.times_s.append(now_s - hunt.begun_s)
        hunt.end(now_s)
        self.answered(hunt, now_s)

    def answered(self, hunt: PayloadHunt, now_s: float) -> None:
        """Somebody sent it, or said no, and so whoever the search lost rests. Where nobody answers
        they do not: it may be this learner's own line that is away."""
        self.resting |= dict.fromkeys(hunt.lost, now_s + REST_S)

    @property
    def usual_s(self) -> float:
        """What this learner's latest payloads took in the median; 0 of none."""
        return median(self.times_s) if self.times_s else 0.0

    def patience_s(self, rank: int, copies: int = SYNCER_COPIES) -> float:
        """After how long the syncer is asked for a payload that it gets at this place."""
        before_s, usual_s = GENERATION_S * generation(rank, copies), PATIENCE_FACTOR * self.usual_s
        return min(PATIENCE_S_MAX, max(PATIENCE_S_MIN, before_s, usual_s))
