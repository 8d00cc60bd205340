"""Judges what pushes claim: honest ones are believed, and nobody's exceed the text leased to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from protocol.log.records import BlocksLeased, FragmentMerged
from protocol.project import DataSpec
from protocol.trace import Fact, PushSettled
from simulator.checkers.ledger import Ledger, Violation

Told = tuple[float, bytes, Fact]
"""When, by which host, what."""


def check_honest_claims(told: Iterable[Told]) -> None:
    """No push of anybody was called a false claim."""
    for now_s, _, fact in told:
        if isinstance(fact, PushSettled) and "false-claim" in fact.reason:
            raise Violation(f"{now_s:.2f}: an honest push was refused: {fact.text}")


def check_claims_are_covered(ledger: Ledger, data: DataSpec) -> None:
    """Of each session and fragment, no more tokens were merged than were leased before."""
    leased: Counter[tuple[bytes, int]] = Counter()
    merged: Counter[tuple[bytes, int, int]] = Counter()
    for record in ledger.records:
        match record.body:
            case BlocksLeased(learner, incarnation, spans):
                sequences = sum(
                    (span.stop - span.start) * data.block_sequences - span.skip for span in spans
                )
                leased[learner, incarnation] += sequences * data.sequence_tokens
            case FragmentMerged() as merge:
                for part in merge.contributions:
                    session = (part.learner, part.incarnation)
                    merged[*session, merge.fragment] += part.tokens
                    if merged[*session, merge.fragment] > leased[session]:
                        raise Violation(
                            f"record {record.index}: {merged[*session, merge.fragment]} tokens of "
                            f"fragment {merge.fragment} count for a session that was leased "
                            f"{leased[session]}"
                        )
