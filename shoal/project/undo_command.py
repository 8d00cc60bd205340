"""`shoal project undo`: the owner takes back what was merged since the best checkpoint, or a time.

Without a time it goes back to the checkpoint with the lowest held-out loss that counts; learners
begin there as joiners. With one it finds the newest good snapshot from before, and goes back to
that as `restore-snapshot` does. Either way it says first what is lost.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

from host.files.home import DEFAULT_INSTANCE
from protocol.errors import CorruptState, RemoteError, UserError
from protocol.project import Charter
from protocol.snapshots.manifest import Manifest, stamp
from protocol.status import SyncerStatus
from shoal.common import daemons, durations
from shoal.common.choices import HomeHere, Instance, ProjectPath, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.project import charter_commands, restore_command
from shoal.project.best_checkpoint import best_here
from shoal.project.charter_commands import Case
from shoal.project.snapshot_command import checked


def undo(
    project: ProjectPath,
    *,
    since: Annotated[
        str | None,
        option(
            "A time such as 2026-11-22T14:30, or how long ago: 90s, 15m, 2h, 1d; without it to the "
            "best checkpoint."
        ),
    ] = None,
    yes: Annotated[bool, switch("Do it; by default only say what would happen.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Begin a new epoch at the best checkpoint, or at the newest snapshot from before a time.

    Without a confirmation nothing changes. UserError if there is none.
    """
    now_s = time.time()
    if since is None:
        return _to_best(charter_commands.open_case(project, home), instance, is_sure=yes)
    since_s = moment(since, now_s)
    case = charter_commands.open_case(project, home)
    manifest, notes = _before(case, instance, since_s)
    print("\n".join([*notes, *_lost(case, instance, manifest, now_s=now_s)]), flush=True)
    if not yes:
        print("\n".join([*restore_command.warning(case, manifest), restore_command.UNCONFIRMED]))
        return ExitCode.DONE
    return restore_command.go_back(case, manifest, instance)


def _to_best(case: Case, instance: str, *, is_sure: bool) -> int:
    """Begin the epoch at the best checkpoint on this disk, once that is confirmed."""
    best = best_here(case.home, case.project, instance)
    now = _reached(case, instance) or Reached(best.now_step, best.now_tokens)
    steps, tokens = max(0, now.global_step - best.global_step), max(0, now.tokens - best.tokens)
    print(
        f"{best.words}\nlost: {steps:,} global steps and {tokens:,} tokens, merged since",
        flush=True,
    )
    if not is_sure:
        warning = restore_command.checkpoint_warning(case, best)
        print("\n".join([*warning, restore_command.UNCONFIRMED]))
        return ExitCode.DONE
    return restore_command.go_back_to_checkpoint(case, best, instance)


def moment(text: str, now_s: float) -> float:
    """The time that is meant, in Unix seconds; without a zone it is this machine's.

    UserError for what is neither a time nor a duration, and for the future.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        since_s = found.timestamp()  # Without a zone: local time.
    except (ValueError, OverflowError):
        try:
            since_s = now_s - durations.seconds(text)
        except UserError as error:
            raise UserError(
                f"{text!r} is neither a time nor a duration. Write 2026-11-22T14:30, with +01:00 "
                "or Z behind it where another zone is meant, or how long ago: 15m, 2h, 1d."
            ) from error
    if since_s > now_s:
        raise UserError(f"{_shown(since_s)} is still to come. Name a time in the past.")
    return since_s


def _before(case: Case, instance: str, since_s: float) -> tuple[Manifest, list[str]]:
    """The newest snapshot from before this time that can be used, and what is to be said."""
    name = case.project.genesis.name
    found = checked(case.home.syncer_store(case.project.id, instance))
    found = [one for one in found if not _is_void(one[1], case.project.charter)]
    if not found:
        raise UserError(
            f"Syncer {instance} of {case.home.root} has no snapshot of {name} to go back to. Run "
            "this on the host whose syncer took one. For the next time: shoal project set "
            f"{case.target} limits.snapshot_every_s=3600"
        )
    old_enough = [one for one in found if one[0] <= since_s]
    if not old_enough:
        oldest = found[-1][0]
        raise UserError(
            f"No snapshot of {name} is from before {_shown(since_s)}: the oldest here is "
            f"{stamp(oldest)}, of {_shown(oldest)}. To go back to that one: shoal project "
            f"restore-snapshot {case.target} {stamp(oldest)}. To keep more from now on: "
            f"limits.snapshots_kept, which is {case.project.charter.limits.snapshots_kept}."
        )
    return restore_command.first_good(old_enough, [stamp(snapshot) for snapshot, _ in found])


def _is_void(found: Manifest | CorruptState, charter: Charter) -> bool:
    """Whether the owner went back to before this snapshot: it holds what was taken back then."""
    if isinstance(found, CorruptState) or charter.origin is None:
        return False
    return found.epoch < charter.epoch and found.index > charter.origin.index


class Reached(NamedTuple):
    """Where a run stands."""

    global_step: int
    tokens: int


def _lost(case: Case, instance: str, manifest: Manifest, *, now_s: float) -> list[str]:
    """What would be void: steps, tokens and time since the snapshot."""
    lines = [
        f"newest snapshot from before: {stamp(manifest.snapshot)}, of {_shown(manifest.snapshot)}, "
        f"global step {manifest.global_step:,}, {manifest.tokens:,} tokens"
    ]
    ago = _ago(now_s - manifest.snapshot)
    now = _reached(case, instance)
    if now is None:
        return [*lines, f"lost: whatever was merged in the {ago} since; this machine cannot tell"]
    steps = max(0, now.global_step - manifest.global_step)
    tokens = max(0, now.tokens - manifest.tokens)
    return [
        *lines,
        f"lost: {steps:,} global steps and {tokens:,} tokens, merged in the {ago} since",
    ]


def _reached(case: Case, instance: str) -> Reached | None:
    """What the syncer here says of now, or the log on its disk; None where neither tells."""
    from syncer_node.storage.ledger import read_state

    statuses, _ = daemons.ask_all(daemons.fitting(case.home, "syncer", instance))
    for status in statuses:
        if isinstance(status, SyncerStatus) and status.project.id == case.project.id.hex():
            return Reached(status.swarm.global_step, status.swarm.tokens)
    try:
        store = case.home.syncer_store(case.project.id, instance)
        state = read_state(store, case.project)
    except (OSError, CorruptState, RemoteError):
        return None
    return Reached(state.global_step, state.tokens) if state.index else None


def _shown(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _ago(seconds: float) -> str:
    """A length of time in its two largest units."""
    minutes = max(1, int(seconds // 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    told = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(told[:2])
