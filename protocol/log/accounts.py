"""What the log counts for each contributor: merges and tokens, what did not count and why, a name.

A fold over the log, as all of `protocol.log.state` is, so every voter has the same accounts.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from protocol import novelty, probes
from protocol.ids import Count, NodeKey
from protocol.novelty import UNHEARD, Novelty
from protocol.probes import Findings
from protocol.standing import DOUBTED_BELOW, FALSE_BELOW, NOBODY, Standing, after

Counts = tuple[int, int, int]
"""Merges, tokens summed over fragments, merges that were clipped."""

NAME_CHARS_MAX = 64
KIND_CHARS_MAX = 64
KINDS_MAX = 16
"""Different reasons counted for one contributor; further ones are counted as `other`."""

OTHER = "other"
GUESTS_MAX = 1024
"""Accounts of keys of which nothing was ever merged; of more, those with least are forgotten."""

NOTES_MAX = 256
"""Names or refusals in one record."""


class ChosenName(Struct, frozen=True, array_like=True):
    """How a contributor wants to be called."""

    learner: NodeKey
    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Refusal(Struct, frozen=True, array_like=True):
    """Pushes of one contributor that did not count, all for the same reason."""

    learner: NodeKey
    kind: Annotated[str, Meta(min_length=1, max_length=KIND_CHARS_MAX)]
    """The outcome, and the reason behind a colon where there is more to say."""
    pushes: Annotated[int, Meta(ge=1, le=2**31)]


class Account(Struct, array_like=True):
    """What one contributor handed in, over all its sessions."""

    merges: Count = 0
    tokens: Count = 0
    """Summed over fragments; divide by their number for tokens read."""
    clipped: Count = 0
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] = ""
    """As it called itself last when something of it was merged; empty if no record says."""
    refused: dict[str, int] = field(default_factory=dict)
    """Pushes that did not count, by outcome and reason."""
    merged_at_s: float = 0.0
    """Time of the record of its newest merge, by the leader's wall clock, for people."""
    standing: Standing = NOBODY
    """Where its pushes pointed."""
    doubted: Count = 0
    """Merges in which its push did not count in full, because of that."""
    probes: Count = 0
    """Pushes of it that others probed."""
    findings: Findings = ()
    """What they measured."""
    suspended_at_s: float | None = None
    """Time of the record that suspended it, by the leader's wall clock; None unless it is."""
    in_row: Annotated[int, Meta(ge=-(2**53), le=2**53)] = 0
    """Of its newest judged pushes, how many counted at least half, one after the other; negative:
    how many hardly counted."""
    novelty: Novelty = UNHEARD
    """What its pushes add to what was merged lately."""
    first_at_s: float = 0.0
    """Time of the record of its first merge, by the leader's wall clock, for people; 0 where the
    log was written by a version that did not count it."""

    @property
    def counts(self) -> Counts:
        """Merges, tokens, clipped: what a receipt says."""
        return (self.merges, self.tokens, self.clipped)

    @property
    def refusals(self) -> int:
        """How many pushes did not count."""
        return sum(self.refused.values())

    def fates(self) -> dict[str, int]:
        """What became of its pushes, in a word for each."""
        found = {"merged": self.merges - self.clipped, "clipped": self.clipped}
        for kind, pushes in self.refused.items():
            word = fate_of(kind)
            found[word] = found.get(word, 0) + pushes
        return {word: pushes for word, pushes in found.items() if pushes}

    @property
    def is_suspended(self) -> bool:
        return self.suspended_at_s is not None

    def merged(self, tokens: int, *, is_clipped: bool, at_s: float) -> None:
        """One push more went into a merge."""
        if not self.merges:
            self.first_at_s = at_s
        self.merges += 1
        self.tokens += tokens
        self.clipped += is_clipped
        self.merged_at_s = at_s

    def judged(
        self, cosine: float, trust: float, expected: float = 1.0, repeat: float = 0.0
    ) -> None:
        """That push pointed so and counted so far. expected, repeat: as the record has them."""
        self.standing = after(self.standing, cosine, trust, expected=expected, repeat=repeat)
        self.doubted += trust < 1.0
        if trust >= DOUBTED_BELOW:
            self.in_row = max(self.in_row, 0) + 1
        else:
            self.in_row = min(self.in_row, 0) - 1 if trust < FALSE_BELOW else 0

    def heard(self, echo: float, found: float | None, *, is_late: bool) -> None:
        """So much of that push was merged lately, and the rest of it is so new."""
        if echo or found is not None:
            self.novelty = novelty.after(self.novelty, echo, found, is_late=is_late)

    def reinstated(self) -> None:
        """Its owner lets it take part again: what was measured before does not count."""
        self.findings, self.suspended_at_s = (), None

    @property
    def suspension(self) -> Account:
        """Only what was measured of it, for itself: what it handed in, it knows."""
        return Account(
            probes=self.probes, findings=self.findings, suspended_at_s=self.suspended_at_s
        )


def suspended_words(account: Account) -> str:
    """Why a learner is suspended: what was measured, and by how many. The end of a sentence."""
    said = account.findings
    against = sum(one.evidence < 0 for one in said)
    mean = probes.mean_contrast(said)
    shown = "" if mean is None else f", on average by {mean:+.1f} standard errors"
    return (
        f"{against} of {len(said)} learners that probed its pushes found that they do no more for "
        f"the text that it was leased than for other text{shown} in {probes.probes(said)} probes"
    )


def count_kind(counts: dict[str, int], kind: str, pushes: int) -> str:
    """Add to one of a bounded number of kinds; the one that was added to."""
    if kind not in counts and len(counts) >= KINDS_MAX:
        kind = OTHER
    counts[kind] = counts.get(kind, 0) + pushes
    return kind


def fate_of(kind: str) -> str:
    """What became of a push that did not count, in a word: the reason, or else the outcome."""
    outcome, _, reason = kind.partition(": ")
    return reason if outcome == "rejected" and reason else outcome


def printable(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """A stranger's text without anything that could move a cursor, and not long."""
    return "".join(char if char.isprintable() else "?" for char in text[:chars_max])
