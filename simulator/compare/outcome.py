"""What a run hands back, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Tell = Callable[[float], None]
"""Takes the share of the run that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run."""

    eval_loss: float
    """Nats per token of the global model on held-out text."""
    tokens: int
    """Tokens that local steps were taken on, those of lost steps included."""
    bytes: int
    """Bytes that all hosts together sent, of the model that was trained."""
    virtual_wall_s: float
    """From the first local step until the result stands."""
    goodput: float
    """Share of all learners' virtual time in local steps that no interruption destroyed."""
    tasks: dict[str, float] = field(default_factory=dict)
    """Of questions of each kind (`simulator.compare.tasks`), the share that it answers right."""
