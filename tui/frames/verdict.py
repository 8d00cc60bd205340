"""Whether the swarm is well: one word and one sentence, true at every moment, worst first."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal, NamedTuple

from protocol import limits
from protocol.standing import DOUBTED_BELOW
from protocol.status import (
    ON_ITS_WAY,
    DaemonStatus,
    NodeStatus,
    PeerRow,
    SeatStatus,
    SyncerStatus,
    WitnessStatus,
)
from tui.frames.frame import Attached, Frame
from tui.frames.history import History
from tui.frames.scene import Scene, lost
from tui.text import election, fmt, standstill
from tui.text.election import alive, leads

Level = Literal["WELL", "CARE", "TROUBLE", "START", "PAUSED", "DONE"]

CHARS_MAX = 600
NEWS_S = 600.0
"""Volunteers come and go: one who left longer ago than this is told, but is no alarm."""

STANDSTILL_S_BAD = 90.0
UNHEARD_S = limits.LEADER_SUSPECT_AFTER_S
UNHEARD_S_BAD = 60.0
LEADERLESS_S_BAD = 10.0
"""An election is over within seconds; one that is not will hardly end by itself."""

LEADER_QUIET_S = limits.ELECTION_TIMEOUT_S_MIN

_NOBODY = "Nobody trains:"
"""How a syncer begins whose learners are all busy with something else."""

_WELL = re.compile(r"^All is well\.\s*")
_COUNT = re.compile(r"[\d,]+ learners? training\.")
_GONE = re.compile(r"\s*Gone: [^.]*\.")
_NOT_HERE = re.compile(r"\s*Not here: [^.]*\.")
_DIALLING = re.compile(r"\(dialling host (\w{8}): .*?\)(?=\. |\.?$)")
"""The network library's own words on why it failed are long, and in the details."""

_NO_LEADER = re.compile(r"^No leader: (?:term \d+)?(.*?)\.?$")


class Verdict(NamedTuple):
    """How things are."""

    level: Level
    sentence: str

    @property
    def text(self) -> str:
        """Word and sentence."""
        return f"[{self.level}] {self.sentence}"


def judge(scene: Scene) -> Verdict:
    """The verdict on the daemon in focus, and what is wrong with the others."""
    attached = scene.attached
    if attached is None:
        trouble = fmt.clean(scene.frame.trouble, CHARS_MAX)
        return Verdict("TROUBLE" if trouble else "START", trouble or "Looking for daemons.")
    quiet_s = attached.silent_s(scene.now_s)
    status = scene.told
    if quiet_s is not None:
        is_over = isinstance(status, SyncerStatus | NodeStatus) and status.swarm.is_ended
        is_done = is_over and attached.has_ended
        verdict = Verdict("DONE" if is_done else "TROUBLE", _unanswered(attached, quiet_s))
    elif status is not None:
        verdict = _own(scene, status)
    else:
        verdict = Verdict("START", f"Asking {attached.label}.")
    return _with_others(scene, attached, verdict)


def judge_all(frame: Frame) -> dict[str, Verdict]:
    """The verdict on each daemon that has a status, by its key."""
    scene = Scene(frame, History())
    return {
        one.key: judge(dataclasses.replace(scene, focus=one.label))
        for one in frame.attached()
        if frame.status(one.key) is not None
    }


def _own(scene: Scene, status: DaemonStatus) -> Verdict:
    """The verdict on a daemon that answers."""
    match status:
        case SyncerStatus(phase="stopped"):
            return Verdict("TROUBLE", fmt.clean(status.sentence, CHARS_MAX))
        case SyncerStatus():
            return _syncer(scene, status)
        case WitnessStatus():
            return _witness(scene, status)
        case NodeStatus():
            return _node(status)


def _unanswered(attached: Attached, quiet_s: float) -> str:
    if attached.has_ended:
        return f"The {attached.label} ended {fmt.whole(quiet_s)} ago. What you see is older."
    reason = fmt.clean(attached.trouble, CHARS_MAX)
    if reason.startswith(ON_ITS_WAY):
        return f"The {attached.label} is {reason}"
    if attached.answered_s is None:
        return f"The {attached.label} does not answer; trying again. {reason}".strip()
    said = f"The {attached.label} has not answered"
    if attached.trouble.startswith("No news from the swarm"):  # what an observer says of itself
        said = fmt.clean(attached.trouble, CHARS_MAX).rstrip(".")
    return f"{said} for {fmt.whole(quiet_s)}; trying again. What you see is older."


def _with_others(scene: Scene, attached: Attached, verdict: Verdict) -> Verdict:
    """The verdict, and a word on each other daemon of this machine that does not answer."""
    level, sentence = verdict
    is_silent = attached.silent_s(scene.now_s) is not None
    for other in sorted(scene.frame.attached(), key=lambda one: not _is_leader(scene, one)):
        quiet_s = other.silent_s(scene.now_s)
        if other.label == attached.label or other.period_s:
            continue  # Of a leader that is elsewhere the learner here says how it is heard.
        if quiet_s is None:
            there = scene.frame.status(other.key)
            if is_silent and there is not None:
                said = _own(dataclasses.replace(scene, focus=other.label), there).sentence
                sentence += f" Meanwhile {other.label}: {said}"
                is_silent = False
            continue
        if other.has_ended:
            sentence += f" The {other.label} ended {fmt.whole(quiet_s)} ago."
            continue
        word = f"The {other.label} has not answered for {fmt.whole(quiet_s)}."
        if other.trouble.startswith(ON_ITS_WAY):
            word = f"The {other.label} is {ON_ITS_WAY}."
        elif other.answered_s is None:
            word = f"The {other.label} does not answer."
        if level == "WELL":
            level, sentence = "CARE", f"{word} {_WELL.sub('', sentence)}"
        else:
            sentence = f"{sentence} {word}"
    if scene.frame.notice:
        sentence = f"{fmt.clean(scene.frame.notice, CHARS_MAX)} {sentence}"
    return Verdict(level, sentence)


def _is_leader(scene: Scene, attached: Attached) -> bool:
    status = scene.frame.status(attached.key)
    return isinstance(status, SyncerStatus) and leads(status)


def _syncer(scene: Scene, status: SyncerStatus) -> Verdict:
    said = fmt.clean(status.sentence, CHARS_MAX) or f"The phase is {fmt.clean(status.phase)}."
    if status.phase == "ended" or status.swarm.is_ended:
        return Verdict("DONE", said)
    if status.seat is not None and not leads(status):
        return _standby(scene, status, status.seat, said)
    if status.phase in ("starting", "taking the seat"):
        return Verdict("START", said)
    problems = _electorate(scene, status.seat)
    is_paused = status.swarm.pause is not None or "paused" in said.split(":")[0]
    worst = _first_level(status, said, is_paused=is_paused, is_whole=not problems)
    if said.startswith(_NOBODY):
        worst = _at_rest(status, worst)
        said += _why_here(scene)
    said = _NOT_HERE.sub("", said) if problems else said
    recent = [peer for peer in lost(status) if peer.heard_s < NEWS_S]
    missing = [one for one in (_lost(status, recent), _quiet(status)) if one]
    short = _short_of_quorum(status)
    if worst == "WELL" and (missing or short):
        worst = "CARE"
    problems = missing + problems + ([short] if short and "Waiting:" not in said else [])
    still = _standstill(scene, status)
    if still:
        problems.insert(0, still.sentence)
        worst = "TROUBLE" if "TROUBLE" in (worst, still.level) else "CARE"
    if problems:
        said = _WELL.sub("", said)
    if recent:
        # The daemon counts who fell silent a while longer, and names who is gone.
        training = sum(peer.state == "training" for peer in status.peers)
        count = f"{fmt.plural(training, 'learner')} training."
        said = _COUNT.sub(count, _GONE.sub("", said))
    if worst == "TROUBLE" and is_paused and not still:
        problems.insert(0, said)
        said = ""
    return Verdict(worst, " ".join([*problems, said]).strip())


def _first_level(status: SyncerStatus, said: str, *, is_paused: bool, is_whole: bool) -> Level:
    """By what the daemon says of itself, and its voters. is_paused: against its owner's will."""
    pause = status.swarm.pause
    if status.seat is not None and election.lacks_majority(status.seat):
        return "TROUBLE"  # Nothing is merged before another voter is back.
    if is_paused:
        return "CARE" if pause is not None and pause.goes_back else "TROUBLE"
    if not is_whole:
        return "CARE"
    if status.swarm.owner_paused_at_s is not None:
        return "PAUSED"
    return "WELL" if _WELL.match(said) else "CARE"


def _at_rest(status: SyncerStatus, level: Level) -> Level:
    """Somebody's wish is no trouble, and a start is none either."""
    states = {peer.state for peer in alive(status)}
    if level != "CARE" or not states:
        return level
    if states <= {"paused", "finishing"}:
        return "PAUSED"
    return "START" if states <= {"greeting", "syncing", "starting"} else level


def _why_here(scene: Scene) -> str:
    """What the learners of this machine say of themselves, who know why they do not train."""
    said = ""
    for other in scene.frame.attached():
        status = scene.frame.status(other.key)
        if isinstance(status, NodeStatus) and status.state in ("paused", "finishing"):
            said += f" {other.label}: {fmt.clean(status.sentence, CHARS_MAX)}"
    return said


def _short_of_quorum(status: SyncerStatus) -> str:
    """Whether fewer learners are here than a round needs."""
    here = sum(peer.state != "unfit" for peer in alive(status))
    is_paused = status.swarm.owner_paused_at_s is not None
    if status.phase != "training" or is_paused or not 0 < here < status.project.quorum:
        return ""
    verb = "is" if here == 1 else "are"
    return f"A round needs {status.project.quorum} learners, {here} {verb} here."


def _lost(status: SyncerStatus, peers: list[PeerRow]) -> str:
    """Who fell silent; the syncer still counts them for a while before it calls them gone."""
    if not peers:
        return ""
    among = sum(peer.state != "left" for peer in status.peers)
    names = fmt.enumerate_names([one.name for one in peers], 3)
    heard = f"last heard {fmt.whole(peers[0].heard_s)} ago"
    return f"{len(peers):,} of {fmt.plural(among, 'learner')} lost: {names} ({heard})."


def _quiet(status: SyncerStatus) -> str:
    """Who should have said something and did not, before the syncer does anything about it."""
    found = [one for one in alive(status) if one.heard_s > limits.QUIET_AFTER_S]
    if not found:
        return ""
    names = fmt.enumerate_names([one.name for one in found], 3)
    verb = "has" if len(found) == 1 else "have"
    longest_s = max(one.heard_s for one in found)
    return f"{names} {verb} said nothing for {fmt.whole(longest_s)}."


def _standstill(scene: Scene, status: SyncerStatus) -> Verdict | None:
    """A word on rounds that do not end, where they should."""
    if status.phase != "training" or not any(one.state == "training" for one in status.peers):
        return None
    if not scene.is_stalled(status) or status.swarm.owner_paused_at_s is not None:
        return None
    still_s = scene.still_s(status)
    text = f"No merge for {fmt.whole(still_s)}"
    waiting = next((one for one in status.rounds if one.waiting_for), None)
    if waiting is not None:
        text += (
            f": round {waiting.number:,} has {waiting.arrived} of the {waiting.quorum} pushes it "
            f"needs, waiting for {fmt.enumerate_names(waiting.waiting_for)}"
        )
    pace = status.swarm.pace
    usual_s = pace.gap_s if pace is not None else None
    is_bad = still_s > max(STANDSTILL_S_BAD, 2 * standstill.GAPS * (usual_s or 0.0))
    return Verdict("TROUBLE" if is_bad else "CARE", f"{text}.")


def _electorate(scene: Scene, seat: SeatStatus | None) -> list[str]:
    """What is wrong with the voters, in sentences."""
    if seat is None:
        return []
    found = [election.away_words(seat, scene.names), election.turned_away(seat, scene.names)]
    if election.lacks_standby(seat):
        found.append("No standby is up to date.")
    return [one for one in found if one]


def _standby(scene: Scene, status: SyncerStatus, seat: SeatStatus, said: str) -> Verdict:
    """A syncer that does not lead."""
    if said.startswith(("Merging paused", "Not keeping")):
        return Verdict("TROUBLE", said)
    if not seat.leader and status.phase != "syncing":
        return _no_leader(scene, status, seat, said)
    if status.phase == "syncing":
        return Verdict("CARE" if seat.trouble else "START", said)
    if any(row.is_leader and not row.is_here for row in seat.voters):
        return Verdict("CARE", _leader_lost(scene, seat))
    problems = _electorate(scene, seat)
    is_paused = seat.is_drained or status.swarm.owner_paused_at_s is not None
    level: Level = "PAUSED" if is_paused else "WELL"
    if problems or status.swarm.pause is not None or (seat.leader_heard_s or 0.0) >= LEADER_QUIET_S:
        level = "CARE"
    leader = fmt.clean(seat.leader, 64)[: election.KEY_CHARS]
    named = said.replace(f"for {leader}", f"for {election.name(seat.leader, scene.names)}", 1)
    return Verdict(level, " ".join([*problems, named]))


def _leader_lost(scene: Scene, seat: SeatStatus) -> str:
    """The stream to the leader ended, and the time until an election is running."""
    heard = fmt.whole(seat.leader_heard_s or 0.0)
    text = (
        f"The leader {election.name(seat.leader, scene.names)} was lost, last heard {heard} ago; "
    )
    if seat.election_in_s is None:
        text += "waiting for an election."
    else:
        text += f"this one stands for election in {seat.election_in_s:.1f} s."
    if len(election.away(seat)) > 1:
        text += f" {election.away_words(seat, scene.names)}"
    return text


def _no_leader(
    scene: Scene, status: SyncerStatus | WitnessStatus, seat: SeatStatus, said: str
) -> Verdict:
    """Since when nobody leads, what is done about it, and what that waits for."""
    since_s = seat.leaderless_s
    if since_s is None:
        since_s = scene.history.leaderless_s(status.key, scene.now_s)
    lasts = "" if since_s is None else f" for {fmt.whole(since_s)}"
    does = "electing" if seat.role == "following" else fmt.clean(seat.role, 60)
    match = _NO_LEADER.match(said)
    tail = match.group(1) if match else ""
    here = len(seat.voters) - len(election.away(seat))
    cannot = here < election.majority(seat)
    if "first election" in said:
        return Verdict("START", f"No leader yet (term {seat.term}).{_sentence(tail)}")
    if election.away(seat):
        tail = election.away_words(seat, scene.names).rstrip(".")
    text = f"No leader{lasts}: {does} (term {seat.term})."
    text += _sentence(tail)
    is_bad = cannot or (since_s or 0.0) > LEADERLESS_S_BAD
    return Verdict("TROUBLE" if is_bad else "CARE", text)


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _witness(scene: Scene, status: WitnessStatus) -> Verdict:
    seat = status.seat
    said = fmt.clean(status.sentence, CHARS_MAX) or "It votes and keeps the log."
    if said.startswith("Not voting"):
        return Verdict("TROUBLE", said)
    if said.startswith("No leader"):
        return _no_leader(scene, status, seat, said)
    problems = _electorate(scene, seat)
    is_well = bool(_WELL.match(said)) and (seat.leader_heard_s or 0.0) < LEADER_QUIET_S
    if problems:
        said = _WELL.sub("", _NOT_HERE.sub("", said))
    leader = fmt.clean(seat.leader, 64)[: election.KEY_CHARS]
    if leader:
        said = said.replace(f"with {leader}", f"with {election.name(seat.leader, scene.names)}", 1)
    level: Level = "WELL" if is_well and not problems else "CARE"
    if election.lacks_majority(seat):
        level = "TROUBLE"
    return Verdict(level, " ".join([*problems, said]))


_NODE_LEVELS: dict[str, Level] = {
    "training": "WELL",
    "ended": "DONE",
    "syncing": "START",
    "starting": "START",
    "paused": "PAUSED",
    "finishing": "PAUSED",
    "unfit": "TROUBLE",
}


def _node(status: NodeStatus) -> Verdict:
    level: Level = _NODE_LEVELS.get(status.state, "CARE")
    said = fmt.clean(status.sentence, CHARS_MAX) or f"The state is {fmt.clean(status.state)}."
    said = _DIALLING.sub(r"(host \1 cannot be reached)", said)
    unheard_s = status.heard_s or 0.0
    if status.state in ("training", "adrift", "starved") and unheard_s > UNHEARD_S:
        level = "TROUBLE" if unheard_s > UNHEARD_S_BAD else "CARE"
        if "not heard for" not in said and "last heard" not in said:
            tail = "; looking for it, or for its successor" if status.state == "training" else ""
            said = f"{said} The syncer has been silent for {fmt.whole(unheard_s)}{tail}."
    if status.state == "training" and status.trust < DOUBTED_BELOW and level == "WELL":
        level = "CARE"
    if status.suspended and level in ("WELL", "CARE"):
        level = "CARE"
    if status.younger or ("stopped" in said and level == "START"):
        level = "TROUBLE"
    if status.network.state not in ("up", "") and level == "WELL":
        level = "CARE"
        why = f" ({fmt.clean(status.network.detail, 300)})" if status.network.detail else ""
        said = f"The network is {fmt.clean(status.network.state, 20)}{why}. {said}"
    if status.network.split:
        level, said = "TROUBLE", f"{fmt.clean(status.network.split, CHARS_MAX)} {said}"
    notices = " ".join(f"Note: {fmt.clean(one, 200)}" for one in status.notices[:1])
    return Verdict(level, f"{said} {notices}".strip())
