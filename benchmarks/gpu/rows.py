"""What a check tells: typed rows, each a figure with its bar, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["met", "missed", "measured", "not run", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one check."""

    check: str
    what: str
    value: float | None = None
    unit: str = ""
    at_least: float | None = None
    """Bar; it counts on accelerators only."""
    at_most: float | None = None
    why_not: str = ""
    """Why this device cannot say it: too little memory, no bf16."""
    error: str = ""
    """What went wrong that should not."""

    def verdict(self, *, is_accelerator: bool) -> Verdict:
        """What the row says of this device."""
        if self.error:
            return "failed"
        if self.value is None:
            return "not run"
        if not is_accelerator or (self.at_least is None and self.at_most is None):
            return "measured"
        is_low = self.at_least is not None and not self.value >= self.at_least
        is_high = self.at_most is not None and not self.value <= self.at_most
        return "missed" if is_low or is_high else "met"

    @property
    def bar(self) -> str:
        """The bar in words; empty without one."""
        parts = []
        if self.at_least is not None:
            parts.append(f"at least {self.at_least:g}")
        if self.at_most is not None:
            parts.append(f"at most {self.at_most:g}")
        return " and ".join(parts)

    @property
    def figure(self) -> str:
        """Value and unit, or what stands in their place."""
        if self.value is None:
            return ""
        return f"{self.value:.4g} {self.unit}".strip()


def is_bad(rows: Sequence[Row], *, is_accelerator: bool) -> bool:
    """Whether a check failed, or a bar that counts was missed."""
    return any(row.verdict(is_accelerator=is_accelerator) in ("missed", "failed") for row in rows)
