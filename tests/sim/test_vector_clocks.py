"""What a learner's log index and versions say is what a vector clock with an entry for every worker
would say: compared with the local steps that really are in its weights, while hosts fail.

An entry of such a clock is the newest local step of one worker that is in a fragment's weights.
Sets of local steps stand for weights, so it is read off them.
"""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from protocol.snapshots.vector_clock import VectorClock
from tests.support.sets_of_steps import lose_answers, restarts, set_swarm

LOOK_EVERY_S = 1.7
LOOKS_COMPARED = 4
"""In a row, all with each other: hosts hardly ever lag behind at one moment."""


class Looks:
    """Clocks of all learners that stand still for a moment, again and again."""

    def __init__(self, swarm) -> None:
        self.swarm, self.takers = swarm, swarm.sets.backend.takers
        self.taken: list[dict[bytes, tuple[VectorClock, list[dict[bytes, int]]]]] = []
        swarm.world.after(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self.swarm.world.after(LOOK_EVERY_S, self._look)
        found = {}
        for host in self.swarm.learners:
            if host.is_up and host.trainer is not None and not host.is_void:
                clock = host.learner.peer_exchange.moments_server.clock()
                if clock is not None and host.learner.fragment_sync.is_quiet:
                    found[host.key] = clock, [self._entries(theta) for theta in host.trainer.theta]
        self.taken.append(found)

    def _entries(self, theta) -> dict[bytes, int]:
        """Of each worker: its newest local step in these weights."""
        return {self.takers[slot]: slot for slot in np.flatnonzero(theta).tolist()}


def by_version(swarm) -> list[list[dict[bytes, int]]]:
    """The same of every version of every fragment, from the log and the pushes it names."""
    history: list[list[dict[bytes, int]]] = [[{}], [{}]]
    for merged in swarm.ledger.merges:
        entries = dict(history[merged.fragment][-1])
        for part in merged.contributions:
            _, steps = swarm.sets.pushes[part.learner, part.incarnation, part.sequence]
            newest = [entries.get(part.learner, -1), *steps]
            entries[part.learner] = max(newest)
        assert merged.version == len(history[merged.fragment])
        history[merged.fragment].append(entries)
    return history


def observed(swarm, seed: int):
    looks = Looks(swarm)
    lose_answers(swarm)
    restarts(swarm, trainers=bool(seed % 2))
    swarm.world.run(90.0)
    swarm.check()
    return [found for found in looks.taken if found], by_version(swarm)


@pytest.mark.parametrize("apply", ["overwrite", "rebase"])
@pytest.mark.parametrize("seed", range(2))
def test_versions_say_what_an_entry_for_every_worker_would(seed, apply):
    looks, history = observed(set_swarm(seed, apply=apply), seed)
    compared = 0
    for found in looks:
        for me, (clock, entries) in found.items():
            for version, mine, told in zip(clock.versions, entries, history, strict=True):
                others = {worker: step for worker, step in mine.items() if worker != me}
                its = {worker: step for worker, step in told[version].items() if worker != me}
                assert others == its
                compared += len(its)
    assert compared > 100


@pytest.mark.parametrize("seed", range(2))
def test_who_has_observed_a_clock_has_all_of_its_entries_and_nobody_else(seed):
    looks, history = observed(set_swarm(seed), seed)
    answers = {True: 0, False: 0}
    for few in batched(looks, LOOKS_COMPARED):
        seen = [
            (clock.versions, without_own(me, clock, entries, history))
            for found in few
            for me, (clock, entries) in found.items()
        ]
        for (versions, mine), (other, its) in permutations(seen, 2):
            has_all = all(
                entries.get(worker, -1) >= step
                for entries, theirs in zip(mine, its, strict=True)
                for worker, step in theirs.items()
            )
            assert VectorClock(0, versions).has_observed(VectorClock(0, other)) == has_all
            answers[has_all] += 1
    assert min(answers.values()) > 50


def without_own(me, clock, entries, history):
    """What it has seen, less its own local steps that are in no merge that it has."""
    return [
        {**its, me: told[version].get(me, -1)}
        for version, its, told in zip(clock.versions, entries, history, strict=True)
    ]


def batched(looks, count):
    return [looks[at : at + count] for at in range(0, len(looks), count)]


def test_every_merge_moves_an_entry_of_its_fragment():
    """So that no two versions are alike to a vector clock."""
    _, history = observed(set_swarm(3), 3)
    for fragment in history:
        assert all(former != later for former, later in pairwise(fragment))
        assert len(fragment) > 10
