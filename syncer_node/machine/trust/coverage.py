"""Whether the text leased to a session covers what its push claims to have read."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import SessionKey
from protocol.log.leases import LeaseBook, TextShape
from protocol.messages import PushHeader


@dataclass(slots=True)
class Coverage:
    """What a local step reads, under the charters of this term.

    No push is counted twice against the same text: a learner has one push of a fragment in the
    rounds at most, and the log notes how far it reaches in the record that merges it.
    """

    shape: TextShape
    step_tokens: int
    """The fewest of one local step, in the charter in force."""
    step_tokens_max: int
    """The most, of a learner that takes a larger batch than others."""
    former_step_tokens: int = 0
    """The fewest in former charters of this term, or 0: steps begun under those may come late."""

    def adopt(self, step_tokens: int, step_tokens_max: int) -> None:
        """Go on under another charter."""
        if step_tokens != self.step_tokens:
            self.former_step_tokens = self._step_tokens_min()
        self.step_tokens, self.step_tokens_max = step_tokens, step_tokens_max

    def objection(self, header: PushHeader, session: SessionKey, leases: LeaseBook) -> str:
        """What is false about the claim, in words; empty if it is covered, or cannot be known."""
        covered = leases.covered(session, header.fragment, header.cursor, self.shape)
        read = header.steps * self._step_tokens_min()
        claimed = self.shape.sequences(max(header.tokens, read))
        if covered is None or claimed <= covered:
            return ""
        return (
            f"{header.steps} steps and {header.tokens} tokens are {claimed} sequences of text, and "
            f"{max(0, covered)} that were leased to it were not counted before"
        )

    def _step_tokens_min(self) -> int:
        return min(self.step_tokens, self.former_step_tokens or self.step_tokens)
