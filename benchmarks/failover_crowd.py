"""How soon hundreds of learners merge again once their leader is killed, and how they come back.

    python benchmarks/failover_crowd.py [--learners 256] [--kills 10] [--json failover-crowd.json]

The machines themselves in virtual time: three syncers, learners with a local step of a second, and
a network of 30 ms. Again and again the leader is ended where it stands; half a minute later it is
started anew. Looked at are the time until a new leader has something merged, until all learners
have a session there, and how many sessions open within one tenth of a second at most, which is what
a stampede would be. Answers cost no time here, so the processor's seconds that the new leader's
machine took from its election until then are told beside it: these are real, of this machine.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from msgspec import structs

from protocol import machine
from protocol.project import LimitSpec
from protocol.trace import FragmentCommitted, SessionOpened
from simulator.hosts.syncer import SimSyncer
from simulator.scale.machines import rounds
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.virtual.network import NetworkModel
from simulator.virtual.nodes import SpeedModel

SYNCERS = 3
SETTLE_S = 60.0
"""For everybody to join, and after each return."""

AWAY_S = 30.0
GIVEN_UP_S = 120.0
WINDOW_S = 0.1


@dataclass(frozen=True, slots=True)
class Failover:
    """What one kill cost, in virtual seconds from it unless a name says otherwise."""

    merged_s: float
    all_back_s: float
    half_back_s: float
    at_once: int
    """Sessions that opened within `WINDOW_S`, at most."""
    processor_s: float
    """That the new leader's machine took until all were back."""


class Timed:
    """How long a syncer's machine takes for what it is told, on this machine's clock."""

    def __init__(self, host: SimSyncer) -> None:
        self.took_s = 0.0
        self._take = host.take
        host.take = self.take  # type: ignore[method-assign]

    def take(self, event: machine.Event) -> None:
        began_s = time.process_time()
        self._take(event)
        self.took_s += time.process_time() - began_s


def swarm_of(learners: int, seed: int) -> Swarm:
    """Its rounds ask as many as a large project would."""
    spec = structs.replace(
        rounds(max(1, learners // 8), 0.9), eligible="cycle", participants_max=64, patience_s=30.0
    )
    return build_swarm(
        seed,
        syncers=SYNCERS,
        speeds=(SpeedModel(1.0),) * learners,
        rounds=spec,
        limits=LimitSpec(10**12, learners, 10**6, 8, 3600.0, 256),
        network=NetworkModel(0.03, 0.01, 12.5e6),
        join_s=20.0,
    )


def kill(swarm: Swarm, timed: dict[bytes, Timed]) -> Failover:
    """The leader ends, and later comes back. AssertionError where nothing merges again in time."""
    world, dead = swarm.world, swarm.syncer
    began_s, learners = world.now_s, len(swarm.learners)
    facts = len(world.facts)
    before = {key: one.took_s for key, one in timed.items()}
    dead.crash()
    opened: list[float] = []
    merged_s = all_back_s = 0.0
    while not (merged_s and all_back_s):
        assert world.now_s < began_s + GIVEN_UP_S, (merged_s, len(opened))
        world.run(world.now_s + 0.5)
        leader = swarm.syncer.key if swarm.syncer is not dead else None
        since = [
            (at_s - began_s, fact) for at_s, source, fact in world.facts[facts:] if source == leader
        ]
        opened = sorted(at_s for at_s, fact in since if isinstance(fact, SessionOpened))
        led_s = opened[0] if opened else GIVEN_UP_S
        merges = (at for at, fact in since if isinstance(fact, FragmentCommitted) and at > led_s)
        merged_s = next(merges, 0.0)
        all_back_s = opened[learners - 1] if len(opened) >= learners else 0.0
    processor_s = timed[swarm.syncer.key].took_s - before[swarm.syncer.key]
    world.run(max(world.now_s, began_s + AWAY_S))
    dead.revive()
    world.run(world.now_s + SETTLE_S)
    return Failover(merged_s, all_back_s, opened[learners // 2], _at_once(opened), processor_s)


def _at_once(opened: Sequence[float]) -> int:
    return max(bisect_left(opened, at_s + WINDOW_S) - at for at, at_s in enumerate(opened))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=256)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    case = parser.parse_args()
    swarm, chance = swarm_of(case.learners, case.seed), random.Random(case.seed)
    timed = {host.key: Timed(host) for host in swarm.syncers}
    swarm.world.run(SETTLE_S)
    found = []
    for number in range(case.kills):
        swarm.world.run(swarm.world.now_s + chance.uniform(0.0, 10.0))
        one = kill(swarm, timed)
        found.append(one)
        print(
            f"kill {number + 1}: merged again after {one.merged_s:.1f} s, half of"
            f" {case.learners} back after {one.half_back_s:.1f} s, all after"
            f" {one.all_back_s:.1f} s, at most {one.at_once} within {WINDOW_S} s; the"
            f" leader's machine took {one.processor_s:.2f} s of processor",
            flush=True,
        )
    swarm.check()
    merged = sorted(one.merged_s for one in found)
    print(
        f"merged again after {median(merged):.1f} s in the middle,"
        f" {merged[min(len(merged) - 1, int(0.95 * len(merged)))]:.1f} s in 95 % of"
        f" {len(merged)} kills; nothing lost"
    )
    if case.json is not None:
        case.json.write_text(json.dumps([asdict(one) for one in found], indent=2))


if __name__ == "__main__":
    main()
