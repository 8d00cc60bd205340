"""Whole learners in a crowd, by the benchmark's own measure: the machines, their log and lines."""

from __future__ import annotations

import pytest

from benchmarks.many_learners import LOCAL_STEPS, STEP_S, measure
from protocol.limits import SYNCER_COPIES


def test_learners_go_on_training_and_the_syncer_sends_sixteen_copies():
    found = measure(24, cycles=1, seed=1)
    assert found.goodput > 0.97
    assert found.in_merge > 20
    assert found.missing == 0, "every version came to everybody"
    assert found.copies_max == SYNCER_COPIES
    assert found.last_max_s < LOCAL_STEPS * STEP_S
    assert 0.0 < found.line_up < 1.0


def test_a_syncer_at_home_sends_as_many_copies_as_its_line_carries():
    """Eight copies of each payload on its 20 Mbit/s would take three times as long as the local
    steps between two merges."""
    found = measure(8, cycles=1, seed=1, syncer=(100.0, 20.0))
    assert found.copies < 3
    assert found.last_s < 15.0
    assert found.missing == 0
    assert found.cycle_s < 1.5 * LOCAL_STEPS * STEP_S
    assert found.line_up < 0.95


@pytest.mark.slow
def test_learners_that_cannot_be_dialled_wait_no_longer_than_others():
    """Three in four: whoever can dial none of its four donors asks the syncer, at once."""
    found = measure(32, cycles=1, seed=1, hidden_frac=0.75)
    assert SYNCER_COPIES < found.copies < 24
    assert found.missing == 0
    assert found.half_s < 5.0
    assert found.last_max_s < LOCAL_STEPS * STEP_S


@pytest.mark.slow
def test_a_line_that_fell_behind_catches_up():
    """All thirty-two ask at first, and those that wait too long ask again: the syncer says no."""
    found = measure(32, cycles=1, seed=1, syncer=(100.0, 20.0))
    assert found.copies < 8
    assert found.last_s < 60.0
    assert found.in_merge > 12
