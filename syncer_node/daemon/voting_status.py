"""The election as one voter sees it, for screens."""

from __future__ import annotations

from collections import Counter

from protocol import limits
from protocol.status import SeatStatus, VoterRow
from syncer_node.machine.merging.mergers import Mergers
from syncer_node.raft.context import Role
from syncer_node.raft.raft import Raft


def seat_status(raft: Raft, now_s: float, trouble: str = "") -> SeatStatus:
    """Who leads, who votes, and how far everybody is."""
    context, log = raft.context, raft.log
    is_leading = raft.is_leading
    heard_s = 0.0 if is_leading else now_s - context.leader_heard_s
    me = log.charter.voter(context.key)
    has_heard = not context.leader and context.leader_heard_s > 0
    may_stand = me is not None and me.role == "syncer" and not raft.election.is_drained
    return SeatStatus(
        role=context.role.value,
        epoch=context.epoch,
        term=context.term,
        leader=context.leader.hex() if context.leader else "",
        leader_heard_s=heard_s if context.leader else None,
        leaderless_s=heard_s if has_heard else None,
        beat_in_s=(
            max(0.0, raft.replication.deadline_s() - now_s)
            if is_leading and context.peers
            else None
        ),
        election_in_s=(
            max(0.0, raft.election.deadline_s - now_s) if may_stand and not is_leading else None
        ),
        durability=log.charter.durability if len(log.charter.voters) > 1 else "leader",
        standbys=len(raft.replication.standbys()) if is_leading else 0,
        charter_revision=log.charter.revision,
        newest_charter_revision=context.newest_charter.revision,
        is_drained=raft.election.is_drained,
        trouble=raft.replication.store_trouble or trouble,
        voters=[
            _row(raft, voter.key, voter.role, voter.priority, now_s)
            for voter in sorted(log.charter.voters, key=lambda v: (v.role, -v.priority, v.key))
        ],
    )


def show_mergers(seat: SeatStatus, mergers: Mergers) -> None:
    """Who merges how much, where several syncers do."""
    held = Counter(mergers.assignment.mergers.values())
    if not held.keys() - {mergers.own}:
        return
    for row in seat.voters:
        if row.role == "syncer":
            key = bytes.fromhex(row.key)
            row.fragments = held[key]
            row.merge_bytes_per_s = mergers.assignment.load(key).bytes_per_s


def _row(raft: Raft, key: bytes, role: str, priority: int, now_s: float) -> VoterRow:
    context, log = raft.context, raft.log
    row = VoterRow(key=key.hex(), role=role, priority=priority, is_leader=key == context.leader)
    if key == context.key:
        row.is_self = row.is_here = True
        row.heard_s = 0.0
        row.lag = log.last - log.stable
        return row
    peer = context.peers.get(key)
    if peer is None:
        return row
    row.is_here, row.name = peer.is_greeted, peer.name
    row.heard_s = now_s - peer.heard_s if peer.heard_s > 0 else None
    row.trouble = peer.trouble or peer.refusal
    if context.role is Role.LEADING and peer.is_greeted:
        row.lag = max(0, log.last - peer.match)
    return row


def _is_away(row: VoterRow) -> bool:
    """Whether there is no stream to this voter, or nothing comes on it."""
    is_quiet = not row.is_self and (row.heard_s or 0.0) > limits.QUIET_AFTER_S
    return not row.is_here or is_quiet


def away_words(raft: Raft, now_s: float) -> str:
    """Who of those that do not lead is not here, as a sentence behind others; or nothing."""
    rows = seat_status(raft, now_s).voters
    away = [row for row in rows if _is_away(row) and not row.is_leader]
    names = ", ".join(f"{row.role} {row.key[:8]}" for row in away)
    return f" Not here: {names}." if away else ""


def waiting_words(raft: Raft, now_s: float) -> str:
    """What an election waits for, as the end of a sentence."""
    context = raft.context
    away = [row for row in seat_status(raft, now_s).voters if _is_away(row)]
    refused = [row.trouble for row in seat_status(raft, now_s).voters if row.trouble]
    names = ", ".join(row.key[:8] for row in away)
    if refused:
        return refused[0]
    if context.is_forming and away:
        return f"the first election needs every voter once; not here: {names}"
    if away:
        return f"not here: {names}"
    return f"term {context.term}"
