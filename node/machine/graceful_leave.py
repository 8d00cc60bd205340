"""A learner that was asked to finish: what it still waits for, and why it then leaves."""

from __future__ import annotations

from dataclasses import dataclass

from node.machine.context import LearnerContext
from node.machine.fragment_sync import FragmentSync

FINISH_S_MAX = 60.0
"""A finishing learner leaves after this even if the syncer has not asked for everything."""

LINK_S_MAX = 10.0
"""... and after so long without a syncer. Another one is elected within seconds; one that has not
come by then will hardly come within the minute."""

RECEIPT_S_MAX = 2.0
"""Once everything was handed in, a receipt for it is waited for so long."""


@dataclass(slots=True)
class GracefulLeave:
    """The owner's wish to hand in what is done and to stop."""

    context: LearnerContext
    fragment_sync: FragmentSync
    until_s: float | None = None
    """When it leaves at the latest; None while nobody wishes it to."""
    _alone_since_s: float | None = None
    _done_since_s: float | None = None
    """When all was handed in, though a receipt for it is still on its way."""

    def ask(self) -> None:
        """From now on no local steps: what is done is handed in."""
        self.until_s = self.context.now_s + FINISH_S_MAX
        self._alone_since_s = self._done_since_s = None

    def withdraw(self) -> None:
        """The owner thought better of it."""
        self.until_s = None

    @property
    def left(self) -> int:
        """Fragments with local steps that are in no merge yet."""
        done = self.context.stepped.local_step if self.context.stepped else 0
        local_fragments = self.fragment_sync.local_fragments
        return sum(local.steps(done) > 0 or local.push is not None for local in local_fragments)

    @property
    def in_words(self) -> str:
        """What is left, for the screens."""
        of = f"{self.left} of {len(self.fragment_sync.local_fragments)} fragments left"
        if self.context.is_following:
            return f"Finishing: handing in finished work, {of}, then stopping."
        return f"Finishing: waiting briefly for a syncer, {of}, then stopping."

    def look(self, *, has_receipt: bool) -> str:
        """Why to leave now; empty while there is something to wait for.

        has_receipt: for everything of this learner that the log counts.
        """
        if self.until_s is None:
            return ""
        now_s = self.context.now_s
        if self.context.is_following:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s
        if not self.left:
            return self._done(now_s, has_receipt=has_receipt)
        dropped = (
            f"local steps on {self.left} of {len(self.fragment_sync.local_fragments)} fragments "
            "are dropped, and their text goes to other learners"
        )
        if self.context.state.is_resting:
            who = "the guard" if self.context.state.pause is not None else "the project's owner"
            return f"finished: {who} pauses merging, so nothing is taken now; {dropped}"
        alone_since_s = self._alone_since_s
        if alone_since_s is not None and now_s >= alone_since_s + LINK_S_MAX:
            return f"finished: no syncer answered for {LINK_S_MAX:.0f} s; {dropped}"
        if now_s >= self.until_s:
            return (
                f"finished: {FINISH_S_MAX:.0f} s were not enough to hand in everything; {dropped}"
            )
        return ""

    def _done(self, now_s: float, *, has_receipt: bool) -> str:
        """Why to leave, everything being handed in: a receipt is waited for, but not for long."""
        if self._done_since_s is None:
            self._done_since_s = now_s
        is_over = has_receipt or not self.context.is_following
        if is_over or now_s >= self._done_since_s + RECEIPT_S_MAX:
            return "finished: everything was handed in"
        return ""

    def deadline_s(self) -> float | None:
        """When to look again if nothing happens before."""
        if self.until_s is None:
            return None
        times = [self.until_s]
        if self._alone_since_s is not None:
            times.append(self._alone_since_s + LINK_S_MAX)
        if self._done_since_s is not None:
            times.append(self._done_since_s + RECEIPT_S_MAX)
        return min(times)
