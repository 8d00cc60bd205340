"""Donors in virtual time, around the planner of downloads: honest, slow, dying, lying, leaving."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from node.download.assembly import Assembly
from node.download.donors import IN_FLIGHT_PER_DONOR_MAX
from node.download.planner import HELP_MAX, IN_FLIGHT_MAX, Planner, Trouble
from protocol import limits
from protocol.numerics.versions import state_manifests

LOOK_EVERY_S = 0.25
PIECES = 16
"""In which a blob arrives."""


def a_state(seed, chunks=4, is_fresh=False):
    """Value and momentum of a few chunks; of a fresh run, whose momentum is nothing but zeros."""
    rng = np.random.default_rng(seed)
    numel = int((chunks - 0.5) * limits.STATE_CHUNK_BYTES / 4)
    theta = rng.normal(size=numel).astype(np.float32)
    momentum = rng.normal(size=numel).astype(np.float32)
    return theta, np.zeros_like(theta) if is_fresh else momentum


@dataclass
class FakeDonor:
    """Who answers requests; `bytes_per_s` is its uplink, shared by all of them, piece by piece."""

    key: bytes
    bytes_per_s: float = 10e6
    delay_s: float = 0.02
    dies_s: float = float("inf")
    """Whatever is asked of it fails from now on."""
    hangs_s: float = float("inf")
    """Nothing comes from now on, and nobody says so."""
    lies: bool = False
    is_busy_until_s: float = 0.0
    blobs: dict[bytes, memoryview] = field(default_factory=dict)
    sent_bytes: int = 0
    queue: deque = field(default_factory=deque)
    """Requests that are being served, with the bytes that each still lacks."""
    is_sending: bool = False

    def hold(self, *states):
        for theta, momentum in states:
            for name, blob in state_manifests(theta, momentum).blobs(theta, momentum):
                self.blobs[name] = memoryview(blob)


class FakeNet:
    """Carries out what a planner asks for."""

    def __init__(self, donors, last_resort=None, seed=0):
        self.donors = {
            donor.key: donor for donor in [*donors, *([last_resort] * bool(last_resort))]
        }
        self.learners = [donor.key for donor in donors]
        self.last_resort = last_resort.key if last_resort else None
        self.planner = Planner(random.Random(seed))
        self.planner.know(self.learners, self.last_resort, 0.0)
        self.now_s = 0.0
        self.outcomes = []
        self.faults = []
        self.asked = []
        self._events = []
        self._count = 0
        self.cancelled = set()

    def want(self, fragment, state, version=1):
        theta, momentum = state
        digests = state_manifests(theta, momentum).digests
        assembly = Assembly(fragment, version, digests, theta.size)
        self.planner.want(assembly)
        return assembly

    def run(self, until_s=600.0):
        """Until everything wanted has come or failed; the seconds it took."""
        while not self.planner.is_idle:
            self.step()
            assert self.now_s < until_s, "the download hangs"
        return self.now_s

    def keep_knowing(self):
        """Tell the planner every five seconds who may be asked, as the daemon does."""
        self.planner.know(self.learners, self.last_resort, self.now_s)
        self.at(self.now_s + 5.0, self.keep_knowing)

    def step(self):
        planner = self.planner
        self.outcomes += planner.ended(self.now_s)
        self.cancelled.update(planner.cancelled())
        for ask in planner.asks(self.now_s):
            self.asked.append(ask)
            self._start(ask)
        self._check()
        if planner.is_idle:
            return
        look_s = self.now_s + LOOK_EVERY_S
        if self._events and self._events[0][0] <= look_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        else:
            self.now_s = look_s

    def _check(self):
        planner = self.planner
        assert len(planner.asked) <= IN_FLIGHT_MAX + HELP_MAX
        of_learners = [one for one in planner.asked.values() if one.donor != self.last_resort]
        assert len(of_learners) <= IN_FLIGHT_MAX
        by_donor = [ask.donor for ask in planner.asked.values()]
        assert all(by_donor.count(key) <= IN_FLIGHT_PER_DONOR_MAX for key in by_donor)

    def at(self, at_s, action):
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, action))

    def _start(self, ask):
        donor = self.donors[ask.donor]
        blob = donor.blobs.get(ask.digest)
        start_s = self.now_s + donor.delay_s
        if start_s >= donor.dies_s:
            return self._fail(start_s + 0.1, ask, Trouble.GONE)
        if start_s < donor.is_busy_until_s:
            return self._fail(start_s, ask, Trouble.BUSY)
        if blob is None:
            return self._fail(start_s, ask, Trouble.NOT_HELD)
        assert len(blob) == ask.length
        return self.at(start_s, lambda: self._serve(donor, ask))

    def _serve(self, donor, ask):
        donor.queue.append((ask, ask.length))
        if not donor.is_sending:
            donor.is_sending = True
            self._send(donor)

    def _send(self, donor):
        """One piece of what is first in line, which then goes to the end of it."""
        while donor.queue and donor.queue[0][0].number in self.cancelled:
            donor.queue.popleft()
        donor.is_sending = bool(donor.queue)
        if not donor.queue:
            return
        ask, left = donor.queue[0]
        piece = min(left, -(-ask.length // PIECES))
        ends_s = self.now_s + piece / donor.bytes_per_s
        if ends_s >= donor.hangs_s:
            return
        if ends_s >= donor.dies_s:
            for cut, _ in donor.queue:
                self._fail(max(self.now_s, donor.dies_s), cut, Trouble.GONE)
            donor.queue.clear()
            donor.is_sending = False
            return
        self.at(ends_s, lambda: self._sent(donor, piece))

    def _sent(self, donor, piece):
        ask, left = donor.queue.popleft()
        if ask.number not in self.cancelled:
            donor.sent_bytes += piece
            self.planner.received(ask.number, piece, self.now_s)
        if left > piece:
            donor.queue.append((ask, left - piece))
        elif donor.lies:
            self._fail(self.now_s, ask, Trouble.WRONG)
        elif ask.number not in self.cancelled:
            self.planner.arrived(ask.number, donor.blobs[ask.digest], self.now_s)
        self._send(donor)

    def _fail(self, at_s, ask, trouble):
        def tell():
            if trouble is Trouble.WRONG:
                self.faults.append(ask.donor)
            if ask.number not in self.cancelled:
                self.planner.failed(ask.number, trouble, trouble.value, self.now_s)

        self.at(at_s, tell)


def is_whole(assembly, state):
    """Whether an assembly came out as this state, bit for bit."""
    return all(
        mine.tobytes() == theirs.tobytes()
        for mine, theirs in zip(assembly.arrays(), state, strict=True)
    )
