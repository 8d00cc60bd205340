"""What a leader remembers of former pushes."""

from __future__ import annotations

import numpy as np

from protocol.numerics.repeats import KEPT
from syncer_node.storage.own_parts import LEARNERS_MAX, OwnParts


def part(value):
    return np.full(4, value, np.float32)


def test_parts_are_taken_once_their_merge_is_committed():
    own = OwnParts()
    own.propose((0, 1, b"a"), {b"one": part(1)})
    own.propose((0, 1, b"b"), {b"one": part(2)})
    assert not own.former(0, 7).parts
    own.adopt((0, 1, b"b"))
    own.drop((0, 1, b"a"))
    own.adopt((0, 1, b"a"))
    np.testing.assert_array_equal(own.former(0, 7).parts[b"one"], part(2))
    assert not own.former(1, 7).parts


def test_newer_parts_are_more_of_what_is_remembered():
    own = OwnParts()
    for version in (1, 2, 3):
        own.propose((0, version, b"a"), {b"one": part(version)})
        own.adopt((0, version, b"a"))
    np.testing.assert_allclose(own.former(0, 7).parts[b"one"], part(KEPT**2 + 2 * KEPT + 3))


def test_the_draw_of_a_fragment_stays_so_that_parts_can_be_compared():
    own = OwnParts()
    assert [own.former(0, seed).seed for seed in (7, 8, 9)] == [7, 7, 7]
    assert own.former(1, 8).seed == 8


def test_the_newest_learners_of_a_bounded_number_are_remembered():
    own = OwnParts()
    own.propose((0, 1, b"a"), {bytes([at]): part(at) for at in range(LEARNERS_MAX)})
    own.adopt((0, 1, b"a"))
    own.propose((0, 2, b"b"), {bytes([0]): part(0), b"new": part(1)})
    own.adopt((0, 2, b"b"))
    known = own.former(0, 7).parts
    assert len(known) == LEARNERS_MAX
    assert {bytes([0]), b"new"} <= known.keys()
    assert bytes([1]) not in known
