"""`shoal project restore-snapshot`: the owner goes back to a snapshot of the whole swarm.

What came after it is void: a new epoch begins behind the snapshot's record. Learners that hold
their part go on from that; the others begin as joiners.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import structs

from host.files.home import DEFAULT_INSTANCE, Daemon
from protocol.errors import CorruptState, UserError
from protocol.project import Origin
from protocol.snapshots.manifest import Manifest, stamp
from protocol.status import RestoreRow, SyncerStatus
from shoal.common import daemons
from shoal.common.choices import HomeHere, Instance, ProjectPath, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.project import charter_commands, charters
from shoal.project.best_checkpoint import Best
from shoal.project.charter_commands import Case
from shoal.project.snapshot_command import checked

UNCONFIRMED = "Nothing was changed. To do it, repeat the command with --yes."
WAIT_S = 120.0
"""Learners start a trainer anew before they can say that they go on."""


def restore(
    project: ProjectPath,
    snapshot: Annotated[
        str | None,
        option("Which one, by its name in `shoal syncer snapshot --list`; the newest by default."),
    ] = None,
    *,
    yes: Annotated[bool, switch("Do it; by default only say what would happen.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Begin a new epoch at a snapshot, and tell who goes on from what.

    Without a confirmation nothing changes. UserError if there is none.
    """
    case = charter_commands.open_case(project, home)
    manifest, notes = _choose(case, instance, snapshot)
    for note in notes:
        print(note)
    if not yes:
        print("\n".join([*warning(case, manifest), UNCONFIRMED]))
        return ExitCode.DONE
    return go_back(case, manifest, instance)


def go_back(case: Case, manifest: Manifest, instance: str) -> int:
    """Begin the epoch, and tell who goes on from what."""
    origin = Origin(manifest.index, manifest.head, manifest.snapshot)
    running = _begin_epoch(case, origin, f"snapshot {stamp(manifest.snapshot)}", instance)
    return _report(running, manifest) if running is not None else 0


def go_back_to_checkpoint(case: Case, best: Best, instance: str) -> int:
    """Begin the epoch at a checkpoint, and wait until merging goes on from there."""
    epoch = case.project.charter.epoch + 1
    running = _begin_epoch(case, best.origin, "the best checkpoint", instance)
    if running is None:
        return 0
    began_s = time.monotonic()
    for status in daemons.statuses_of(running, timeout_s=WAIT_S):
        if not isinstance(status, SyncerStatus):
            continue
        if status.swarm.epoch == epoch and status.phase in ("training", "standby"):
            print(f"in force after {time.monotonic() - began_s:.0f} s; learners fetch the weights")
            return 0
    print(f"not in force after {WAIT_S:.0f} s; `shoal status` says who is missing")
    return 0


def _begin_epoch(case: Case, origin: Origin, where: str, instance: str) -> Daemon | None:
    """Sign an epoch that begins behind this record; the syncer of this host, if it runs."""
    former = case.project.charter
    epoch = former.epoch + 1
    lines = charter_commands.revise(case, structs.replace(former, epoch=epoch, origin=origin))
    print(f"epoch {epoch} begins at {where}, behind record {origin.index:,}")
    print("\n".join(lines), flush=True)
    running = [
        one for one in case.home.daemons() if one.role == "syncer" and one.instance == instance
    ]
    if not running:
        print(f"no syncer runs here; it continues from there when it starts: {case.target}")
        return None
    return running[0]


def _choose(case: Case, instance: str, wanted: str | None) -> tuple[Manifest, list[str]]:
    """The snapshot of this name, or the newest; an older one in place of one that is damaged."""
    found = checked(case.home.syncer_store(case.project.id, instance))
    names = [stamp(snapshot) for snapshot, _ in found]
    if not found:
        raise UserError(
            f"Syncer {instance} of {case.home.root} has no snapshot of "
            f"{case.project.genesis.name}. Run this on the host whose syncer took it."
        )
    if wanted is not None and wanted not in names:
        raise UserError(f"There is no snapshot {wanted}. Here are: {', '.join(names)}.")
    return first_good(found[names.index(wanted) if wanted is not None else 0 :], names)


def first_good(
    found: Sequence[tuple[int, Manifest | CorruptState]], names: Sequence[str]
) -> tuple[Manifest, list[str]]:
    """The first of these that can be used, and what is wrong with those before it.

    names: of all that are here. UserError if none can be used.
    """
    notes: list[str] = []
    for snapshot, content in found:
        if isinstance(content, CorruptState):
            notes.append(f"snapshot {stamp(snapshot)} cannot be used: {content}")
            continue
        if notes:
            notes.append(f"snapshot {stamp(snapshot)} is used, the good one before it")
        return content, notes
    told = "\n".join(notes)
    raise UserError(f"{told}\nThere is no good snapshot before it. Here are: {', '.join(names)}.")


def warning(case: Case, manifest: Manifest) -> list[str]:
    """What going back to this snapshot means, for whoever has not confirmed it."""
    charter = case.project.charter
    names = ", ".join(part.name for part in manifest.parts) or "nobody"
    voters = ", ".join(charters.named(voter) for voter in charter.voters)
    return [
        f"This begins epoch {charter.epoch + 1} of {case.project.genesis.name}:",
        f"  - it goes back to snapshot {stamp(manifest.snapshot)}: record {manifest.index:,}, "
        f"global step {manifest.global_step:,}, {manifest.tokens:,} tokens;",
        "    whatever was merged since is void; a copy of the log stays on each voter's disk;",
        f"  - these go on from their own part, if they still have it: {names};",
        "    other learners begin as joiners, and what they have not handed in is lost;",
        f"  - all voters must come once: {voters}.",
    ]


def checkpoint_warning(case: Case, best: Best) -> list[str]:
    """What going back to a checkpoint means, for whoever has not confirmed it."""
    charter = case.project.charter
    voters = ", ".join(charters.named(voter) for voter in charter.voters)
    return [
        f"This begins epoch {charter.epoch + 1} of {case.project.genesis.name}:",
        f"  - it goes back to record {best.origin.index:,}, global step {best.global_step:,};",
        "    whatever was merged since is void; a copy of the log stays on each voter's disk;",
        "  - learners begin there with fresh optimizer state, and what they have not handed in is "
        "lost;",
        f"  - all voters must come once: {voters}.",
    ]


def _report(daemon: Daemon, manifest: Manifest) -> int:
    """Tell who went on from what, as they come."""
    name = stamp(manifest.snapshot)
    told: set[str] = set()
    awaited = {part.name for part in manifest.parts}
    began_s = time.monotonic()
    for status in daemons.statuses_of(daemon, timeout_s=WAIT_S):
        if not isinstance(status, SyncerStatus) or status.snapshots.restored != name:
            continue
        for row in status.snapshots.restores:
            if row.name not in told:
                told.add(row.name)
                print(f"    {_line(row)}", flush=True)
        if awaited <= told and status.phase == "training":
            break
    for missing in sorted(awaited - told):
        print(f"    {missing}: not here; it continues from its part when it returns")
    print(f"after {time.monotonic() - began_s:.0f} s; `shoal status` shows the rest")
    return 0


def _line(row: RestoreRow) -> str:
    if row.is_restored:
        note = f"; {row.trouble}" if row.trouble else ""
        return f"{row.name}: continues from its part, at local step {row.local_step:,}{note}"
    return f"{row.name}: starts over: {row.trouble or 'it has no part'}"
