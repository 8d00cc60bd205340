"""Simulated swarms whose snapshots are judged from the outside."""

from __future__ import annotations

from protocol.project import RoundSpec
from simulator.stand_ins.provenance import OUTER, ProvenanceBackend, ProvenanceChecker
from simulator.swarm.snapshots import SnapshotChecker, restore, take
from simulator.swarm.swarm import build_swarm
from simulator.virtual.network import NetworkModel

CAPACITY = 128 * 16
BACK_S = 90.0
"""After going back: trainers start anew, and merge again."""


def watched(seed, *, apply="rebase", steps_s=(0.3, 0.4, 0.9), network=None, syncers=1):
    """A swarm of sets of local steps, and the judge of its snapshots."""
    rounds = RoundSpec(4, 2, 1, 0.9, 0.5, 20.0, 20.0, apply, "int8", "int8")
    backend = ProvenanceBackend(CAPACITY)
    swarm = build_swarm(
        seed,
        syncers=syncers,
        steps_s=steps_s,
        rounds=rounds,
        backend=backend,
        outer=OUTER,
        fragments=3,
        tensors_of=(3, CAPACITY),
        network=network or NetworkModel(),
    )
    swarm.sets = ProvenanceChecker(swarm.ledger, backend, swarm.learners)
    swarm.cuts = SnapshotChecker(swarm)
    return swarm


def take_at(swarm, *times_s):
    for time_s in times_s:
        swarm.world.at(time_s, lambda: take(swarm))


def go_back(swarm, manifest):
    """Restore, and let the swarm merge for a while."""
    charter = restore(swarm, swarm.cuts, manifest)
    swarm.world.run(swarm.world.now_s + BACK_S)
    swarm.check()
    return charter
