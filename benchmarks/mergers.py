"""Full syncs a minute, and bytes on the busiest line, with several syncers on lines of their own.

    python benchmarks/mergers.py --json mergers.json

The machines themselves in virtual time: tensors are tiny, and what is sent takes as long as in a
model of the wanted size. Each syncer has a line of 100 Mbit/s, each way, and so has each learner.
All learners are in every merge, so that a merge costs its merger as many bytes whoever it is. Bytes
are those of pushes and payloads; control messages are not counted. A full sync is a merge of every
fragment. All figures are of one run each, and what counts is their ratio to those of one syncer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec import structs

from protocol.numerics.payload_sizes import payload_bytes
from protocol.project import LimitSpec
from protocol.trace import MergerAssigned, MergerFailed
from simulator.scale.machines import SizedWorld, rounds
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.tiny import TENSOR_ELEMENTS
from simulator.virtual.network import AccessLink, NetworkModel
from simulator.virtual.nodes import SpeedModel

SETTLE_S = 240.0
"""Of full size, before anything is counted."""


class CountingWorld(SizedWorld):
    """One that counts what each host sends and gets in bulk."""

    def __init__(self, seed: int, network: NetworkModel) -> None:
        super().__init__(seed, network)
        self.bytes_of: Counter[bytes] = Counter()

    def transfer_s(self, source: bytes, target: bytes, size_bytes: int) -> float:
        size = round(size_bytes * self.factor)
        self.bytes_of[source] += size
        self.bytes_of[target] += size
        return super().transfer_s(source, target, size_bytes)


@dataclass(frozen=True, slots=True)
class Measured:
    syncers: int
    syncs_per_minute: float
    pushes_per_merge: float
    largest_share: float
    """Of the bytes of all syncers' lines, that of the busiest."""
    moves: int
    """Fragments that went to another merger while it was measured."""
    failures: int


def swarm_of(syncers: int, case: argparse.Namespace) -> tuple[Swarm, CountingWorld]:
    """Its hosts on lines that do not matter yet."""
    world = CountingWorld(case.seed, NetworkModel(0.02, 0.005, 1e12))
    spec = structs.replace(
        rounds(case.learners, 0.9),
        local_steps=case.local_steps,
        overlap_steps=case.overlap,
        patience_s=600.0,
        pull_timeout_s=600.0,
        mergers_max=0,
    )
    swarm = build_swarm(
        case.seed,
        syncers=syncers,
        speeds=(SpeedModel(case.step_s),) * case.learners,
        rounds=spec,
        limits=LimitSpec(10**12, case.learners, 10**6, 8, 3600.0, 256),
        fragments=case.fragments,
        tensors_of=(case.fragments, TENSOR_ELEMENTS),
        join_s=1.0,
        world=world,
    )
    return swarm, world


def measure(syncers: int, case: argparse.Namespace) -> Measured:
    """One swarm. Raises Violation where anything was merged that must not be."""
    swarm, world = swarm_of(syncers, case)
    world.run(30.0 * case.step_s)
    bytes_per_s = case.mbps * 1e6 / 8
    for host in (*swarm.syncers, *swarm.learners):
        world.wires.links[host.key] = AccessLink(bytes_per_s, bytes_per_s)
    numel = swarm.learners[0].layout.fragments[0].numel
    wanted = payload_bytes("int4", round(case.parameters / case.fragments / 128) * 128)
    world.factor = wanted / payload_bytes("int4", numel)
    world.run(world.now_s + SETTLE_S)
    began_s, merges = world.now_s, swarm.merges
    world.bytes_of.clear()
    world.run(began_s + case.minutes * 60.0)
    done = swarm.ledger.merges[merges:]
    sent = [world.bytes_of[host.key] for host in swarm.syncers]
    since = [fact for at_s, _, fact in world.facts if at_s >= began_s]
    swarm.check()
    return Measured(
        syncers=syncers,
        syncs_per_minute=len(done) / case.fragments / case.minutes,
        pushes_per_merge=sum(len(one.contributions) for one in done) / max(1, len(done)),
        largest_share=max(sent) / max(1, sum(sent)),
        moves=sum(isinstance(fact, MergerAssigned) for fact in since),
        failures=sum(isinstance(fact, MergerFailed) for fact in since),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--syncers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--learners", type=int, default=32)
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--local-steps", type=int, default=24)
    parser.add_argument("--overlap", type=int, default=24, help="tau: rounds in flight")
    parser.add_argument("--step-s", type=float, default=0.5)
    parser.add_argument("--mbps", type=float, default=100.0, help="of every line, each way")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    case = parser.parse_args()
    found = []
    for syncers in case.syncers:
        one = measure(syncers, case)
        found.append(one)
        ratio = one.syncs_per_minute / found[0].syncs_per_minute
        print(
            f"{syncers} syncers: {one.syncs_per_minute:.2f} full syncs a minute ({ratio:.2f}"
            f" times), {one.pushes_per_merge:.1f} pushes a merge, the busiest line has"
            f" {one.largest_share:.3f} ({one.largest_share * syncers:.2f} / S) of the bytes;"
            f" {one.moves} fragments moved, {one.failures} failures",
            flush=True,
        )
    if case.json is not None:
        case.json.write_text(json.dumps([asdict(one) for one in found], indent=2))


if __name__ == "__main__":
    main()
