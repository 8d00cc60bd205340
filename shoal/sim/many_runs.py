"""Many runs with a real model: the options that their verbs share, and several runs at a time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, TypeAlias, TypeVar

from cyclopts import Parameter

from host.files.home import Home
from shoal.common import choices
from shoal.project.project_file import ProjectFile

RUNS_PER_PROCESS = 16
"""What a process holds on to is given back after so many runs."""

Changes: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        help="KEY=VALUE: change the built-in project, as in rounds.quorum=3; repeatable.",
        negative="",
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    choices.option("Processes at a time; one for each core by default.", choices.AtLeastOne),
]

Cell = TypeVar("Cell")
Found = TypeVar("Found")


def results(
    work: Callable[[tuple[Cell, ProjectFile, Home]], tuple[Cell, Found]],
    cells: Sequence[Cell],
    file: ProjectFile,
    home: Home,
    jobs: int | None,
) -> Iterator[tuple[Cell, Found]]:
    """Of each run as they come, in any order. Whoever stops early ends the processes.

    work: a whole run, by a function that another process can import.
    """
    tasks = [(cell, file, home) for cell in cells]
    processes = min(jobs or os.cpu_count() or 1, len(tasks))
    if processes < 2:
        yield from map(work, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=RUNS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(work, tasks)
