"""One look as plain text, for scripts, logs and terminals that are none."""

from __future__ import annotations

import asyncio
import contextlib
import time

from rich.text import Text

from protocol.status import NodeStatus, SyncerStatus, WitnessStatus
from tui.frames.frame import Frame
from tui.frames.history import History, sample
from tui.frames.scene import Scene
from tui.sources.live import Source
from tui.text import fmt
from tui.text.election import leads
from tui.text.plain import plain
from tui.views import banner, facts, overview, peers, picture, roster, syncer, this_node

WAIT_S = 3.0
SWARM_WAIT_S = 1.5
"""How much longer for what a learner hears of its swarm."""

PEERS_SHOWN = 40
EVENTS_SHOWN = 8


def text(frame: Frame, width: int, *, is_ascii: bool = False) -> str:
    """The banner and the overview of each daemon, the learners and the latest events."""
    history = History()
    history.add(sample(frame))
    now = Scene(frame=frame, history=history)
    made = banner.render(now, width)
    if now.leader is not None and leads(now.leader):
        made += picture.render(now, width, picture.rows_wanted(now, width))
    made += overview.render(now, min(width, overview.TWO_COLUMNS - 1), 24)
    if now.leader is not None and now.leader.peers:
        made += [Text(), *_peers(now, width)]
    for other in frame.attached()[1:]:
        if other.period_s:
            continue  # What it told a learner here is in the overview above.
        there = Scene(frame=frame, history=history, focus=other.label)
        made += [Text(), *banner.render(there, width)]
        match there.told:
            case NodeStatus():
                made += this_node.render(there, width, 0)
            case WitnessStatus():
                made += syncer.render(there, min(width, syncer.TWO_COLUMNS - 1), 0)
    if history.events:
        told = facts.news_in_words(now, EVENTS_SHOWN)
        events = facts.event_lines(told, width, EVENTS_SHOWN, now.paint)
        made += [Text(), *events]
    lines = [line.plain.rstrip() for line in made]
    return "\n".join(map(plain, lines) if is_ascii else lines)


def _peers(now: Scene, width: int) -> list[Text]:
    """A line for each learner, the columns that fit."""
    found = sorted(peers.peer_lines(now), key=lambda one: one.peer.name)
    columns = roster.fitting(peers.COLUMNS, width)
    made = [Text(" ".join(peers.heading(one) for one in columns))]
    made += [
        Text(" ".join(peers.cell(one, line) for one in columns)) for line in found[:PEERS_SHOWN]
    ]
    left = len(found) - PEERS_SHOWN
    return made + ([Text(f"and {fmt.plural(left, 'other')}")] if left > 0 else [])


def frame_of(source: Source, *, wait_s: float = WAIT_S) -> Frame:
    """A frame in which every daemon has answered, or the newest after `wait_s`. Runs a loop."""
    return asyncio.run(_frame_of(source, wait_s))


async def _frame_of(source: Source, wait_s: float) -> Frame:
    ends_s, is_known = time.monotonic() + wait_s, False
    async with contextlib.aclosing(source.frames()) as frames:  # type: ignore[type-var]
        async for frame in frames:
            attached = frame.attached()
            is_whole = bool(attached) and all(one.answered_s is not None for one in attached)
            if is_whole and not is_known:
                is_known, ends_s = True, min(ends_s, time.monotonic() + SWARM_WAIT_S)
            if (is_whole and not _lacks_swarm(frame)) or time.monotonic() > ends_s:
                return frame
    return Frame(at_s=time.time(), trouble="No daemon answered.")


def _lacks_swarm(frame: Frame) -> bool:
    """Whether a learner follows a leader that has not said yet how the swarm is."""
    led = {one.project.id for one in frame.statuses if isinstance(one, SyncerStatus) and leads(one)}
    return any(
        isinstance(one, NodeStatus) and one.heard_s is not None and one.project.id not in led
        for one in frame.statuses
    )
