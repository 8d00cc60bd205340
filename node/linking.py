"""The learner's relation to the syncer: its states, and how long it waits between tries."""

from __future__ import annotations

from enum import Enum

BACK_OFF_S = (0.5, 1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 12.0)


class Link(Enum):
    """The learner's relation to the syncer."""

    SEEKING = "looking for the syncer"
    CONNECTING = "connecting"
    GREETING = "introducing itself"
    FOLLOWING = "following the log"
    WAITING = "waiting to try again"
    ENDED = "ended"


LINK_TRANSITIONS: dict[tuple[Link, str], Link] = {
    (Link.WAITING, "retry"): Link.SEEKING,
    (Link.SEEKING, "found"): Link.CONNECTING,
    (Link.SEEKING, "lost"): Link.WAITING,
    (Link.CONNECTING, "up"): Link.GREETING,
    (Link.CONNECTING, "lost"): Link.WAITING,
    (Link.GREETING, "welcome"): Link.FOLLOWING,
    (Link.GREETING, "lost"): Link.WAITING,
    (Link.FOLLOWING, "lost"): Link.WAITING,
    (Link.FOLLOWING, "over"): Link.ENDED,
}
