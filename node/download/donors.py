"""What a joiner knows about one donor: what it holds, how it behaves, what it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from protocol.backoff import Backoff
from protocol.ids import Digest

IN_FLIGHT_MIN = 2
"""Requests under way at one donor, however slow: while one ends and another begins, the line of
the donor is not idle. Of more, each would only come later, and more is lost with the donor."""

FIRST_BYTES = 3 << 20
"""Under way at one donor of whose line little is known: a long line needs as much to fill up."""

IN_FLIGHT_PER_DONOR_MAX = 10
"""Below the streams that a host serves to one peer: the others are for merged payloads."""

AHEAD_S = 2.0
"""What a donor sends within this is asked for ahead. Every chunk waits for some round trips, in
which the line is idle unless other chunks are under way."""
RATE_S_MIN = 0.1
"""Bytes over less time than this say nothing of a rate."""

RATE_SURE_S = 1.0
"""... and over less than this it may be the rate of a connection that is only about to open up."""

RATE_FADES_S = 5.0
"""What came this long ago weighs a third in a rate."""

ASK_AGAIN = Backoff((0.5, 1.0, 2.0, 4.0, 8.0))
"""A donor that lacked a version may be about to have it."""

SECTIONS_AGAIN_S = 0.5
"""One that has more of its sections than when it was asked last goes on getting some."""

BUSY = Backoff((0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
"""Rest of a donor that serves as many as it may; busy longer than all of these, it is shunned."""

SHUN = Backoff((5.0, 10.0, 20.0, 40.0, 60.0))
"""Rest of a donor that could not be reached or broke off."""

BLAME_S = 300.0
"""Rest of a donor that sent wrong bytes."""


@dataclass(slots=True)
class Flow:
    """How fast bytes come in, over the time in which some are waited for."""

    _heard_s: float = 0.0
    """When something came last, or was first waited for."""
    _gap_s: float = 0.0
    """Longest time of late between two pieces."""
    _bytes: float = 0.0
    _span_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Nothing was waited for until now."""
        self._heard_s = now_s

    def add(self, count: int, now_s: float) -> None:
        """So many bytes came in."""
        gap_s = now_s - self._heard_s
        fade = math.exp(-gap_s / RATE_FADES_S)
        self._bytes = self._bytes * fade + count
        self._span_s = self._span_s * fade + gap_s
        self._gap_s = max(gap_s, 0.9 * self._gap_s)
        self._heard_s = now_s

    @property
    def is_sure(self) -> bool:
        """Whether the rate is that of the line."""
        return self._span_s >= RATE_SURE_S

    def rate(self, waited_s: float) -> float | None:
        """Bytes per second, after so many seconds in which nothing came; None while not known."""
        span_s = self._span_s + waited_s
        return self._bytes / span_s if self._bytes and span_s >= RATE_S_MIN else None

    def silent_s(self, now_s: float) -> float:
        """Seconds since something came."""
        return now_s - self._heard_s

    def is_silent(self, patience_s: float, now_s: float) -> bool:
        """Whether nothing came for longer than that, and longer than is usual."""
        return self.silent_s(now_s) > max(patience_s, 2 * self._gap_s)


@dataclass(slots=True)
class Donor:
    """One host that may be asked."""

    key: bytes
    is_last_resort: bool = False
    is_listed: bool = True
    is_joiner: bool = False
    """It fetches weights itself, and has some of the fragments."""
    asks: set[int] = field(default_factory=set)
    """Numbers of the requests under way."""
    holds: set[int] = field(default_factory=set)
    """Fragments whose wanted version it holds."""
    sections: dict[int, dict[Digest, int]] = field(default_factory=dict)
    """Fragment -> what it has of the two arrays of its wanted version, which it lacks as a whole:
    one bit for each section."""
    taken: int = 0
    """Chunks asked of it so far."""
    chunk_s: float | None = None
    """About how long it takes over a chunk."""
    chunks: set[int] = field(default_factory=set)
    """Numbers of those requests that are for chunks."""
    _flow: Flow = field(default_factory=Flow)
    _in_flight_max: int = IN_FLIGHT_PER_DONOR_MAX
    """Lower for a while after it was busy."""
    _lacks: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Fragment -> (when to ask again, how often it was asked in vain)."""
    _misled: set[int] = field(default_factory=set)
    """Fragments of which it lacked what it had said to have: asked ever more seldom, as if it had
    nothing new."""
    _rest_until_s: float = 0.0
    _shunned_until_s: float = 0.0
    _blamed_until_s: float = 0.0
    _failures: int = 0
    _busies: int = 0

    # Its state.

    def is_ready(self, now_s: float) -> bool:
        """Whether it may be asked for anything now."""
        return self.is_listed and now_s >= self._rest_until_s and not self.is_shunned(now_s)

    def is_shunned(self, now_s: float) -> bool:
        """Whether it failed us lately, so that nothing is expected of it."""
        return now_s < max(self._shunned_until_s, self._blamed_until_s)

    def is_unknown(self, fragment: int, now_s: float) -> bool:
        """Whether it should be asked if it holds the wanted version of this fragment."""
        return fragment not in self.holds and not self.lacks_now(fragment, now_s)

    def lacks_now(self, fragment: int, now_s: float) -> bool:
        """Whether it said so just now."""
        return now_s < self._lacks.get(fragment, (0.0, 0))[0]

    def lacked(self, fragment: int) -> bool:
        """Whether it said so when it was asked last."""
        return fragment in self._lacks

    def is_promising(self, now_s: float) -> bool:
        """Whether nothing speaks against asking it."""
        return not self._lacks and not self.is_shunned(now_s)

    @property
    def is_gone(self) -> bool:
        """Whether it has sent nothing since it could not be reached, or broke off."""
        return self._failures > 0

    # What is under way.

    def has_room(self, asked_bytes: int, now_s: float) -> bool:
        """Whether its line takes one request more, when chunks of so much are under way."""
        if len(self.asks) < IN_FLIGHT_MIN:
            return True
        useful_bytes = AHEAD_S * (self.rate(now_s) or 0.0)
        if not self._flow.is_sure:
            useful_bytes = max(useful_bytes, FIRST_BYTES)
        return len(self.asks) < self._in_flight_max and asked_bytes < useful_bytes

    def rate(self, now_s: float) -> float | None:
        """Bytes per second that it sends while it has chunks to send; None while not known."""
        return self._flow.rate(self._flow.silent_s(now_s) if self.chunks else 0.0)

    @property
    def is_sure(self) -> bool:
        """Whether its rate is that of its line."""
        return self._flow.is_sure

    def is_silent(self, patience_s: float, now_s: float) -> bool:
        """Whether chunks are asked of it and nothing has come for longer than that."""
        return bool(self.chunks) and self._flow.is_silent(patience_s, now_s)

    def is_steady(self, patience_s: float, now_s: float) -> bool:
        """Whether chunks come of it, if with long breaks."""
        return bool(self.chunks) and not self._flow.is_silent(patience_s, now_s)

    def asked(self, number: int, now_s: float, *, is_chunk: bool) -> None:
        """It is asked for something."""
        self.asks.add(number)
        if is_chunk:
            if not self.chunks:
                self._flow.begin(now_s)
            self.chunks.add(number)
            self.taken += 1

    def received(self, number: int, count: int, now_s: float) -> None:
        """So many bytes more of a request came in."""
        if number in self.chunks:
            self._flow.add(count, now_s)

    def ended(self, number: int) -> None:
        """A request is not under way any more."""
        self.asks.discard(number)
        self.chunks.discard(number)

    # What it did.

    def served(self, chunk_s: float | None) -> None:
        """It sent what was asked for; a whole chunk in so many seconds, where it was one."""
        self._failures = self._busies = 0
        if chunk_s is not None:
            self.took(chunk_s)
            self._in_flight_max = min(self._in_flight_max + 1, IN_FLIGHT_PER_DONOR_MAX)

    def took(self, chunk_s: float) -> None:
        """So long it took over a chunk, or took before somebody else was faster."""
        former_s = chunk_s if self.chunk_s is None else self.chunk_s
        self.chunk_s = 0.7 * former_s + 0.3 * chunk_s

    def hold(self, fragment: int) -> None:
        """It holds the wanted version."""
        self.holds.add(fragment)
        self.sections.pop(fragment, None)
        self._lacks.pop(fragment, None)

    def lack(self, fragment: int, now_s: float) -> None:
        """It does not hold the wanted version."""
        self.holds.discard(fragment)
        if self.sections.pop(fragment, None):
            self._misled.add(fragment)
        _, times = self._lacks.get(fragment, (0.0, 0))
        self._lacks[fragment] = (now_s + ASK_AGAIN.pause_s(times), times + 1)

    def has_sections(self, fragment: int, root: Digest, sections: int, now_s: float) -> None:
        """It does not hold the wanted version, but so much of one of its arrays, which is some."""
        self.holds.discard(fragment)
        former = self.sections.setdefault(fragment, {})
        _, times = self._lacks.get(fragment, (0.0, 0))
        before = former.pop(root, 0 if fragment not in self._misled else sections)
        times = times if before == sections else 0
        former[root] = sections  # The last one is the one that was heard of last.
        pause_s = max(SECTIONS_AGAIN_S, ASK_AGAIN.pause_s(times))
        self._lacks[fragment] = (now_s + pause_s, times + 1)

    def busy(self, now_s: float) -> None:
        """It serves as many as it may."""
        self._in_flight_max = IN_FLIGHT_MIN
        if now_s < self._rest_until_s:
            return  # Several requests, one cause.
        self._rest_until_s = now_s + BUSY.pause_s(self._busies)
        self._busies += 1
        if self._busies > len(BUSY.steps_s):
            self.shun(now_s)

    def shun(self, now_s: float) -> None:
        """It cannot be reached, or broke off."""
        if not self.is_shunned(now_s):  # Several requests, one cause.
            self._shunned_until_s = now_s + SHUN.pause_s(self._failures)
            self._failures += 1

    def back(self) -> None:
        """It can be reached again."""
        self._shunned_until_s, self._failures = 0.0, 0

    def blame(self, now_s: float) -> None:
        """It sent wrong bytes."""
        self._blamed_until_s = now_s + BLAME_S

    def forget(self, fragment: int) -> None:
        """Another version of this fragment is wanted, or none."""
        self.holds.discard(fragment)
        self.sections.pop(fragment, None)
        self._lacks.pop(fragment, None)
        self._misled.discard(fragment)
