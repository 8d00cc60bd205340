"""How a run went over time, as the log on a disk says it."""

from __future__ import annotations

import pytest

from protocol.log.records import CheckpointEvaluated, CheckpointMarked, SeatTaken
from syncer_node.storage import history
from syncer_node.storage.history import Measurement, read_history
from tests.support.builders import ONE, SYNCER, TWO, contribution, merged, weights
from tests.support.hosted_logs import hosted_log

BEGAN_S = 1.7e9


def merges(count: int) -> list[tuple[float, object]]:
    """One of both learners each second, but every third of the first alone."""
    both = (contribution(), contribution(learner=TWO.key))
    return [
        (
            BEGAN_S + number,
            merged(
                version=number,
                global_step=number,
                contributions=both if number % 3 else both[:1],
            ),
        )
        for number in range(1, count + 1)
    ]


def run(place, count, *behind):
    began = [(BEGAN_S, SeatTaken(SYNCER.key)), (BEGAN_S, weights())]
    return hosted_log(place, [*began, *merges(count), *behind])


def test_samples_are_the_counts_of_the_log_at_each_merge(tmp_path):
    _, root, opened, log = run(tmp_path, 6)
    told = read_history(root, opened)
    assert [one.at_s - BEGAN_S for one in told.samples] == [1, 2, 3, 4, 5, 6]
    assert [one.pushes for one in told.samples] == [2, 4, 5, 7, 9, 10]
    last = told.samples[-1]
    assert (last.tokens, last.global_step, told.log_index) == (log.state.tokens, 6, 8)
    fragments = len(log.state.fragments)
    assert last.by_learner == {
        key: account.tokens // fragments for key, account in log.state.accounts.items()
    }
    assert [key for key, _ in told.learners] == [ONE.key, TWO.key]


def test_a_long_run_is_thinned_evenly_and_ends_with_its_last_merge(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "SAMPLES_MAX", 8)
    _, root, opened, _ = run(tmp_path, 45)
    samples = read_history(root, opened).samples
    assert [one.merges for one in samples] == [8, 16, 24, 32, 40, 45]
    assert samples[-1].pushes == 75


def test_measurements_and_elections_are_told(tmp_path):
    behind = [
        (BEGAN_S + 4, CheckpointMarked(3, ONE.key)),
        (BEGAN_S + 5, CheckpointEvaluated(6, 3, 256, ONE.key, 2.5)),
        (BEGAN_S + 3, SeatTaken(SYNCER.key)),
    ]
    _, root, opened, _ = run(tmp_path, 3, *behind)
    told = read_history(root, opened)
    assert told.measured == [Measurement(3, 256, 2.5, is_agreed=False)]
    assert told.best == told.measured[0]
    # The new leader's clock is two seconds behind.
    assert told.elections_s == [BEGAN_S + 5]


def test_a_run_without_merges_has_no_samples(tmp_path):
    _, root, opened, _ = run(tmp_path, 0)
    told = read_history(root, opened)
    assert (told.samples, told.best, told.learners) == ([], None, [])


@pytest.mark.parametrize("count", [1, 2])
def test_a_short_run_is_told_whole(tmp_path, count):
    _, root, opened, _ = run(tmp_path, count)
    assert len(read_history(root, opened).samples) == count
