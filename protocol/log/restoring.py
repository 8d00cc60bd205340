"""Going back by itself: to which weights the guard returns, and when it leaves that to the owner.

All of it is a function of the log. Two rules keep it from going round in circles: never a second
time to the same weights, and never again before the run has proven sound since the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from protocol.log.accounts import Account
from protocol.log.guard import AT_S_MAX, Pause, loss_words, moment_words
from protocol.log.heldout import CurvePoint, best_of, is_far, measured_by
from protocol.log.records import StateDigests

SOUND_MIN = 4
"""Checkpoints that were measured since the guard last went back, and not far above the best: with
fewer it does not go back again."""

States = tuple[StateDigests, ...]
"""The weights and momentum of every fragment."""


class Restored(Struct, frozen=True, array_like=True):
    """The guard went back: when, from where, and to what."""

    index: int
    """Log index of the record that says so."""
    at_s: Annotated[float, Meta(ge=0.0, le=AT_S_MAX)]
    """The leader's wall clock then, Unix seconds."""
    pause: Pause
    """Which it ended: what was measured, and the checkpoint it went back to."""
    global_step: int
    """Where the run stood."""
    versions: tuple[int, ...]
    """Of every fragment since: pushes that begin from a lower one are of void weights."""
    states: States


def candidates(
    known: Mapping[int, States],
    curve: Sequence[CurvePoint],
    *,
    awaited: int,
    since: int,
    pause: Pause | None,
) -> dict[int, States]:
    """Of the known checkpoints, by log index, those that the guard may still go back to.

    awaited: the checkpoint whose second measurement may still come, 0 for none. since: log index;
    the guard does not compare checkpoints up to it.
    """
    best = best_of(one for one in curve if one.is_agreed and one.checkpoint > since)
    kept = {awaited, best.checkpoint if best is not None else 0}
    if pause is not None:
        kept.add(pause.best.checkpoint)
    return {index: states for index, states in known.items() if index in kept}


def refusal(
    pause: Pause,
    former: Restored | None,
    curve: Sequence[CurvePoint],
    known: Mapping[int, States],
) -> str:
    """Why the guard leaves this pause to the owner, as the rest of a sentence; empty if it goes
    back by itself. former: the last time that it did."""
    states = known.get(pause.best.checkpoint)
    if not pause.best.is_agreed:
        return "one learner alone measured that checkpoint"
    if states is None:
        return "the log does not name the weights of that checkpoint"
    if pause.is_given_up:
        return "no syncer holds that checkpoint"
    if former is None:
        return ""
    if states == former.states:
        return f"it went back to the same weights on {moment_words(former.at_s)}"
    later = (one for one in curve if one.checkpoint > former.index)
    sound = sum(not is_far(one.loss, pause.best.loss) for one in later)
    if sound < SOUND_MIN:
        return (
            f"it went back on {moment_words(former.at_s)}, and {sound} of {SOUND_MIN} checkpoints "
            "were sound since"
        )
    return ""


def restored_words(restored: Restored, accounts: Mapping[bytes, Account]) -> str:
    """When the guard went back, from where, to what and why, as a sentence without its end."""
    pause, best = restored.pause, restored.pause.best
    return (
        f"The guard went back on {moment_words(restored.at_s)} from global step "
        f"{restored.global_step:,} to the weights of global step {best.global_step:,}: the "
        f"held-out loss was {loss_words(pause.measured.loss)}, there it was "
        f"{loss_words(best.loss)} (measured {measured_by(best, accounts)})"
    )


def outlook_words(refusal: str, *, goes_back: bool) -> str:
    """What comes of a pause, in sentences: the guard goes back, or the owner decides.

    refusal: why it does not go back although it may, else empty.
    """
    if goes_back:
        return "The guard goes back to it by itself."
    why = f"The guard does not go back by itself, because {refusal}. " if refusal else ""
    return (
        f"{why}`shoal project undo PROJECT` goes back to it; "
        "`shoal project resume PROJECT` goes on."
    )
