"""Finished runs, kept one line each in a folder, and the rows that they make.

A line is bound to the fingerprint of everything that decides its numbers, so that a folder can be
gone on with, and never mixes two comparisons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from blake3 import blake3
from msgspec import Struct

from protocol import decoders
from protocol.errors import UserError
from protocol.project import Charter, Genesis
from simulator.compare.algorithms import BASELINE, Algorithm
from simulator.compare.bench import Bench
from simulator.compare.outcome import Outcome
from simulator.compare.setting import Setting
from simulator.compare.tasks import TASKS
from simulator.compare.tuning import summary

RUNS_FILE = "runs.jsonl"

LOSS_MAX = 1e4
"""Nats per token: what a run that diverged has."""


class Run(Struct, frozen=True, kw_only=True):
    """One finished run as a line of the folder."""

    algorithm: str
    seed: int
    fingerprint: str
    eval_loss: float
    tokens: int
    bytes: int
    virtual_wall_s: float
    goodput: float
    seconds: float
    """What it took here."""
    settings: dict[str, float] = {}
    """Those that tuning found, by key."""
    is_trial: bool = False
    """Whether it was run to find them."""
    brackets: float | None = None
    """This and the following: questions answered right (`simulator.compare.tasks`), a share."""
    copying: float | None = None
    induction: float | None = None
    arithmetic: float | None = None
    parameters: int = 0
    """Of the model. Runs of former versions do not tell this and the following."""
    batch_tokens: int = 0
    """In a local step of each learner."""
    learners: int = 0
    steps: int = 0
    """Local steps of each learner: the budget."""
    recipe: str = ""
    """The fingerprint but for the seed."""
    local_steps: int = 0
    """Between two merges of a fragment; 0 where gradients are averaged or it is not told."""


class Result(Struct, frozen=True, kw_only=True):
    """The loss of a run, and what it can be compared with: all that a trend needs."""

    algorithm: str
    seed: int
    eval_loss: float
    parameters: int = 0
    """This and the following: as of `Run`."""
    batch_tokens: int = 0
    learners: int = 0
    steps: int = 0
    local_steps: int = 0
    recipe: str = ""


class Row(Result, frozen=True, kw_only=True):
    """One line of the table."""

    ratio_to_dp: float | None = None
    """To data parallelism with the same seed; None where that was not run."""
    tokens: int
    bytes: int
    virtual_wall_s: float
    goodput: float
    tuned: str = ""
    """The settings that tuning found."""
    brackets: float | None = None
    """This and the following: questions answered right (`simulator.compare.tasks`), a share."""
    copying: float | None = None
    induction: float | None = None
    arithmetic: float | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """All seeds of one algorithm."""

    algorithm: str
    seeds: int
    eval_loss: float
    eval_loss_spread: float
    """Standard deviation over seeds; 0 for one."""
    ratio_to_dp: float | None
    """Mean of the ratios of paired seeds."""
    tokens: int
    bytes: int
    virtual_wall_s: float
    goodput: float
    tuned: str = ""
    """The settings that tuning found."""
    brackets: float | None = None
    """This and the following: questions answered right (`simulator.compare.tasks`), a share."""
    copying: float | None = None
    induction: float | None = None
    arithmetic: float | None = None


def fingerprint(algorithm: Algorithm, genesis: Genesis, charter: Charter, setting: Setting) -> str:
    """Changes with whatever decides the outcome of a run, the code itself excepted."""
    genesis, charter = algorithm.genesis(genesis), algorithm.charter(charter)
    setting = algorithm.setting(setting)
    facts: list[object] = [
        algorithm.kind,
        algorithm.fails,
        algorithm.lockstep,
        genesis.model,
        genesis.data,
        charter.inner,
        charter.limits.heldout_sequences,
        setting,
    ]
    if algorithm.asynchronous is not None:
        facts += [algorithm.asynchronous, charter.rounds.local_steps]
    if algorithm.kind in ("lockstep", "decoupled"):
        facts += [genesis.fragments, genesis.strategy, charter.rounds.local_steps]
    if algorithm.kind == "decoupled":
        facts += [charter.outer, charter.rounds, charter.limits, charter.durability]
        facts += algorithm.batches
        if algorithm.is_daily:
            facts.append("daily")
        if algorithm.rejoins_locally:
            facts.append("rejoins locally")
    return blake3(msgspec.msgpack.encode(facts)).hexdigest()[:16]


class Folder:
    """A folder of finished runs."""

    def __init__(self, path: Path) -> None:
        """UserError if the folder cannot be made, or holds a line that is no run."""
        self.file = path / RUNS_FILE
        self.runs: dict[str, Run] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            lines = self.file.read_bytes().split(b"\n") if self.file.exists() else []
        except OSError as error:
            raise UserError(
                f"{path} cannot be used as a folder of results ({error.strerror}). Name another"
                " one with --results."
            ) from error
        torn = lines.pop() if lines else b""
        for number, line in enumerate(lines, 1):
            try:
                run = decoders.json_decoder(Run).decode(line)
            except msgspec.MsgspecError as error:
                raise UserError(
                    f"{self.file}, line {number}, is no run ({error}). Delete that line, or name"
                    " another folder with --results."
                ) from error
            self.runs[run.fingerprint] = run
        if torn:  # The process ended within a line: that run is done again.
            self.file.write_bytes(b"".join(line + b"\n" for line in lines))

    def add(
        self,
        algorithm: Algorithm,
        setting: Setting,
        bench: Bench,
        outcome: Outcome,
        seconds: float,
        *,
        settings: Mapping[str, float] | None = None,
        is_trial: bool = False,
    ) -> Run:
        """Keep a finished run at once. settings: what was tuned."""
        told = asdict(outcome)
        genesis, charter = bench.genesis, bench.charter
        key = fingerprint(algorithm, genesis, charter, setting)
        run = Run(
            algorithm=algorithm.name,
            seed=setting.seed,
            fingerprint=key,
            recipe=fingerprint(algorithm, genesis, charter, replace(setting, seed=0)),
            parameters=bench.layout.parameters,
            batch_tokens=charter.inner.batch_sequences * bench.sequence_tokens,
            learners=setting.learners,
            steps=setting.steps,
            local_steps=algorithm.local_steps(charter),
            **{**told.pop("tasks"), **told, "eval_loss": _finite(outcome.eval_loss)},
            seconds=round(seconds, 1),
            settings=dict(settings or {}),
            is_trial=is_trial,
        )
        try:
            with self.file.open("ab") as handle:
                handle.write(msgspec.json.encode(run) + b"\n")
        except OSError as error:
            raise UserError(f"{self.file} cannot be written ({error.strerror}).") from error
        self.runs[key] = run
        return run


def _finite(loss: float) -> float:
    """A run that diverged has a loss too."""
    return min(loss, LOSS_MAX) if math.isfinite(loss) else LOSS_MAX


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """The runs as rows, each compared with data parallelism of its seed."""
    runs = list(runs)
    base = {run.seed: run.eval_loss for run in runs if run.algorithm == BASELINE}
    rows = [
        msgspec.structs.replace(row, tuned=summary(run.settings))
        for run, row in zip(
            runs, decoders.convert(runs, list[Row], from_attributes=True), strict=True
        )
    ]
    return [
        msgspec.structs.replace(row, ratio_to_dp=row.eval_loss / base[row.seed])
        if row.seed in base
        else row
        for row in rows
    ]


def _mean_of(task: str, rows: Sequence[Row]) -> float | None:
    """None where not all of them have it."""
    told: list[float | None] = [getattr(row, task) for row in rows]
    found = [score for score in told if score is not None]
    return statistics.fmean(found) if len(found) == len(rows) else None


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One line for each algorithm, in the order they first occur."""
    found = []
    for name in dict.fromkeys(row.algorithm for row in rows):
        own = [row for row in rows if row.algorithm == name]
        losses = [row.eval_loss for row in own]
        ratios = [row.ratio_to_dp for row in own if row.ratio_to_dp is not None]
        found.append(
            Summary(
                algorithm=name,
                seeds=len(own),
                eval_loss=statistics.fmean(losses),
                eval_loss_spread=statistics.stdev(losses) if len(own) > 1 else 0.0,
                ratio_to_dp=statistics.fmean(ratios) if ratios else None,
                tokens=round(statistics.fmean(row.tokens for row in own)),
                bytes=round(statistics.fmean(row.bytes for row in own)),
                virtual_wall_s=statistics.fmean(row.virtual_wall_s for row in own),
                goodput=statistics.fmean(row.goodput for row in own),
                tuned=own[0].tuned,
                **{task: _mean_of(task, own) for task in TASKS},
            )
        )
    return found
