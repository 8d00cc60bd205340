"""Many seeds, each in a process of the pool; what broke, and how to see it again."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.errors import ShoalError
from simulator.council import faults
from simulator.council.council import Council
from simulator.scenarios import runs, scenarios

MIXED = ("swarm", "swarm", "swarm", "voters")
"""Of four seeds, three are swarms that train and one is voters alone."""


@dataclass(frozen=True, slots=True)
class Result:
    """One seed's."""

    scenario: str
    seed: int
    violation: str
    merges: int
    virtual_s: float
    wall_s: float

    @property
    def replay(self) -> str:
        """The command that shows this run again."""
        return f"shoal sim run {self.scenario} --seed {self.seed}"


def run_one(task: tuple[str, int]) -> Result:
    """A whole run of one seed."""
    name, seed = task
    began_s = time.perf_counter()
    if name == "voters":
        violation, merges, virtual_s = run_voters(seed)
    else:
        outcome = runs.run(scenarios.find(name, seed), seed, line=lambda text, is_routine: None)
        violation, merges = outcome.violation, outcome.swarm.merges
        virtual_s = outcome.virtual_s
    return Result(name, seed, violation, merges, virtual_s, time.perf_counter() - began_s)


def run_voters(
    seed: int, *, faults_s: float | None = None, line: runs.Line | None = None
) -> tuple[str, int, float]:
    """What was violated, records, virtual seconds. Lines of the trace are given to `line`."""
    councils: list[Council] = []

    def watch(council: Council) -> None:
        councils.append(council)
        if line is not None:
            world, narrator = council.world, runs.Narrator(line)
            narrator.know(list(council.voters.values()))
            world.watchers.append(narrator.fact)
            council.tell = lambda words: narrator.fate(world.now_s, words)

    violation = ""
    try:
        faults.run_seed(seed, faults_s=faults_s, watch=watch)
    except (AssertionError, ShoalError) as error:
        violation = runs.in_words(error)
    (council,) = councils
    if violation and line is not None:
        line(f"{council.world.now_s:10.3f}  {'(checker)':<12} {violation}", False)
    return violation, len(council.checker.records), council.world.now_s


def sweep(first: int, seeds: int, *, jobs: int, scenario: str | None) -> Iterator[Result]:
    """Results as they come, in any order. Whoever stops early ends the pool."""
    tasks = [(scenario or MIXED[seed % len(MIXED)], seed) for seed in range(first, first + seeds)]
    if jobs == 1:
        yield from map(run_one, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_one, tasks)
