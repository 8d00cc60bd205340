"""How far a learner's pushes count, by where its earlier ones pointed.

Where trust is earned, each push has a cosine: to the mean direction of the other pushes in its
merge, or where there are fewer than three, to the outer momentum from which the merge begins, which
is the mean of what all moved lately. A learner's direction is the running mean of its cosines. It
is compared with the median of all learners' directions, so that noise and overshooting, which meet
everybody, cost nobody trust; who keeps pointing elsewhere counts less and less, and who points
backwards does not count. A minority cannot move the median.

Decided by us: the defence that this follows, cosine trust (FLTrust, arXiv 2012.13995), has a server
with clean data of its own; here the other learners take that place. One or two learners have no
majority, so with them everybody counts in full.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

LEARNERS_COMPARED_MIN = 3
"""Fewer directions have no median that one liar could not move."""

MANY_PUSHES = 8
"""From so many in a merge on, a quarter of which may lie, the others say what is usual in it."""

JUDGED_MIN = 3
"""Pushes of a learner before its direction is compared, and before its norm is trusted."""

ESTABLISHED_MIN = 10
"""Good pushes of a learner before it is no new one any more: those that counted at least half.
Where three learners are beyond that, new ones add little to a merge, make no quorum, and do not
move the median: keys are free, and whoever points elsewhere stays new for ever."""

DIRECTION_KEPT = 0.75
"""Share of the running mean that stays when a push is added: four pushes weigh as much as all
before them."""

TRUST_NONE, TRUST_FULL = 0.15, 0.5
"""A learner whose direction is at most the first share of the median does not count; from the
second one on it counts in full, and in between in proportion."""

TRUST_BOUNDS = (TRUST_NONE, TRUST_FULL)

REPEATS_FULL, REPEATS_NONE = 0.15, 0.25
"""A learner whose pushes repeat themselves more than the median by at least the second does not
count. In simulated runs of small models honest ones were above it by 0.12 at most; two of eight
that hand in a little less than they learned, always in the same way, by 0.4."""

REPEATS_BOUNDS = (REPEATS_FULL, REPEATS_NONE)

OTHER_TEXT_REPEATS_BOUNDS = (0.6, 0.7)
"""The same of learners that say that they read other text than what they are leased: an honest one
whose text was of another kind was above the median by 0.26 and, with pushes of 24 local steps, by
0.48. Half a push that is always the same comes to 0.8. Who says so stays new, for nobody can check
what it read."""

DOUBTED_BELOW = 0.5
"""Whose pushes count less than this is told so."""

FALSE_BELOW = 0.25
"""A push that counts less than this says that its learner is false. Not each that is doubted does:
an honest learner ten times as fast as two others counted a little less than half now and then."""

SPREADS_MIN = 2.0
"""The median direction counts if it is more than so many times the median deviation from it."""

CHANCES_MIN = 9.0
"""And more than so many standard deviations of the cosines of random numbers; those of honest
pushes stray four times as far."""

SURE_MIN = 2.0
"""And more than so many standard errors of a learner's own direction, by how its cosines scatter.
Where a model hardly learns any more, they scatter by more than they point: of some fragments
everybody's pushes then point away from everybody's."""

STRAYS = 2.0
"""Of these standard errors, how many any learner's direction may stray."""

PUSH_STRAYS = 3.0
"""Of the standard deviations of single pushes, how many one of them may stray."""

SCATTER_MIN = 12
"""Pushes of a learner before how its cosines scatter says anything: in the first ones a liar that
is not yet named makes everybody's scatter, and has to be named there."""

ERROR_OF_MEAN = math.sqrt((1.0 - DIRECTION_KEPT) / (1.0 + DIRECTION_KEPT))
"""Standard error of a running mean, as a share of the standard deviation of what is in it."""

EXPECTED_MIN = 1 / 8
"""Of a push of hardly any work little can be expected, but more than that."""

PUSHES_WEIGHED = 4
"""As many pushes as the running means hold: of each, the newest has a quarter."""

UNTOLD_WEIGHS = 0.5
"""Of a push of full work, how much weighs what a push of hardly any does not tell."""

SLACK = 1.0
"""Share of the median direction by which the cosine of one honest push may stray. Where a model of
thousands of elements hardly learns any more, one in 5,000 points backwards by half of it."""


class Standing(Struct, frozen=True, array_like=True):
    """What the log says of a learner before a merge."""

    direction: float = 0.0
    """Running mean of its cosines, each times what could be `expected` of it; from -1 to 1."""
    judged: int = 0
    """Pushes in that mean."""

    good: int = 0
    """Those of them that counted at least half."""

    expected: float = 1.0
    """Running mean of the squares of what could be `expected`: how much its pushes tell."""

    repeats: float = 0.0
    """Running mean of how far its pushes repeat themselves, begun at 0; from -1 to 1."""

    compared: int = 0
    """Pushes in that mean."""

    scatter: float = 0.0
    """Running mean of the squares by which its cosines strayed from its bearing before them."""

    has_other_text: bool = False
    """It says that it reads other text than what it is leased. In no log: who judges sets it."""

    @property
    def is_established(self) -> bool:
        return self.good >= ESTABLISHED_MIN

    @property
    def bearing(self) -> float:
        """Its direction, had all its pushes been of as many local steps as is usual."""
        return self.direction / max(self.expected, EXPECTED_MIN**2)


NOBODY = Standing()


def expected(steps: int, usual: float | None) -> float:
    """Of the cosine of a push of usual work, what one of so many local steps can have: at most 1.

    What local steps have in common grows with their number, and their noise with its root. usual:
    the median of local steps; None where it is not known.
    """
    if usual is None or not 0 < steps < usual:
        return 1.0
    return max(EXPECTED_MIN, math.sqrt(steps / usual))


def after(
    standing: Standing,
    cosine: float,
    trust: float = 0.0,
    *,
    expected: float = 1.0,
    repeat: float = 0.0,
) -> Standing:
    """The standing once a push with this cosine was merged, and counted so far.

    The means are those of a line through all pushes by least squares: one of which little can be
    expected says little. repeat: 0 where it is not known, as of a learner's first pushes.
    """
    good = standing.good + (trust >= DOUBTED_BELOW)
    could = expected if expected > EXPECTED_MIN else EXPECTED_MIN
    old, new = DIRECTION_KEPT, 1.0 - DIRECTION_KEPT
    repeats, compared = standing.repeats, standing.compared
    if repeat:
        # The first are few, and each weighs more: who repeats itself does so from the beginning.
        weight, compared = max(new, 1.0 / (compared + 2)), compared + 1
        repeats += weight * (repeat - repeats)
    if standing.judged == 0:
        return Standing(could * cosine, 1, good, could * could, repeats, compared)
    strayed = (cosine - could * standing.bearing) ** 2
    scatter = standing.scatter + max(new, 1.0 / standing.judged) * (strayed - standing.scatter)
    return Standing(
        old * standing.direction + new * could * cosine,
        standing.judged + 1,
        good,
        old * standing.expected + new * could * could,
        repeats,
        compared,
        scatter,
    )


def is_of_the_beginning(base_version: int, *, is_late: bool, pushes: int) -> bool:
    """Whether where a push points says nothing of its learner, since it lags from version 0.

    The first local steps of a run are small and alike, and often lead away from where others go on
    from the first merge. Such a push counts in its merge as far as it points to where others do.
    pushes: in that merge; where they are fewer than `MANY_PUSHES`, every push is needed to tell.
    """
    return is_late and base_version == 0 and pushes >= MANY_PUSHES


def are_established(standings: Iterable[Standing]) -> bool:
    """Whether so many were good for long that a median of theirs says what is usual."""
    return sum(one.is_established for one in standings) >= LEARNERS_COMPARED_MIN


def typical(standings: Sequence[Standing], elements: int, judged_min: int = JUDGED_MIN) -> float:
    """The median direction; 0 where too few were judged, or where it may be chance.

    elements: that the cosines are of. So many random numbers have cosines with a standard deviation
    of one over their root. Chance it is where a model learns nothing any more, or not yet: then
    everybody counts. Where enough learners are established, it is the median of theirs.
    """
    judged = _compared(standings, judged_min)
    return clear_median([one.bearing for one in judged], elements, standard_error(judged))


def clear_median(values: Sequence[float], elements: int, error: float) -> float:
    """The median of what learners have; 0 where they are few, or where it may be chance.

    elements: of which each value is a mean cosine. error: the `standard_error` of one of them.
    """
    if len(values) < LEARNERS_COMPARED_MIN:
        return 0.0
    middle = statistics.median(values)
    spread = statistics.median(abs(one - middle) for one in values)
    chance = CHANCES_MIN / math.sqrt(elements)
    return middle if middle > max(SPREADS_MIN * spread, chance, SURE_MIN * error) else 0.0


def _compared(standings: Sequence[Standing], judged_min: int) -> list[Standing]:
    if are_established(standings):
        standings = [one for one in standings if one.is_established]
    return [one for one in standings if one.judged >= judged_min]


class Scattering(Protocol):
    """A running mean of what a learner's pushes have."""

    @property
    def judged(self) -> int:
        """Pushes in it."""

    @property
    def scatter(self) -> float:
        """Mean of the squares by which they strayed from it."""


def standard_error(judged: Sequence[Scattering]) -> float:
    """That of the median learner's mean: whoever scatters more gains nothing. 0 while too few are
    judged for long."""
    known = [one.scatter for one in judged if one.judged >= SCATTER_MIN]
    if len(known) < LEARNERS_COMPARED_MIN:
        return 0.0
    return ERROR_OF_MEAN * math.sqrt(statistics.median(known))


def strays(standings: Sequence[Standing], usual: float, judged_min: int = JUDGED_MIN) -> float:
    """Share of the usual direction by which that of a learner may stray by chance. usual: what is
    `typical` of the same; 0 gives 0."""
    judged = _compared(standings, judged_min)
    return STRAYS * standard_error(judged) / usual if usual > 0.0 else 0.0


def typical_repeats(standings: Sequence[Standing]) -> float:
    """How far learners usually repeat themselves: the median; 1 where too few were compared.

    It is not nothing: where a merge has one push, what all have in common is everybody's own part
    beside the momentum. So learners none of whose pushes was compared yet say nothing of it.
    """
    if are_established(standings):
        standings = [one for one in standings if one.is_established]
    known = [one.repeats for one in standings if one.judged >= JUDGED_MIN and one.compared]
    return statistics.median(known) if len(known) >= LEARNERS_COMPARED_MIN else 1.0


def trust_by_repeats(
    standing: Standing,
    usual: float,
    bounds: tuple[float, float] = REPEATS_BOUNDS,
    other_text_bounds: tuple[float, float] = OTHER_TEXT_REPEATS_BOUNDS,
) -> float:
    """How far a learner counts that repeats itself so, from 0 to 1. usual: `typical_repeats`.

    Of pushes of few local steps much is the inner optimizer's momentum, which carries the noise of
    the same text from one to the next; so what they repeat says as little as where they point.
    """
    full, none = other_text_bounds if standing.has_other_text else bounds
    excess = (standing.repeats - usual) * math.sqrt(max(standing.expected, EXPECTED_MIN**2))
    return min(1.0, max(0.0, (none - excess) / (none - full)))


def trust_now(
    standing: Standing,
    cosine: float,
    compared_with: float,
    bounds: tuple[float, float] = TRUST_BOUNDS,
    *,
    expected: float = 1.0,
    strays: float = 0.0,
    is_young: bool = False,
) -> float:
    """How far a push with this cosine counts, from 0 to 1, its learner having stood so before.

    A push that points clearly elsewhere does not count, however its learner's others pointed: who
    was honest for long must not be believed once more for each fragment. expected: of this push.
    is_young: nothing is `typical` yet, so one that points where the others of its merge do counts
    however its learner's others pointed: a liar may have been what those were compared with.
    """
    if not cosine:
        return trust(standing, compared_with, bounds, strays)
    now = after(standing, cosine, expected=expected)
    by_learner = trust(now, compared_with, bounds, strays)
    if is_young:
        first = after(NOBODY, cosine, expected=expected)
        by_learner = max(by_learner, trust(first, compared_with, bounds, strays))
    # One push strays further than a mean of several.
    slack = max(SLACK, PUSH_STRAYS / STRAYS * strays / ERROR_OF_MEAN)
    alone = Standing(expected * cosine + slack * compared_with, 1)
    return min(by_learner, trust(alone, compared_with, bounds))


def trust(
    standing: Standing,
    compared_with: float,
    bounds: tuple[float, float] = TRUST_BOUNDS,
    strays: float = 0.0,
) -> float:
    """How far a push of this learner counts, from 0 to 1.

    compared_with: what is `typical` in the swarm; 0 means that nothing can be compared. bounds: see
    `TRUST_NONE`. strays: see the function. Where its pushes tell less than usual ones, what they do
    not tell is taken for good: they add to a merge as little as they tell.
    """
    if compared_with <= 0.0 or standing.judged == 0:
        return 1.0
    pushes = min(standing.judged, PUSHES_WEIGHED)
    untold = UNTOLD_WEIGHS * (1.0 - standing.expected)
    share = pushes * standing.direction / compared_with + untold
    share /= pushes * standing.expected + untold
    none, full = bounds
    return min(1.0, max(0.0, (share + strays - none) / (full - none)))
