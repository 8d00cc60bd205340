"""One thing that was looked at, with a verdict on it, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from typing import Literal, NamedTuple

from msgspec import Struct

Verdict = Literal["good", "care", "trouble", "unknown"]
Figures = dict[str, float | str | bool | None]


class Finding(Struct, kw_only=True, frozen=True):
    """One thing that was looked at."""

    topic: str
    verdict: Verdict
    says: str
    remedy: str = ""
    """What to do, where something is to be done."""
    figures: Figures = {}
    """The numbers behind it, for programs."""


class OwnText(NamedTuple):
    """What was found of chats that the owner of a machine names."""

    used: int = 0
    notes: tuple[str, ...] = ()
    """What was left out, in words."""
    trouble: str = ""


class Topic:
    """What is looked at, and the numbers that any verdict on it rests on."""

    def __init__(self, name: str, /, **figures: float | str | bool | None) -> None:
        self.name = name
        self.figures: Figures = figures

    def found(self, verdict: Verdict, says: str, remedy: str = "") -> Finding:
        """The verdict on it, and what to do."""
        return Finding(
            topic=self.name, verdict=verdict, says=says, remedy=remedy, figures=self.figures
        )

    good = partialmethod(found, "good")
    care = partialmethod(found, "care")
    trouble = partialmethod(found, "trouble")
    unknown = partialmethod(found, "unknown")


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict on all of them: trouble, care or good. What is unknown hurts nobody."""
    told = {one.verdict for one in findings}
    if "trouble" in told:
        return "trouble"
    return "care" if "care" in told else "good"


def amount(count: float) -> str:
    """So many bytes, in words."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
