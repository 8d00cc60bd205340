"""Which checkpoint `shoal export` writes, and what is known of it: nobody has to guess or hope."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from host.files.signed_project import OpenedProject
from protocol.errors import CorruptState, UserError
from protocol.log.heldout import disputed_words, measured_by
from protocol.log.state import SwarmState, SwarmSummary
from protocol.numerics.buffers import F32
from syncer_node.storage.averages import path_of, read_average
from syncer_node.storage.ledger import read_state
from syncer_node.storage.store import checkpoints_in, find_checkpoint, read_checkpoint, read_meta


@dataclass(frozen=True, slots=True)
class Choice:
    """A checkpoint on this disk."""

    place: Path
    is_trained: bool
    """Whether anything was merged into it."""
    summary: SwarmSummary | None
    """The log up to it; None for the first weights."""
    loss: list[str]
    """Its held-out loss and whose word that is, or that nobody measured it."""
    notes: list[str]
    """Why it is this one, where that is not what was asked for."""
    is_average: bool = False
    """Whether the moving average as of it is meant."""

    @property
    def step(self) -> int:
        """Its global step."""
        return self.summary.global_step if self.summary is not None else 0

    @property
    def tokens(self) -> int:
        """Progress of the run until then."""
        summary = self.summary
        if summary is None or not summary.fragments:
            return 0
        taken = sum(one.tokens for one in summary.taken_back)
        return (sum(summary.tokens_by_fragment) - taken) // len(summary.fragments)

    def weights(self) -> list[F32]:
        """f32 [numel] of each fragment.

        UserError if there is no average, CorruptState if the files are damaged.
        """
        if not self.is_average:
            return read_checkpoint(self.place).theta
        root, index = self.place.parent.parent, int(self.place.name)
        if not path_of(root, index).exists():
            raise UserError(
                f"Checkpoint {index} has no moving average beside it. The owner turns it on with "
                "`shoal project set outer.ema=0.98`; checkpoints made from then on have one, on "
                "syncers that run this version of Shoal."
            )
        return read_average(root, index, self.summary.head if self.summary is not None else b"")

    @property
    def lines(self) -> list[str]:
        """What is known of it: step and tokens, loss, and whose word that is."""
        facts = f"it is of global step {self.step:,}, after {self.tokens:,} tokens"
        return [facts, *self.loss, *self.notes]


def choose(
    root: Path,
    which: str,
    project: OpenedProject,
    *,
    step: int | None = None,
    is_average: bool = False,
    is_untrained_wanted: bool,
) -> Choice:
    """The checkpoint called best, latest, or by its log index; or the one of a global step.

    is_average: the moving average as of it is meant.

    root: a syncer's store. UserError if there is none, or if it holds the first weights and nobody
    asked for those.
    """
    lines = []
    try:
        state = read_state(root, project)
    except CorruptState as error:
        state = None
        lines.append(f"the log cannot be read, so nothing is known of losses: {error}")
    if step is not None:
        place, which = _of_step(root, step), f"of global step {step:,}"
    else:
        place = _place(root, which, state, lines)
    versions, summary = read_meta(place)
    is_trained = any(versions)
    if not is_trained and not is_untrained_wanted:
        raise UserError(_refusal(place, which))
    loss = _loss(place, state)
    if is_average:
        unmeasured = "it is the moving average until there, whose held-out loss was not measured"
        loss = [unmeasured, f"without averaging: {loss[0]}", *loss[1:]]
    return Choice(place, is_trained, summary, loss, lines, is_average)


def _of_step(root: Path, step: int) -> Path:
    """The newest checkpoint of this global step. UserError that names the steps that are here."""
    held: dict[int, Path] = {}
    for index in reversed(checkpoints_in(root)):
        place = root / "checkpoints" / str(index)
        with contextlib.suppress(CorruptState):  # Half written or damaged: it is not here, then.
            _, summary = read_meta(place)
            held[summary.global_step if summary is not None else 0] = place
    if step in held:
        return held[step]
    if not held:
        raise UserError(f"There is no checkpoint under {root} yet: run the syncer first.")
    listed = ", ".join(f"{one:,}" for one in sorted(held))
    raise UserError(
        f"There is no checkpoint of global step {step:,} on this disk. Choose one of: {listed}."
    )


def _place(root: Path, which: str, state: SwarmState | None, lines: list[str]) -> Path:
    """Where it lies; `lines` gets a word if that is not what its name says."""
    if which != "best" or state is None:
        return find_checkpoint(root, which)
    best = state.best
    if best is None:
        lines.append(f"no checkpoint counts as best yet, so this is the newest. {_why(state)}")
        return find_checkpoint(root, "latest")
    if best.checkpoint not in checkpoints_in(root):
        lines.append(
            f"the best checkpoint {best.checkpoint} is not on this disk, so this is the newest"
        )
        return find_checkpoint(root, "latest")
    return find_checkpoint(root, str(best.checkpoint))


def _why(state: SwarmState) -> str:
    """Why nothing counts as best."""
    if not state.curve:
        return "No held-out loss was measured."
    return disputed_words(state.curve, state.accounts) or "No two learners agree on a loss yet."


def _refusal(place: Path, which: str) -> str:
    return (
        f"The checkpoint {which} ({place.name}) holds the first weights: nothing that anybody "
        "trained is in it. Wait for a checkpoint with merges (`shoal status` shows held-out "
        "losses), name one with --checkpoint, or write these weights with --untrained."
    )


def _loss(place: Path, state: SwarmState | None) -> list[str]:
    """Held-out loss of a checkpoint, and whose word it is."""
    point = state.point(int(place.name)) if state is not None else None
    if point is None or state is None:
        return ["its held-out loss was not measured"]
    whose = measured_by(point, state.accounts)
    lines = [f"held-out loss {point.loss:.4f}, measured {whose}"]
    if point.is_alone:
        lines.append("nobody else could measure it: that loss is one learner's word")
    if point.is_disputed:
        lines.append(f"they differ: {point.losses[0]:.4f} and {point.losses[1]:.4f}")
    return lines
