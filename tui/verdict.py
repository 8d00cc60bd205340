"""Whether the swarm is well: one word and one sentence, true at every moment, worst first."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal, NamedTuple

from protocol.snapshot import NodeStatus, PeerRow, Status, SyncerStatus
from tui import words
from tui.frames import Attached
from tui.scene import Scene, alive, lost

Level = Literal["WELL", "CARE", "TROUBLE", "START", "PAUSED", "DONE"]

CHARS_MAX = 600
NEWS_S = 600.0
"""Volunteers come and go: one who left longer ago than this is told, but is no alarm."""

STANDSTILL_S_BAD = 90.0
UNHEARD_S = 10.0
UNHEARD_S_BAD = 60.0

_WELL = re.compile(r"^All is well\.\s*")
_COUNT = re.compile(r"[\d,]+ learners? training\.")
_GONE = re.compile(r"\s*Gone: [^.]*\.")


class Verdict(NamedTuple):
    """How things are."""

    level: Level
    sentence: str


def judge(scene: Scene) -> Verdict:
    """The verdict on the daemon in focus, and what is wrong with the others."""
    attached = scene.attached
    if attached is None:
        trouble = words.clean(scene.frame.trouble, CHARS_MAX)
        return Verdict("TROUBLE" if trouble else "START", trouble or "Looking for daemons.")
    quiet_s = attached.silent_s(scene.now_s)
    status = scene.status
    if quiet_s is not None:
        is_done = status is not None and status.swarm.is_ended and attached.has_ended
        verdict = Verdict("DONE" if is_done else "TROUBLE", _unanswered(attached, quiet_s))
    elif status is not None:
        verdict = _own(scene, status)
    else:
        verdict = Verdict("START", f"Asking {attached.label}.")
    return _with_others(scene, attached, verdict)


def _own(scene: Scene, status: Status) -> Verdict:
    """The verdict on a daemon that answers."""
    match status:
        case SyncerStatus():
            return _syncer(scene, status)
        case NodeStatus():
            return _node(status)


def _unanswered(attached: Attached, quiet_s: float) -> str:
    if attached.has_ended:
        return (
            f"The {attached.label} ended {words.whole(quiet_s)} ago. What it told is from before."
        )
    if attached.answered_s is None:
        reason = words.clean(attached.trouble, CHARS_MAX)
        return f"The {attached.label} does not answer; trying again. {reason}".strip()
    return (
        f"The {attached.label} does not answer since {words.whole(quiet_s)}; trying "
        "again. What it told is from before."
    )


def _with_others(scene: Scene, attached: Attached, verdict: Verdict) -> Verdict:
    """The verdict, and a word on each other daemon of this machine that does not answer."""
    level, sentence = verdict
    is_silent = attached.silent_s(scene.now_s) is not None
    for other in scene.frame.attached():
        quiet_s = other.silent_s(scene.now_s)
        if other.label == attached.label:
            continue
        if quiet_s is None:
            there = scene.frame.status(other.key)
            if is_silent and there is not None:
                said = _own(dataclasses.replace(scene, focus=other.label), there).sentence
                sentence += f" Meanwhile {other.label}: {said}"
                is_silent = False
            continue
        if other.has_ended:
            sentence += f" The {other.label} ended {words.whole(quiet_s)} ago."
            continue
        since = "" if other.answered_s is None else f" since {words.whole(quiet_s)}"
        word = f"The {other.label} does not answer{since}."
        if level == "WELL":
            level, sentence = "CARE", f"{word} {_WELL.sub('', sentence)}"
        else:
            sentence = f"{sentence} {word}"
    if scene.frame.notice:
        sentence = f"{words.clean(scene.frame.notice, CHARS_MAX)} {sentence}"
    return Verdict(level, sentence)


def _syncer(scene: Scene, status: SyncerStatus) -> Verdict:
    said = words.clean(status.sentence, CHARS_MAX) or f"The phase is {words.clean(status.phase)}."
    if status.phase == "ended" or status.swarm.is_ended:
        return Verdict("DONE", said)
    if status.phase == "starting":
        return Verdict("START", said)
    worst: Level = "WELL" if _WELL.match(said) else "CARE"
    if "paused" in said.split(":")[0]:
        worst = "TROUBLE"
    problems: list[str] = []
    recent = [peer for peer in lost(status) if peer.heard_s < NEWS_S]
    if recent:
        problems.append(_lost(recent, len(status.peers)))
        worst = "CARE" if worst == "WELL" else worst
    here = len(alive(status))
    if status.phase == "training" and 0 < here < status.project.quorum:
        verb = "is" if here == 1 else "are"
        if "Waiting:" not in said:
            problems.append(f"A round needs {status.project.quorum} learners, {here} {verb} here.")
        worst = "CARE" if worst == "WELL" else worst
    still = _standstill(scene, status)
    if still:
        problems.insert(0, still.sentence)
        worst = "TROUBLE" if "TROUBLE" in (worst, still.level) else "CARE"
    if problems:
        said = _WELL.sub("", said)
    if recent:
        # The daemon counts who fell silent a while longer, and names who is gone.
        training = sum(peer.state == "training" for peer in status.peers)
        count = f"{words.plural(training, 'learner')} training."
        said = _COUNT.sub(count, _GONE.sub("", said))
    if worst == "TROUBLE" and not still:
        problems.insert(0, said)
        said = ""
    return Verdict(worst, " ".join([*problems, said]).strip())


def _lost(peers: list[PeerRow], among: int) -> str:
    """Who fell silent; the syncer still counts them for a while before it calls them gone."""
    names = words.enumerate_names([one.name for one in peers], 3)
    heard = f"last heard {words.whole(peers[0].heard_s)} ago"
    return f"{len(peers):,} of {words.plural(among, 'learner')} lost: {names} ({heard})."


def _standstill(scene: Scene, status: SyncerStatus) -> Verdict | None:
    """A word on rounds that do not end, where they should."""
    if status.phase != "training" or not any(one.state == "training" for one in status.peers):
        return None
    if not scene.is_stalled(status):
        return None
    still_s = scene.history.standstill_s(status.key, scene.now_s)
    text = f"No merge for {words.whole(still_s)}"
    waiting = next((one for one in status.rounds if one.waiting_for), None)
    if waiting is not None:
        text += (
            f": round {waiting.number:,} has {waiting.arrived} of {waiting.quorum} it needs, "
            f"waiting for {words.enumerate_names(waiting.waiting_for)}"
        )
    return Verdict("TROUBLE" if still_s > STANDSTILL_S_BAD else "CARE", f"{text}.")


_NODE_LEVELS: dict[str, Level] = {
    "training": "WELL",
    "ended": "DONE",
    "syncing": "START",
    "starting": "START",
    "paused": "PAUSED",
    "finishing": "PAUSED",
}


def _node(status: NodeStatus) -> Verdict:
    level: Level = _NODE_LEVELS.get(status.state, "CARE")
    said = words.clean(status.sentence, CHARS_MAX) or f"The state is {words.clean(status.state)}."
    unheard_s = status.heard_s or 0.0
    if status.state in ("training", "adrift", "starved") and unheard_s > UNHEARD_S:
        level = "TROUBLE" if unheard_s > UNHEARD_S_BAD else "CARE"
        if "heard" not in said:
            said = f"{said} The syncer was last heard {words.whole(unheard_s)} ago."
    if "stopped" in said and level == "START":
        level = "TROUBLE"
    if status.network.state not in ("up", "") and level == "WELL":
        level = "CARE"
        said = f"The network is {words.clean(status.network.state, 20)}. {said}"
    notices = " ".join(f"Note: {words.clean(one, 200)}" for one in status.notices[:1])
    return Verdict(level, f"{said} {notices}".strip())
