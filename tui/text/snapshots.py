"""Snapshots of the swarm in words, for the text view and the screens."""

from __future__ import annotations

from protocol.status import SnapshotStatus
from tui.text import fmt


def last(snapshots: SnapshotStatus) -> str:
    """The last snapshot of the swarm, the one under way, and what went wrong."""
    parts = []
    if snapshots.taking:
        waiting = ", ".join(fmt.clean(name, 40) for name in snapshots.waiting_for)
        tail = f", waiting for {waiting}" if waiting else ""
        parts.append(f"taking {fmt.clean(snapshots.taking, 20)}{tail}")
    if snapshots.kept:
        last = snapshots.kept[-1]
        out = f", {len(last.skipped)} left out" if last.skipped else ""
        parts.append(
            f"{fmt.clean(last.name, 20)} at global step {last.global_step:,} with "
            f"{fmt.plural(len(last.parts), 'learner')}{out}, of {len(snapshots.kept)} kept"
        )
    if snapshots.trouble:
        parts.append(f"the last one was not kept: {fmt.clean(snapshots.trouble, 200)}")
    if snapshots.next_s is not None:
        parts.append(f"the next in {fmt.duration(snapshots.next_s)}")
    return "; ".join(parts)


def restored(snapshots: SnapshotStatus) -> str:
    """Who went on from what, where this epoch began at a snapshot."""
    if not snapshots.restored:
        return ""
    own = [fmt.clean(row.name, 40) for row in snapshots.restores if row.is_restored]
    anew = [fmt.clean(row.name, 40) for row in snapshots.restores if not row.is_restored]
    told = [f"to {fmt.clean(snapshots.restored, 20)}"]
    if own:
        told.append(f"with their own state: {', '.join(own)}")
    if anew:
        told.append(f"from scratch: {', '.join(anew)}")
    return "; ".join(told)
