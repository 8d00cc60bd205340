"""`shoal syncer snapshot`: take a consistent snapshot of the whole swarm, or say which are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from host.control import client
from host.files import signed_project
from host.files import snapshot_files as files
from host.files.home import DEFAULT_INSTANCE, Home
from protocol.errors import CorruptState, UserError
from protocol.ids import short
from protocol.snapshots.manifest import Manifest, stamp
from protocol.status import SnapshotRow, SyncerStatus
from shoal.common import daemons, failures
from shoal.common.choices import HomeHere, Instance, switch
from shoal.common.exit_codes import ExitCode

TAKE_S = 660.0
"""The syncer itself gives late parts up after ten minutes."""


def snapshot(
    *,
    list_kept: Annotated[
        bool, switch("Take none; check and list those on this disk.", name="--list")
    ] = False,
    json: Annotated[bool, switch("With --list: as one JSON list.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int | list[str]:
    """Takes a snapshot, or says which are here."""
    if list_kept or json:
        return show(home, instance=instance, as_json=json)
    return take(home, instance=instance)


def take(home: Home, *, instance: str) -> int:
    """Have the syncer here take one now, and wait until it is kept."""
    (daemon,) = daemons.find_daemons(home, role="syncer", instance=instance)
    answer = client.call(daemon.socket, "snapshot")
    name = stamp(int(answer["snapshot"]))
    print(f"snapshot {name} begins; merging and local steps go on", flush=True)
    said: list[str] = []
    for status in daemons.statuses_of(daemon, timeout_s=TAKE_S):
        if not isinstance(status, SyncerStatus):
            continue
        found = status.snapshots
        row = next((one for one in found.kept if one.name == name), None)
        if row is not None:
            print("\n".join(_told(row)))
            return ExitCode.DONE
        if found.taking != name:
            raise UserError(
                f"Snapshot {name} was not kept: {found.trouble or 'another syncer leads now'}. "
                "Take another one after that; earlier snapshots are intact."
            )
        if found.waiting_for and found.waiting_for != said:
            said = found.waiting_for
            print(f"waiting for {', '.join(said)}", flush=True)
    failures.complain(f"Snapshot {name} is not complete after {TAKE_S:g} s; see `shoal status`.")
    return ExitCode.NOT_REACHABLE


def _told(row: SnapshotRow) -> list[str]:
    lines = [
        f"snapshot {row.name}: record {row.log_index:,}, global step {row.global_step:,}, "
        f"epoch {row.epoch}"
    ]
    lines.append(f"    in: {', '.join(row.parts) or 'no learner'}")
    lines += [f"    not in: {name}: {reason}" for name, reason in row.skipped.items()]
    return lines


def show(home: Home, *, instance: str, as_json: bool) -> list[str]:
    """Every snapshot on this syncer's disk, checked byte by byte."""
    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    for copy in home.hosted_projects(instance):
        project = signed_project.read_signed(copy)
        root = home.syncer_store(project.id, instance)
        for snapshot, found in checked(root):
            rows.append(_row(project.genesis.name, snapshot, found))
            lines += _listed(snapshot, found)
    if as_json:
        return [json.dumps(rows)]
    return lines or ["no snapshot yet: shoal syncer snapshot"]


def checked(root: Path) -> list[tuple[int, Manifest | CorruptState]]:
    """Snapshots in a syncer's store, newest first: what each says, or what is wrong with it."""
    from syncer_node.storage.snapshot_store import SnapshotStore

    store = SnapshotStore(root, is_reader=True)
    found: list[tuple[int, Manifest | CorruptState]] = []
    for snapshot in files.held(store.folder):
        try:
            found.append((snapshot, store.check(snapshot).manifest))
        except CorruptState as error:
            found.append((snapshot, error))
    return found


def _listed(snapshot: int, found: Manifest | CorruptState) -> list[str]:
    if isinstance(found, CorruptState):
        return [f"{stamp(snapshot)}  CANNOT BE USED: {found}"]
    names = ", ".join(part.name for part in found.parts) or "no learner"
    lines = [
        f"{stamp(snapshot)}  record {found.index:,}, global step {found.global_step:,}, "
        f"epoch {found.epoch}, {found.tokens:,} tokens; in: {names}"
    ]
    lines += [
        f"    not in: {one.name} ({short(one.learner)}): {one.reason}" for one in found.skipped
    ]
    return lines


def _row(project: str, snapshot: int, found: Manifest | CorruptState) -> dict[str, Any]:
    if isinstance(found, CorruptState):
        return {"project": project, "snapshot": stamp(snapshot), "trouble": str(found)}
    return {
        "project": project,
        "snapshot": stamp(snapshot),
        "epoch": found.epoch,
        "log_index": found.index,
        "global_step": found.global_step,
        "tokens": found.tokens,
        "parts": [
            {
                "name": one.name,
                "learner": one.learner.hex(),
                "digest": one.digest.hex(),
                "local_step": one.books.local_step,
                "in_flight": sorted({*one.in_hand, *one.arriving}),
                "tokens": {
                    "processed": one.books.processed,
                    "merged": one.books.merged,
                    "in_flight": one.books.in_flight,
                    "pending": one.books.pending,
                    "discarded": one.books.discarded,
                    "lost": one.books.lost,
                },
            }
            for one in found.parts
        ],
        "skipped": {one.name: one.reason for one in found.skipped},
    }
