"""What a leader writes into the log about contributors besides merges: names, and what is refused.

Gathered for some seconds and proposed as one record, so that every voter has the same accounts. A
leader that dies takes with it what it had not proposed yet: refusals of the last seconds, nothing
that was merged. Names are noted again by the next leader, if their learners are still there; whose
key has none yet therefore waits for a moment only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.log import accounts
from protocol.log.records import AccountsNoted, Body, FragmentMerged
from protocol.log.state import SwarmState
from protocol.peers.membership import Membership

EVERY_S = 10.0
"""How long something to note may wait; at most this much of it is lost with a leader."""

FIRST_S = 1.0
"""... and the first name of a key: those who come into their first merge together are noted
together. That is once for a learner, however long it stays."""


@dataclass(slots=True)
class ContributorNotes:
    """One term's. Everything noted is proposed once."""

    state: SwarmState
    members: Membership
    propose: Callable[[Body], None]
    _names: dict[bytes, str] = field(default_factory=dict)
    _refused: dict[bytes, dict[str, int]] = field(default_factory=dict)
    _since_s: float | None = None
    """Since when something waits."""
    _wait_s: float = EVERY_S
    """How long the most urgent of it may."""

    def on_refused(self, learner: bytes, outcome: str, reason: str) -> None:
        """A push got a fate other than being merged. reason: without details of this one push."""
        kind = outcome if reason in ("", outcome) else f"{outcome}: {reason}"
        counts = self._refused.setdefault(learner, {})
        accounts.count_kind(counts, accounts.printable(kind, accounts.KIND_CHARS_MAX), 1)

    def on_merged(self, merged: FragmentMerged) -> None:
        """A merge is committed and applied to the state: do we know what its learners are called?

        A name that changed is noted with the next merge; whoever gave nothing has none.
        """
        for part in merged.contributions:
            session = self.members.sessions.get(part.learner)
            account = self.state.accounts.get(part.learner)
            if session is None or account is None:
                continue
            name = accounts.printable(session.name)
            if name and name != account.name:
                self._names[part.learner] = name
                if not account.name:
                    self._wait_s = FIRST_S

    def look(self, now_s: float) -> None:
        """Propose what waited long enough."""
        if not self._names and not self._refused:
            return
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= self._wait_s:
            self.flush()

    def flush(self) -> None:
        """Propose everything now: the log is about to end, or the seat to go to another."""
        names = [accounts.ChosenName(key, name) for key, name in sorted(self._names.items())]
        refusals = [
            accounts.Refusal(key, kind, pushes)
            for key, counts in sorted(self._refused.items())
            for kind, pushes in sorted(counts.items())
        ]
        self._names, self._refused, self._since_s, self._wait_s = {}, {}, None, EVERY_S
        while names or refusals:
            self.propose(
                AccountsNoted(
                    tuple(names[: accounts.NOTES_MAX]), tuple(refusals[: accounts.NOTES_MAX])
                )
            )
            del names[: accounts.NOTES_MAX], refusals[: accounts.NOTES_MAX]

    def deadline_s(self) -> float | None:
        """When something is due."""
        return None if self._since_s is None else self._since_s + self._wait_s
