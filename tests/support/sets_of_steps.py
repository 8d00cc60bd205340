"""Swarms whose weights are sets of local steps, and what befalls their hosts and streams."""

from __future__ import annotations

from protocol.project import RoundSpec
from simulator.checkers.provenance import ProvenanceChecker
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.provenance import OUTER, ProvenanceBackend

CAPACITY = 2048


def set_swarm(seed=1, *, apply="rebase", is_uneven=False, codec="int4", **changes) -> Swarm:
    """Three learners, two fragments of sets. changes: of `build_swarm`."""
    backend = ProvenanceBackend(CAPACITY, is_uneven=is_uneven)
    swarm = build_swarm(
        seed,
        rounds=RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, apply, codec, codec),
        outer=OUTER,
        backend=backend,
        fragments=2,
        tensors_of=(2, CAPACITY),
        **changes,
    )
    swarm.sets = ProvenanceChecker(swarm.ledger, backend, swarm.learners)
    return swarm


def restarts(swarm, *, trainers=False):
    """Learners that die and come back, or their trainers."""
    for number, learner in enumerate(swarm.learners * 3):
        at_s = 30.0 + 7.0 * number
        if trainers:
            swarm.world.at(at_s, learner.lose_trainer)
        else:
            swarm.world.at(at_s, learner.crash)
            swarm.world.at(at_s + 2.0, lambda host=learner: host.is_up or host.boot())


def lose_answers(swarm):
    """Streams break while pushes are out."""
    for number in range(12):
        learner = swarm.learners[number % 3]
        at_s = 25.0 + 3.1 * number
        swarm.world.at(
            at_s,
            lambda h=learner: swarm.world.partition(h.key, swarm.syncer.key, for_s=1.0),
        )
