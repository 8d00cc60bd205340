"""Each fragment's way through a learner: committed, held, delivered, and what is handed in.

    committed (the log names it) -> held (bank has it, hash proven) -> standing (inner loop uses it)

Versions are taken strictly in order; a gap is closed with the newest full state instead. A pull
is answered only when the inner loop stands on the newest version, so that a received fragment is
always applied before the next hand-in. At most one push of a fragment is unresolved.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from node.machine.token_accounts import TokenAccounts
from protocol.log.records import FragmentMerged
from protocol.messages import Pull, Push

NONE = -1
"""No version."""


@dataclass(slots=True)
class OpenPush:
    """A hand-in whose fate is not known yet."""

    sequence: int
    pull: Pull
    local_step: int = 0
    tokens: int = 0
    message: Push | None = None
    """What is handed in; None until the capture is encoded."""
    is_handed_in: bool = False
    """It was sent, on the stream of now."""
    overwritten_steps: int = 0
    """Local steps in it that are gone from the inner loop: lost unless it is merged."""
    is_of_former_rule: bool = False
    """Local steps outlived merges in another way when it was captured."""


@dataclass(slots=True)
class LocalFragment:
    """Where one fragment stands in this learner."""

    index: int
    held: int = NONE
    standing: int = NONE
    queue: deque[FragmentMerged] = field(default_factory=deque)
    """Committed merges beyond what is held, in order."""
    is_busy: bool = False
    """A fetch or an outer step of this fragment is under way."""
    delivering: int = NONE
    must_assign: bool = True
    """The next delivery overwrites whatever the apply rule says."""
    sound_from: int = 0
    """Lower versions are of weights that the guard gave up."""
    merged_sequence: int | None = None
    """Own push that was merged since the last delivery began."""
    merged_version: int = 0
    """Version that it is part of."""
    push: OpenPush | None = None
    pull: Pull | None = None
    """A pull that waits for the newest version to be applied."""
    committed_s: float | None = None
    """When its newest version became known."""
    cycle_s: float = math.inf
    """From the version before to that one."""
    was_captured: bool = False
    """Something was handed in since the inner loop last started over from a version."""
    marked_step: int = 0
    """Local steps up to here are handed in or given up for this fragment."""
    marked_tokens: int = 0
    handed_step: int = 0
    """Local step of the last merged push."""
    failures: int = 0
    retry_s: float = 0.0
    deliver_again_s: float = 0.0
    """Before that the inner loop is given nothing of it: it could not take it up just now."""
    discarded_steps: int = 0
    accounts: TokenAccounts = field(default_factory=TokenAccounts)

    @property
    def is_current(self) -> bool:
        """Whether the inner loop stands on everything that is committed."""
        return not self.queue and self.delivering == NONE and not self.needs_delivery

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is to be done for it: the inner loop has what is committed, as it is to
        have it, and nobody asks for a push."""
        if self.queue or self.pull is not None or self.must_assign:
            return False
        return self.standing == self.held != NONE and self.merged_sequence is None

    @property
    def is_moving(self) -> bool:
        """Whether something of it is on its way to or from the inner loop."""
        return self.delivering != NONE or (self.push is not None and self.push.message is None)

    @property
    def needs_delivery(self) -> bool:
        """Whether the inner loop should get the held version.

        Also one that it has, if it got it before our own push in it was known to be merged: what
        was handed in must be taken off before anything is handed in again.
        """
        if self.held == NONE:
            return False
        is_counted_twice = self.merged_sequence is not None and self.standing >= self.merged_version
        return self.standing != self.held or self.must_assign or is_counted_twice

    def steps(self, local_step: int) -> int:
        """Local steps not handed in."""
        return max(0, local_step - self.marked_step) if self.standing != NONE else 0

    def passed(self, now_s: float) -> None:
        """Its next version became known."""
        if self.committed_s is not None:
            self.cycle_s = now_s - self.committed_s
        self.committed_s = now_s

    def overwrite(self, local_step: int) -> None:
        """The inner loop starts over from a version: book what is in no push as discarded."""
        used_step = max(self.marked_step, self.handed_step)
        if self.push is not None and self.push.message is not None:
            self.push.overwritten_steps += max(0, self.push.local_step - used_step)
            used_step = max(used_step, self.push.local_step)
        self.discarded_steps += max(0, local_step - used_step)

    def skip_to(self, version: int) -> None:
        """The bank holds this version; older merges need no work any more."""
        self.held = version
        while self.queue and self.queue[0].version <= version:
            self.queue.popleft()

    def restored(self, version: int) -> None:
        """The guard went back, which made this version: nothing lower is worth anything."""
        self.sound_from = version
        self.queue.clear()
        if self.held < version:
            self.held = NONE
        self.must_assign = True
        self.failures, self.retry_s = 0, 0.0

    def trainer_lost(self) -> None:
        """The inner loop is gone with its unmerged steps; nothing of it is added back later."""
        self.standing = self.delivering = NONE
        self.must_assign = True
        self.merged_sequence = None
        self.push = self.pull = None
        self.was_captured = False
        self.marked_step = self.marked_tokens = self.handed_step = 0
        self.deliver_again_s = 0.0
