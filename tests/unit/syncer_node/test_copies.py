"""A merger sends as many copies of a payload as its line has the time for, at most sixteen."""

from __future__ import annotations

import pytest

from protocol.limits import SYNCER_COPIES
from syncer_node.machine.merging.copies import (
    BUSY,
    GIVEN_BYTES_PER_S,
    MERGES_KEPT,
    MERGES_MIN,
    Sending,
)

SIZE = 2_000_000


def merging(times_s, *, rate, backlog_s=0.0):
    sending = Sending(rate, backlog_s)
    for at_s in times_s:
        sending.merged(SIZE, at_s)
    return sending


def every(gap_s, count=MERGES_KEPT):
    return [at * gap_s for at in range(count)]


@pytest.mark.parametrize(("gap_s", "copies"), [(0.1, 1), (2.0, 2), (4.0, 4), (8.0, 8), (60.0, 16)])
def test_copies_leave_between_two_merges(gap_s, copies):
    sending = merging(every(gap_s), rate=2_500_000.0)
    assert sending.copies == copies
    if 1 < copies < SYNCER_COPIES:
        assert copies * SIZE / 2_500_000.0 <= gap_s * BUSY * 1.5


def test_who_knows_little_sends_sixteen():
    assert merging(every(0.1, MERGES_MIN - 1), rate=1.0).copies == SYNCER_COPIES
    assert merging(every(0.1), rate=None).copies == SYNCER_COPIES


def test_a_fast_line_sends_sixteen():
    assert merging(every(1.0), rate=125e6).copies == SYNCER_COPIES


def test_a_pause_between_two_bursts_does_not_count():
    burst = every(0.5, MERGES_KEPT - 3)
    later = [300.0 + at_s for at_s in every(0.5, 3)]
    assert merging([*burst, *later], rate=8e6).copies == merging(every(0.5), rate=8e6).copies == 2


def test_merges_at_the_same_time_leave_no_time_to_send_much():
    assert merging([1.0] * MERGES_KEPT, rate=2_500_000.0).copies == 1


def test_merges_faster_than_learners_give_are_sent_as_far_as_the_line_goes():
    fast = merging([1.0] * MERGES_KEPT, rate=125e6)
    assert 1 < fast.copies < SYNCER_COPIES
    last_s = fast.copies * SIZE / 125e6
    assert last_s <= SIZE / GIVEN_BYTES_PER_S, "the last copy leaves before a learner gave one"
    waits = merging([1.0] * MERGES_KEPT, rate=125e6, backlog_s=SIZE / GIVEN_BYTES_PER_S)
    assert waits.copies == 1, "nobody adds to a queue that is as long"


def test_what_waits_to_leave_takes_time_off():
    assert merging(every(8.0), rate=2_500_000.0, backlog_s=3.0).copies == 4
    assert merging(every(8.0), rate=2_500_000.0, backlog_s=60.0).copies == 1


def test_what_was_long_ago_is_forgotten():
    sending = merging([*every(60.0), *(600.0 + at_s for at_s in every(0.1))], rate=2_500_000.0)
    assert sending.copies == 1
