"""Whom a round leaves alone, because what it would send is better spent on another fragment.

A learner whose push takes as long as several openings cannot send every fragment in a cycle. Asked
for whatever is open when it is free, it might send the same few fragments for ever. So it is asked
for the one that it has not sent for longest, among as many coming fragments as one push takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.ids import SessionKey


@dataclass(slots=True)
class Uplinks:
    """What each session sent, and how many openings its last push took."""

    spans: dict[SessionKey, int] = field(default_factory=dict)
    """Openings from the pull to the arrival of the last push, the pull's own included."""
    sent: dict[SessionKey, dict[int, int]] = field(default_factory=dict)
    """Number of the newest round when a fragment last arrived."""

    def arrived(self, key: SessionKey, fragment: int, *, asked_after: int, newest: int) -> None:
        """A push is here whose pull went out when round `asked_after` was the newest."""
        self.spans[key] = 1 + newest - asked_after
        self.sent.setdefault(key, {})[fragment] = newest

    def is_turn(self, key: SessionKey, coming: Sequence[int]) -> bool:
        """Whether to ask for `coming[0]`, or wait for one of the fragments that open after it."""
        sent = self.sent.get(key, {})
        window = coming[: self.spans.get(key, 1)]
        longest = min(window, key=lambda fragment: sent.get(fragment, -1))
        return longest == coming[0]

    def keep(self, keys: set[SessionKey]) -> None:
        """Forget all other sessions."""
        self.spans = {key: span for key, span in self.spans.items() if key in keys}
        self.sent = {key: sent for key, sent in self.sent.items() if key in keys}
