"""The trend compares runs of one size and budget, each algorithm at its best settings there."""

from __future__ import annotations

import pytest

from simulator.compare.results import Result
from simulator.compare.trend import places


def run_of(algorithm, loss, *, seed=1, recipe="a", parameters=1000, steps=10, **rest):
    return Result(
        algorithm=algorithm,
        seed=seed,
        eval_loss=loss,
        parameters=parameters,
        batch_tokens=64,
        learners=4,
        steps=steps,
        recipe=recipe,
        **rest,
    )


def test_each_algorithm_counts_at_its_best_settings_of_most_seeds():
    found = places(
        [
            run_of("decoupled", 2.1, recipe="c"),
            run_of("dp", 2.2, recipe="a"),
            run_of("dp", 2.0, recipe="b"),
            run_of("dp", 1.0, recipe="b", seed=2),
            run_of("dp", 1.9, recipe="one seed"),
            run_of("decoupled", 1.1, recipe="c", seed=2),
        ]
    )
    dp, decoupled = found
    assert (dp.algorithm, dp.seeds, dp.eval_loss, dp.ratio_to_dp) == ("dp", 2, 1.5, 1.0)
    assert decoupled.ratio_to_dp == pytest.approx((2.1 / 2.0 + 1.1 / 1.0) / 2)
    assert decoupled.ratio_spread == pytest.approx(0.05 / 2**0.5)
    assert decoupled.tokens == 4 * 10 * 64


def test_sizes_and_budgets_are_kept_apart():
    found = places(
        [
            run_of("dp", 2.0),
            run_of("decoupled", 2.2),
            run_of("decoupled", 1.8, steps=20),
            run_of("decoupled", 1.7, parameters=2000),
            run_of("dp", 1.7, parameters=0),
        ]
    )
    assert [(one.algorithm, one.parameters, one.steps, one.ratio_to_dp) for one in found] == [
        ("dp", 1000, 10, 1.0),
        ("decoupled", 1000, 10, pytest.approx(1.1)),
        ("decoupled", 1000, 20, None),
        ("decoupled", 2000, 10, None),
    ]


def test_rarer_merges_are_a_line_of_their_own():
    found = places(
        [
            run_of("dp", 2.0, steps=48),
            run_of("decoupled", 2.1, steps=48, local_steps=24, recipe="b"),
            run_of("decoupled", 2.05, steps=48, local_steps=24, recipe="c"),
            run_of("decoupled", 2.2, steps=48, local_steps=12, recipe="d"),
        ]
    )
    assert [(one.algorithm, one.local_steps, one.merges, one.eval_loss) for one in found] == [
        ("dp", 0, None, 2.0),
        ("decoupled", 12, 4.0, 2.2),
        ("decoupled", 24, 2.0, 2.05),
    ]
