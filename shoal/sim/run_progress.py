"""How far many runs are: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def bars(console: Console, runs: int) -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Bars on a terminal, a line for each run elsewhere; gives a function that announces a run."""
    if not console.is_terminal:
        done = 0

        def plain(name: str) -> Callable[[float], None]:
            nonlocal done
            done += 1
            print(f"run {done} of {runs}: {name}", file=sys.stderr, flush=True)
            return lambda _: None

        yield plain
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        whole = shown.add_task(f"{runs} runs", total=float(runs))
        single = shown.add_task("", total=1.0)
        begun = 0

        def announce(name: str) -> Callable[[float], None]:
            nonlocal begun
            before, begun = begun, begun + 1
            shown.update(single, description=name)

            def tell(share: float) -> None:
                shown.update(single, completed=share)
                shown.update(whole, completed=before + share)

            return tell

        yield announce
