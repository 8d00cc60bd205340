"""Tuning finds the best place of a range, and goes beyond it where that helps."""

from __future__ import annotations

import math

import pytest

from protocol.errors import InternalError
from simulator.compare.tuning import Range, Search, summary

RATE = Range("inner.learning_rate", 0.001, 0.1)
MEMORY = Range("outer.momentum", 0.1, 1.0, is_rest=True)


def searched(ranges, trials, loss):
    search = Search(ranges, trials)
    for point in search:
        search.tell(point, loss(search.settings(point)))
    return search


def bowl(**best):
    """Lowest at these values, in the logarithm of each."""

    def loss(settings):
        found = 1.0
        for key, wanted in best.items():
            value = next(value for name, value in settings.items() if name.endswith(key))
            if key == "momentum":
                value, wanted = 1 - value, 1 - wanted
            found += math.log(value / wanted) ** 2
        return found

    return loss


@pytest.mark.parametrize("best", [0.004, 0.02, 0.07])
def test_one_setting_is_found_to_a_tenth(best):
    search = searched([RATE], 16, bowl(learning_rate=best))
    assert search.settings(search.best)["inner.learning_rate"] == pytest.approx(best, rel=0.1)
    assert len(search.losses) <= 16
    assert search.at_edge == ()


def test_two_settings_are_found_together():
    search = searched([RATE, MEMORY], 24, bowl(learning_rate=0.006, momentum=0.7))
    found = search.settings(search.best)
    assert found["inner.learning_rate"] == pytest.approx(0.006, rel=0.15)
    assert 1 - found["outer.momentum"] == pytest.approx(0.3, rel=0.2)


def test_a_search_leaves_a_range_whose_edge_is_best():
    search = searched([RATE], 16, bowl(learning_rate=0.3))
    assert search.settings(search.best)["inner.learning_rate"] == pytest.approx(0.3, rel=0.1)
    assert search.at_edge == ()


def went_past_edges(search, loss):
    points = []
    for point in search.past_edges():
        points.append(point)
        search.tell(point, loss(search.settings(point)))
    return points


def test_a_best_value_that_nothing_bounds_is_told():
    def loss(settings):
        return -settings["inner.learning_rate"]

    search = searched([RATE], 8, loss)
    assert search.at_edge == ("inner.learning_rate",)
    assert 0 < len(went_past_edges(search, loss)) <= search.trials_past_edges == 4


@pytest.mark.parametrize(("rate", "memory"), [(0.4, 0.5), (0.0003, 0.97)])
def test_more_trials_follow_until_the_best_value_lies_inside(rate, memory):
    loss = bowl(learning_rate=rate, momentum=memory)
    search = searched([RATE, MEMORY], 6, loss)
    at_edge, lowest, before = search.at_edge, search.losses[search.best], len(search.losses)
    points = went_past_edges(search, loss)
    assert at_edge
    assert points
    assert search.at_edge == ()
    assert search.losses[search.best] <= lowest
    assert len(search.losses) == before + len(points), "none of them was tried before"


def test_no_trial_follows_where_the_best_value_lies_inside():
    search = searched([RATE, MEMORY], 16, bowl(learning_rate=0.01, momentum=0.6))
    assert search.at_edge == ()
    assert list(search.past_edges()) == []


def test_a_memory_stays_between_nothing_and_everything():
    search = searched([MEMORY], 16, lambda settings: settings["outer.momentum"])
    tried = [search.settings(point)["outer.momentum"] for point in search.losses]
    assert min(tried) == 0.0
    assert max(tried) < 1.0
    assert search.at_edge == (), "there is no less memory than none"


def test_it_goes_on_where_it_was_and_more_trials_come_behind():
    loss = bowl(learning_rate=0.01, momentum=0.5)
    assert list(searched([RATE, MEMORY], 12, loss).losses) == list(
        searched([RATE, MEMORY], 12, loss).losses
    )


def test_a_trial_that_diverged_is_never_the_best():
    search = searched([RATE], 8, lambda one: math.nan if one["inner.learning_rate"] > 0.01 else 2.0)
    assert search.losses[search.best] == 2.0


def test_what_there_was_is_tried_first_and_counts_as_a_trial():
    had = {"inner.learning_rate": 0.004, "outer.momentum": 0.0}
    search = Search([RATE, MEMORY], 6, had)
    points = []
    for point in search:
        points.append(point)
        search.tell(point, bowl(learning_rate=0.004, momentum=0.0)(search.settings(point)))
    assert search.settings(points[0]) == had
    assert len(points) == 6
    assert search.best == points[0]
    with pytest.raises(InternalError):
        MEMORY.place(1.0)


def test_settings_are_such_as_people_type():
    assert Search([RATE, MEMORY], 1).settings((0.3, 0.3)) == {
        "inner.learning_rate": 0.00398,
        "outer.momentum": 0.8,
    }
    found = {"inner.learning_rate": 0.004, "outer.momentum": 0.8}
    assert summary(found) == "training.learning_rate=0.004 outer.momentum=0.8"


def test_a_search_over_nothing_is_a_bug():
    with pytest.raises(InternalError):
        Search([], 3)
