"""Who is suspended by probes, with contrasts as measured: liars soon, honest learners never."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import probes
from protocol.messages import Gain
from protocol.probes import Findings
from tests.support.strategies import values_of

EARLY, LATER, SPREAD = 1.2, 2.1, 1.15
"""Mean contrast of honest pushes with 64 sequences of each kind, in the small model of the attack
laboratory, and the standard deviation of all; copies have a mean of 0."""

Draw = Callable[[random.Random], float]


def gains(contrast: float, benefit: float = 9.0) -> tuple[Gain, Gain]:
    """Of a probe with this contrast, of 64 sequences each."""
    error = math.sqrt(2 * 0.1**2 / 64)
    other = benefit * 0.1 / 8
    return Gain(3.0, other + contrast * error, 0.1, 64), Gain(3.0, other, 0.1, 64)


def normal(mean: float) -> Draw:
    return lambda rng: rng.gauss(mean, SPREAD)


class Swarm:
    """Learners that probe each other's pushes in turn."""

    def __init__(self, seed: int, learners: int, mean: float) -> None:
        self.rng = random.Random(seed)
        self.keys = [bytes([at]) * 32 for at in range(learners)]
        self.pushes: dict[bytes, Draw] = dict.fromkeys(self.keys, normal(mean))
        self.answers: dict[bytes, Draw] = {}
        """Of probers that say what they want."""
        self.said: dict[bytes, Findings] = dict.fromkeys(self.keys, ())
        self.suspended: dict[bytes, int] = {}
        """After how many probes."""

    def probe(self, learner: bytes) -> None:
        others = [key for key in self.keys if key != learner]
        prober = self.rng.choice(probes.panel(self.said[learner], others))
        draw = self.answers.get(prober, self.pushes[learner])
        own, other = gains(draw(self.rng))
        nats = probes.score(own, other, probes.usual(self.said.values()))
        self.said[learner] = probes.heard(self.said[learner], prober, own, other, nats)
        if probes.is_against(self.said[learner]):
            self.suspended.setdefault(learner, probes.probes(self.said[learner]))

    def run(self, turns: int) -> dict[bytes, int]:
        for _ in range(turns):
            for key in self.keys:
                self.probe(key)
        return self.suspended


@pytest.mark.parametrize(
    ("learners", "probes_max"), [(4, 100), (8, 100), pytest.param(16, 120, marks=pytest.mark.slow)]
)
def test_a_copier_is_found_soon_and_nobody_else(learners: int, probes_max: int) -> None:
    for seed in range(40):
        swarm = Swarm(seed, learners, EARLY)
        swarm.pushes[swarm.keys[0]] = normal(0.0)
        swarm.run(20)
        swarm.pushes |= dict.fromkeys(swarm.keys[1:], normal(LATER))
        assert swarm.run(probes_max - 20).keys() == {swarm.keys[0]}


@pytest.mark.parametrize(("mean", "probes_max"), [(EARLY, 200), (LATER, 80)])
def test_the_more_honest_pushes_stand_out_the_sooner(mean: float, probes_max: int) -> None:
    for seed in range(20):
        swarm = Swarm(seed, 4, mean)
        swarm.pushes[swarm.keys[0]] = normal(0.0)
        assert swarm.run(probes_max).keys() == {swarm.keys[0]}


def test_one_that_was_honest_for_long_is_found_too() -> None:
    swarm = Swarm(3, 4, LATER)
    assert swarm.run(500) == {}
    swarm.pushes[swarm.keys[2]] = normal(0.0)
    assert swarm.run(120).keys() == {swarm.keys[2]}


@pytest.mark.slow
@pytest.mark.parametrize("lie", [normal(-9.0), normal(9.0), lambda rng: rng.choice((-9.0, 9.0))])
@pytest.mark.parametrize("learners", [3, 4, 8])
def test_one_lying_prober_suspends_nobody_and_protects_nobody(lie: Draw, learners: int) -> None:
    for seed in range(5):
        swarm = Swarm(seed, learners, LATER)
        liar = swarm.keys[-1]
        swarm.answers[liar] = lie
        assert swarm.run(300) == {}
        if learners > 3:
            swarm.pushes[swarm.keys[0]] = normal(0.0)
            assert swarm.run(200).keys() == {swarm.keys[0]}


def test_where_nothing_can_be_told_nothing_is_said() -> None:
    assert Swarm(1, 4, 0.0).run(2000) == {}
    swarm = Swarm(1, 4, 0.3)
    assert swarm.run(2000) == {}
    assert all(one.evidence == 0.0 for said in swarm.said.values() for one in said)


def lundberg(mean: float, usual: float) -> float:
    """R for which E[exp(-R * score)] = 1: the walk of scores ever falls by x with at most exp(-Rx).

    By quadrature over contrasts, with the scores of the rule, cut off as they are.
    """
    normal_at, steps = NormalDist(mean, SPREAD), 2000
    places = [mean + SPREAD * 8.0 * (at / steps - 0.5) * 2.0 for at in range(steps + 1)]
    weights = [normal_at.pdf(place) for place in places]
    compared = probes.Usual(usual, 9.0)
    scores = [probes.score(*gains(place), compared) for place in places]

    def excess(rate: float) -> float:
        terms = (w * math.exp(-rate * s) for w, s in zip(weights, scores, strict=True))
        return math.fsum(terms) / math.fsum(weights) - 1.0

    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
    return low


@pytest.mark.parametrize("usual", [EARLY, LATER, 3.0])
def test_chance_suspends_an_honest_learner_less_than_once_in_a_million(usual: float) -> None:
    # Of three probers one lies. What is left of three once the worst is out is no less than what
    # the two honest ones say together, so one of both, or both together, must have fallen so far.
    chance = 3 * math.exp(-lundberg(usual, usual) * probes.AGAINST)
    assert chance < 1e-6
    # After that each prober's evidence stands near its upper bound, and has to fall from there.
    fall = probes.AGAINST + probes.EVIDENCE_MAX
    assert 100_000 * 3 * math.exp(-lundberg(usual, usual) * fall) < 1e-6
    # And one whose contrast is a quarter below the median, with three honest probers: what two of
    # them say is against it, and what the third says is no better.
    assert 4 * math.exp(-1.5 * lundberg(0.75 * usual, usual) * probes.AGAINST) < 1e-5


GAINS = values_of(Gain)


@given(own=GAINS, other=GAINS, contrast=st.floats(-6, 6), benefit=st.floats(-6, 6))
def test_whatever_a_prober_says_is_bounded(own, other, contrast, benefit) -> None:
    nats = probes.score(own, other, probes.Usual(contrast, benefit))
    assert abs(nats) <= probes.SCORE_MAX
    said: Findings = ()
    for at in range(3 * probes.PROBERS_MAX):
        said = probes.heard(said, bytes([at % 11]) * 32, own, other, nats)
        assert len(said) <= probes.PROBERS_MAX
    assert all(abs(one.contrast) <= probes.ERRORS_MAX for one in said)
    assert all(probes.EVIDENCE_MIN <= one.evidence <= probes.EVIDENCE_MAX for one in said)
    assert -math.inf < probes.evidence(said) <= 0.0


def test_harm_counts_against_who_does_it_where_others_help() -> None:
    assert probes.score(*gains(3.0, benefit=-4.0), probes.Usual(2.0, 8.0)) == -probes.SCORE_MAX
    assert probes.score(*gains(3.0, benefit=-4.0), probes.Usual(2.0, 1.0)) > 0.0
    assert probes.score(*gains(3.0, benefit=-1.0), probes.Usual(2.0, 8.0)) > 0.0
