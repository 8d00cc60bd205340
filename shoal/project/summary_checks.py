"""What a learner says of the log, held against what it can prove: bounds, corrections, differences.

Certified are the head of its log, and the record that made each fragment's newest version. The
summary around them is signed by nobody: tokens, accounts, the curve, leases. What contradicts the
certified records is refused, what could do harm is reset, and the rest is called that learner's
word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import structs

from protocol import limits
from protocol.errors import UnexpectedMessage
from protocol.log.accounts import KINDS_MAX, Account, printable
from protocol.log.heldout import CurvePoint
from protocol.log.leases import UNKNOWN, LeaseEntry
from protocol.log.records import FragmentMerged, NewVersions, Record, counted_tokens
from protocol.log.restoring import States
from protocol.log.state import CURVE_POINTS_MAX, MARKS_MAX, SwarmSummary
from protocol.novelty import UNHEARD
from protocol.standing import NOBODY

POSITIONS_MAX = 2**48
ROUNDS_AHEAD_MAX = 1_000_000
"""Rounds that a leader may have opened and given up since the newest merge."""

BUDGETS_MAX = 4
"""Tokens merged into a fragment, in budgets: the run ends at one, on the mean of all fragments."""


def check_bounds(
    summary: SwarmSummary, head: Record, made: Sequence[NewVersions], budget: int
) -> None:
    """Refuse a summary that cannot be true. Raises UnexpectedMessage with the reason.

    head: the last record of the log, certified. made: the certified records of the fragments'
    newest versions, but for the first weights. budget: tokens, of the charter.
    """
    steps = max((one.global_step for one in made), default=0)
    rounds = max((one.round for one in made), default=0)
    mean = sum(summary.tokens_by_fragment) // max(1, len(summary.fragments))
    marks = (summary.checkpoint, *(mark.index for mark in summary.marks))
    wrong = {
        "another epoch or term": (summary.epoch, summary.term) != (head.epoch, head.term),
        "another global step": summary.global_step != steps,
        "impossible rounds": not rounds <= summary.rounds <= rounds + ROUNDS_AHEAD_MAX,
        "impossible tokens": not _may_be_tokens(summary, made, budget),
        "an impossible curve": len(summary.curve) > CURVE_POINTS_MAX
        or not all(_may_be_point(one, summary, mean) for one in summary.curve),
        "impossible checkpoints": len(summary.marks) > MARKS_MAX
        or not all(0 <= at <= summary.index for at in marks)
        or not 0 <= summary.checkpoint_step <= summary.global_step,
        "impossible leases": not _may_be_leases(summary),
        "impossible accounts": not _may_be_accounts(summary),
    }
    found = [words for words, is_so in wrong.items() if is_so]
    if found:
        raise UnexpectedMessage(f"the summary names {', '.join(found)}")


def _may_be_tokens(summary: SwarmSummary, made: Sequence[NewVersions], budget: int) -> bool:
    if len(summary.tokens_by_fragment) != len(summary.fragments):
        return False
    if not 0 <= summary.taken_back_told <= sum(summary.tokens_by_fragment):
        return False
    newest = [one for one in made if isinstance(one, FragmentMerged)]
    for merged in newest:
        tally = merged.tally
        if tally and tally.fragment_tokens != summary.tokens_by_fragment[merged.fragment]:
            return False
    least = [0] * len(summary.fragments)
    for merged in newest:
        least[merged.fragment] = sum(counted_tokens(merged.contributions))
    pairs = zip(least, summary.tokens_by_fragment, strict=True)
    return all(low <= tokens <= low + BUDGETS_MAX * budget for low, tokens in pairs)


def _may_be_point(point: CurvePoint, summary: SwarmSummary, mean: int) -> bool:
    is_sound = math.isfinite(point.loss) and 0.0 <= point.loss <= limits.LOSS_MAX
    is_past = 0 <= point.checkpoint <= summary.index and 0 <= point.tokens <= mean
    return is_sound and is_past and 0 <= point.global_step <= summary.global_step


def _may_be_leases(summary: SwarmSummary) -> bool:
    spans = [*summary.returned, *(span for entry in summary.held for span in entry.spans)]
    is_within = all(0 <= one.start <= one.stop <= summary.next_position for one in spans)
    return is_within and 0 <= summary.next_position <= POSITIONS_MAX


def _may_be_accounts(summary: SwarmSummary) -> bool:
    """No more merges of anybody than there were, no more tokens of all than were merged."""
    merges, accounts = sum(one.version for one in summary.fragments), summary.accounts.values()
    total = sum(one.tokens for one in accounts)
    return total <= sum(summary.tokens_by_fragment) and all(
        max(one.clipped, one.doubted) <= one.merges <= merges
        and printable(one.name) == one.name
        and len(one.refused) <= KINDS_MAX + 1
        and all(count > 0 for count in one.refused.values())
        for one in accounts
    )


def without_influence(summary: SwarmSummary, donor: bytes) -> SwarmSummary:
    """The summary without what one learner's word could do harm by.

    Losses count as measured by the donor alone, so that the first on which two agree replaces them.
    Trust is earned anew, and norms are learnt anew; the guard begins anew. What sessions
    can claim is unknown.
    """
    curve = tuple(
        CurvePoint(one.checkpoint, one.global_step, one.tokens, one.loss, donor, b"", (one.loss,))
        for one in summary.curve
    )
    accounts = {
        key: structs.replace(
            one, standing=NOBODY, novelty=UNHEARD, in_row=0, refused=dict(one.refused)
        )
        for key, one in summary.accounts.items()
    }
    marks = tuple(structs.replace(mark, second=b"") for mark in summary.marks)
    reset = structs.replace(
        summary, pause=None, guarded_from=0, candidates=dict[int, States](), restored=None
    )
    return structs.replace(
        reset, curve=curve, accounts=accounts, marks=marks, norms=(), held=_held(summary)
    )


def with_others(summary: SwarmSummary, whole: SwarmSummary | None) -> SwarmSummary:
    """A summary of who was told in brief, with what another one knows of others, as of its record.

    whole: of who was told everything, no further than this; None where nobody was. Text that was
    leased since then is not leased again.
    """
    told = structs.replace(summary, is_brief=False, taken_back_told=0)
    if whole is None:
        return structs.replace(told, accounts={}, held=(), returned=())
    others = without_influence(whole, b"")
    return structs.replace(
        told,
        accounts=others.accounts,
        held=others.held,
        returned=others.returned,
        taken_back=others.taken_back,
        next_position=max(summary.next_position, whole.next_position),
    )


def on_its_word(summary: SwarmSummary) -> list[str]:
    """What of the summary nobody signed, a line for each."""
    tokens = sum(summary.tokens_by_fragment) // max(1, len(summary.fragments))
    merges = sum(one.merges for one in summary.accounts.values())
    of_others = f"{len(summary.accounts):,} contributors with {merges:,} merges, "
    text = "how far the text is leased" if summary.is_brief else "which text is leased or read"
    lines = [
        f"{tokens:,} tokens, {'' if summary.is_brief else of_others}"
        f"{len(summary.curve):,} held-out losses, and {text}",
    ]
    if summary.is_ending or summary.ended is not None:
        lines.append("that the token budget is reached: no merges will follow")
    return lines


def differences(one: SwarmSummary, other: SwarmSummary) -> list[str]:
    """Of what the log up to the same record says: in what two learners differ.

    Accounts may differ where one joined later, but not that each has merges the other denies. What
    a session can claim each counts of its own alone; and who was told in brief knows nothing of
    others.
    """
    is_brief = one.is_brief or other.is_brief
    found = {
        "tokens": one.tokens_by_fragment != other.tokens_by_fragment
        or (one.taken_back != other.taken_back and not is_brief),
        "held-out losses": _losses(one) != _losses(other),
        "leases": not is_brief
        and (one.next_position, one.returned, _held(one))
        != (other.next_position, other.returned, _held(other)),
        "the end of the run": (one.is_ending, one.ended) != (other.is_ending, other.ended),
        "accounts": _exceeds(one.accounts, other.accounts)
        and _exceeds(other.accounts, one.accounts),
    }
    return [words for words, is_so in found.items() if is_so]


def _held(summary: SwarmSummary) -> tuple[LeaseEntry, ...]:
    """Who holds which text, without what sessions can claim."""
    return tuple(structs.replace(one, granted=UNKNOWN, handed_in=()) for one in summary.held)


def _losses(summary: SwarmSummary) -> list[tuple[int, float]]:
    return [(point.checkpoint, point.loss) for point in summary.curve]


def _exceeds(one: dict[bytes, Account], other: dict[bytes, Account]) -> bool:
    """Whether the one counts more than the other for somebody."""
    none = Account()
    return any(account.counts > other.get(key, none).counts for key, account in one.items())
