"""The checkpoint that an owner goes back to: the best, or what the guard compared with."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from host.files.home import Home
from host.files.signed_project import OpenedProject
from protocol.errors import CorruptState, UserError
from protocol.log.guard import loss_words
from protocol.log.heldout import CurvePoint, measured_by
from protocol.log.records import record_hash
from protocol.log.state import SwarmState
from protocol.numerics.versions import state_manifests
from protocol.project import Origin


class Best(NamedTuple):
    """A checkpoint on this disk that is whole, and what is known of it."""

    origin: Origin
    global_step: int
    tokens: int
    words: str
    now_step: int
    now_tokens: int
    """Where the log on this disk stands."""


def best_here(home: Home, project: OpenedProject, instance: str) -> Best:
    """The best checkpoint of the log in this syncer's store. UserError if it cannot be used."""
    from syncer_node.storage.ledger import read_state

    root = home.syncer_store(project.id, instance)
    try:
        state = read_state(root, project)
    except (OSError, CorruptState) as error:
        raise UserError(f"The log in {root} cannot be read: {error}") from error
    if not state.index:
        raise UserError(
            f"Syncer {instance} of {home.root} has no log of {project.genesis.name}. Run this on "
            "the host of a syncer that has one."
        )
    point = state.pause.best if state.pause is not None else state.best
    if point is None:
        raise UserError(
            "No checkpoint counts as best yet, because no held-out loss was measured that does. "
            "Name a time to go back to instead: --since 2h"
        )
    try:
        origin = _origin(root, point, state)
    except CorruptState as error:
        raise UserError(
            f"The best checkpoint cannot be used: {error} Name a time to go back to instead "
            "(--since 2h), or run this on the host of another syncer."
        ) from error
    words = (
        f"best checkpoint: record {point.checkpoint:,}, global step {point.global_step:,}, "
        f"{point.tokens:,} tokens, held-out loss {loss_words(point.loss)} "
        f"(measured {measured_by(point, state.accounts)})"
    )
    return Best(origin, point.global_step, point.tokens, words, state.global_step, state.tokens)


def _origin(root: Path, point: CurvePoint, state: SwarmState) -> Origin:
    """The record of a checkpoint, once its bytes are what that record certifies. CorruptState."""
    from syncer_node.storage.store import checkpoints_in, read_checkpoint
    from syncer_node.storage.voter_files import VoterFiles

    index = point.checkpoint
    if index not in checkpoints_in(root):
        raise CorruptState(f"checkpoint {index} is not in {root}.")
    with contextlib.closing(VoterFiles(root)) as voter:
        if not voter.floor.index < index <= state.index:
            raise CorruptState(f"the log in {root} begins behind it.")
        head = record_hash(voter.record(index))
    checkpoint = read_checkpoint(root / "checkpoints" / str(index))
    summary = checkpoint.summary
    if summary is None or (summary.index, summary.head) != (index, head):
        raise CorruptState(f"checkpoint {index} is of another log.")
    pairs = zip(checkpoint.theta, checkpoint.momentum, strict=True)
    found = [state_manifests(theta, momentum).digests for theta, momentum in pairs]
    if found != [fragment.state for fragment in summary.fragments]:
        raise CorruptState(f"checkpoint {index} is damaged.")
    return Origin(index, head)
