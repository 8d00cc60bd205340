"""What the full screen says of daemons, for whoever prints it elsewhere: there is one verdict."""

from __future__ import annotations

import time

from protocol.status import DaemonStatus, NodeStatus
from tui.frames.frame import Attached, Frame
from tui.frames.verdict import Verdict, judge_all
from tui.text.status_rows import label_of


def verdicts(statuses: list[DaemonStatus], silent: list[str]) -> dict[str, Verdict]:
    """On each daemon that answers, by its key.

    silent: a line for each daemon that does not answer, which begins with its label.
    """
    return judge_all(frame_of(statuses, silent))


def frame_of(statuses: list[DaemonStatus], silent: list[str]) -> Frame:
    """What the full screen would draw from, so that the two never disagree."""
    now_s = time.time()
    answering = [
        Attached(label=label_of(one), key=one.key, since_s=now_s, answered_s=now_s)
        for one in statuses
    ]
    others = [
        Attached(label=label, since_s=now_s, trouble=trouble)
        for label, _, trouble in (line.partition(": ") for line in silent)
    ]
    led = [one.swarm_seen for one in statuses if isinstance(one, NodeStatus) and one.swarm_seen]
    leaders = [
        Attached(
            label=f"leading syncer {at}",
            key=one.status.key,
            since_s=now_s,
            answered_s=now_s - one.age_s,
            period_s=one.period_s,
        )
        for at, one in enumerate(led)
        if one.status is not None
    ]
    known = [*statuses, *(one.status for one in led if one.status is not None)]
    return Frame(at_s=now_s, statuses=tuple(known), daemons=(*answering, *others, *leaders))
