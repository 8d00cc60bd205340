"""How long each contender of over_lines.py takes to bring a real model to a held-out loss.

All train the same model (`training.py`) on the same text from the same first weights. Whoever
merges displacements takes so many local steps between two merges and the same outer step behind
each, so what differs is what a merge costs; whoever averages gradients does so in every step.
Counted are the local steps, by the processor time of the slowest worker, since each has a machine
of its own, and what `run.one_round` times. Learners of Shoal would train on while they merge; here
they wait like all others. How near the loss is, is asked off the clock.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.arena import Contestant
from benchmarks.peers.contenders import Contender
from benchmarks.peers.run import one_round
from benchmarks.peers.work import write_nothing

LOCAL_STEPS: Final = 24
LOOK_STEPS: Final = 24
"""Between two looks at the loss."""

GRADIENTS: Final = frozenset({"gloo", "gloo-bf16"})
"""Contenders that average gradients."""


def begins(told: dict[str, Any], place: Path) -> dict[str, Any]:
    """What everybody is told, with displacements of its own, zero at first."""
    data = place / "data"
    write_nothing(data, told["sizes"], told["workers"])
    return {**told, "data": str(data)}


def turn(contestant: Contestant, *, target: float, limit_s: float) -> dict[str, Any]:
    """Trains until the target or the limit, and tells how the loss fell.

    limit_s: on the clock of training and merging.
    """
    one = contestant.contender
    contestant.start()
    one_round(contestant)  # Connections are made, and nothing moves.
    row: dict[str, Any] = {"curve": [[0, 0.0, _loss(contestant)]], "target": target, "wire": 0}
    steps, clock_s = 0, 0.0
    while clock_s < limit_s:
        taken, took_s, wire = _go_on(contestant, one)
        steps, clock_s = steps + taken, clock_s + took_s
        row["wire"] = None if wire is None or row["wire"] is None else row["wire"] + wire
        if steps % LOOK_STEPS == 0:
            row["curve"].append([steps, round(clock_s, 2), _loss(contestant)])
            if row["curve"][-1][2] <= target:
                row["reached_s"] = clock_s
                break
    if steps % LOOK_STEPS:
        row["curve"].append([steps, round(clock_s, 2), _loss(contestant)])
    print(f"{one.name}: {row['curve'][-1]}", file=sys.stderr)
    return row


def _go_on(contestant: Contestant, one: Contender) -> tuple[int, float, int | None]:
    """Local steps until the next merge, and that: how many steps, seconds and bytes."""
    steps = 0 if one.name in GRADIENTS else LOCAL_STEPS
    trained = contestant.all(do="train", steps=steps)
    local_s = max(found.get("trained_s", 0.0) for found in trained)
    merged = one_round(contestant)
    contestant.all(do="apply")
    return max(steps, 1), local_s + float(merged["wall_s"]), merged["wire_bytes"]


def _loss(contestant: Contestant) -> float:
    """Of the first worker's weights; all have the same."""
    worker = contestant.workers[0]
    worker.say({"do": "loss"})
    return round(float(worker.hear(contestant.heard_until_s)["loss"]), 4)
