"""From limits and measurements to a share of time: arithmetic without clock or sensors.

The trainer works in bursts and rests between them; its duty is the share of time in which it works.
For a ceiling of C cores, with others of our processes taking O and the trainer taking T while it
works, the duty is (C - O) / T. T is measured over the last seconds: the trainer's processor seconds
over the seconds in which it was allowed to work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from host.files.local_settings import Settings
from node.governor.governor import Share
from node.governor.process_usage import Own

WINDOW_S: Final = 10.0
"""A ceiling on processor time holds for the mean over so long."""

DUTY_MIN: Final = 0.01
"""Less would be a pause that nobody asked for."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be taken now."""

    cpu_frac: float = 1.0
    """Of all cores."""
    gpu_frac: float = 1.0
    """Of the time."""
    up_bytes_per_s: int | None = None
    down_bytes_per_s: int | None = None


def allowance(settings: Settings, share: Share) -> Allowance:
    """The limits in force; narrower ones while somebody uses the machine."""
    limits, beside = settings.limits, settings.present
    if share == "full":
        return Allowance(
            limits.cpu_percent / 100.0,
            limits.gpu_percent / 100.0,
            limits.up_bytes_per_s,
            limits.down_bytes_per_s,
        )
    return Allowance(
        min(limits.cpu_percent, beside.cpu_percent or 100.0) / 100.0,
        min(limits.gpu_percent, beside.gpu_percent or 100.0) / 100.0,
        _least(limits.up_bytes_per_s, beside.up_bytes_per_s),
        _least(limits.down_bytes_per_s, beside.down_bytes_per_s),
    )


def threads_for(settings: Settings, cores: int) -> int:
    """Threads of a new trainer: one core is left to others, and no more than may ever be used."""
    if settings.learner.threads is not None:
        return settings.learner.threads
    allowed = -(-settings.limits.cpu_percent * cores // 100.0)
    return max(1, min(cores - 1, int(allowed)))


@dataclass(frozen=True, slots=True)
class _Span:
    """What was taken between two looks."""

    seconds: float
    cpu_s: float
    trainer_cpu_s: float
    allowed_s: float
    """Seconds in which the trainer might work."""


@dataclass(slots=True)
class Throttle:
    """Keeps the mean processor time under its ceiling by the trainer's duty."""

    cores: int
    duty_frac: float = 1.0
    _spans: deque[_Span] = field(default_factory=deque)
    _last: tuple[float, Own] | None = None

    @property
    def used_frac(self) -> float | None:
        """Processor time over the last seconds, as a share of all cores."""
        seconds = sum(span.seconds for span in self._spans)
        used_s = sum(span.cpu_s for span in self._spans)
        return used_s / seconds / self.cores if seconds else None

    def look(self, own: Own, now_s: float, allowed: Allowance, *, is_accelerated: bool) -> float:
        """The duty from now on. now_s: monotonic."""
        if self._last is not None:
            then_s, before = self._last
            seconds = now_s - then_s
            self._spans.append(
                _Span(
                    seconds,
                    own.cpu_s - before.cpu_s,
                    own.trainer_cpu_s - before.trainer_cpu_s,
                    seconds * self.duty_frac,
                )
            )
        self._last = now_s, own
        while sum(span.seconds for span in self._spans) > WINDOW_S + 1.0:
            self._spans.popleft()
        duty = min(1.0, self._for_cpu(allowed.cpu_frac * self.cores))
        if is_accelerated:
            duty = min(duty, allowed.gpu_frac)
        self.duty_frac = max(DUTY_MIN, duty)
        return self.duty_frac

    def _for_cpu(self, ceiling_cores: float) -> float:
        seconds = sum(span.seconds for span in self._spans)
        allowed_s = sum(span.allowed_s for span in self._spans)
        trainer_s = sum(span.trainer_cpu_s for span in self._spans)
        if ceiling_cores >= self.cores or not allowed_s or not trainer_s:
            return min(1.0, ceiling_cores)  # Nothing measured yet: as if one thread worked.
        others = (sum(span.cpu_s for span in self._spans) - trainer_s) / seconds
        return (ceiling_cores - others) / (trainer_s / allowed_s)


def _least(*rates: int | None) -> int | None:
    return min((rate for rate in rates if rate is not None), default=None)
