"""What a round costs with more and more learners: the machines themselves, in virtual time.

    python benchmarks/many_learners.py [--learners 16,64,256,1000] [--cycles 2]
        [--syncer 1000/1000] [--hidden 0.8] [--json FILE] [--plot FILE]

One syncer on a line of 1 Gbit/s, or of so many Mbit/s down and up, and learners on lines of 100 and
20 Mbit/s, with local steps of two seconds; a model of 100 million parameters in 24 fragments, 4
bits a value, merged every 24 local steps by 64 learners at most, in turn. With `--hidden` such a
share of them are behind routers that let nobody in, so that no two of these meet. Tensors are tiny,
and what is sent takes as long as those of that model. Looked at, once everybody has joined, are
whole cycles of merges: how much of the learners' time goes into local steps, how many copies of a
payload the syncer sends, when the last learner has it, and what the syncer's line and machine
carry. Processor time is this machine's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from node.machine.jobs import Advance
from protocol import wire
from protocol.machine import Effect, Event
from protocol.messages import Message
from protocol.numerics.payload_sizes import payload_bytes
from protocol.project import LimitSpec
from protocol.trace import FragmentAdvanced, FragmentCommitted, PushSettled
from simulator.hosts.moments import Answer
from simulator.hosts.payloads import REFUSED
from simulator.hosts.syncer import SimSyncer
from simulator.scale.machines import FRAGMENTS, LOCAL_STEPS, SizedWorld, drive, rounds
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.tiny import TENSOR_ELEMENTS
from simulator.virtual.network import AccessLink, NetworkModel
from simulator.virtual.nodes import SpeedModel
from simulator.virtual.world import Host

PARAMETERS: Final = 1e8
BITS: Final = 4.125
"""Of a parameter in a payload of a large fragment."""

STEP_S: Final = 2.0
PARTICIPANTS: Final = 64
OVERLAP: Final = 2
BYTES_PER_S_OF_MBPS: Final = 125e3
UP_MBPS, DOWN_MBPS = 20.0, 100.0
SYNCER: Final = (1000.0, 1000.0)
"""Of its line, Mbit/s down and up."""
FREE: Final = 1e-6
"""What is sent while everybody joins takes no time."""

CYCLE_S: Final = LOCAL_STEPS * STEP_S
SETTLE_CYCLES: Final = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Per merge, where nothing else is said; seconds are virtual but for the processor's."""

    learners: int
    goodput: float
    in_merge: float
    cycle_s: float
    """Between two merges of the same fragment."""
    copies: float
    """That the syncer sent of a merged payload."""
    copies_max: int
    half_s: float
    last_s: float
    """From the record to the last learner that has the version: mean over payloads."""
    last_max_s: float
    missing: int
    """Versions that somebody never held while they were the newest."""
    line_up: float
    line_down: float
    """Shares of the syncer's line: payloads both ways, and all that it says."""
    machine_ms: float
    """Of the processor, by the syncer's machine."""
    push_ms: float
    """The same for each push."""


class CountingWorld(SizedWorld):
    """Counts what one host sends and gets."""

    syncer = b""

    def __init__(self, seed: int, network: NetworkModel) -> None:
        super().__init__(seed, network)
        self.factor = FREE
        self.sent = self.got = self.said = 0

    def forget(self) -> None:
        self.sent = self.got = self.said = 0

    def send(self, sender: Host, peer: bytes, message: Message) -> None:
        if sender.key == self.syncer:
            self.said += len(wire.encode(message))
        super().send(sender, peer, message)

    def transfer_s(self, source: bytes, target: bytes, size_bytes: int) -> float:
        if source == self.syncer:
            self.sent += self.carried_bytes(size_bytes)
        elif target == self.syncer:
            self.got += self.carried_bytes(size_bytes)
        return super().transfer_s(source, target, size_bytes)


class Timed:
    """How long a syncer's machine takes for what it is told, on this machine's clock."""

    def __init__(self, host: SimSyncer) -> None:
        self.took_s = 0.0
        self._handle = host.syncer.handle
        host.syncer.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        began_s = time.process_time()
        made = self._handle(event, now_s)
        self.took_s += time.process_time() - began_s
        return made


Fetch = Callable[[Advance, Answer], None]
Version = tuple[int, int]
"""A fragment and its number."""


class Copies:
    """Of merged payloads, that came from the syncer."""

    def __init__(self, swarm: Swarm) -> None:
        self.of: Counter[Version] = Counter()
        for learner in swarm.learners:
            fetch = learner.fetch_of_syncer

            def counted(job: Advance, answer: Answer, fetch: Fetch = fetch) -> None:
                version = job.merged.fragment, job.merged.version

                def answered(result: object) -> None:
                    self.of[version] += result is not REFUSED
                    answer(result)

                fetch(job, answered)

            learner.fetch_of_syncer = counted  # type: ignore[method-assign]


def swarm_of(learners: int, seed: int, syncer: tuple[float, float]) -> tuple[Swarm, CountingWorld]:
    """On their lines; while they join, what is sent takes no time."""
    world = CountingWorld(seed, NetworkModel(0.03, 0.01, 1e9))
    spec = structs.replace(
        rounds(max(1, min(PARTICIPANTS, learners) // 2), 0.9),
        eligible="cycle",
        overlap_steps=OVERLAP,
        participants_max=PARTICIPANTS,
        patience_s=30.0,
        pull_timeout_s=60.0,
    )
    swarm = build_swarm(
        seed,
        speeds=(SpeedModel(STEP_S),) * learners,
        rounds=spec,
        limits=LimitSpec(10**12, max(16, learners), 10**6, 8, 3600.0, 256),
        fragments=FRAGMENTS,
        tensors_of=(FRAGMENTS, TENSOR_ELEMENTS),
        join_s=20.0,
        world=world,
    )
    world.syncer = swarm.syncers[0].key
    down, up = (mbps * BYTES_PER_S_OF_MBPS for mbps in syncer)
    line = AccessLink(UP_MBPS * BYTES_PER_S_OF_MBPS, DOWN_MBPS * BYTES_PER_S_OF_MBPS)
    world.wires.links.update({learner.key: line for learner in swarm.learners})
    world.wires.links[world.syncer] = AccessLink(up, down)
    return swarm, world


def measure(
    learners: int,
    cycles: int,
    seed: int,
    syncer: tuple[float, float] = SYNCER,
    *,
    hidden_frac: float = 0.0,
) -> Found:
    """Whole cycles of merges, once everybody is there. Violation where a merge was wrong.

    hidden_frac: of the learners, that nobody can dial.
    """
    swarm, world = swarm_of(learners, seed, syncer)
    for learner in swarm.learners[: round(hidden_frac * learners)]:
        learner.is_hidden = True
    copies, timed = Copies(swarm), Timed(swarm.syncers[0])
    world.run(CYCLE_S)
    tiny = payload_bytes("int4", swarm.syncers[0].layout.fragments[0].numel)
    world.factor = PARAMETERS / FRAGMENTS * BITS / 8 / tiny
    world.run(world.now_s + SETTLE_CYCLES * CYCLE_S)
    world.forget()
    began_s, before_s, first = world.now_s, timed.took_s, len(world.facts)
    driven = drive(swarm, steps=cycles * LOCAL_STEPS, settle=0)
    took_s, processor_s = world.now_s - began_s, timed.took_s - before_s
    carried = world.sent + world.said, world.got
    world.run(world.now_s + CYCLE_S)  # For the last payloads to be everywhere.
    merged, held = _spread(swarm, first, began_s + took_s)
    counted = [copies.of[one] for one in merged]
    lasts = [times[-1] - merged[one] for one, times in held.items()]
    halves = [times[len(times) // 2] - merged[one] for one, times in held.items()]
    pushes = sum(
        isinstance(fact, PushSettled) and began_s <= at_s < began_s + took_s
        for at_s, _, fact in world.facts[first:]
    )
    down, up = (mbps * BYTES_PER_S_OF_MBPS * took_s for mbps in syncer)
    return Found(
        learners=learners,
        goodput=driven.goodput,
        in_merge=driven.merged * learners,
        cycle_s=took_s * FRAGMENTS / len(merged),
        copies=sum(counted) / len(counted),
        copies_max=max(counted),
        half_s=sum(halves) / len(halves),
        last_s=sum(lasts) / len(lasts),
        last_max_s=max(lasts),
        missing=sum(len(times) < learners for times in held.values()),
        line_up=carried[0] / up,
        line_down=carried[1] / down,
        machine_ms=1e3 * processor_s / len(merged),
        push_ms=1e3 * processor_s / pushes,
    )


def _spread(
    swarm: Swarm, first: int, until_s: float
) -> tuple[dict[Version, float], dict[Version, list[float]]]:
    """When each version was merged, and when each learner had it."""
    merged: dict[Version, float] = {}
    held: dict[Version, list[float]] = {}
    keys = {learner.key for learner in swarm.learners}
    for at_s, host, fact in swarm.world.facts[first:]:
        if isinstance(fact, FragmentCommitted) and host == swarm.syncer.key and at_s < until_s:
            merged[fact.fragment, fact.version] = at_s
            held[fact.fragment, fact.version] = []
        elif isinstance(fact, FragmentAdvanced) and host in keys:
            held.get((fact.fragment, fact.version), []).append(at_s)
    return merged, {one: times for one, times in held.items() if times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", default="16,64,256,1000", help="how many; commas between")
    parser.add_argument("--cycles", type=int, default=2, help="merges of each fragment")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--hidden", type=float, default=0.0, help="share that cannot be dialled")
    parser.add_argument("--syncer", default="1000/1000", help="its line, Mbit/s down/up")
    case = parser.parse_args()
    down, up = map(float, case.syncer.split("/"))
    found = []
    for learners in (int(word) for word in case.learners.split(",")):
        one = measure(learners, case.cycles, case.seed, (down, up), hidden_frac=case.hidden)
        found.append(one)
        print(_line(one), flush=True)
        if case.json is not None:
            case.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    if case.plot is not None:
        plot(found, case.plot)


def _line(one: Found) -> str:
    return (
        f"{one.learners:5d} learners, {one.in_merge:.1f} in a merge, a cycle of"
        f" {one.cycle_s:.1f} s: goodput {one.goodput:.1%};"
        f" {one.copies:.1f} copies, at most {one.copies_max}; half have it after"
        f" {one.half_s:.1f} s, the last after {one.last_s:.1f} s, at most"
        f" {one.last_max_s:.1f} s, {one.missing} not everywhere; line"
        f" up {one.line_up:.0%}, down {one.line_down:.0%}; {one.machine_ms:.1f} ms of processor a"
        f" merge, {one.push_ms:.2f} a push"
    )


def plot(found: Sequence[Found], path: Path) -> None:
    """Cost over learners: copies, seconds, and the syncer's processor."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    panels: tuple[tuple[str, dict[str, list[float]]], ...] = (
        (
            "copies of a payload",
            {
                "by the syncer": [one.copies for one in found],
                "if it sent all": [float(one.learners) for one in found],
            },
        ),
        (
            "seconds after a merge",
            {
                "the last learner has it": [one.last_s for one in found],
                "half of them": [one.half_s for one in found],
            },
        ),
        ("processor of the syncer's machine, ms", {"a merge": [one.machine_ms for one in found]}),
    )
    learners = [one.learners for one in found]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for label, values in lines.items():
            axis.plot(learners, values, marker="o", label=label)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("learners")
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_yscale("symlog", linthresh=16)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
