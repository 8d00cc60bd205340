from __future__ import annotations

import pytest

from protocol import limits
from protocol.messages import Cursor
from protocol.peers.membership import Membership, Session
from tests.support.builders import ONE, THREE, TWO, heartbeat, hello, session


@pytest.fixture
def members():
    return Membership()


def test_an_opened_session_is_live_but_not_training(members):
    opened = members.open(ONE.key, hello(name="ada"), 5.0)
    assert (opened.name, opened.since_s, opened.heard_s) == ("ada", 5.0, 5.0)
    assert list(members.live()) == [opened]
    assert members.training() == []


def test_a_higher_incarnation_replaces_the_session_and_keeps_its_record(members):
    former = members.open(ONE.key, hello(), 0.0)
    former.merges, former.rejected = 3, {"late": 1}
    former.beat = heartbeat()
    now = members.open(ONE.key, hello(incarnation=2), 1.0)
    assert (now.incarnation, now.merges, now.rejected) == (2, 3, {"late": 1})
    assert now.beat is None
    assert list(members.live()) == [now]


def test_the_same_incarnation_over_a_new_connection_keeps_count_of_what_was_merged(members):
    former = members.open(ONE.key, hello(), 0.0)
    former.hear(heartbeat(state="training"), 10.0)
    former.merged(2, 40, 20.0)
    members.close(ONE.key, "cable")
    now = members.open(ONE.key, hello(), 30.0)
    assert (now.merged_steps, now.merged_s, now.training_s) == ({2: 40}, {2: 20.0}, 10.0)
    assert now.merged_rate_per_s == 4.0
    fresh = members.open(ONE.key, hello(incarnation=2), 40.0)
    assert (fresh.merged_steps, fresh.merged_rate_per_s) == ({}, 0.0)


def test_the_proven_rate_is_that_of_merged_steps_and_a_heartbeat_only_lowers_it(members):
    opened = members.open(ONE.key, hello(), 0.0)
    opened.hear(heartbeat(local_step=0), 10.0)
    opened.hear(heartbeat(local_step=2000), 20.0)
    assert opened.steps_per_s(20.0) == 200.0
    assert opened.proven_steps_per_s(20.0) == 0.0
    opened.merged(0, 40, 20.0)
    assert opened.proven_steps_per_s(20.0) == 4.0
    assert opened.due_s(0, 8, opened.proven_steps_per_s(20.0)) == 22.0
    opened.merged(0, 40, 40.0)
    assert opened.merged_rate_per_s == pytest.approx(4.0 + 0.2 * (2.0 - 4.0))
    assert opened.proven_steps_per_s(1020.0) == pytest.approx(3.0 / 1000.0)


def test_an_older_incarnation_is_not_let_in(members):
    now = members.open(ONE.key, hello(incarnation=2), 0.0)
    assert members.open(ONE.key, hello(incarnation=1), 1.0) is None
    assert list(members.live()) == [now]


def test_live_sessions_come_in_key_order_not_in_order_of_arrival(members):
    keys = [ONE.key, TWO.key, THREE.key]
    for key in sorted(keys, reverse=True):
        members.open(key, hello(), 0.0)
    assert [s.peer for s in members.live()] == sorted(keys)


def test_a_session_is_silent_only_after_the_stated_time(members):
    opened = members.open(ONE.key, hello(), 10.0)
    assert members.silent(10.0 + limits.GONE_AFTER_S) == []
    assert members.silent(10.5 + limits.GONE_AFTER_S) == [opened]


def test_a_closed_session_is_lost_after_a_while_and_closing_twice_does_nothing(members):
    opened = members.open(ONE.key, hello(), 0.0)
    assert members.close(ONE.key, "cable") is opened
    assert members.close(ONE.key, "again") is None
    assert opened.lost_reason == "cable"
    assert list(members.live()) == members.silent(1e9) == []
    assert members.lost(60.0, 60.0) == []
    assert members.lost(60.5, 60.0) == [opened]
    members.forget(ONE.key)
    assert members.lost(1e9, 60.0) == []


def test_nobody_closes_a_stranger(members):
    assert members.close(ONE.key, "who?") is None
    members.forget(ONE.key)


@pytest.mark.parametrize("state", ["syncing", "starting", "starved", "paused", "finishing"])
def test_only_a_stepping_session_counts_as_training(members, state):
    opened = members.open(ONE.key, hello(), 0.0)
    opened.beat = heartbeat(state=state)
    assert members.training() == []
    opened.beat = heartbeat()
    assert members.training() == [opened]
    members.close(ONE.key, "gone")
    assert members.training() == []


def test_who_ran_out_of_text_hands_in_unless_it_is_suspended(members):
    opened = members.open(ONE.key, hello(), 0.0)
    opened.beat = heartbeat(state="starved")
    assert members.starved() == members.handing_in() == [opened]
    assert opened.can_push(0, opened.beat.versions[0])
    opened.is_suspended = True
    assert members.starved() == members.handing_in() == []


def test_steps_count_only_on_the_version_they_stand_on():
    one = session(beat=heartbeat(steps=(3, 5), versions=(1, 2)))
    assert (one.steps_on(0, 1), one.steps_on(1, 2)) == (3, 5)
    assert (one.steps_on(0, 2), one.steps_on(1, 1), one.steps_on(2, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("version", "can"), [(1, False), (2, True), (2 + limits.PUSH_LAG_MAX, True), (5, False)]
)
def test_a_push_is_wanted_from_versions_that_are_not_too_old_nor_ahead(version, can):
    one = session(beat=heartbeat(steps=(3,), versions=(2,)))
    assert one.can_push(0, version) is can


def test_no_push_is_wanted_without_steps_or_of_a_fragment_never_heard_of():
    one = session(beat=heartbeat(steps=(0,), versions=(0,)))
    assert not one.can_push(0, 0)
    assert not one.can_push(7, 0)
    short = session(beat=heartbeat(steps=(1, 1), versions=(0,)))
    assert not short.can_push(1, 0)


def test_a_session_without_a_heartbeat_has_neutral_readings():
    one = session(beat=None)
    assert (one.device, one.step_s, one.cursor) == ("", 0.0, Cursor(0, 0))
    assert one.steps_on(0, 0) == 0
    assert not one.can_push(0, 0)


def test_a_session_knows_how_many_local_steps_its_heartbeats_bring():
    mine = session()
    mine.hear(heartbeat(local_step=10), 0.0)
    assert mine.stride == 0
    mine.hear(heartbeat(local_step=16), 1.0)
    assert mine.stride == 6
    mine.hear(heartbeat(local_step=16), 1.1)
    assert mine.stride == 6, "news of other things brings no steps"
    mine.hear(heartbeat(local_step=2), 2.0)
    assert mine.stride == 0, "another trainer"


def test_who_announces_what_does_not_come_is_asked_last_for_a_while_and_longer_each_time(members):
    opened = members.open(ONE.key, hello(), 0.0)
    opened.missed(10.0)
    assert opened.keeps_word(10.0)
    opened.missed(20.0)
    assert not opened.keeps_word(49.9)
    assert opened.keeps_word(50.0)
    opened.missed(50.0)
    assert not opened.keeps_word(109.9)
    for _ in range(30):
        opened.missed(200.0)
    assert opened.keeps_word(200.0 + 32 * 30.0)
    opened.misses = 0
    assert opened.keeps_word(200.0)


def busy(*told: tuple[float, float], state="training") -> Session:
    """One whose device had computed for so long, as heard at these times."""
    mine = session()
    for now_s, busy_s in told:
        mine.hear(heartbeat(state=state, busy_s=busy_s), now_s)
    return mine


def test_the_load_of_a_device_is_its_share_of_the_last_half_minute():
    assert busy((0.0, 1.0)).load is None
    assert busy((0.0, 1.0), (2.0, 2.0)).load is None, "too short to say"
    assert busy((0.0, 1.0), (10.0, 6.0)).load == pytest.approx(0.5)
    long = [(float(at), min(at, 60.0)) for at in range(0, 121, 3)]
    assert busy(*long).load == 0.0, "it rests since a minute"
    assert len(busy(*long).busy) <= 8


def test_a_new_trainer_counts_from_nothing():
    mine = busy((0.0, 1.0), (10.0, 6.0), (20.0, 0.5))
    assert mine.load is None
    mine.hear(heartbeat(busy_s=8.5), 30.0)
    assert mine.load == pytest.approx(0.8)


def test_who_does_not_tell_has_no_load():
    assert busy((0.0, 0.0), (10.0, 0.0)).load is None


def test_what_a_local_step_reads_is_as_it_says_within_bounds(members):
    opened = members.open(ONE.key, hello(), 0.0)
    assert opened.tokens_per_step(32, 64) == 32
    for tokens, read in ((480, 48.0), (5, 32.0), (10**9, 64.0)):
        opened.beat = heartbeat(local_step=10, tokens=tokens)
        assert opened.tokens_per_step(32, 64) == read
