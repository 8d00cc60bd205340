"""What a syncer's machine looks like to people: sentences, and rows of its status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from host.control.status_parts import bulk_rows
from host.transport import Transport
from protocol import limits, probes, status
from protocol.ids import short
from protocol.log.accounts import Account, printable, suspended_words
from protocol.log.guard import Pause, owner_pause_words, pause_words
from protocol.log.heldout import disputed_words
from protocol.log.state import SwarmState
from protocol.messages import Report, Unfit
from protocol.peers.membership import Session
from protocol.snapshots.manifest import stamp
from protocol.standing import DOUBTED_BELOW
from syncer_node.daemon.voting_status import away_words, waiting_words
from syncer_node.machine.leadership import Leadership, Phase
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.machine.trust.admission import most_crowded
from syncer_node.machine.trust.conduct import charges
from syncer_node.machine.trust.judge import Doubt


def sentence(machine: SyncerMachine, now_s: float) -> str:
    """How the swarm is, in words that are true now."""
    state, leadership, raft = machine.state, machine.leadership, machine.raft
    if raft.replication.store_trouble:
        what = "Merging paused" if raft.is_leading else "Not keeping the log"
        return f"{what}: {raft.replication.store_trouble}."
    if machine.lost is not None:
        return machine.lost.text
    if leadership is None:
        also = f" {pause_words(state.pause, state.accounts)}." if state.pause is not None else ""
        if state.owner_paused_at_s is not None:
            also += f" {owner_pause_words(state.owner_paused_at_s)}."
        return f"{_standby_sentence(machine, now_s)}{also}"
    if leadership.phase is Phase.ENDED:
        best = state.ended.best_loss if state.ended else None
        loss = f", best held-out loss {best:.4f}" if best is not None else ""
        steps = f"{state.global_step:,} global step{'' if state.global_step == 1 else 's'}"
        return f"The run is complete: {steps}{loss}."
    if state.is_resting:
        return _resting_sentence(leadership)
    if leadership.rounds.stalled and now_s < leadership.rounds.stalled_until_s:
        return f"Merging paused: {leadership.rounds.stalled}."
    if leadership.is_closing:
        return "Handing the seat over to a standby."
    if leadership.phase is Phase.STARTING:
        return "Creating the first weights."
    if leadership.phase is Phase.DRAINING:
        return "The token budget is reached; finishing and evaluating the last rounds."
    away = away_words(raft, now_s)
    return f"{_training_sentence(leadership, now_s, is_whole=not away)}{away}"


def _resting_sentence(leadership: Leadership) -> str:
    """Who pauses the run, since when, and how it goes on."""
    state, said = leadership.state, []
    if state.owner_paused_at_s is not None:
        here = len(list(leadership.members.live()))
        said += [
            f"{owner_pause_words(state.owner_paused_at_s)}. {_learners(here)} here.",
            "`shoal project resume PROJECT` goes on.",
        ]
    if state.pause is not None:
        said.append(guard_sentence(state, state.pause))
    return " ".join(said)


def guard_sentence(state: SwarmState, pause: Pause) -> str:
    """Since when the guard pauses merging, why, and how it ends."""
    return f"{pause_words(pause, state.accounts)}. {state.outlook}"


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


def _training_sentence(leadership: Leadership, now_s: float, *, is_whole: bool) -> str:
    """is_whole: no voter is away."""
    live = list(leadership.members.live())
    training = leadership.members.training()
    if not live:
        return "Waiting for learners: share the join link."
    if not training:
        idle = [one for one in live if not one.is_suspended]
        doing = nobody_trains([(one.name, _doing(one)) for one in idle])
        alone = "" if idle else "Nobody else trains."
        parts = (_suspended(leadership), doing if idle else alone, unfit_words(live))
        return " ".join(filter(None, parts))
    missing = [
        s for s in leadership.members.sessions.values() if not s.is_connected and not s.has_left
    ]
    tail = f" Gone: {', '.join(s.name for s in missing)}." if missing else ""
    waiting = leadership.rounds.pace.waiting
    is_short = "learners ready" in waiting
    wait = f" Waiting: {waiting}." if is_short else ""
    names = {key: session.name for key, session in leadership.members.sessions.items()}
    disputed = disputed_words(leadership.state.curve, leadership.state.accounts, names)
    said = (
        _suspended(leadership),
        _doubt(leadership),
        disputed,
        _conduct(leadership, now_s),
        _crowd(leadership),
        unfit_words(live),
    )
    how = " ".join(filter(None, said)) or ("All is well." if is_whole else "")
    return f"{how} {_learners(len(training))} training.{tail}{wait}".lstrip()


UNFIT: Final[Mapping[Unfit, str]] = {
    "data": "their text is missing, too short or cannot be read",
    "model": "their software does not build the model",
}


def _doing(session: Session) -> str:
    """The state of a learner that does not train."""
    if session.beat is None:
        return ""
    return "unfit" if session.beat.unfit else session.beat.state


def unfit_words(live: Sequence[Session]) -> str:
    """Whose trainers cannot start, and why."""
    found = {
        words: [one for one in live if one.beat is not None and one.beat.unfit == unfit]
        for unfit, words in UNFIT.items()
    }
    return " ".join(
        f"Cannot train, because {words}: {_named(those)}."
        for words, those in found.items()
        if those
    )


def _suspended(leadership: Leadership) -> str:
    """Who is here and suspended, and what was measured of it."""
    live = [session for session in leadership.members.live() if session.is_suspended]
    if not live:
        return ""
    names = _named(live)
    if len(live) > 1:
        return f"Suspended, because others measured that their pushes are not trained: {names}."
    return (
        f"Suspended: {names}, because {suspended_words(leadership.state.accounts[live[0].peer])}."
    )


def _standing(account: Account, trust: float, *, is_judged: bool, is_checkable: bool) -> str:
    """What is known of a key, in a word or two; nothing where all count."""
    if account.is_suspended:
        return "suspended"
    if not is_judged:
        return ""
    if trust < DOUBTED_BELOW:
        return "doubted"
    if not is_checkable:
        return "other text"
    return "established" if account.standing.is_established else "new"


DOUBTS: Final[Mapping[Doubt, str]] = {
    "direction": "point elsewhere",
    "repeats": "always add the same to what others hand in",
    "echoes": "only repeat what was merged",
}


def _doubt(leadership: Leadership) -> str:
    """Whose pushes do not count."""
    doubts = leadership.rounds.judge.doubts()
    live = [session for session in leadership.members.live() if not session.is_suspended]
    found = {
        words: [one for one in live if doubts.get(one.peer) == doubt]
        for doubt, words in DOUBTS.items()
    }
    return " ".join(
        f"Not counted, because their pushes {words}: {_named(those)}."
        for words, those in found.items()
        if those
    )


def _conduct(leadership: Leadership, now_s: float) -> str:
    """Who takes part and gives nothing, or what cannot be taken."""
    steps = leadership.rounds.spec.local_steps
    found = charges(leadership.members, leadership.state, local_steps=steps, now_s=now_s)
    return " ".join(f"{words}: {_named(those)}." for words, those in found.items())


def _crowd(leadership: Leadership) -> str:
    """Whether a full project is full of one network address."""
    here = list(leadership.members.live())
    seats = leadership.setup.charter.limits.learners
    found = most_crowded(Counter(one.network for one in here), seats)
    if len(here) < seats or found is None:
        return ""
    network, count = found[0] or "behind relays", found[1]
    return f"The project is full, and {count:,} of {seats:,} learners come from {network}."


def _named(sessions: Sequence[Session]) -> str:
    """Learners by name and key: a name alone is whatever its owner chose."""
    named = [f"{printable(one.name)} ({short(one.peer)})" for one in sessions[:NAMES_MAX]]
    more = f" and {len(sessions) - NAMES_MAX} more" if len(sessions) > NAMES_MAX else ""
    return f"{', '.join(named)}{more}"


NAMES_MAX = 3
"""More learners than this are counted, not named."""

DOING = {
    "": "connecting",
    "syncing": "fetching weights",
    "starting": "starting",
    "unfit": "unable to train",
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


def peer_rows(leadership: Leadership, newest: list[int], now_s: float) -> list[status.PeerRow]:
    """All learners that the leader knows, in key order."""
    rounds, accounts = leadership.rounds, leadership.state.accounts
    trusts, new = rounds.judge.trusts(), rounds.judge.new()
    return [
        peer_row(
            session,
            newest,
            leadership.step_tokens,
            now_s,
            trust=trusts.get(peer, 1.0),
            is_new=peer in new,
            is_judged=rounds.judge.is_judging,
            is_checkable=rounds.judge.is_checkable(peer),
            account=accounts.get(peer),
            taken_back=leadership.state.taken_back.get(peer, 0),
        )
        for peer, session in sorted(leadership.members.sessions.items())
    ]


def peer_row(
    session: Session,
    newest: list[int],
    step_tokens: tuple[int, int],
    now_s: float,
    *,
    trust: float = 1.0,
    is_new: bool = False,
    is_judged: bool = False,
    is_checkable: bool = True,
    account: Account | None = None,
    taken_back: int = 0,
) -> status.PeerRow:
    """One learner as the syncer sees it. account: what the log says of its key; taken_back: its
    tokens that are no progress, summed over fragments."""
    known = account if account is not None else Account()
    standing = known.standing
    beat = session.beat
    lag = 0
    if beat is not None:
        lag = max((new - old for new, old in zip(newest, beat.versions, strict=False)), default=0)
    return status.PeerRow(
        key=session.peer.hex(),
        name=session.name,
        device=session.device,
        state=_state(session, now_s),
        heard_s=now_s - session.heard_s,
        local_step=beat.local_step if beat else 0,
        step_s=session.step_s,
        tokens=beat.tokens if beat else 0,
        tokens_per_s=session.tokens_per_step(*step_tokens) * session.steps_per_s(now_s),
        loss=beat.loss if beat else None,
        lag=lag,
        merges=session.merges if account is None else account.merges,
        goodput=min(1.0, beat.work_s / beat.alive_s) if beat and beat.alive_s > 1e-3 else None,
        refused=_refused(session, known),
        left=session.lost_reason if session.has_left else "",
        trust=0.0 if known.is_suspended else trust,
        direction=max(-1.0, min(1.0, standing.bearing)) if standing.judged else None,
        doubted=known.doubted,
        is_new=is_new,
        share=session.share,
        clipped=known.clipped,
        standing=_standing(known, trust, is_judged=is_judged, is_checkable=is_checkable),
        probes=known.probes,
        contrast=probes.mean_contrast(known.findings),
        evidence=probes.evidence(known.findings) if known.findings else None,
        suspended=suspended_words(known) if known.is_suspended else "",
        taken_back=taken_back // max(1, len(newest)),
        load=session.load if _state(session, now_s) == "training" else None,
    )


def _refused(session: Session, account: Account) -> dict[str, int]:
    """What did not count of a learner, whoever led: the log has it some seconds later than we."""
    counted = most(account.fates(), session.rejected)
    pushes = {word: number for word, number in counted.items() if word not in MERGED}
    return {**pushes, **session.faults}


MERGED = ("merged", "clipped")


def most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The larger count of each kind."""
    return {word: max(one.get(word, 0), other.get(word, 0)) for word in {**one, **other}}


def report(public: Callable[[int], status.SyncerStatus], most: int) -> Report:
    """A report that names as many learners as there is room for, and no more than `most`.

    public: the status for strangers that names so many.
    """
    encoded = msgspec.msgpack.encode(public(most))
    while most and len(encoded) > limits.REPORT_BYTES_MAX:
        most //= 2
        encoded = msgspec.msgpack.encode(public(most))
    return Report(encoded)


def outcomes(machine: SyncerMachine) -> dict[str, int]:
    """What became of all pushes of the run, as the log counts, whoever led."""
    leadership = machine.leadership
    found = machine.state.accounts.fates()
    return most(found, leadership.rounds.outcomes if leadership is not None else {})


def _state(session: Session, now_s: float) -> str:
    """What a learner does, in a word."""
    beat = session.beat
    if not session.is_connected:
        return "left" if session.has_left else "gone"
    if now_s - session.heard_s > limits.SUSPECT_AFTER_S:
        return "silent"
    if beat is None:
        return "greeting"
    if beat.unfit:
        return "unfit"
    if session.is_suspended and beat.state in ("training", "starved"):
        return "suspended"
    return beat.state


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
