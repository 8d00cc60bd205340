"""How merged payloads reach many learners: the learners' own rule, on lines of a given speed.

What runs is `node.download.payload_donors`, one hunt for each learner and payload, over the
simulator's network: every host has one line each way, on which transfers queue. Rounds come at a
fixed pace, with so many learners in each, whose pushes share the lines. Nothing is trained, and
records are bytes on the syncers' lines: with thousands of learners the machines themselves would
take hours.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from host.bulk.giving import Giving
from node.download.payload_donors import (
    PayloadDonors,
    PayloadHunt,
    donors_at,
    order,
)
from protocol.limits import SYNCER_COPIES
from simulator.virtual.network import AccessLink, NetworkModel
from simulator.virtual.world import World
from syncer_node.machine.telling.followers import WHOLE_LOGS

CONTRIBUTION_BYTES: Final = 142
"""Of a contribution behind a record, measured with full ones."""

BRIEF_BYTES: Final = 668
"""Of the record of a merge in brief, with the votes of three voters."""

NOBODY: Final = b"all learners"

BYTES_PER_S_OF_MBPS: Final = 125e3

BITS: Final = 4.125
"""Of a parameter in a payload."""

OPENING_MERGES: Final = 4
"""That are not counted: learners know no usual time yet."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who is there, and what is sent."""

    learners: int = 1000
    syncers: int = 1
    """Each merges its share of the fragments; the first of them sends the records."""
    parameters: float = 1e8
    fragments: int = 24
    participants: int = 64
    """Learners in a merge."""
    merge_s: float = 2.0
    """Between two merges."""
    merges: int = 24
    up_mbps: float = 20.0
    down_mbps: float = 100.0
    syncer_gbps: float = 1.0
    away: float = 0.0
    """Share of the learners that the log has and that are gone."""
    liars: float = 0.0
    """Share that never gives anything, and always says that it soon will."""

    @property
    def payload_bytes(self) -> int:
        return round(self.parameters / self.fragments * BITS / 8)

    def told_bytes(self, learners: int) -> int:
        """Of one merge's record, to so many: whole to those in it and to whole logs."""
        whole = min(learners, self.participants + WHOLE_LOGS)
        return learners * BRIEF_BYTES + whole * CONTRIBUTION_BYTES * self.participants


@dataclass(slots=True)
class Spreading:
    """What became of one payload."""

    begun_s: float
    held_s: list[float] = field(default_factory=list)
    """Seconds after the merge, of each learner that has it, as they come."""
    copies: int = 0
    """Sent by syncers."""


@dataclass(frozen=True, slots=True)
class Found:
    """Over all merges that count."""

    learners: int
    syncers: int
    copies: float
    """Of a payload that syncers send, mean."""
    copies_max: int
    median_s: float
    last_s: float
    """Until the last learner has a payload, mean over merges."""
    last_max_s: float
    up_copies_max: float
    """Of the learner that gave most, for each merge."""
    syncer_busy: float
    """Share of the first syncer's line: payloads, and records for everybody."""
    alone_s: float
    """Of a syncer's line, if it sent a payload to everybody."""
    missing: int
    """Payloads that somebody never had."""


class _Learner:
    """One learner: what it holds, and how long that usually takes."""

    def __init__(self, key: bytes, bytes_per_s: float, *, is_liar: bool) -> None:
        self.key, self.is_liar = key, is_liar
        self.giving = Giving(bytes_per_s)
        self.held: set[int] = set()
        self.donors = PayloadDonors(key)


@dataclass(slots=True)
class _Fetch:
    """One learner's search for one payload."""

    number: int
    learner: _Learner
    syncer: bytes
    hunt: PayloadHunt
    looks: int = 0


class _Run:
    """A crowd in virtual time."""

    def __init__(self, crowd: Crowd, seed: int) -> None:
        self.crowd, self.chance = crowd, random.Random(f"spread {seed}")
        self.world = World(seed, NetworkModel(latency_s=0.03, jitter_s=0.01))
        self.given: Counter[bytes] = Counter()
        self.payloads: list[Spreading] = []
        self.syncers = [self._key("syncer", at) for at in range(crowd.syncers)]
        keys = [self._key("learner", at) for at in range(crowd.learners)]
        gone = set(self.chance.sample(keys, round(crowd.away * len(keys))))
        liars = set(self.chance.sample(keys, round(crowd.liars * len(keys))))
        self.known = keys
        rate = crowd.up_mbps * BYTES_PER_S_OF_MBPS
        here = (key for key in keys if key not in gone)
        self.here = {key: _Learner(key, rate, is_liar=key in liars) for key in here}
        line = AccessLink(rate, crowd.down_mbps * BYTES_PER_S_OF_MBPS)
        fast = AccessLink(crowd.syncer_gbps * 125e6, crowd.syncer_gbps * 125e6)
        self.world.wires.links[NOBODY] = AccessLink(1e12, 1e12)
        links = self.world.wires.links
        links.update({key: line for key in keys} | {key: fast for key in self.syncers})

    @staticmethod
    def _key(kind: str, at: int) -> bytes:
        return random.Random(f"{kind} {at}").randbytes(32)

    def run(self) -> Found:
        """All merges, and what is on its way behind the last."""
        for number in range(self.crowd.merges):
            self.world.at(number * self.crowd.merge_s, partial(self._merge, number))
        self.world.run(self.crowd.merges * self.crowd.merge_s + 120.0)
        return self._found()

    def _merge(self, number: int) -> None:
        """A record goes to everybody, one after the other; some hand in for a later one."""
        crowd, world = self.crowd, self.world
        self.payloads.append(Spreading(world.now_s))
        syncer = self.syncers[number % crowd.syncers]
        ranks = order(self.chance.randbytes(32), self.known)
        for key in self.chance.sample(sorted(self.here), min(crowd.participants, len(self.here))):
            world.transfer_s(key, syncer, crowd.payload_bytes)
        # Control messages go first; together they take their time of the line.
        told_s = world.transfer_s(self.syncers[0], NOBODY, crowd.told_bytes(len(self.here)))
        for rank, key in enumerate(ranks):
            if key in self.here:
                asked = donors_at(ranks, rank) if len(ranks) > SYNCER_COPIES else ()
                begin = partial(self._begin, number, self.here[key], syncer, asked, rank)
                world.after(self.chance.random() * told_s, begin)

    def _begin(
        self, number: int, learner: _Learner, syncer: bytes, asked: tuple[bytes, ...], rank: int
    ) -> None:
        hunt = PayloadHunt.of(asked, learner.donors.patience_s(rank), self.world.now_s)
        self._look(_Fetch(number, learner, syncer, hunt))

    def _look(self, fetch: _Fetch, looks: int | None = None) -> None:
        """Asks whoever is due, and comes again. looks: None, or what it was when this was planned;
        something happened since then if there were more."""
        world, now_s, hunt = self.world, self.world.now_s, fetch.hunt
        if fetch.number in fetch.learner.held or looks not in (None, fetch.looks):
            return
        if hunt.is_over(now_s):
            self.payloads[fetch.number].copies += 1
            self._send(fetch.syncer, fetch)
            return
        for key in hunt.asks(now_s):
            donor = self.here.get(key)
            if donor is not None and self._gives(donor, fetch):
                self.given[key] += 1
                self._send(key, fetch)
            else:
                is_here = donor is not None
                world.after(2 * world.delay_s(), partial(self._failed, fetch, key, is_here))
        fetch.looks += 1
        world.at(hunt.deadline_s(now_s), partial(self._look, fetch, fetch.looks))

    def _gives(self, donor: _Learner, fetch: _Fetch) -> bool:
        if fetch.number not in donor.held or donor.is_liar:
            return False
        to, payload = fetch.learner.key, fetch.number.to_bytes(8, "big")
        return donor.giving.may_give(to, payload, self.crowd.payload_bytes, self.world.now_s)

    def _send(self, source: bytes, fetch: _Fetch) -> None:
        took_s = self.world.transfer_s(source, fetch.learner.key, self.crowd.payload_bytes)
        self.world.after(took_s, partial(self._came, fetch))

    def _failed(self, fetch: _Fetch, key: bytes, is_here: bool) -> None:
        fetch.hunt.failed(key, self.world.now_s, is_waiting=is_here)
        self._look(fetch)

    def _came(self, fetch: _Fetch) -> None:
        learner, now_s = fetch.learner, self.world.now_s
        if fetch.number in learner.held:
            return
        learner.held.add(fetch.number)
        learner.donors.held(fetch.hunt, now_s)
        spreading = self.payloads[fetch.number]
        spreading.held_s.append(now_s - spreading.begun_s)

    def _found(self) -> Found:
        crowd = self.crowd
        counted = self.payloads[min(OPENING_MERGES, len(self.payloads) - 1) :]
        lasts = [one.held_s[-1] if one.held_s else math.inf for one in counted]
        copies = [one.copies for one in counted]
        mean_copies = sum(copies) / len(copies)
        sent = mean_copies / crowd.syncers * crowd.payload_bytes
        sent += crowd.told_bytes(len(self.here))
        return Found(
            learners=crowd.learners,
            syncers=crowd.syncers,
            copies=mean_copies,
            copies_max=max(copies),
            median_s=sum(statistics.median(one.held_s) for one in counted) / len(counted),
            last_s=sum(lasts) / len(lasts),
            last_max_s=max(lasts),
            up_copies_max=max(self.given.values(), default=0) / crowd.merges,
            syncer_busy=sent / (crowd.merge_s * crowd.syncer_gbps * 125e6),
            alone_s=crowd.payload_bytes * len(self.here) / (crowd.syncer_gbps * 125e6),
            missing=sum(len(one.held_s) < len(self.here) for one in counted),
        )


def spread(crowd: Crowd, seed: int = 1) -> Found:
    """Lets so many merges reach everybody."""
    return _Run(crowd, seed).run()
