"""Growing pauses between tries that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of pauses. Its user counts the failures, and begins anew after a success."""

    steps_s: tuple[float, ...]
    """After the first failure, the second and so on; the last one repeats."""
    jitter: float = 0.0
    """Spreads each pause: 0.25 draws from 75 % to 125 %. Hosts that failed together must not try
    again together."""

    def pause_s(
        self, failures: int, uniform: Callable[[float, float], float] | None = None
    ) -> float:
        """Seconds to wait after a try that failed, with `failures` others before it."""
        step_s = self.steps_s[min(failures, len(self.steps_s) - 1)]
        return step_s * uniform(1 - self.jitter, 1 + self.jitter) if uniform else step_s
