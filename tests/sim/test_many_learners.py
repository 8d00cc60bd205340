"""Whole learners in a crowd, by the benchmark's own measure: the machines, their log and lines."""

from __future__ import annotations

from benchmarks.many_learners import LOCAL_STEPS, STEP_S, measure
from node.download.payload_donors import SYNCER_COPIES


def test_learners_go_on_training_and_the_syncer_sends_sixteen_copies():
    found = measure(24, cycles=1, seed=1)
    assert found.goodput > 0.97
    assert found.in_merge > 20
    assert found.missing == 0, "every version came to everybody"
    assert found.copies_max == SYNCER_COPIES
    assert found.last_max_s < LOCAL_STEPS * STEP_S
    assert 0.0 < found.line_up < 1.0
