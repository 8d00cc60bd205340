"""How soon a syncer looks at everything again, after something came in.

A look takes time in proportion to the learners. After each message of each of them it would take
time in proportion to their square: with a hundred learners the event loop did little else. News
that come often and rarely change what is due are therefore looked at together, unless a round has
just got all that it waited for.
"""

from __future__ import annotations

import math

from protocol.machine import Event, JobDone, Received
from protocol.messages import Heartbeat, Push, PushHeld
from syncer_node.machine.jobs import PushFetched
from syncer_node.machine.leadership import Leadership

BEATS_LOOK_S = 1e-3
BEATS_LOOK_S_MAX = 0.02
"""Heartbeats come often; because of their news rounds are looked at no more often than the one for
each learner, or than the other. A few learners that are all ready so hardly wait for a timer."""

PUSHES_LOOK_S = 2.5e-4
"""... and because of either no more often than this for each learner: about twenty times what a
look takes. A thousand learners so wait for the next pull for a quarter of a second at most."""

FEW = 16
"""Learners whose pushes are looked at one by one."""


def look_s(event: Event, leadership: Leadership | None, *, looked_s: float, now_s: float) -> float:
    """When to look because of this event; infinite if what is due has its wake-up already."""
    match event:
        case Received(peer, Heartbeat()):
            session = leadership.members.sessions.get(peer) if leadership is not None else None
            is_news = session is None or session.is_news
            learners = len(leadership.members.sessions) if leadership is not None else 0
            pause_s = min(BEATS_LOOK_S * learners, max(BEATS_LOOK_S_MAX, PUSHES_LOOK_S * learners))
            return looked_s + pause_s if is_news else math.inf
        case Received(_, Push() | PushHeld()) | JobDone(_, PushFetched()):
            learners = len(leadership.members.sessions) if leadership is not None else 0
            if leadership is not None and learners > FEW and not _is_ripe(leadership, now_s):
                return looked_s + PUSHES_LOOK_S * learners
    return now_s


def _is_ripe(leadership: Leadership, now_s: float) -> bool:
    """Whether a round has all that it waited for."""
    rounds = leadership.rounds.rounds.values()
    return any(current.is_collecting and current.is_ripe(now_s) for current in rounds)
