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
from collections.abc import Iterable

from msgspec import Struct

LEARNERS_COMPARED_MIN = 3
"""Fewer directions have no median that one liar could not move."""

JUDGED_MIN = 3
"""Pushes of a learner before its direction is compared, and before its norm is trusted."""

DIRECTION_KEPT = 0.75
"""Share of the running mean that stays when a push is added: four pushes weigh as much as all
before them."""

TRUST_NONE, TRUST_FULL = 0.15, 0.5
"""A learner whose direction is at most the first share of the median does not count; from the
second one on it counts in full, and in between in proportion."""

SPREADS_MIN = 2.0
"""The median direction counts if it is more than so many times the median deviation from it."""

CHANCES_MIN = 6.0
"""And more than so many standard deviations of the cosines of random numbers."""

SLACK = 0.5
"""Share of the median direction by which the cosine of one honest push may stray."""


class Standing(Struct, frozen=True, array_like=True):
    """What the log says of a learner before a merge."""

    direction: float = 0.0
    """Running mean of its cosines, from -1 to 1."""
    judged: int = 0
    """Pushes in that mean."""


NOBODY = Standing()


def after(standing: Standing, cosine: float) -> Standing:
    """The standing once a push with this cosine was merged."""
    if standing.judged == 0:
        return Standing(cosine, 1)
    kept = DIRECTION_KEPT * standing.direction
    return Standing(kept + (1.0 - DIRECTION_KEPT) * cosine, standing.judged + 1)


def typical(standings: Iterable[Standing], elements: int, judged_min: int = JUDGED_MIN) -> float:
    """The median direction; 0 where too few were judged, or where it may be chance.

    elements: of the fragments that the cosines are of, or of one of middle size. So many random
    numbers have cosines with a standard deviation of one over their root. Chance it is where a
    model learns nothing any more, or not yet: then everybody counts.
    """
    judged = [one.direction for one in standings if one.judged >= judged_min]
    if len(judged) < LEARNERS_COMPARED_MIN:
        return 0.0
    middle = statistics.median(judged)
    spread = statistics.median(abs(one - middle) for one in judged)
    chance = CHANCES_MIN / math.sqrt(elements)
    return middle if middle > max(SPREADS_MIN * spread, chance) else 0.0


def trust_now(standing: Standing, cosine: float, compared_with: float) -> float:
    """How far a push with this cosine counts, from 0 to 1, its learner having stood so before.

    A push that points clearly elsewhere does not count, however its learner's others pointed: who
    was honest for long must not be believed once more for each fragment.
    """
    now = after(standing, cosine) if cosine else standing
    if cosine and compared_with > 0.0:
        now = Standing(min(now.direction, cosine + SLACK * compared_with), now.judged)
    return trust(now, compared_with)


def trust(standing: Standing, compared_with: float) -> float:
    """How far a push of this learner counts, from 0 to 1.

    compared_with: what is `typical` in the swarm; 0 means that nothing can be compared.
    """
    if compared_with <= 0.0 or standing.judged == 0:
        return 1.0
    share = standing.direction / compared_with
    return min(1.0, max(0.0, (share - TRUST_NONE) / (TRUST_FULL - TRUST_NONE)))
