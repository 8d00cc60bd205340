"""Token accounts of one fragment: what became of every token that a session's trainers read.

    processed = merged + in flight + pending + discarded + lost

A trainer's tokens are a line from 0 on. Everything up to `mark` has a fate; a push that waits for
its own reaches from there to where it was captured; what lies behind is pending. An assignment
overwrites what lies behind mark and push: that is discarded. What dies with a trainer is lost. A
push whose local value is gone meanwhile can still be merged; if it is not, its tokens go where
its local value went.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Gone = Literal["", "discarded", "lost"]

GIVEN_UP_MAX = 64
"""Far more than can be under way for one fragment."""


@dataclass(slots=True)
class OpenTokens:
    """A push without a fate."""

    tokens: int
    until: int
    """Where it was captured, on the line of its trainer."""
    gone: Gone = ""
    """Where its tokens go if it is not merged; empty: they are pending again."""


@dataclass(slots=True)
class TokenAccounts:
    """Of one fragment, in tokens."""

    merged: int = 0
    discarded: int = 0
    lost: int = 0
    mark: int = 0
    dead: int = 0
    """Tokens of trainers that are gone."""
    open: dict[int, OpenTokens] = field(default_factory=dict)
    """By sequence."""
    given_up: dict[int, Gone] = field(default_factory=dict)
    """Where the tokens of the latest pushes went that were given up, should one be merged yet."""

    def handed(self, sequence: int, tokens: int) -> None:
        """A push captured at this place of the line."""
        self.open[sequence] = OpenTokens(tokens - self.mark, tokens)

    def settled(self, sequence: int, tokens: int = 0, *, is_merged: bool) -> None:
        """The fate of a push; `tokens`: what the log says of one that was given up before."""
        push = self.open.pop(sequence, None)
        if push is None:
            if is_merged:
                if self.given_up.pop(sequence, "lost") == "discarded":
                    self.discarded -= tokens
                else:
                    self.lost -= tokens
                self.merged += tokens
        elif is_merged:
            self.merged += push.tokens
            if not push.gone:
                self.mark = push.until
        else:
            self._bury(push)

    def assigned(self, tokens: int) -> None:
        """The local value was overwritten here."""
        self.discarded += max(0, tokens - self._covered())
        for push in self.open.values():
            push.gone = push.gone or "discarded"
        self.mark = max(self.mark, tokens)

    def trainer_lost(self, tokens: int) -> None:
        """The trainer died here; the next one's line begins at 0."""
        tokens = max(tokens, self._covered())
        self.lost += tokens - self._covered()
        for push in self.open.values():
            push.gone = "lost"  # Also what was overwritten before.
        self.dead += tokens
        self.mark = 0

    def give_up(self, *, is_final: bool = False) -> None:
        """The fate of open pushes of trainers that are gone will never be heard.

        is_final: nor that of any other push whose local value is gone.
        """
        for sequence, push in list(self.open.items()):
            if push.gone == "lost" or (is_final and push.gone):
                del self.open[sequence]
                self._bury(push)
                self.given_up[sequence] = push.gone
        while len(self.given_up) > GIVEN_UP_MAX:
            del self.given_up[min(self.given_up)]

    def in_flight(self) -> int:
        return sum(push.tokens for push in self.open.values())

    def pending(self, tokens: int) -> int:
        """Read up to here and not handed in."""
        return tokens - self._covered()

    def _covered(self) -> int:
        """How far the line has a fate, or a push that waits for one."""
        return max([self.mark, *(one.until for one in self.open.values() if not one.gone)])

    def _bury(self, push: OpenTokens) -> None:
        if push.gone == "discarded":
            self.discarded += push.tokens
        elif push.gone == "lost":
            self.lost += push.tokens
