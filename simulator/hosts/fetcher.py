"""Downloads of weights in virtual time: the planner that the daemon uses, with virtual IO."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from host.bulk.blob_store import BlobStore
from node.download.assembly import Assembly
from node.download.planner import Ask, Planner, Trouble
from node.machine.jobs import FetchState
from simulator.virtual.world import World

LOOK_EVERY_S = 0.25
KNOW_EVERY_S = 5.0


class SimFetcher:
    """All downloads of one life of a learner."""

    def __init__(
        self,
        world: World,
        key: bytes,
        rng: random.Random,
        *,
        is_alive: Callable[[], bool],
        donors: Callable[[], tuple[list[bytes], bytes | None]],
        reach: Callable[[bytes], BlobStore | None],
        newest: Callable[[int], int],
    ) -> None:
        """These are the downloads of `key`. `donors` names learners and the syncer; `reach` gives
        what a host offers, if it is up.
        """
        self.world = world
        self.key = key
        self.planner = Planner(rng)
        self._is_alive = is_alive
        self._donors = donors
        self._reach = reach
        self._newest = newest
        self._assemblies: dict[int, Assembly] = {}
        self._answers: dict[int, Callable[[Assembly | str], None]] = {}
        self._known_s = -KNOW_EVERY_S

    def fetch(self, job: FetchState, numel: int, answer: Callable[[Assembly | str], None]) -> None:
        """Answers once, with the complete state or the reason why there is none."""
        assembly = self._assemblies.get(job.fragment)
        if assembly is None or assembly.state != job.state:
            assembly = Assembly(job.fragment, job.version, job.state, numel)
            self._assemblies[job.fragment] = assembly
        was_idle = self.planner.is_idle
        self.planner.want(assembly)
        self._answers[job.fragment] = answer
        if was_idle:
            self.world.after(0.0, self._tick)

    def _tick(self) -> None:
        if not self._is_alive() or self.planner.is_idle:
            return
        if self.world.now_s - self._known_s >= KNOW_EVERY_S:
            self._known_s = self.world.now_s
            self.planner.know(*self._donors(), self.world.now_s)
        self._look()
        self.world.after(LOOK_EVERY_S, self._tick)

    def _look(self) -> None:
        planner, now_s = self.planner, self.world.now_s
        for fragment in self._answers:
            planner.supersede(fragment, self._newest(fragment))
        for assembly, trouble in planner.ended(now_s):
            answer = self._answers.pop(assembly.fragment)
            if trouble is None:
                del self._assemblies[assembly.fragment]
            # Told later: an answer may ask for the next download.
            self.world.after(0.0, partial(answer, assembly if trouble is None else trouble))
        planner.cancelled()
        for ask in planner.asks(now_s):
            delay_s = self.world.transfer_s(ask.donor, self.key, ask.length)
            self.world.after(delay_s, partial(self._finish, ask))

    def _finish(self, ask: Ask) -> None:
        if not self._is_alive():
            return
        now_s, blob_store = self.world.now_s, self._reach(ask.donor)
        if blob_store is None:
            self.planner.failed(ask.number, Trouble.GONE, "unreachable", now_s)
        else:
            blob = blob_store.get(ask.digest)
            if blob is None:
                self.planner.failed(ask.number, Trouble.NOT_HELD, "not held", now_s)
            else:
                self.planner.received(ask.number, ask.length, now_s)
                self.planner.arrived(ask.number, blob, now_s)
        self._look()
