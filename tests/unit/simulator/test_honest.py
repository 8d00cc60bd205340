"""Honest mixtures: text of one kind, and the loss where a budget is handed in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from simulator.attack.honest import KIND_FRAC, TextOfKind, loss_at


class Striped:
    """100 blocks of one sequence, of which number n has n zeros and then other tokens."""

    spec = SimpleNamespace(blocks=100)

    def sequences(self, position):
        tokens = np.arange(101)[None, :] % 7 + 1
        tokens[:, :position] = 0
        return tokens


def test_a_text_of_one_kind_has_the_blocks_with_most_of_the_common_token():
    kind = TextOfKind(Striped())
    read = [kind.sequences(position) for position in range(200)]
    zeros = sorted({int((one == 0).sum()) for one in read})
    assert zeros == [*range(100 - round(KIND_FRAC * 100), 100)]
    assert (kind.sequences(3) == kind.sequences(3 + len(zeros))).all()


def test_its_distance_says_how_different_it_is():
    kind = TextOfKind(Striped())
    assert 0.3 < kind.distance < 0.5


def test_the_loss_at_a_budget_is_on_the_line_through_all_points():
    points = [(90.0, 2.5), (100.0, 2.4), (104.0, 2.36)]
    assert loss_at(points, 100.0) == pytest.approx(2.4)
    assert loss_at([(90.0, 2.6), (100.0, 2.3), (110.0, 2.4)], 100.0) == pytest.approx(
        2.4333, abs=1e-4
    )


def test_too_few_points_are_no_line():
    assert loss_at([(90.0, 2.5), (104.0, 2.36)], 100.0) == 2.36
