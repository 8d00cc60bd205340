"""With many learners each push has no line of its own in the log of a syncer."""

from __future__ import annotations

import pytest

from protocol.trace import FragmentCommitted, PushSettled
from syncer_node.daemon.syncer_daemon import FEW, is_one_of_many

MERGE = FragmentCommitted(9, 5, 0, 2, 64, 24.0, 0.2)


def settled(outcome):
    return PushSettled(7, bytes(32), 1, 3, outcome, "")


def test_pushes_of_few_learners_are_all_told():
    assert not is_one_of_many(settled("merged"), FEW)


def test_of_many_the_line_of_the_merge_tells_of_them():
    assert is_one_of_many(settled("merged"), FEW + 1)
    assert not is_one_of_many(MERGE, 1000)
    assert "from 64 learners" in MERGE.text


@pytest.mark.parametrize("outcome", ["clipped", "late", "stale", "rejected", "abandoned"])
def test_what_was_not_merged_as_it_was_is_told_of_however_many(outcome):
    assert not is_one_of_many(settled(outcome), 1000)
