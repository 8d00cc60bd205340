"""How far each algorithm is from data parallelism, by size of the model, by tokens and by merges.

Runs of one size, batch and budget are compared with each other. Where an algorithm was run there
with several settings, but as many local steps between merges, those count that have the lowest mean
loss, of those with the most seeds: so it is for data parallelism too.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct

from protocol import decoders
from protocol.errors import UserError
from simulator.compare.algorithms import BASELINE
from simulator.compare.results import RUNS_FILE, Folder, Result


class Place(Struct, frozen=True, kw_only=True):
    """One algorithm at one size, batch and budget."""

    algorithm: str
    parameters: int
    batch_tokens: int
    """In a local step of each learner."""
    learners: int
    steps: int
    """Local steps of each learner: the budget."""
    local_steps: int
    """Between two merges of a fragment; 0 where gradients are averaged or it is not told."""
    merges: float | None
    """Of each fragment, about; None where `local_steps` is 0."""
    tokens: int
    """Of all learners together."""
    seeds: int
    eval_loss: float
    ratio_to_dp: float | None
    """Mean over paired seeds; None where data parallelism was not run."""
    ratio_spread: float
    """Standard deviation over them; 0 for one."""


def results_in(path: Path) -> list[Result]:
    """All runs in a folder of results but the trials, or in a file that `--csv` wrote.

    UserError for a path that is neither.
    """
    if path.is_file():
        return _lines_of(path)
    if not (path / RUNS_FILE).exists():
        raise UserError(f"{path} is no folder of results: it has no {RUNS_FILE}.")
    runs = [run for run in Folder(path).runs.values() if not run.is_trial]
    return decoders.convert(runs, list[Result], from_attributes=True)


def _lines_of(path: Path) -> list[Result]:
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            told = [
                {name: value for name, value in row.items() if value}
                for row in csv.DictReader(handle)
            ]
        return decoders.convert(told, list[Result], strict=False)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except (msgspec.MsgspecError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is no file that `shoal sim compare --csv` wrote ({error})."
        ) from error


def places(results: Iterable[Result]) -> list[Place]:
    """By size, batch, learners and budget; data parallelism first in each."""
    known = sorted((one for one in results if one.parameters), key=_where)
    found = []
    for _, here in groupby(known, key=_where):
        alike: dict[tuple[str, int], list[Result]] = {}
        for run in here:
            alike.setdefault((run.algorithm, run.local_steps), []).append(run)
        names = sorted(alike, key=lambda one: (one[0] != BASELINE, one))
        base = _best(alike[BASELINE, 0]) if (BASELINE, 0) in alike else []
        found += [_place(_best(alike[name]), base) for name in names]
    return found


def _where(run: Result) -> tuple[int, int, int, int]:
    return run.parameters, run.batch_tokens, run.learners, run.steps


def _best(runs: Sequence[Result]) -> list[Result]:
    """The runs of the settings that are best."""
    by_recipe: dict[str, list[Result]] = {}
    for run in runs:
        by_recipe.setdefault(run.recipe, []).append(run)
    return min(by_recipe.values(), key=lambda own: (-len(own), _mean(own)))


def _mean(runs: Sequence[Result]) -> float:
    return statistics.fmean(run.eval_loss for run in runs)


def _place(runs: Sequence[Result], base: Sequence[Result]) -> Place:
    losses = {run.seed: run.eval_loss for run in base}
    ratios = [run.eval_loss / losses[run.seed] for run in runs if run.seed in losses]
    one = runs[0]
    return Place(
        algorithm=one.algorithm,
        parameters=one.parameters,
        batch_tokens=one.batch_tokens,
        learners=one.learners,
        steps=one.steps,
        local_steps=one.local_steps,
        merges=one.steps / one.local_steps if one.local_steps else None,
        tokens=one.learners * one.steps * one.batch_tokens,
        seeds=len(runs),
        eval_loss=_mean(runs),
        ratio_to_dp=statistics.fmean(ratios) if ratios else None,
        ratio_spread=statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
    )
