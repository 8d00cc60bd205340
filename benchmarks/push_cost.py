"""What a push costs the syncer's machine, with few learners and with many.

    python benchmarks/push_cost.py [--learners 4,64,256] [--rounds 2] [--profile N]

The machines are the daemons', in virtual time (`simulator`): every learner trains, all are asked in
each round, and trust is earned. Counted is the processor time of the syncer's `handle`, which is
its Python apart from transfers: judging headers, rounds and pacing, leases, the log, and the log
told to everybody. Signatures are stood in for. Prints one line for each number of learners, with
the ratio to the first.

`--profile N` shows the N functions that took most, for the last number of learners.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import pstats
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from unittest import mock

from msgspec import structs

from protocol.machine import Effect, Event, JobDone, Received
from protocol.project import OuterSpec, RoundSpec
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.tiny import LIMITS
from simulator.virtual.network import NetworkModel
from syncer_node.machine.syncer import SyncerMachine

FRAGMENTS = 8
STEP_S = 0.5


@dataclass(slots=True)
class Meter:
    """Processor seconds of one machine, by what it was told."""

    profile: cProfile.Profile | None
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    events: Counter[str] = field(default_factory=Counter)

    def handle(self, machine: SyncerMachine, event: Event, now_s: float) -> list[Effect]:
        """In the place of the machine's own."""
        begun_s = time.process_time()
        if self.profile is not None:
            self.profile.enable()
        made = SyncerMachine.handle(machine, event, now_s)
        if self.profile is not None:
            self.profile.disable()
        name = _name(event)
        self.seconds[name] += time.process_time() - begun_s
        self.events[name] += 1
        return made


def _name(event: Event) -> str:
    match event:
        case Received(_, message):
            return type(message).__name__
        case JobDone(_, result):
            return type(result).__name__
    return type(event).__name__


def swarm_of(learners: int) -> Swarm:
    """So many that train, past the first merges."""
    swarm = build_swarm(
        1,
        steps_s=(STEP_S,) * learners,
        rounds=RoundSpec(8, 4, learners, 0.9, 0.5, 20.0, 20.0, "overwrite", "int4", "int4"),
        limits=structs.replace(LIMITS, tokens=10**12, learners=1024),
        outer=OuterSpec(0.7, 0.5, 3.0, trust="earned"),
        fragments=FRAGMENTS,
        join_s=5.0,
        network=NetworkModel(bytes_per_s=1e8),
    )
    while swarm.merges < FRAGMENTS:
        swarm.world.run(swarm.world.now_s + 1.0)
    return swarm


def measure(learners: int, rounds: int, profile: cProfile.Profile | None) -> float:
    """Microseconds of a push; prints what they were spent on."""
    swarm, meter = swarm_of(learners), Meter(profile)
    machine = swarm.syncer.syncer
    assert machine.leadership is not None, "it led for a whole cycle"
    outcomes, former = machine.leadership.rounds.outcomes, swarm.merges
    before = sum(outcomes.values())
    with mock.patch.object(
        machine, "handle", side_effect=lambda *told: meter.handle(machine, *told)
    ):
        while swarm.merges < former + rounds * FRAGMENTS:
            swarm.world.run(swarm.world.now_s + 0.5)
    pushes = sum(outcomes.values()) - before
    cost_us = 1e6 * sum(meter.seconds.values()) / pushes
    parts = ", ".join(
        f"{name} {1e6 * seconds / pushes:.0f}"
        for name, seconds in heapq.nlargest(5, meter.seconds.items(), key=lambda one: one[1])
    )
    print(f"{learners:5d} learners {pushes:6d} pushes {cost_us:7.0f} us each: {parts}", flush=True)
    return cost_us


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", default="4,64,256", help="how many; several with commas")
    parser.add_argument("--rounds", type=int, default=1, help="merges of every fragment")
    parser.add_argument("--profile", type=int, default=0, metavar="N")
    chosen = parser.parse_args()
    counts = [int(word) for word in chosen.learners.split(",")]
    first = 0.0
    for learners in counts:
        profile = cProfile.Profile() if chosen.profile and learners == counts[-1] else None
        # With few learners a cycle has few pushes.
        rounds = chosen.rounds * max(1, 64 // learners)
        cost_us = measure(learners, rounds, profile)
        first = first or cost_us
        print(f"      {cost_us / first:.2f} of the first", flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(chosen.profile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
