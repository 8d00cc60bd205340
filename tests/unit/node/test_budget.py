"""Shares of time from limits and measurements, on processes that are played."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.local_settings import LearnerSettings, LimitSettings, PresentSettings, Settings
from node.governor.budget import DUTY_MIN, WINDOW_S, Allowance, Throttle, allowance, threads_for
from node.governor.process_usage import Own

SETTINGS = Settings(
    limits=LimitSettings(cpu_percent=80.0, up_bytes_per_s=1 << 20),
    present=PresentSettings(cpu_percent=20.0, up_bytes_per_s=1 << 22, down_bytes_per_s=1 << 16),
)


def played(throttle, ceiling_frac, *, trainer_cores, others_cores, seconds):
    """Cores in use in each second beside a trainer that takes these while it works."""
    own = Own(cpu_s=0.0, trainer_cpu_s=0.0, memory_bytes=0)
    used = []
    for second in range(seconds):
        works = throttle.duty_frac * trainer_cores
        used.append(works + others_cores)
        own = Own(
            cpu_s=own.cpu_s + works + others_cores,
            trainer_cpu_s=own.trainer_cpu_s + works,
            memory_bytes=0,
        )
        allowed = Allowance(cpu_frac=ceiling_frac)
        throttle.look(own, float(second), allowed, is_accelerated=False)
    return used


@given(
    cores=st.integers(1, 64),
    ceiling=st.floats(0.05, 0.99),
    others=st.floats(0.0, 0.04),
    width=st.floats(0.3, 1.0),
)
def test_the_mean_comes_to_the_ceiling_and_not_above(cores, ceiling, others, width):
    throttle = Throttle(cores)
    trainer = width * cores
    used = played(
        throttle,
        ceiling,
        trainer_cores=trainer,
        others_cores=others * cores,
        seconds=30 + int(WINDOW_S),
    )[30:]
    mean = sum(used) / len(used) / cores
    wanted = min(ceiling, width + others)
    assert mean == pytest.approx(wanted, rel=0.02, abs=DUTY_MIN)
    assert throttle.used_frac == pytest.approx(wanted, rel=0.1, abs=DUTY_MIN)


def test_without_a_ceiling_it_always_works_and_an_accelerator_has_its_own():
    own = Own(cpu_s=0.0, trainer_cpu_s=0.0, memory_bytes=0)
    throttle = Throttle(4)
    assert throttle.look(own, 0.0, Allowance(), is_accelerated=False) == 1.0
    half = Allowance(gpu_frac=0.5)
    assert throttle.look(own, 1.0, half, is_accelerated=True) == 0.5
    assert throttle.look(own, 2.0, half, is_accelerated=False) == 1.0


def test_others_of_ours_that_take_all_leave_the_trainer_the_least():
    throttle = Throttle(2)
    played(throttle, 0.25, trainer_cores=1.0, others_cores=0.6, seconds=20)
    assert throttle.duty_frac == DUTY_MIN


def test_beside_somebody_the_narrower_limits_hold():
    assert allowance(SETTINGS, "full") == Allowance(0.8, 1.0, 1 << 20, None)
    assert allowance(SETTINGS, "beside") == Allowance(0.2, 1.0, 1 << 20, 1 << 16)
    assert allowance(Settings(), "beside") == Allowance()


def test_threads_leave_a_core_to_others_and_fit_the_ceiling():
    assert [threads_for(Settings(), cores) for cores in (1, 2, 8)] == [1, 1, 7]
    quarter = Settings(limits=LimitSettings(cpu_percent=26.0))
    assert [threads_for(quarter, cores) for cores in (1, 2, 8, 16)] == [1, 1, 3, 5]
    assert threads_for(Settings(learner=LearnerSettings(threads=5)), 2) == 5
