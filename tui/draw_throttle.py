"""How often to draw: with every frame, or less often where drawing is dear.

A thousand learners that all change are drawn anew twice a second otherwise, on a machine whose time
belongs to training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tui.frames.frame import Frame

SHARE_MAX: Final = 0.045
"""Of a core, from one drawing to the next."""

REST_S_MAX: Final = 2.5
"""What is shown is never older than this, whatever it costs."""


def who_answers(frame: Frame | None) -> tuple[tuple[str, bool, bool], ...]:
    """That a daemon came, spoke for the first time, or fell silent, is worth a drawing."""
    daemons = frame.attached() if frame is not None else ()
    return tuple((one.label, one.answered_s is None, bool(one.trouble)) for one in daemons)


@dataclass(slots=True)
class DrawThrottle:
    """Says of each frame whether to draw it."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    cpu: Callable[[], float]
    """Processor seconds of this program so far."""
    _drawn_s: float | None = None
    _cpu_s: float = 0.0
    _shown: object = None

    def may_draw(self, shown: object) -> bool:
        """Whether it is time again; if so, it counts as drawn now.

        shown: what may not wait, to be compared with the last time.
        """
        now_s, cpu_s = self.clock(), self.cpu()
        if self._drawn_s is not None and shown == self._shown:
            rest_s = now_s - self._drawn_s
            if rest_s < REST_S_MAX and cpu_s - self._cpu_s > SHARE_MAX * rest_s:
                return False
        self._drawn_s, self._cpu_s, self._shown = now_s, cpu_s, shown
        return True

    def may_move(self) -> bool:
        """Whether one more step of the picture still fits the share; asked between drawings."""
        if self._drawn_s is None:
            return False
        return self.cpu() - self._cpu_s <= SHARE_MAX * (self.clock() - self._drawn_s)
