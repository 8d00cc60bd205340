from __future__ import annotations

from collections import deque

import pytest

from node.machine.fragment_state import NONE, LocalFragment, OpenPush
from protocol.messages import Pull
from tests.support.builders import merged, sealed_push

PULL = Pull(1, 0, 1)


@pytest.fixture
def track():
    """Stands on version 1, twenty local steps in, eight of them handed in."""
    return LocalFragment(0, held=1, standing=1, must_assign=False, marked_step=8)


def test_a_new_track_has_nothing_to_deliver():
    new = LocalFragment(0)
    assert not new.needs_delivery
    assert new.steps(100) == 0


def test_the_first_version_held_is_delivered():
    new = LocalFragment(0, held=0)
    assert new.needs_delivery
    assert not new.is_current


def test_a_track_that_stands_on_what_is_held_is_current(track):
    assert track.is_current
    assert not track.needs_delivery


def test_a_track_that_stands_on_what_is_held_is_at_rest_until_something_is_wanted(track):
    assert track.is_at_rest
    track.delivering = 1
    assert track.is_at_rest, "what is on its way needs nothing more"


@pytest.mark.parametrize(
    "change",
    [
        {"held": 2},
        {"held": NONE, "standing": NONE},
        {"must_assign": True},
        {"merged_sequence": 3},
        {"pull": PULL},
        {"queue": deque([merged()])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_track_with_something_to_do_is_not_at_rest(track, change):
    for name, value in change.items():
        setattr(track, name, value)
    assert not track.is_at_rest


@pytest.mark.parametrize(
    "change",
    [{"held": 2}, {"must_assign": True}, {"delivering": 2}],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_still_to_come_makes_it_not_current(track, change):
    for name, value in change.items():
        setattr(track, name, value)
    assert not track.is_current


def test_a_committed_merge_that_is_not_held_makes_it_not_current(track):
    track.queue.append(merged(version=2))
    assert not track.is_current


def test_steps_count_since_the_last_hand_in(track):
    assert track.steps(20) == 12
    assert track.steps(3) == 0


def test_a_newer_version_makes_older_merges_needless(track):
    track.queue.extend(merged(version=version) for version in (2, 3, 4))
    track.skip_to(3)
    assert track.held == 3
    assert [m.version for m in track.queue] == [4]


def test_a_lost_trainer_takes_unmerged_steps_and_open_push_with_it(track):
    track.push, track.pull = OpenPush(5, PULL), PULL
    track.merged_sequence, track.delivering, track.handed_step = 4, 1, 8
    track.trainer_lost()
    assert (track.push, track.pull, track.merged_sequence) == (None, None, None)
    assert (track.standing, track.delivering, track.held) == (NONE, NONE, 1)
    assert track.must_assign
    assert (track.marked_step, track.handed_step, track.steps(20)) == (0, 0, 0)


def test_what_is_overwritten_is_discarded_but_for_a_push_whose_fate_is_open(track):
    track.push = OpenPush(5, PULL, local_step=15, message=sealed_push())
    track.overwrite(20)
    assert track.discarded_steps == 5
    assert track.push.overwritten_steps == 7
    track.push = None
    track.marked_step = 20
    track.overwrite(23)
    assert track.discarded_steps == 8


def test_a_version_is_delivered_again_if_our_push_in_it_was_not_known_of(track):
    track.merged_sequence, track.merged_version = 4, 2
    assert not track.needs_delivery, "what it stands on lacks the push"
    track.held = track.standing = 2
    assert track.needs_delivery
    assert not track.is_current
    track.merged_sequence = None
    assert not track.needs_delivery
