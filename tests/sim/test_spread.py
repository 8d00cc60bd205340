"""How merged payloads reach a crowd, by the learners' own rule on lines of a given speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.download.payload_donors import PATIENCE_S_MIN
from protocol.limits import SYNCER_COPIES
from simulator.scale.spread import Crowd, spread

CROWD = Crowd(learners=200, merges=8)


def test_a_syncer_sends_sixteen_copies_however_many_there_are():
    few, more = spread(replace(CROWD, learners=50)), spread(CROWD)
    assert few.copies_max == more.copies_max == SYNCER_COPIES
    assert few.missing == more.missing == 0
    assert more.last_s < 2.5 * few.last_s, "four times as many are two generations more"


def test_where_there_are_few_the_syncer_sends_all():
    found = spread(replace(CROWD, learners=SYNCER_COPIES))
    assert found.copies_max == SYNCER_COPIES
    assert found.up_copies_max == 0


@pytest.mark.parametrize("what", ["away", "liars"])
def test_who_is_away_or_never_gives_costs_a_few_copies_and_seconds(what):
    found = spread(replace(CROWD, **{what: 0.1}))
    assert found.missing == 0
    assert found.copies <= 2 * SYNCER_COPIES
    assert found.last_max_s < PATIENCE_S_MIN + 5.0


def test_nobody_gives_more_than_a_few_copies_of_each_on_average():
    assert spread(CROWD).up_copies_max < 3.0
