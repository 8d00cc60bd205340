"""What a tracker gets of a run: numbers by name and global step, from one status after another.

A status says everything since the daemon began, so nothing is told twice and nothing is lost while
nobody looked, but for speeds and learners' losses, which are of the moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.status import NodeStatus, SyncerStatus
from tui.frames.rates import Rates

LEARNERS_MAX = 64
"""Learners that have curves of their own, those that merged most."""


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one global step."""

    step: int
    values: dict[str, float]


@dataclass(slots=True)
class Curves:
    """Which points were told already."""

    _rates: Rates = field(default_factory=Rates)
    _measured: dict[int, float] = field(default_factory=dict)
    """Global step -> held-out loss."""
    _merged: int = -1
    """Newest global step of which the merge was told."""

    def news(self, status: SyncerStatus | NodeStatus, now_s: float) -> list[Point]:
        """What this status says that was not told yet, in the order of steps. now_s: monotonic."""
        swarm = status.swarm
        self._rates.observe([status], now_s)
        points = [
            Point(step, {"heldout/loss": loss, "heldout/tokens": tokens})
            for step, tokens, loss in swarm.curve
            if self._measured.get(step) != loss
        ]
        self._measured = {step: loss for step, _, loss in swarm.curve}
        if swarm.global_step < self._merged:
            self._merged = -1  # The owner went back to an earlier state.
        if swarm.global_step > self._merged:
            points += self._merges(status)
            points.append(Point(swarm.global_step, self._now(status)))
            self._merged = swarm.global_step
        return sorted(points, key=lambda point: point.step)

    def _merges(self, status: SyncerStatus | NodeStatus) -> list[Point]:
        if not isinstance(status, SyncerStatus):
            return []
        return [
            Point(
                row.global_step,
                {
                    "merge/pushes": float(row.participants),
                    "merge/local_steps": row.mean_steps,
                    "merge/seconds": row.seconds,
                },
            )
            for row in status.merges
            if row.global_step > self._merged
        ]

    def _now(self, status: SyncerStatus | NodeStatus) -> dict[str, float]:
        values = {"swarm/tokens": float(status.swarm.tokens)}
        rate = self._rates.tokens_per_s.get(status.key)
        if rate is not None:
            values["swarm/tokens_per_s"] = rate
        if isinstance(status, SyncerStatus):
            here = sorted(status.peers, key=lambda peer: (-peer.merges, peer.key))
            values["swarm/learners"] = float(sum(peer.state == "training" for peer in here))
            for peer in here[:LEARNERS_MAX]:
                name = f"learner/{_word(peer.name)}-{peer.key[:8]}"
                values[f"{name}/tokens_per_s"] = peer.tokens_per_s
                if peer.loss is not None:
                    values[f"{name}/loss"] = peer.loss
        return values


def _word(name: str) -> str:
    """A name as part of another one: others chose it."""
    kept = "".join(char if char.isalnum() and char.isascii() else "-" for char in name[:24])
    return kept.strip("-") or "learner"
