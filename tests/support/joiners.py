"""Joiners of one swarm in virtual time: each has the daemon's planner, and gives what it has.

Every host has a line up and a line down; what it sends or gets waits there, piece by piece, in the
order in which it came. A joiner offers every chunk that is there, and is listed in the swarm's
table from the first one on, as what holds some.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from node.download.assemblies import Assemblies
from node.download.assembly import F32, Assembly
from node.download.planner import Ask, Planner, Trouble
from node.machine.jobs import FetchState
from protocol.ids import Digest
from protocol.numerics.chunks import ALL_SECTIONS
from protocol.numerics.versions import state_manifests
from tests.support.donors import LOOK_EVERY_S, is_whole

KNOW_EVERY_S = 5.0
PIECES = 4
"""In which a chunk arrives."""

State = tuple[F32, F32]


@dataclass(slots=True)
class Way:
    """One direction of a line: what it carries waits for what came before."""

    bytes_per_s: float
    free_s: float = 0.0
    carried_bytes: int = 0

    def carry(self, count: int, now_s: float) -> float:
        """When so much has passed."""
        self.free_s = max(now_s, self.free_s) + count / self.bytes_per_s
        self.carried_bytes += count
        return self.free_s


@dataclass(eq=False, slots=True)
class Host:
    """Whoever may be asked."""

    key: bytes
    up: Way
    down: Way
    blobs: dict[Digest, memoryview] = field(default_factory=dict)
    serving: list[tuple[Joiner, Ask, int]] = field(default_factory=list)
    """Requests in turn, with the bytes that each still lacks."""
    is_sending: bool = False

    def hold(self, state: State) -> None:
        """It gives this one from now on."""
        theta, momentum = state
        for name, blob in state_manifests(theta, momentum).blobs(theta, momentum):
            self.blobs[name] = memoryview(blob)

    def held_sections(self, root: Digest) -> int:
        """What it has of an array that it does not hold as a whole."""
        return 0


class Liar(Host):
    """Says that it has every section of everything, and gives nothing."""

    def held_sections(self, root: Digest) -> int:
        return ALL_SECTIONS


@dataclass(eq=False, slots=True)
class Joiner(Host):
    """Whoever wants everything."""

    planner: Planner = field(default_factory=lambda: Planner(random.Random(0)))
    begun: Assemblies = field(default_factory=Assemblies)
    assemblies: list[Assembly] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    done_s: float | None = None
    listed_s: float | None = None
    """When the table named it first."""
    look_s: float = -1.0
    """When it looks next, at the latest."""

    def held_sections(self, root: Digest) -> int:
        return self.begun.held_sections(root)


class Crowd:
    """A syncer, learners that hold everything, and joiners that come all at once."""

    def __init__(
        self,
        states: Sequence[State],
        joiners: int,
        *,
        learners: int = 0,
        liars: int = 0,
        syncer_bytes_per_s: float,
        up_bytes_per_s: float,
        down_bytes_per_s: float,
        delay_s: float = 0.05,
        gives: bool = True,
        scale: int = 1,
        seed: int = 0,
    ) -> None:
        """gives: whether joiners give what they have. scale: a byte of a chunk stands for so many,
        and one of a manifest, which gets no shorter with its chunks, for one."""
        self.states, self.delay_s, self.now_s = states, delay_s, 0.0
        self._scale = scale
        self._gives = gives
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        lines = up_bytes_per_s, down_bytes_per_s
        self.syncer = Host(b"syncer", Way(syncer_bytes_per_s), Way(syncer_bytes_per_s))
        self.learners = [Host(b"learner %d" % at, *map(Way, lines)) for at in range(learners)]
        self.joiners = [
            Joiner(
                b"joiner %d" % at,
                *map(Way, lines),
                planner=Planner(random.Random(f"joiner {at} {seed}"), b"joiner %d" % at),
            )
            for at in range(joiners)
        ]
        self.liars = [Liar(b"liar %d" % at, *map(Way, lines)) for at in range(liars)]
        hosts = (self.syncer, *self.learners, *self.liars, *self.joiners)
        self.hosts = {one.key: one for one in hosts}
        for one in (self.syncer, *self.learners):
            for state in states:
                one.hold(state)
        for one in self.joiners:
            self._begin(one)

    def _begin(self, one: Joiner) -> None:
        for fragment, (theta, momentum) in enumerate(self.states):
            job = FetchState(fragment, 1, state_manifests(theta, momentum).digests)
            one.assemblies.append(one.begun.begin(job, theta.size))
            one.planner.want(one.assemblies[-1])
        self._know(one)
        self._look(one)

    def run(self, until_s: float) -> float:
        """Until everybody has everything, bit for bit; the seconds that it took."""
        while any(one.done_s is None for one in self.joiners):
            self.now_s, _, action = heapq.heappop(self._events)
            assert self.now_s < until_s, "the downloads hang"
            action()
        for one in self.joiners:
            for assembly, state in zip(one.assemblies, self.states, strict=True):
                assert is_whole(assembly, state)
        return max(one.done_s or 0.0 for one in self.joiners)

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do this then."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, action))

    # What each joiner does.

    def _know(self, one: Joiner) -> None:
        if one.done_s is not None:
            return
        learners = [host.key for host in self.learners]
        others = [
            other.key
            for other in self.joiners
            if self._gives and other is not one and other.listed_s is not None
        ] + [liar.key for liar in self.liars]
        one.planner.know(learners, self.syncer.key, self.now_s, joiners=others)
        self.at(self.now_s + KNOW_EVERY_S, partial(self._know, one))

    def _look(self, one: Joiner) -> None:
        planner = one.planner
        for assembly, trouble in planner.ended(self.now_s):
            assert trouble is None, trouble
            one.hold(self.states[assembly.fragment])
        one.cancelled.update(planner.cancelled())
        for ask in planner.asks(self.now_s):
            self.at(self.now_s + self.delay_s, partial(self._serve, one, ask))
        if planner.is_idle:
            one.done_s = self.now_s
        elif one.look_s <= self.now_s:
            one.look_s = self.now_s + LOOK_EVERY_S
            self.at(one.look_s, partial(self._look, one))

    # What each host does.

    def _serve(self, one: Joiner, ask: Ask) -> None:
        host = self.hosts[ask.donor]
        if ask.digest not in host.blobs:
            sections = host.held_sections(ask.digest)
            self.at(self.now_s + self.delay_s, partial(self._lacks, one, ask, sections))
            return
        length = -(-ask.length // self._scale) if ask.is_manifest else ask.length
        host.serving.append((one, ask, length))
        if not host.is_sending:
            self._send(host)

    def _lacks(self, one: Joiner, ask: Ask, sections: int) -> None:
        if ask.number not in one.cancelled:
            one.planner.failed(ask.number, Trouble.NOT_HELD, "not held", self.now_s, sections)
            self._look(one)

    def _send(self, host: Host) -> None:
        """A piece of what is first in turn, which goes to the end of it."""
        while host.serving and host.serving[0][1].number in host.serving[0][0].cancelled:
            host.serving.pop(0)
        host.is_sending = bool(host.serving)
        if not host.serving:
            return
        one, ask, left = host.serving.pop(0)
        piece = min(left, -(-ask.length // PIECES))
        if left > piece:
            host.serving.append((one, ask, left - piece))
        sent_s = host.up.carry(piece, self.now_s)
        is_last = left == piece
        self.at(sent_s, partial(self._send, host))
        self.at(sent_s + self.delay_s, partial(self._arrive, one, ask, piece, is_last=is_last))

    def _arrive(self, one: Joiner, ask: Ask, piece: int, *, is_last: bool) -> None:
        self.at(
            one.down.carry(piece, self.now_s), partial(self._came, one, ask, piece, is_last=is_last)
        )

    def _came(self, one: Joiner, ask: Ask, piece: int, *, is_last: bool) -> None:
        if ask.number in one.cancelled:
            return
        one.planner.received(ask.number, piece, self.now_s)
        if is_last:
            blob = self.hosts[ask.donor].blobs[ask.digest]
            one.planner.arrived(ask.number, blob, self.now_s)
            if not ask.is_manifest:
                one.blobs[ask.digest] = blob
                one.listed_s = self.now_s if one.listed_s is None else one.listed_s
            self._look(one)
