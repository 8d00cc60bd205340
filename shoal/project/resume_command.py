"""`shoal project pause` and `resume`: the owner pauses the run, or lets it go on, also where the
guard paused it."""

from __future__ import annotations

import time
from typing import NamedTuple

from msgspec import structs

from host.files.home import DEFAULT_INSTANCE
from protocol.errors import CorruptState, RemoteError, TransientError, UserError
from protocol.log.guard import owner_pause_words, pause_words
from protocol.status import NodeStatus, SwarmStatus, SyncerStatus
from shoal.common import daemons
from shoal.common.choices import HomeHere, Instance, ProjectPath
from shoal.project import charter_commands
from shoal.project.charter_commands import Case


class KnownPause(NamedTuple):
    """A pause of the guard, as this machine knows it."""

    record: bytes
    words: str


def pause(project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Sign that the whole run is paused from now on."""
    case = charter_commands.open_case(project, home)
    charter = case.project.charter
    if charter.paused_at_s is not None:
        return [f"{owner_pause_words(charter.paused_at_s)} already: revision {charter.revision}"]
    return [
        *charter_commands.revise(case, structs.replace(charter, paused_at_s=time.time())),
        "once that is in force, merges that were begun are finished and no new ones begin; "
        "learners free their memory, stay connected, and go on by themselves after",
        f"    shoal project resume {case.target.name}",
    ]


def resume(
    project: ProjectPath, *, instance: Instance = DEFAULT_INSTANCE, home: HomeHere
) -> list[str]:
    """Sign the word to go on: from the owner's pause, or from this very pause of the guard.

    A later pause of the guard needs another word. UserError if nobody pauses the run,
    TransientError if nobody here knows.
    """
    case = charter_commands.open_case(project, home)
    charter = case.project.charter
    if charter.paused_at_s is not None:
        lines = charter_commands.revise(case, structs.replace(charter, paused_at_s=None))
        return [*lines, "once that is in force, learners go on by themselves"]
    held = pause_here(case, instance)
    if held is None:
        raise UserError(
            f"Neither its owner nor the guard pauses {case.project.genesis.name}. For learners of "
            "this machine that you paused: shoal resume"
        )
    if charter.resumed == held.record:
        raise UserError(
            f"Revision {charter.revision} says so already, and the voters have not adopted it yet. "
            "`shoal status` says who is missing."
        )
    lines = charter_commands.revise(case, structs.replace(charter, resumed=held.record))
    return [
        f"{held.words}.",
        *lines,
        "once that is in force, the guard compares with what is measured from then on",
    ]


def pause_here(case: Case, instance: str) -> KnownPause | None:
    """The pause of the guard, by the daemons of this machine or else the log of its syncer.

    None if there is none. TransientError if nobody here knows.
    """
    told = _told(case)
    if told is not None:
        pause = told.pause
        return KnownPause(bytes.fromhex(pause.record), pause.words) if pause is not None else None
    from syncer_node.storage.ledger import read_state

    try:
        store = case.home.syncer_store(case.project.id, instance)
        state = read_state(store, case.project)
    except (OSError, CorruptState, RemoteError) as error:
        raise TransientError(f"{_NOBODY} The log here cannot be read: {error}") from error
    if not state.index:
        raise TransientError(_NOBODY)
    held = state.pause
    return KnownPause(held.record, pause_words(held, state.accounts)) if held is not None else None


_NOBODY = (
    "No daemon of this machine says how the project stands. Run this where its syncer runs, or "
    "where a learner of it does."
)


def _told(case: Case) -> SwarmStatus | None:
    """The newest of what syncers and learners of this home say of the log; None without any."""
    statuses, _ = daemons.ask_all(daemons.fitting(case.home, None, None))
    found = [
        status.swarm
        for status in statuses
        if isinstance(status, SyncerStatus | NodeStatus)
        and status.project.id == case.project.id.hex()
    ]
    return max(found, key=lambda one: (one.epoch, one.log_index), default=None)
