"""What a syncer's machine looks like to people: sentences, and rows of its status."""

from __future__ import annotations

from host.control.status_parts import bulk_rows
from host.transport import Transport
from protocol import limits, status
from protocol.ids import short
from protocol.log.accounts import Account, printable
from protocol.peers.membership import Session
from protocol.snapshots.manifest import stamp
from protocol.standing import NOBODY
from syncer_node.daemon.voting_status import away_words, waiting_words
from syncer_node.machine.leadership import Leadership, Phase
from syncer_node.machine.syncer import SyncerMachine


def sentence(machine: SyncerMachine, now_s: float) -> str:
    """How the swarm is, in words that are true now."""
    state, leadership, raft = machine.state, machine.leadership, machine.raft
    if raft.replication.store_trouble:
        what = "Merging paused" if raft.is_leading else "Not keeping the log"
        return f"{what}: {raft.replication.store_trouble}."
    if leadership is None:
        return _standby_sentence(machine, now_s)
    if leadership.phase is Phase.ENDED:
        best = state.ended.best_loss if state.ended else None
        loss = f", best held-out loss {best:.4f}" if best is not None else ""
        return f"The run is complete: {state.global_step:,} global steps{loss}."
    if leadership.rounds.stalled and now_s < leadership.rounds.stalled_until_s:
        return f"Merging paused: {leadership.rounds.stalled}."
    if leadership.is_closing:
        return "Handing the seat over to a standby."
    if leadership.phase is Phase.STARTING:
        return "Creating the first weights."
    if leadership.phase is Phase.DRAINING:
        return "The token budget is reached; finishing and evaluating the last rounds."
    return _training_sentence(leadership) + away_words(raft, now_s)


def _standby_sentence(machine: SyncerMachine, now_s: float) -> str:
    raft = machine.raft
    if raft.is_leading:
        return f"Elected in term {raft.context.term}; taking the seat."
    missing = machine.standby.missing
    if missing:
        trouble = f" ({machine.standby.trouble})" if machine.standby.trouble else ""
        return f"Fetching {len(missing)} fragments missing from this disk{trouble}."
    if raft.leader is None:
        return f"No leader: {waiting_words(raft, now_s)}."
    heard_s = now_s - raft.context.leader_heard_s
    tail = " Drained: it will not stand for election." if raft.election.is_drained else ""
    trouble = machine.standby.trouble if machine.standby.is_waiting else ""
    but = f", but not keeping up: {trouble}" if trouble else ""
    return f"Standing by for {short(raft.leader)}, heard {heard_s:.0f} s ago{but}.{tail}"


def _training_sentence(leadership: Leadership) -> str:
    live = list(leadership.members.live())
    training = leadership.members.training()
    if not live:
        return "Waiting for learners: share the join link."
    if not training:
        return nobody_trains([(one.name, one.beat.state if one.beat else "") for one in live])
    missing = [
        s for s in leadership.members.sessions.values() if not s.is_connected and not s.has_left
    ]
    tail = f" Gone: {', '.join(s.name for s in missing)}." if missing else ""
    waiting = leadership.rounds.pace.waiting
    is_short = "learners ready" in waiting
    wait = f" Waiting: {waiting}." if is_short else ""
    how = _doubt(leadership) or "All is well."
    return f"{how} {_learners(len(training))} training.{tail}{wait}"


def _doubt(leadership: Leadership) -> str:
    """Whose pushes do not count, by name and key: a name alone is whatever its owner chose."""
    doubted = leadership.rounds.doubted()
    live = [session for session in leadership.members.live() if session.peer in doubted]
    if not live:
        return ""
    named = [f"{printable(one.name)} ({short(one.peer)})" for one in live[:NAMES_MAX]]
    more = f" and {len(live) - NAMES_MAX} more" if len(live) > NAMES_MAX else ""
    return f"Not counted, because their pushes point elsewhere: {', '.join(named)}{more}."


NAMES_MAX = 3
"""More learners than this are counted, not named."""

DOING = {
    "": "connecting",
    "syncing": "fetching weights",
    "starting": "starting",
    "starved": "out of text",
    "paused": "paused",
    "finishing": "handing in before leaving",
}
"""States of learners that do not train, as parts of a sentence."""


def nobody_trains(learners: list[tuple[str, str]]) -> str:
    """What those who are here do instead. learners: name and state of each."""
    parts = []
    for state in DOING:
        names = [name for name, its in learners if its == state]
        if names:
            who = ", ".join(names) if len(learners) <= NAMES_MAX else f"{len(names):,}"
            parts.append(f"{who} {DOING[state]}")
    return f"Nobody trains: {'; '.join(parts)}."


def _learners(count: int) -> str:
    return f"{count} learner" if count == 1 else f"{count} learners"


def peer_row(
    session: Session,
    newest: list[int],
    tokens_per_step: int,
    now_s: float,
    *,
    trust: float = 1.0,
    account: Account | None = None,
) -> status.PeerRow:
    """One learner as the syncer sees it. account: what the log says of its key."""
    standing = account.standing if account is not None else NOBODY
    beat = session.beat
    state = beat.state if beat else "greeting"
    if not session.is_connected:
        state_word = "left" if session.has_left else "gone"
    elif now_s - session.heard_s > limits.SUSPECT_AFTER_S:
        state_word = "silent"
    else:
        state_word = state
    lag = 0
    if beat is not None:
        lag = max((new - old for new, old in zip(newest, beat.versions, strict=False)), default=0)
    return status.PeerRow(
        key=session.peer.hex(),
        name=session.name,
        device=session.device,
        state=state_word,
        heard_s=now_s - session.heard_s,
        local_step=beat.local_step if beat else 0,
        step_s=session.step_s,
        tokens=beat.tokens if beat else 0,
        tokens_per_s=tokens_per_step * session.steps_per_s(now_s),
        loss=beat.loss if beat else None,
        lag=lag,
        merges=session.merges,
        goodput=min(1.0, beat.work_s / beat.alive_s) if beat and beat.alive_s > 1e-3 else None,
        refused=dict(session.rejected),
        left=session.lost_reason if session.has_left else "",
        trust=trust,
        direction=standing.direction if standing.judged else None,
        doubted=account.doubted if account is not None else 0,
    )


def add_links(rows: list[status.PeerRow], transport: Transport) -> None:
    reached, ways = transport.paths(), {row.key: row for row in bulk_rows(transport)}
    for row in rows:
        if row.state in ("left", "gone"):
            continue
        key = bytes.fromhex(row.key)
        row.path = reached.get(key, "")
        row.rtt_s = transport.round_trips.of(key)
        if (bulk := ways.get(row.key)) is not None:
            row.bulk, row.bulk_detail = bulk.way, bulk.detail


def round_rows(leadership: Leadership, now_s: float) -> list[status.RoundRow]:
    """The rounds in flight."""
    names = {peer: session.name for peer, session in leadership.members.sessions.items()}
    return [
        status.RoundRow(
            number=current.number,
            fragment=current.fragment,
            state=current.state.value,
            arrived=len(current.arrived),
            asked=len(current.tickets),
            quorum=current.required(now_s),
            age_s=now_s - current.opened_s,
            waiting_for=[names.get(peer, short(peer)) for peer in current.pending(now_s)],
        )
        for current in leadership.rounds.rounds.values()
    ]


def snapshot_status(machine: SyncerMachine, now_s: float) -> status.SnapshotStatus:
    """What is kept, what is being taken, and who went on from what."""
    origin = machine.setup.charter.origin
    shown = status.SnapshotStatus(
        kept=[
            status.SnapshotRow(
                name=stamp(one.snapshot),
                epoch=one.epoch,
                log_index=one.index,
                global_step=one.global_step,
                parts=[part.name for part in one.parts],
                skipped={left.name: left.reason for left in one.skipped},
            )
            for one in machine.snapshots
        ],
        restored=stamp(origin.snapshot) if origin is not None and origin.snapshot else "",
    )
    leadership = machine.leadership
    if leadership is not None:
        snapshots = leadership.snapshots
        shown.trouble, due_s = snapshots.trouble, snapshots.next_s
        shown.next_s = max(0.0, due_s - now_s) if due_s is not None else None
        if snapshots.taking is not None:
            shown.taking = stamp(snapshots.taking.snapshot)
            shown.waiting_for = snapshots.taking.waiting_for()
        shown.restores = list(snapshots.restores.values())
    return shown
