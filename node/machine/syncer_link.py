"""A learner's relation to its syncer: its states, and when silence means something."""

from __future__ import annotations

from enum import Enum

from protocol import limits

LOOK_AGAIN_S = 0.01
"""What becomes due is looked at a little later, so that it certainly is."""


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


def suspect_s(link: Link, now_s: float, *, heard_s: float, found_s: float | None) -> float | None:
    """When to look whether the leader still speaks; None when that is not the question.

    found_s: when another leader was last looked for; None while one is looked for.
    """
    if link not in (Link.GREETING, Link.FOLLOWING):
        return None
    if link is Link.GREETING or found_s is None:
        return max(heard_s + limits.GONE_AFTER_S, now_s) + LOOK_AGAIN_S
    again_s = found_s + limits.LEADER_SUSPECT_AFTER_S / 2
    return max(heard_s + limits.LEADER_SUSPECT_AFTER_S, again_s, now_s) + LOOK_AGAIN_S
