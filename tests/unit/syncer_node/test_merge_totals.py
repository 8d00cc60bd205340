"""Sums for people do not begin anew with a leader."""

from __future__ import annotations

import pytest

from protocol.trace import FragmentCommitted
from syncer_node.machine.merge_totals import MergeTotals
from tests.support.builders import contribution, layout, merged, project


def test_local_steps_per_push_go_on_from_what_the_log_says():
    books = MergeTotals()
    assert books.effective_h == 0.0
    books.recall(merged(contributions=(contribution(steps=16), contribution(steps=20))))
    assert books.effective_h == pytest.approx(18.0)
    assert books.merges == 0, "that was another leader's"
    books.add(FragmentCommitted(9, 3, 0, 2, 2, 24.0, 0.01), layout(), project().charter.rounds)
    assert books.effective_h == pytest.approx((16 + 20 + 2 * 24) / 4)
    assert books.merges == 1
