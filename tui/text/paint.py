"""Styles by meaning: what the colours of a theme stand for."""

from __future__ import annotations

from dataclasses import dataclass

_BAD = ("gone", "silent", "down", "adrift", "not here", "killed")


@dataclass(frozen=True, slots=True)
class Paint:
    """Styles by meaning."""

    good: str = "green"
    warn: str = "yellow"
    bad: str = "bold red"
    quiet: str = "dim"
    strong: str = "bold"
    accent: str = "cyan"
    chart: str = "cyan"
    ink: str = "default"
    """Text on a badge."""

    def state(self, word: str) -> str:
        """Style of a learner's or daemon's state."""
        if word in ("training", "up", "ended", "leads", "here"):
            return self.good
        if word == "left":
            return self.quiet
        return self.bad if word in _BAD else self.warn

    def level(self, word: str) -> str:
        """Style of a verdict's word."""
        if word in ("WELL", "DONE"):
            return self.good
        return self.bad if word == "TROUBLE" else self.warn
