"""Numbers by which pushes are merged where trust is earned, beside those of the charter.

Each field is one layer of the defence. The defaults are what every syncer merges by; the simulator
leaves single layers out, to show what each is for. No project and no machine has other ones: they
are part of the protocol's arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.standing import (
    LEARNERS_COMPARED_MIN,
    OTHER_TEXT_REPEATS_BOUNDS,
    REPEATS_BOUNDS,
    TRUST_BOUNDS,
)

GAIN_MAX = 1.5
"""How much more others may count in place of who is not trusted: a third of the weight is made up
for, and no more, so that a wrong judgement of many does not hand the merge to few."""

SHARE_MAX = 1 / 3
"""What one push may add of a merge where at least four count."""

SHARE_OF_THREE_MAX = 1 / 2
"""The same where three do; of two pushes nobody can say which one is too heavy."""

NEW_SHARE_MAX = 0.1
"""What all new learners together may add of a merge, where enough established ones are here."""

LIKENESS_MAX = 0.8
"""Pushes more alike than this count as one. Displacements of different text are nearly orthogonal;
two of the same text by different machines are not as like as this."""

LENGTH_MAX = 1.5
"""Times the median of the norms per root of local steps: beyond this a push is scaled down, also
where the charter would let it pass. Honest pushes of equal work differ by a few per cent; one that
is longer moves the length of the merge, and gains nothing by it but weight."""

NORMS_KNOWN_MAX = 8
"""Learners whose newest norm is remembered, of each fragment."""

MERGES_COMPARED = 4
"""Of a fragment: a push is compared with the newest, as many as every holder of payloads keeps."""

DOUBTS_IN_ROW = 4
"""Judged pushes of a learner in a row: so many that hardly counted take its tokens back, so many
that counted at least half give them back."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What a layer is left out by is said beside its field."""

    trust_bounds: tuple[float, float] = TRUST_BOUNDS
    """Shares of the median direction at which pushes begin to count, and count in full."""
    share_max: float = SHARE_MAX
    """1 bounds nothing."""
    share_of_three_max: float = SHARE_OF_THREE_MAX
    """1 bounds nothing."""
    new_share_max: float = NEW_SHARE_MAX
    """1 bounds nothing."""
    likeness_max: float = LIKENESS_MAX
    """Above 1 nothing is alike."""
    length_max: float = LENGTH_MAX
    """Infinity bounds nothing."""
    tensor_length_max: float = 1.0
    """Norms of single tensors are bounded by so many times `clip_to_median` times their median;
    infinity bounds nothing."""
    norms_known: int = NORMS_KNOWN_MAX
    """So many norms of former pushes are compared with; at 0 those of the same merge only."""
    first_pushes: int = LEARNERS_COMPARED_MIN
    """So many at least make the first merges of a fragment, where more learners are here; 0 for no
    more than later ones."""
    doubts_in_row: int = DOUBTS_IN_ROW
    """Too many to happen takes nothing back."""
    repeats_bounds: tuple[float, float] = REPEATS_BOUNDS
    """How far above the median a learner may repeat itself and count in full, and where it no more
    counts; above 2 nobody is."""
    other_text_repeats_bounds: tuple[float, float] = OTHER_TEXT_REPEATS_BOUNDS
    """The same of learners that say that they read other text than what they are leased."""
    merges_compared: int = MERGES_COMPARED
    """So many of a fragment's newest merges are what was merged lately; with 0 there are no echoes
    and no novelty."""


RULES = MergeRules()
