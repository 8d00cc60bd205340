"""Where the demo speaks: a live view on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tui.text import fmt
from tui.views.demo import DemoNow, line, render

LINE_EVERY_S = 5.0
FRAME_EVERY_S = 0.3
"""Often enough for what travels to be seen travelling."""

PLAIN_COLUMNS = 100


class Screen:
    """Tells and shows things."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=PLAIN_COLUMNS)
        self.started_s = time.monotonic()
        self._live = Live(console=self.console, auto_refresh=False)
        self._shown_s = -LINE_EVERY_S

    def showing(self) -> contextlib.AbstractContextManager[object]:
        """Inside, a terminal has a live view."""
        return self._live if self.console.is_terminal else contextlib.nullcontext()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def tell(self, text: str, *, style: str = "") -> None:
        """One line that stays, with the time since the start."""
        clock = Text(f"{fmt.duration(self.elapsed_s):>11}  ", style="dim")
        self._print(clock.append(text, style=style or "default"))

    def quote(self, lines: Iterable[str]) -> None:
        """What somebody else said, such as the end of a log."""
        for one in lines:
            self._print(Text(f"{'':>11}  | {fmt.clean(one, 300)}", style="dim"))

    def show(self, now: DemoNow, *, is_urgent: bool = False) -> None:
        """The state of things, as often as it makes sense here."""
        every_s = FRAME_EVERY_S if self.console.is_terminal else LINE_EVERY_S
        if time.monotonic() - self._shown_s < every_s and not is_urgent:
            return
        self._shown_s = time.monotonic()
        if self.console.is_terminal:
            self._live.update(render(now, width=self.console.width), refresh=True)
        else:
            self._print(Text(line(now)))

    def _print(self, text: Text) -> None:
        # A line in a file must stay one line: no wrapping there.
        self.console.print(text, soft_wrap=not self.console.is_terminal)
