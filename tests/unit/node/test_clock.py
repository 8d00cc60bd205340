"""What counts as work of a trainer, and what as rest that belongs to it."""

from __future__ import annotations

import pytest

from node.trainer_client.clock import Clock

DUTY_FRAC = 0.2


def test_a_throttled_trainer_that_only_steps_and_rests_works_all_the_time():
    """However much longer one step takes than the next: its rest comes behind it."""
    clock, rest_s, passed_s = Clock(), 0.0, 0.0
    for work_s in (0.02, 0.1, 0.02, 0.05, 0.3, 0.02, 0.02):
        passed_s += rest_s + work_s
        clock.step(rest_s + work_s, work_s, DUTY_FRAC)
        rest_s = work_s * 4
    assert clock.work_s == pytest.approx(passed_s)
    assert clock.busy_s == pytest.approx(0.53)


def test_rests_within_a_step_count_too():
    clock = Clock()
    clock.step(5.0, 1.0, DUTY_FRAC)
    clock.step(5.0, 1.0, DUTY_FRAC)
    assert clock.work_s == pytest.approx(10.0)


def test_what_is_lost_between_steps_is_no_work():
    clock = Clock()
    clock.step(0.1, 0.1, DUTY_FRAC)
    clock.step(0.1 + 0.4 + 7.0, 0.1, DUTY_FRAC)
    assert clock.work_s == pytest.approx(0.1 + 0.4 + 0.1 + 0.4)
    clock.step(3.0, 0.1, DUTY_FRAC)
    assert clock.work_s == pytest.approx(1.0 + 0.1 + 0.4), "rest is not saved up"


def test_a_device_that_never_rests():
    clock = Clock()
    clock.step(2.0, 1.5, 1.0)
    assert (clock.work_s, clock.busy_s) == (1.5, 1.5)
