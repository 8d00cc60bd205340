"""What the screens draw: one frame is all that was known about the daemons at one moment.

Frames are plain values, so that a live swarm, a recording and a test look the same to every widget.
"""

from __future__ import annotations

from msgspec import Struct

from protocol.status import DaemonStatus, EventRow
from tui.text.status_rows import label_of

STALE_AFTER_S = 2.5
"""Answers come twice a second; after this long without one a daemon counts as silent."""


class Told(EventRow, kw_only=True):
    """An event, and who told it."""

    daemon: str = ""
    """Label of the daemon, such as "syncer default"."""


class Attached(Struct, kw_only=True):
    """One daemon that the screen is attached to, whether it answers or not."""

    label: str
    """Role and instance, for people: "syncer default"."""
    key: str = ""
    """Key in the status it gave last; empty if it never answered."""
    since_s: float
    """When it was first looked for: wall clock, Unix seconds."""
    answered_s: float | None = None
    """When it answered last; None if never."""
    trouble: str = ""
    """Why it does not answer; empty while it does."""
    has_ended: bool = False
    """It took its control socket away, as daemons do that end in good order."""
    period_s: float = 0.0
    """Seconds between two answers, of one whose news come by way of a learner."""

    def silent_s(self, now_s: float) -> float | None:
        """For how long it has not answered, or None while it does."""
        quiet_s = now_s - (self.since_s if self.answered_s is None else self.answered_s)
        if self.trouble or quiet_s > STALE_AFTER_S + self.period_s:
            return max(quiet_s, 0.0)
        return None


class Frame(Struct, kw_only=True):
    """All that was known at `at_s`. The statuses of silent daemons are the last they gave."""

    at_s: float
    """Wall clock, Unix seconds."""
    statuses: tuple[DaemonStatus, ...] = ()
    events: tuple[Told, ...] = ()
    """Those that came since the frame before."""
    trouble: str = ""
    """What stands in the way of seeing anything at all, in words; empty if nothing does."""
    daemons: tuple[Attached, ...] = ()
    notice: str = ""
    """What the viewer should know beside: the recording stopped, for instance."""
    is_jump: bool = False
    """The frame does not follow the one before it: what was derived from the past is void."""

    def attached(self) -> tuple[Attached, ...]:
        """The daemons; where a frame names none, one for each status, as if it had just spoken."""
        if self.daemons:
            return self.daemons
        return tuple(
            Attached(
                label=label_of(status), key=status.key, since_s=self.at_s, answered_s=self.at_s
            )
            for status in self.statuses
        )

    def status(self, key: str) -> DaemonStatus | None:
        """The status of the daemon with this key."""
        return next((one for one in self.statuses if one.key == key), None) if key else None
