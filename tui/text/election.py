"""The election in words: who leads, who votes, what another failure would do."""

from __future__ import annotations

from collections.abc import Mapping

from protocol import limits
from protocol.status import PeerRow, SeatStatus, SyncerStatus, VoterRow
from tui.text import fmt

LOST = ("gone", "silent")
AWAY = (*LOST, "left")

Names = Mapping[str, str]
"""What daemons of this machine are called, by key; everybody else goes by the key's start."""

LEADING = "leading"
KEY_CHARS = 8

DURABILITY = {
    "leader": "a merge counts once the leader holds it",
    "standby": "a merge counts once another syncer also holds it, if there is one",
    "majority": "a merge counts once a majority of the syncers hold it",
}


def name(key: str, names: Names) -> str:
    """A daemon of this machine by its label, another host by the start of its key."""
    return names.get(key) or fmt.clean(key, 64)[:KEY_CHARS]


def voter_name(row: VoterRow, names: Names) -> str:
    """The voter with its role, which a label has already."""
    called = fmt.clean(row.name, 40) or name(row.key, names)
    return names.get(row.key) or f"{fmt.clean(row.role, 12)} {called}"


def majority(seat: SeatStatus) -> int:
    """How many voters elect."""
    return len(seat.voters) // 2 + 1


def is_away(row: VoterRow) -> bool:
    """Whether there is no accepted stream to it, or nothing comes on it."""
    is_quiet = not row.is_self and (row.heard_s or 0.0) > limits.QUIET_AFTER_S
    return not row.is_here or is_quiet


def away(seat: SeatStatus) -> list[VoterRow]:
    """Voters that this host does not hear."""
    return [row for row in seat.voters if is_away(row)]


def lacks_majority(seat: SeatStatus) -> bool:
    """Whether so few voters are heard that nothing can be agreed on."""
    return len(seat.voters) - len(away(seat)) < majority(seat)


def role(seat: SeatStatus) -> str:
    """What this host is in the election."""
    if seat.role == LEADING:
        return "leading"
    if seat.leader:
        return "following"
    return "waiting for a leader" if seat.role == "following" else fmt.clean(seat.role, 60)


def away_words(seat: SeatStatus, names: Names) -> str:
    """Which voters are not here, and whether one more may fail; empty if all are."""
    missing = away(seat)
    if not missing:
        return ""
    told = []
    for row in missing:
        since = "" if row.heard_s is None else f"last heard {fmt.whole(row.heard_s)} ago"
        why = ", ".join(part for part in (since, fmt.clean(row.trouble, 120)) if part)
        told.append(f"{voter_name(row, names)} ({why})" if why else voter_name(row, names))
    text = f"{len(missing)} of {fmt.plural(len(seat.voters), 'voter')} not here: "
    text += ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    here = len(seat.voters) - len(missing)
    if here < majority(seat):
        return f"{text}; an election needs {majority(seat)}, {here} {_is(here)} here."
    return f"{text}; no other may fail." if here == majority(seat) else f"{text}."


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def turned_away(seat: SeatStatus, names: Names) -> str:
    """Voters that are there and do not agree to be; empty if there are none."""
    return " ".join(
        f"{voter_name(row, names)}: {fmt.clean(row.trouble, 200)}."
        for row in seat.voters
        if row.trouble and row.is_here
    )


def lacks_standby(seat: SeatStatus) -> bool:
    """Whether there should be another syncer that holds everything, and there is none."""
    others = [row for row in seat.voters if row.role == "syncer" and not row.is_self]
    return seat.role == LEADING and bool(others) and not seat.standbys


def standbys(seat: SeatStatus) -> str:
    """How many syncers could go on from here at once; only a leader knows."""
    if seat.role != LEADING:
        return ""
    if sum(row.role == "syncer" for row in seat.voters) < 2:
        return "none: this is the only syncer"
    if not seat.standbys:
        return "none is up to date"
    return f"{seat.standbys} up to date"


def durability(seat: SeatStatus) -> str:
    """The rule with its meaning."""
    meaning = DURABILITY.get(seat.durability)
    word = fmt.clean(seat.durability, 20)
    return f"{word}: {meaning}" if meaning else word


def charter(seat: SeatStatus) -> str:
    """The revision in force, and a newer one that waits."""
    text = f"revision {seat.charter_revision} in force"
    if seat.newest_charter_revision > seat.charter_revision:
        text += f"; {seat.newest_charter_revision} is signed and waits for the voters to adopt it"
    return text


def clock(seat: SeatStatus) -> tuple[float, str] | None:
    """What comes next and the share of the wait that is left; None where nothing is waited for."""
    if seat.beat_in_s is not None:
        return seat.beat_in_s / limits.BEAT_EVERY_S, f"next heartbeat in {seat.beat_in_s:.1f} s"
    if seat.election_in_s is not None:
        share = seat.election_in_s / limits.ELECTION_TIMEOUT_S_MAX
        if seat.leader:
            return share, f"stands for election after {seat.election_in_s:.1f} s more silence"
        does = "stands for election" if seat.role == "following" else "tries again"
        return share, f"{does} in {seat.election_in_s:.1f} s"
    return None


def no_clock(seat: SeatStatus) -> str:
    """Why nothing is waited for."""
    if seat.is_drained:
        return "drained: it does not stand for election"
    if seat.role == LEADING:
        return "no other voter needs to hear it"
    return "it votes but does not stand for election"


def line(seat: SeatStatus, names: Names) -> str:
    """All of it in one line: leading, term 3 · 3 voters, all here · standby durability."""
    missing = len(away(seat))
    voters = fmt.plural(len(seat.voters), "voter")
    here = "all here" if not missing else f"{missing} not here"
    if len(seat.voters) == 1:
        here = "this one"
    if seat.role != LEADING and seat.leader:
        first = f"following {name(seat.leader, names)} in term {seat.term}"
    else:
        first = f"{role(seat)}, term {seat.term}"
    pieces = [first, f"{voters}, {here}", f"{fmt.clean(seat.durability, 20)} durability"]
    if lacks_standby(seat):
        pieces.append("no standby")
    if seat.is_drained:
        pieces.append("drained")
    if seat.newest_charter_revision > seat.charter_revision:
        pieces.append(charter(seat))
    return " · ".join(pieces)


def voter_state(row: VoterRow) -> str:
    """One word, or two."""
    if is_away(row):
        return "silent" if row.is_here else "not here"
    if row.is_leader:
        return "leads"
    if row.trouble:
        return "turned away"
    return f"merges {fmt.plural(row.fragments, 'fragment')}" if row.fragments else "here"


def lag(row: VoterRow) -> str:
    """How many records it is behind, where that is known."""
    if row.lag is None:
        return "–"
    return f"{row.lag:,}"


def is_wrong(row: VoterRow) -> bool:
    """Whether somebody should look after it."""
    return is_away(row) or bool(row.trouble)


def voter_line(row: VoterRow, names: Names) -> str:
    """One voter in a line of its own."""
    heard = "" if row.heard_s is None else f", last heard {fmt.whole(row.heard_s)} ago"
    text = f"{voter_name(row, names)}, priority {row.priority}: {voter_state(row)}{heard}"
    return f"{text}; {fmt.clean(row.trouble, 300)}" if row.trouble else text


def alive(status: SyncerStatus) -> list[PeerRow]:
    """Learners that the syncer hears."""
    return [peer for peer in status.peers if peer.state not in AWAY]


def leads(status: SyncerStatus) -> bool:
    """Whether this syncer has the seat; one of before there were elections always had."""
    return status.seat is None or status.seat.role == LEADING
