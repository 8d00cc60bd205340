"""The `track` verb: the curves of a run, as it goes, for TensorBoard, Trackio or Weights & Biases.

It looks at a daemon from outside, so whatever happens to a tracker happens to no syncer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

from host.files.home import DEFAULT_INSTANCE, Home
from host.runtime import parent_death
from host.runtime.python_path import python_path
from protocol.errors import TransientError
from protocol.status import NodeStatus, SyncerStatus, WitnessStatus
from shoal.common import choices, daemons, failures
from shoal.common.exit_codes import ExitCode
from shoal.machine import trackers
from shoal.machine.curves import Curves
from shoal.machine.trackers import Kind, Tracker

log = logging.getLogger("shoal.track")

STOP_S = 10.0
"""What a tracker gets to hand in its last points."""

FOLDER = Path("runs")

Watched = SyncerStatus | NodeStatus
Look = Callable[[], Watched | None]


def track(
    kind: Annotated[Kind, choices.option("Where to: tensorboard, trackio or wandb.")],
    *,
    to: Annotated[Path, choices.option("Folder of its files.")] = FOLDER,
    every: Annotated[float, choices.option("Seconds between two looks.", choices.Positive)] = 5.0,
    instance: choices.OnlyInstance = None,
    home: choices.HomeHere,
) -> int:
    """Follows the syncer of this home, or its learner, until Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt):  # The way to end it.
        follow(lambda: _look(home, instance), kind, to, lambda: time.sleep(every))
    return ExitCode.DONE


def follow(look: Look, kind: Kind, folder: Path, wait: Callable[[], None]) -> None:
    """Tells a tracker what is new, look after look; a new run for each project. Ends only by what
    `wait` raises."""
    said = False
    with contextlib.ExitStack() as stack:
        tracker: Tracker | None = None
        project, curves = "", Curves()
        while True:
            status = look()
            if status is None and not said:
                print("no syncer or learner answers here yet; still looking", flush=True)
                said = True
            if status is not None:
                if tracker is None or status.project.id != project:
                    stack.close()
                    project, curves = status.project.id, Curves()
                    tracker = _begin(kind, status, folder)
                    stack.callback(tracker.close)
                for point in curves.news(status, time.monotonic()):
                    tracker.log(point.step, point.values)
                tracker.flush()
            wait()


def _begin(kind: Kind, status: Watched, folder: Path) -> Tracker:
    run = f"{status.project.id[:8]}-{status.key[:8]}"
    tracker = trackers.begin(kind, status.project.name, run, folder)
    print(f"tracking {status.project.name} with {kind}: run {run}", flush=True)
    return tracker


def _look(home: Home, instance: str | None) -> Watched | None:
    """The syncer's status, else a learner's; None while nobody answers."""
    try:
        found, _ = daemons.ask_all(daemons.fitting(home, None, instance))
    except TransientError as error:
        log.debug("nobody answers: %s", error)
        return None
    watched = [one for one in found if not isinstance(one, WitnessStatus)]
    syncers = [one for one in watched if isinstance(one, SyncerStatus)]
    return next(iter([*syncers, *watched]), None)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def beside(kind: Kind | None, home: Home, instance: str = DEFAULT_INSTANCE) -> Iterator[None]:
    """Inside, another process tracks the daemon that runs in this one; for None nothing does."""
    if kind is None:
        yield
        return
    command = (sys.executable, "-P", "-m", "shoal", "--home", str(home.root), "track", kind)
    child = subprocess.Popen(
        (*command, "--instance", instance, "--to", str(FOLDER.absolute())),
        env={
            **os.environ,
            "PYTHONPATH": python_path(),
            **parent_death.environment_for(signal.SIGTERM),
        },
        preexec_fn=parent_death.before_exec(signal.SIGTERM),
        start_new_session=True,
    )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            failures.complain(f"{kind} did not end within {STOP_S:g} s and was killed.")
            child.kill()
            child.wait()
