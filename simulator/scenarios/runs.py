"""One simulated run of a scenario: what happened in words, and whether what must hold did."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from protocol import trace
from protocol.errors import ShoalError
from protocol.ids import short
from protocol.project import LimitSpec
from simulator.checkers.ledger import Violation
from simulator.checkers.provenance import ProvenanceChecker
from simulator.hosts.tape import SwarmTape
from simulator.scenarios.faults import FIRST_S, FaultSchedule
from simulator.scenarios.scenarios import Scenario
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.provenance import OUTER, ProvenanceBackend
from simulator.stand_ins.tiny import LIMITS, TENSOR_ELEMENTS, TENSORS
from simulator.virtual.network import AccessLink, NetworkModel
from simulator.virtual.world import Host

SETTLE_S = 150.0
"""After the last fault: a leader that could not write stands again after a minute, leases of the
lost come back after 20 s, and the next rounds need H local steps of the slowest."""

BYTES_PER_S_OF_MBPS = 125_000.0
FAULTS_SHARE = 0.6
"""Of a run at least, before everything is healed."""

ROUTINE = (
    trace.FragmentAdvanced,
    trace.FragmentApplied,
    trace.PushSettled,
    trace.QuorumReached,
    trace.RecordCommitted,
    trace.RoundOpened,
    trace.VoterGreeted,
)
"""Facts that only the full trace contains."""

Line = Callable[[str, bool], None]


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    swarm: Swarm
    virtual_s: float
    violation: str = ""
    """The promise that was broken; empty if none was."""
    handed: int = 0
    """Hand-ins that the provenance checker compared."""
    parts: int = 0
    """Learners' parts of snapshots that were judged."""
    resumed: int = 0
    """Learners that went on from their part."""


@dataclass(slots=True)
class Narrator:
    """Turns facts into lines: time, host, what it did."""

    line: Line
    """Takes a line, and whether it is routine."""
    names: dict[str, str] = field(default_factory=dict)

    def know(self, hosts: list[Host]) -> None:
        """Call these hosts by name."""
        self.names = {short(host.key): host.name for host in hosts}

    def fact(self, now_s: float, host: Host, fact: trace.Fact) -> None:
        text = fact.text
        for key, name in self.names.items():
            if key in text:
                text = text.replace(f"{name} ({key})", name).replace(key, name)
        self.line(f"{now_s:10.3f}  {host.name:<12} {text}", isinstance(fact, ROUTINE))

    def fate(self, now_s: float, words: str) -> None:
        self.line(f"{now_s:10.3f}  {'(fault)':<12} {words}", False)


def in_words(error: Exception) -> str:
    """What was broken: a promise, or else the code."""
    return str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"


def build(scenario: Scenario, seed: int, tape: SwarmTape | None = None) -> Swarm:
    """The swarm of a scenario, booted."""
    hosts, net, rounds = scenario.hosts, scenario.network, scenario.rounds
    backend, tensors_of = None, (max(TENSORS, rounds.fragments), TENSOR_ELEMENTS)
    if scenario.tensors == "provenance":
        steps = 4.0 * hosts.learners * scenario.until_s / scenario.speed.step_s
        backend = ProvenanceBackend(128 * math.ceil(max(steps, 1024.0) / 128))
        tensors_of = (rounds.fragments, backend.capacity)
    swarm = build_swarm(
        seed,
        syncers=hosts.syncers,
        witnesses=hosts.witnesses,
        speeds=(scenario.speed,) * hosts.learners,
        rounds=rounds.spec(),
        outer=OUTER if backend else None,
        network=NetworkModel(
            net.latency_ms / 1e3,
            net.jitter_ms / 1e3,
            net.up_mbps * BYTES_PER_S_OF_MBPS,
            net.loss_percent / 100,
        ),
        durability=hosts.durability,
        moments=hosts.moments,
        backend=backend,
        tensors_of=tensors_of,
        fragments=rounds.fragments,
        join_s=scenario.churn.join_s,
        limits=_limits(scenario),
        tape=tape.of if tape is not None else None,
    )
    _draw_hosts(swarm, scenario, seed)
    if backend is not None:
        swarm.sets = ProvenanceChecker(swarm.ledger, backend, swarm.learners)
    if scenario.snapshots.every_s:
        swarm.judge_snapshots()
    return swarm


def _limits(scenario: Scenario) -> LimitSpec | None:
    """Those of any tiny project, with the scenario's schedule of snapshots."""
    snapshots = scenario.snapshots
    if not snapshots.every_s:
        return None
    schedule = {"snapshot_every_s": snapshots.every_s, "snapshots_kept": snapshots.kept}
    return structs.replace(LIMITS, **schedule)


def _draw_hosts(swarm: Swarm, scenario: Scenario, seed: int) -> None:
    """Access links and clocks."""
    chance, net = random.Random(f"hosts {seed}"), scenario.network
    drift = scenario.hosts.clock_drift_ppm / 1e6
    for host in swarm.world.hosts.values():
        host.clock_rate = 1.0 + chance.uniform(-drift, drift)
        factor = 1.0
        if host in swarm.learners:
            factor = math.exp(chance.gauss(0.0, net.spread))
        swarm.world.wires.links[host.key] = AccessLink(
            net.up_mbps * BYTES_PER_S_OF_MBPS * factor,
            net.down_mbps * BYTES_PER_S_OF_MBPS * factor,
        )


def run(
    scenario: Scenario,
    seed: int,
    *,
    until_s: float | None = None,
    line: Line,
    tape: SwarmTape | None = None,
) -> Outcome:
    """Run it, and judge it. Lines of the trace are given to `line` as they come."""
    narrator = Narrator(line)
    end_s = until_s or scenario.until_s
    swarm = build(scenario, seed, tape)
    world = swarm.world
    narrator.know(list(world.hosts.values()))
    world.watchers.append(narrator.fact)
    outcome = Outcome(seed, swarm, end_s)
    healed_s = end_s
    if scenario.is_troubled:
        healed_s = max(FIRST_S, FAULTS_SHARE * end_s, end_s - SETTLE_S)
    fault_schedule = FaultSchedule(
        swarm, scenario, random.Random(f"faults {seed}"), healed_s, narrator.fate
    )
    fault_schedule.schedule()
    try:
        world.run(healed_s)
        swarm.check()
        if scenario.is_troubled:
            _await_progress(swarm, scenario)
            world.run(end_s)
        swarm.check()
    except (AssertionError, ShoalError, ArithmeticError, LookupError, TypeError) as error:
        outcome.violation = in_words(error)
        line(f"{world.now_s:10.3f}  {'(checker)':<12} {outcome.violation}", False)
    outcome.virtual_s = world.now_s
    outcome.handed = swarm.sets.compared if swarm.sets else 0
    if swarm.cuts is not None:
        outcome.parts, outcome.resumed = swarm.cuts.compared, len(swarm.cuts.restored)
    return outcome


def _await_progress(swarm: Swarm, scenario: Scenario) -> None:
    """Merging goes on after the last fault, soon, with everybody who is there."""
    world, rounds = swarm.world, scenario.rounds
    slowest_s = max(learner.step_s for learner in swarm.learners)
    within_s = SETTLE_S + 4 * rounds.local_steps * slowest_s
    wanted = swarm.merges + 2 * rounds.fragments

    def is_fine() -> bool:
        return swarm.merges >= wanted or swarm.syncer.syncer.state.ended is not None

    world.run(world.now_s + within_s, stop=is_fine)
    if not is_fine():
        leadership = swarm.syncer.syncer.leadership if swarm.syncer.is_up else None
        why = (
            leadership.rounds.pace.waiting or leadership.rounds.stalled
            if leadership
            else "nobody leads"
        )
        raise Violation(
            f"{wanted - swarm.merges} of {2 * rounds.fragments} merges are missing "
            f"{within_s:.0f} s after the last fault: {why or 'for no stated reason'}"
        )
