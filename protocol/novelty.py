"""Whether a push says anything that was not merged lately.

Everybody is sent what was merged, so anybody can hand it in once more: such a push points where the
others' pushes point, and took no work. The *echo* of a push is how much of its length lies in what
was merged of its fragment lately. What is left of honest pushes still agrees: they were trained on
the same weights. What is left of a copy is rounding or added noise, and agrees with nothing. Its
*novelty* is the cosine of what is left of it to what is left of the others'.

A push that is nearly all echo does not count, from the first one on. A learner's novelty, the
running mean of that of its pushes, counts as its direction does (`protocol.standing`): compared
with the median of all, so that where nobody has much to add, nobody is doubted.

Decided by us. That copies are a threat is known as free-riding (arXiv 1911.12560).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from protocol.ids import Count
from protocol.standing import (
    ERROR_OF_MEAN,
    JUDGED_MIN,
    PUSH_STRAYS,
    STRAYS,
    clear_median,
    standard_error,
)

ECHO_MAX = 0.995
"""Of a push's length: one of which more was merged lately does not count. A copy has 1; the highest
of honest pushes was 0.88 in the attack laboratory, and 0.99 at the beginning of a tiny model of
which every learner learns nearly the same."""

LATE_ECHO_MAX = 0.999
"""The same of a push that lags: what it was trained for was merged by others meanwhile. Of that
tiny model one had 0.990."""

KEPT = 0.75
"""Share of the running mean that stays when a push is added."""

NOVELTY_NONE, NOVELTY_FULL = 0.15, 0.4
"""A learner whose novelty is at most the first share of the median does not count; from the second
one on it counts in full, and in between in proportion. In the laboratory honest learners had 0.6
and more of it, and copies with noise 0.03 at most."""

SLACK = 0.25
"""Share of the median that is added to the novelty of a single push before it is compared: honest
pushes stray, down to 0.4 of the median in the laboratory, and in a tiny model, where hardly
anything is left of a push, to 0.1."""


class Novelty(Struct, frozen=True, array_like=True):
    """What the log says of a learner before a merge."""

    mean: Annotated[float, Meta(ge=-1.0, le=1.0)] = 0.0
    """Running mean of what its pushes had."""
    judged: Count = 0
    """Pushes in that mean."""
    echoes: Count = 0
    """Of its newest pushes, how many were echoes, one after the other."""
    scatter: float = 0.0
    """Running mean of the squares by which its pushes strayed from the mean before them."""


UNHEARD = Novelty()


def is_echo(echo: float, *, is_late: bool = False) -> bool:
    """Whether a push with this echo does not count. is_late: its base is not the newest version."""
    return echo > (LATE_ECHO_MAX if is_late else ECHO_MAX)


def after(former: Novelty, echo: float, found: float | None, *, is_late: bool = False) -> Novelty:
    """The novelty of a learner once a push of it was merged.

    found: that of the push; None where too few others were in its merge to say.
    """
    echoes = former.echoes + 1 if is_echo(echo, is_late=is_late) else 0
    if found is None:
        return Novelty(former.mean, former.judged, echoes, former.scatter)
    if former.judged == 0:
        return Novelty(found, 1, echoes)
    strayed = (found - former.mean) ** 2
    weight = max(1.0 - KEPT, 1.0 / former.judged)
    return Novelty(
        KEPT * former.mean + (1.0 - KEPT) * found,
        former.judged + 1,
        echoes,
        former.scatter + weight * (strayed - former.scatter),
    )


def typical(learners: Iterable[Novelty], elements: int, judged_min: int = JUDGED_MIN) -> float:
    """The median novelty; 0 where too few were judged, or where it may be chance.

    elements: that the cosines are of.
    """
    judged = [one for one in learners if one.judged >= judged_min]
    return clear_median([one.mean for one in judged], elements, standard_error(judged))


def strays(learners: Iterable[Novelty], usual: float, judged_min: int = JUDGED_MIN) -> float:
    """Share of the usual novelty by which that of a learner may stray by chance. usual: what is
    `typical` of the same; 0 gives 0."""
    judged = [one for one in learners if one.judged >= judged_min]
    return STRAYS * standard_error(judged) / usual if usual > 0.0 else 0.0


def trust(novelty: Novelty, compared_with: float, strays: float = 0.0) -> float:
    """How far a push of this learner counts, from 0 to 1. compared_with: what is `typical`; 0 means
    that nothing can be compared. strays: see the function."""
    if novelty.echoes:
        return 0.0
    if compared_with <= 0.0 or novelty.judged == 0:
        return 1.0
    above = novelty.mean / compared_with + strays - NOVELTY_NONE
    return min(1.0, max(0.0, above / (NOVELTY_FULL - NOVELTY_NONE)))


def points_away(novelty: Novelty, compared_with: float) -> bool:
    """Whether what a learner's pushes add points to where that of others comes from: they do not
    repeat what was merged, they undo it. compared_with: what is `typical`."""
    return not novelty.echoes and novelty.mean < -NOVELTY_NONE * compared_with < 0.0


def trust_now(
    novelty: Novelty,
    echo: float,
    found: float | None,
    compared_with: float,
    *,
    is_late: bool = False,
    strays: float = 0.0,
) -> float:
    """How far a push counts, from 0 to 1, its learner's earlier ones having been so new."""
    now = after(novelty, echo, found, is_late=is_late)
    by_learner = trust(now, compared_with, strays)
    if found is None or compared_with <= 0.0:
        return by_learner
    slack = max(SLACK, PUSH_STRAYS / STRAYS * strays / ERROR_OF_MEAN)
    alone = Novelty(found + slack * compared_with, now.judged, now.echoes)
    return min(by_learner, trust(alone, compared_with))
