"""How far many runs are: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

TELL_EVERY_S = 600.0
"""Between two lines on a run that takes long."""


class Lines:
    """A line when a run begins, and one every ten minutes until it ends."""

    def __init__(
        self,
        runs: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """clock: seconds."""
        self._runs, self._clock, self._say = runs, clock, say
        self._begun = 0

    def announce(self, name: str) -> Callable[[float], None]:
        """What is to be told the share of this run that is done, in 0 to 1."""
        self._begun += 1
        self._say(f"run {self._begun} of {self._runs}: {name}")
        begun_s = told_s = self._clock()

        def tell(share: float) -> None:
            nonlocal told_s
            now_s = self._clock()
            if now_s - told_s < TELL_EVERY_S or share <= 0.0:
                return
            told_s = now_s
            left_s = (now_s - begun_s) * (1.0 - share) / share
            self._say(
                f"  {100 * share:.0f} % after {(now_s - begun_s) / 60:.0f} min,"
                f" about {left_s / 60:.0f} min to go"
            )

        return tell


@contextmanager
def bars(console: Console, runs: int) -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Bars on a terminal, `Lines` elsewhere; gives a function that announces a run."""
    if not console.is_terminal:
        yield Lines(runs).announce
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("to go"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        whole = shown.add_task(f"{runs} runs", total=float(runs))
        single = shown.add_task("", total=1.0)
        begun = 0

        def announce(name: str) -> Callable[[float], None]:
            nonlocal begun
            before, begun = begun, begun + 1
            shown.reset(single, description=name)

            def tell(share: float) -> None:
                shown.update(single, completed=share)
                shown.update(whole, completed=before + share)

            return tell

        yield announce
