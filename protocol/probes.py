"""What probes say of a learner: whether its pushes were trained on the text leased for them.

A push that was trained on a text lowers the loss of that text more than that of text which nobody
read; one that was copied, or made of what others do, lowers both alike. A prober measures both
gains. Their difference in standard errors is the *contrast* of the probe: around zero for a copy,
and for honest pushes above it, by how much depends on model, text and the steps of a push. So it is
compared with the contrasts of the learners themselves: the median of their means. While that is
small, or few were probed, a probe says nothing.

The score of a probe is the logarithm of how much likelier its contrast is of a trained push than of
a copy. Scores are summed by learner and prober: that is the evidence. A learner is suspended when
the evidence of its probers is against it even without the worst half of them, so no minority of
probers can suspend anybody, or protect anybody.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from protocol.ids import Count, NodeKey

if TYPE_CHECKING:
    from protocol.messages import Gain

ERRORS_MAX = 6.0
"""Standard errors at which a measurement is cut off: whoever lies gains nothing beyond."""

SCORE_MAX = 3.0
"""Of one probe, to either side."""

EVIDENCE_MAX, EVIDENCE_MIN = 6.0, -60.0
"""How far scores of one prober add up. The first keeps short how long one that was honest for years
may lie; with it goes what it takes to be suspended by chance."""

AGAINST = 9.0
"""Nats of evidence that suspend. An honest learner with the median contrast gets there by chance
less than once in a million runs, also where one of three probers lies; `tests/property` has the
arithmetic, and how soon a copier gets there."""

EXPECTED_SHARE = 0.75
"""Of the median contrast, what a push is expected to have: learners differ in speed and luck."""

EXPECTED_MAX = 2.5
"""More need not be expected to tell."""

EXPECTED_MIN = 0.8
"""A median contrast below may be chance, and would tell little: then no probe says anything."""

SPREAD = 1.2
"""Standard deviation of contrasts: one by definition, and somewhat more as measured."""

LEARNERS_MIN = 3
"""So many learners must be probed for a median to exist that one liar cannot choose."""

PROBES_MIN = 4
"""... each of them so often. As often must somebody have been probed who is suspended."""

ANSWERS_MIN = 2
"""Probes by one prober before its evidence counts."""

PANEL = 5
"""Probers that take turns with one learner, where there are so many: with more of them it would
take longer until each has said enough, with fewer two that lie together would outvote one."""

PROBERS_MAX = 8
"""Probers of one learner that are remembered, newest last."""

KEPT_MAX = 0.9
"""Share of the running means that stays when a probe is added: what is usual changes in a run."""

HARM, HARM_USUAL = -3.0, 3.0
"""A push harms if it raises the loss of unread text by more standard errors than the one, while
those of the median learner lower it by more than the other."""


class ProbedBy(Struct, frozen=True, array_like=True):
    """What one prober measured of one learner."""

    prober: NodeKey
    probes: Count = 0
    contrast: Annotated[float, Meta(ge=-ERRORS_MAX, le=ERRORS_MAX)] = 0.0
    """Running mean: standard errors by which its text gained more than other text."""
    benefit: Annotated[float, Meta(ge=-ERRORS_MAX, le=ERRORS_MAX)] = 0.0
    """Running mean: standard errors by which other text gained."""
    evidence: Annotated[float, Meta(ge=EVIDENCE_MIN, le=EVIDENCE_MAX)] = 0.0
    """Nats in favour of its having trained."""


Findings = tuple[ProbedBy, ...]


@dataclass(frozen=True, slots=True)
class Usual:
    """What probes of the learners that are here have in the middle."""

    contrast: float = 0.0
    """0 while nothing can be said."""
    benefit: float = 0.0


UNKNOWN = Usual()


def contrast(own: Gain, other: Gain) -> float:
    """Standard errors by which the leased text gained more than other text."""
    variance = own.deviation**2 / own.sequences + other.deviation**2 / other.sequences
    return _errors(own.mean - other.mean, variance)


def benefit(other: Gain) -> float:
    """Standard errors by which text that nobody read gained."""
    return _errors(other.mean, other.deviation**2 / other.sequences)


def _errors(difference: float, variance: float) -> float:
    if not difference:
        return 0.0
    errors = difference / math.sqrt(variance) if variance > 0.0 else math.copysign(1e9, difference)
    return min(ERRORS_MAX, max(-ERRORS_MAX, errors))


def usual(learners: Iterable[Findings]) -> Usual:
    """The median over learners of the median over each one's probers; unknown for too few."""
    known = [one for one in learners if probes(one) >= PROBES_MIN]
    if len(known) < LEARNERS_MIN:
        return UNKNOWN
    middles = [statistics.median(said.contrast for said in one) for one in known]
    benefits = [statistics.median(said.benefit for said in one) for one in known]
    return Usual(statistics.median(middles), statistics.median(benefits))


def score(own: Gain, other: Gain, compared_with: Usual) -> float:
    """Nats in favour of the push being trained on its text; 0 where a probe says nothing."""
    if benefit(other) < HARM and compared_with.benefit > HARM_USUAL:
        return -SCORE_MAX
    if compared_with.contrast < EXPECTED_MIN:
        return 0.0
    expected = min(EXPECTED_MAX, EXPECTED_SHARE * compared_with.contrast)
    nats = expected * (contrast(own, other) - expected / 2.0) / SPREAD**2
    return min(SCORE_MAX, max(-SCORE_MAX, nats))


def heard(said: Findings, prober: NodeKey, own: Gain, other: Gain, nats: float) -> Findings:
    """With one probe more. Of too many probers the one that was not asked for longest is forgotten.

    nats: the score of the probe, as the record has it.
    """
    former = next((one for one in said if one.prober == prober), ProbedBy(prober))
    count = former.probes + 1
    kept = min(KEPT_MAX, 1.0 - 1.0 / count)
    now = ProbedBy(
        prober,
        count,
        kept * former.contrast + (1.0 - kept) * contrast(own, other),
        kept * former.benefit + (1.0 - kept) * benefit(other),
        min(EVIDENCE_MAX, max(EVIDENCE_MIN, former.evidence + nats)),
    )
    others = [one for one in said if one.prober != prober]
    return (*others[max(0, len(others) + 1 - PROBERS_MAX) :], now)


def panel(said: Findings, able: Sequence[NodeKey]) -> list[NodeKey]:
    """The keys among which the next prober of a learner is drawn. able: who can probe now."""
    known = {one.prober for one in said}
    asked = [key for key in able if key in known]
    return asked if len(asked) >= PANEL else list(able)


def probes(said: Findings) -> int:
    """How often it was probed, by those that are remembered."""
    return sum(one.probes for one in said)


def evidence(said: Findings, without: Collection[NodeKey] = ()) -> float:
    """What stands against a learner, as a negative number, once the worst half is left out.

    Of each prober that was asked often enough; what speaks in favour is not set off against it.
    0 where fewer than two were, for nobody is judged by one. without: probers that do not count.
    """
    judges = [one for one in said if one.probes >= ANSWERS_MIN and one.prober not in without]
    if len(judges) < 2:
        return 0.0
    against = sorted(min(0.0, one.evidence) for one in judges)
    return math.fsum(against[len(against) // 2 :])


def is_against(said: Findings, without: Collection[NodeKey] = ()) -> bool:
    """Whether a learner of which this was measured is to be suspended."""
    return probes(said) >= PROBES_MIN and evidence(said, without) <= -AGAINST


def mean_contrast(said: Findings) -> float | None:
    """Over all its probes; None before the first."""
    count = probes(said)
    return math.fsum(one.contrast * one.probes for one in said) / count if count else None
