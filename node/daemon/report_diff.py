"""What happened between two reports of a syncer, for those who get nothing but reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from protocol.status import PeerRow, SyncerStatus

AWAY = ("gone", "left")
KEY_CHARS = 8


class Change(NamedTuple):
    """One event, as it will be shown."""

    kind: str
    text: str
    level: Literal["debug", "info", "warning"] = "info"
    is_fault: bool = False


def between(before: SyncerStatus | None, now: SyncerStatus) -> list[Change]:
    """What must have happened; for the first report, how things are."""
    if before is None:
        here = sum(peer.state not in AWAY for peer in now.peers)
        text = f"first report: phase {now.phase}, {here} learners here, "
        return [Change("FirstReport", f"{text}global step {now.swarm.global_step:,}")]
    return [
        *_seat(before, now),
        *_peers(before, now),
        *_work(before, now),
        *_faults(before, now),
    ]


def _seat(before: SyncerStatus, now: SyncerStatus) -> Iterator[Change]:
    was, is_now = before.swarm, now.swarm
    if (was.leader, was.epoch, was.term) != (is_now.leader, is_now.epoch, is_now.term):
        epoch = f" of epoch {is_now.epoch}" if was.epoch != is_now.epoch else ""
        text = f"{is_now.leader[:KEY_CHARS]} leads in term {is_now.term}{epoch}"
        yield Change("SeatTaken", text)
    if before.phase != now.phase:
        yield Change("PhaseChanged", f"phase {now.phase}, was {before.phase}")


def _peers(before: SyncerStatus, now: SyncerStatus) -> Iterator[Change]:
    known = {peer.key: peer for peer in before.peers}
    for peer in now.peers:
        former = known.pop(peer.key, None)
        yield from _peer(former, peer)
    if before.key != now.key:
        return  # Another syncer: whoever it does not know yet is not lost.
    for peer in known.values():
        if peer.state not in AWAY:
            yield Change("SessionClosed", f"{_name(peer)} is no longer listed", "warning")


def _peer(former: PeerRow | None, peer: PeerRow) -> Iterator[Change]:
    was = former.state if former is not None else "left"
    if peer.state == was:
        return
    if peer.state == "left" and former is not None:
        why = f": {peer.left}" if peer.left else ""
        yield Change("SessionClosed", f"{_name(peer)} left{why}")
    elif peer.state == "gone" and former is not None:
        yield Change("SessionClosed", f"{_name(peer)} was lost", is_fault=True)
    elif peer.state == "silent" and former is not None:
        text = f"{_name(peer)} was not heard for {peer.heard_s:.0f} s"
        yield Change("SessionSilent", text, "warning", is_fault=True)
    elif was in AWAY and peer.state not in AWAY:
        text = f"{_name(peer)} joined" if former is None else f"{_name(peer)} is back"
        yield Change("SessionOpened", text)
    elif was == "silent":
        yield Change("SessionOpened", f"{_name(peer)} is heard again")


def _work(before: SyncerStatus, now: SyncerStatus) -> Iterator[Change]:
    merged = now.swarm.global_step - before.swarm.global_step
    if merged > 0:
        text = f"merged {merged}: global step {now.swarm.global_step:,}"
        yield Change("FragmentCommitted", text, "debug")
    elif merged < 0:
        text = f"back at global step {now.swarm.global_step:,}, was {before.swarm.global_step:,}"
        yield Change("StateChanged", text, "warning")
    known = {point[0] for point in before.swarm.curve}
    for step, _, loss in now.swarm.curve:
        if step not in known:
            yield Change("CheckpointScored", f"held-out loss {loss:.4f} at global step {step:,}")


def _faults(before: SyncerStatus, now: SyncerStatus) -> Iterator[Change]:
    if before.key != now.key:
        return  # Each syncer counts for itself.
    for reason, count in sorted(now.faults.items()):
        more = count - before.faults.get(reason, 0)
        if more > 0:
            yield Change("PeerMisbehaved", f"{more} times {reason}", "warning", is_fault=True)


def _name(peer: PeerRow) -> str:
    return f"{peer.name} ({peer.key[:KEY_CHARS]})"
