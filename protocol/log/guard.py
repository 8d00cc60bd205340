"""The guard: when held-out losses say that the model is wrecked, so that merging pauses.

Where two can measure, both must find the loss far above the best; where one is alone, two
measurements in a row must. All of it is a function of the log: whoever has the log agrees on
whether merging pauses, and since when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Digest
from protocol.log.accounts import Account
from protocol.log.heldout import FAR_FRAC, FAR_NATS, CurvePoint, best_of, is_far, measured_by

POINTS_MIN = 2
"""Checkpoints measured before: in its first steps a run may go anywhere."""

AT_S_MAX = limits.AT_S_MAX

IN_A_ROW_MAX = 3
"""So often in a row a loss that is far above the best is measured again at once."""


class Pause(Struct, frozen=True, array_like=True):
    """Merging pauses, because the model got worse by far."""

    record: Digest
    """Hash of the record with which it began: the owner's word to go on names it."""
    at_s: Annotated[float, Meta(ge=0.0, le=AT_S_MAX)]
    """The leader's wall clock then, Unix seconds."""
    measured: CurvePoint
    best: CurvePoint
    """What it was compared with: where to go back to."""
    is_given_up: bool = False
    """The guard would have gone back there, but no syncer holds that checkpoint."""


def found_far(curve: Sequence[CurvePoint], since: int) -> CurvePoint | None:
    """The best checkpoint, if enough measurements found the newest one far above it; else None.

    since: log index; checkpoints up to it are not compared. The best is one on which two agree,
    unless one learner alone measured the newest: then its own word has to do.
    """
    *former, newest = _since(curve, since) or (None,)
    if newest is None or newest.is_open:
        return None
    best = _best(former, newest)
    if best is None or not _is_far(newest, best.loss):
        return None
    if newest.is_alone and not _is_far(former[-1], best.loss):
        return None
    return best


def is_doubtful(curve: Sequence[CurvePoint], since: int) -> bool:
    """Whether the newest checkpoint is far above the best by one measurement, and not by enough.

    False once it is so for the fourth time in a row: then the next is measured when it is due.
    """
    points = _since(curve, since)
    if not points or found_far(curve, since) is not None:
        return False
    best = _best(points[:-1], points[-1])
    if best is None:
        return False
    run = 0
    for point in reversed(points):
        if not any(is_far(loss, best.loss) for loss in point.losses):
            break
        run += 1
    return 0 < run <= IN_A_ROW_MAX


def far_above(best: float) -> float:
    """The held-out loss from which on another one is far above this best."""
    return max(best * (1 + FAR_FRAC), best + FAR_NATS)


def reference(curve: Sequence[CurvePoint], since: int) -> CurvePoint | None:
    """The best checkpoint that the guard compares with; None while it does not yet."""
    points = _since(curve, since)
    return best_of(points) if len(points) >= POINTS_MIN else None


def _since(curve: Sequence[CurvePoint], since: int) -> list[CurvePoint]:
    return [point for point in curve if point.checkpoint > since]


def _best(former: Sequence[CurvePoint], newest: CurvePoint) -> CurvePoint | None:
    """What the newest is compared with; None while there is nothing."""
    if len(former) < POINTS_MIN:
        return None
    return best_of(one for one in former if one.is_agreed or newest.is_alone)


def _is_far(point: CurvePoint, best: float) -> bool:
    """Whether everybody who measured it found it far above the best."""
    return bool(point.losses) and all(is_far(loss, best) for loss in point.losses)


def loss_words(loss: float) -> str:
    """A held-out loss for people; the bound stands for whatever is not below it."""
    return "beyond measure" if loss >= limits.LOSS_MAX else f"{loss:.2f}"


def moment_words(at_s: float) -> str:
    """A wall-clock time in Unix seconds for people, to the minute."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def owner_pause_words(at_s: float) -> str:
    """Since when the owner pauses the run, as the beginning of a sentence."""
    return f"Paused by the project's owner since {moment_words(at_s)}"


def pause_words(pause: Pause, accounts: Mapping[bytes, Account]) -> str:
    """Since when merging pauses and what was measured, as the beginning of a sentence."""
    return (
        f"Merging is paused since {moment_words(pause.at_s)}: the held-out loss is "
        f"{loss_words(pause.measured.loss)}, the best was {loss_words(pause.best.loss)} at "
        f"global step {pause.best.global_step:,} (measured {measured_by(pause.measured, accounts)})"
    )
