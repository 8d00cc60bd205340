from __future__ import annotations

import pytest

from protocol.peers.membership import UNANSWERED_MAX
from syncer_node.machine.pacing import Pace, median_step_s
from tests.support.builders import FRAGMENTS, ONE, THREE, TWO, heartbeat, rounds, session

NEVER_IDLE_S = 1e9


def pace(**spec):
    return Pace(rounds(**spec), FRAGMENTS)


def learner(signer=ONE, *, steps=8, version=1, local_step=100, step_s=0.5):
    beat = heartbeat(
        steps=(steps,) * FRAGMENTS,
        versions=(version,) * FRAGMENTS,
        local_step=local_step,
        step_s=step_s,
    )
    mine = session(signer, beat=beat)
    mine.rate_per_s, mine.stepped_s = (1 / step_s if step_s else 0.0), NEVER_IDLE_S
    mine.merged_rate_per_s = mine.rate_per_s
    return mine


def test_openings_are_spread_over_h():
    assert pace().spacing == 8 / FRAGMENTS


def test_in_the_first_cycle_fragments_start_staggered():
    assert [pace().needed(fragment, 0) for fragment in range(FRAGMENTS)] == [2, 4, 6, 8]
    assert Pace(rounds(local_steps=1), FRAGMENTS).needed(0, 0) == 1


def test_later_every_fragment_needs_h_steps():
    assert [pace().needed(fragment, 3) for fragment in range(FRAGMENTS)] == [8, 8, 8, 8]


def test_nothing_opens_while_nobody_trains():
    one = pace()
    assert not one.may_open(0, 1, [], 0.0)
    assert one.waiting == "no learner is training"


def test_who_ran_out_of_text_is_waited_for_no_longer_than_until_it_has_h_steps():
    one, able, early = pace(), learner(ONE), learner(TWO, steps=7)
    assert one.live([], [early, able], 0, 1) == [able]
    assert one.live([early], [able], 0, 1) == [early, able]
    assert one.live([early], [], 0, 1) == [early]
    assert one.may_open(0, 1, one.live([], [early, able], 0, 1), 0.0)


def test_a_round_opens_after_h_steps_and_not_before():
    one = pace()
    assert not one.may_open(0, 1, [learner(steps=7)], 0.0)
    assert one.waiting == "fragment 0: 7 of 8 local steps"
    assert one.may_open(0, 1, [learner(steps=8)], 0.0)
    assert one.waiting == ""


def test_steps_on_an_older_version_do_not_count():
    assert not pace().may_open(0, 2, [learner(version=1)], 0.0)


def test_learners_with_the_stated_share_of_the_rate_must_be_ready():
    fast, slow = learner(ONE, step_s=0.1), learner(TWO, steps=0, step_s=0.3)
    assert pace(pace_share=0.5).may_open(0, 1, [fast, slow], 0.0)
    assert not pace(pace_share=0.8).may_open(0, 1, [fast, slow], 0.0)
    assert not pace(pace_share=0.5).may_open(0, 1, [learner(ONE, steps=0, step_s=0.1), slow], 0.0)


def test_a_learner_without_a_step_time_holds_nobody_up():
    new = learner(TWO, steps=0, step_s=0.0)
    assert pace(pace_share=1.0 - 1e-6).may_open(0, 1, [learner(), new], 0.0)


def test_a_claimed_speed_of_which_nothing_was_merged_holds_nobody_up():
    liar = learner(TWO, steps=0, step_s=0.005)
    liar.merged_rate_per_s = 0.0
    assert pace(pace_share=1.0 - 1e-6).may_open(0, 1, [learner(), liar], 0.0)


def test_of_a_learner_with_proven_work_no_more_counts_than_the_work():
    liar = learner(TWO, steps=0, step_s=0.005)
    liar.merged_rate_per_s = 2.0
    liar.merged_s = {0: 0.0}
    assert pace(pace_share=0.5).may_open(0, 1, [learner(), liar], 0.0)
    assert not pace(pace_share=0.6).may_open(0, 1, [learner(), liar], 0.0)


def test_who_lets_the_time_pass_is_not_waited_for():
    one = pace(pace_share=0.9, patience_s=20.0)
    stalled = learner(TWO, steps=0, step_s=0.5)
    stalled.merged_s = {0: 100.0}
    assert not one.may_open(0, 1, [learner(), stalled], 100.0 + 8 * 0.5 + 19.9)
    assert one.may_open(0, 1, [learner(), stalled], 100.0 + 8 * 0.5 + 20.1)


def test_while_no_work_is_proven_patience_ends_the_wait_for_sybils():
    one = pace(pace_share=0.5, patience_s=20.0)
    liars = [learner(signer, steps=0) for signer in (TWO, THREE)]
    both = [learner(), *liars]
    for each in both:
        each.merged_rate_per_s = 0.0
    assert not one.may_open(0, 1, both, 100.0)
    assert one.deadline_s(100.0) == 120.0
    assert not one.may_open(0, 1, both, 119.0)
    assert one.may_open(0, 1, both, 120.0)


def test_an_opening_books_steps_so_that_the_next_one_waits():
    one = pace()
    mine = learner(local_step=100)
    assert one.may_open(0, 1, [mine], 0.0)
    one.opened([mine])
    assert not one.may_open(1, 1, [learner(local_step=100)], 0.0)
    assert not one.may_open(1, 1, [learner(local_step=101)], 0.0)
    assert one.may_open(1, 1, [learner(local_step=102)], 0.0)


def test_credit_does_not_pile_up_while_nothing_opens():
    one = pace()
    one.opened([learner(local_step=100)])
    one.opened([learner(local_step=1000)])
    # 998 due + 2: only one opening's worth of the nine hundred steps was kept.
    assert not one.may_open(0, 1, [learner(local_step=999)], 0.0)
    assert one.may_open(0, 1, [learner(local_step=1000)], 0.0)


def test_booked_steps_of_those_who_left_are_forgotten():
    one = pace()
    one.opened([learner(ONE), learner(TWO)])
    one.opened([learner(TWO)])
    assert set(one.next_step) == {(TWO.key, 1)}


def test_nobody_owes_more_than_a_cycle_when_faster_learners_leave():
    one = pace()
    slow = learner(TWO, local_step=10)
    for at in range(0, 200, 2):
        one.opened([learner(ONE, local_step=at), slow])
    assert one.next_step[slow.key] == 10 + 8
    assert one.may_open(0, 1, [learner(TWO, local_step=18)], 0.0)


def test_a_new_trainer_owes_nothing_of_what_the_former_one_did():
    one = pace()
    one.opened([learner(local_step=900)])
    assert not one.may_open(0, 1, [learner(local_step=3)], 0.0)
    assert not one.may_open(0, 1, [learner(local_step=10)], 0.0)
    assert one.may_open(0, 1, [learner(local_step=11)], 0.0)


def test_published_eligibility_is_one_step_of_k_learners_whatever_their_share():
    one = pace(eligible="step", pace_share=0.0, quorum=1)
    fast, slow = learner(ONE, steps=0, step_s=0.1), learner(TWO, steps=1, step_s=9.0)
    assert not one.may_open(0, 1, [fast], 0.0)
    assert one.may_open(0, 1, [fast, slow], 0.0)
    assert one.may_open(3, 0, [learner(TWO, steps=1, version=0)], 0.0)
    two = pace(eligible="step", pace_share=0.0, quorum=2)
    assert not two.may_open(0, 1, [fast, slow], 0.0)
    one.opened([slow])
    assert not one.may_open(1, 1, [slow], 0.0)


def test_a_missing_quorum_is_waited_for_no_longer_than_patience():
    one = pace(quorum=3, patience_s=20.0)
    both = [learner(ONE), learner(TWO)]
    assert not one.may_open(0, 1, both, 100.0)
    assert one.waiting == "2 of 3 learners ready, 2 alive"
    assert one.deadline_s(100.0) == 120.0
    assert not one.may_open(0, 1, both, 119.0)
    assert one.may_open(0, 1, both, 120.0)
    assert one.deadline_s(120.0) is None


def test_patience_with_those_who_are_missing_runs_out_now_and_then_and_not_each_time():
    one = pace(quorum=3, patience_s=20.0)
    both, third = [learner(ONE), learner(TWO)], learner(THREE)
    assert not one.may_open(0, 1, both, 100.0)
    assert one.may_open(0, 1, both, 120.0)
    assert one.quorum(0, 1, both, 120.0) == 2
    assert one.may_open(1, 1, both, 121.0)
    assert one.may_open(2, 1, both[:1], 122.0)
    assert one.quorum(2, 1, both[:1], 122.0) == 1
    assert one.may_open(3, 1, [*both, third], 123.0)
    assert one.quorum(3, 1, [*both, third], 123.0) == 3
    assert one.may_open(0, 1, both, 319.0)
    # Ten times as long as it has waited it does not wait, and twice that the next time.
    assert not one.may_open(1, 1, both, 320.0)
    assert one.waiting == "2 of 3 learners ready, 2 alive"
    assert one.may_open(1, 1, both, 340.0)
    assert one.may_open(2, 1, both, 739.0)
    assert not one.may_open(3, 1, both, 740.0)


def test_it_is_waited_longer_for_the_rest_only_as_long_as_they_do_not_come():
    one = pace(quorum=3, patience_s=20.0)
    both, third = [learner(ONE), learner(TWO)], learner(THREE)
    now_s = 100.0
    for pause_s in (200.0, 400.0, 800.0, 1600.0, 3200.0, 3600.0, 3600.0):
        assert not one.may_open(0, 1, both, now_s)
        assert one.may_open(0, 1, both, now_s + 20.0)
        assert one.may_open(0, 1, both, now_s + 19.0 + pause_s)
        now_s += 20.0 + pause_s
    assert one.may_open(0, 1, [*both, third], now_s)
    assert not one.may_open(0, 1, both, now_s + 1.0)
    assert one.may_open(0, 1, both, now_s + 21.0)
    assert not one.may_open(0, 1, both, now_s + 221.0)


def test_a_learner_that_stands_still_is_in_no_quorum():
    one, both = pace(quorum=3, patience_s=20.0), [learner(ONE), learner(TWO)]
    hung = learner(THREE, steps=0)
    hung.merged_s[0] = 990.0
    # It does two steps a second, so it is due after 4 s, and not waited for after 24.
    assert not one.may_open(0, 1, [*both, hung], 992.0)
    assert not one.may_open(0, 1, [*both, hung], 1014.0)
    hung.stepped_s = 990.0  # By what is seen of it, it gets slower and slower.
    assert one.may_open(0, 1, [*both, hung], 1015.0)
    assert one.quorum(0, 1, [*both, hung], 1015.0) == 2
    # Now K is not waited for, and it is late when half of its time has passed again.
    hung.merged_s[0] = 1020.0
    assert not one.may_open(0, 1, [*both, hung], 1026.0)
    assert one.may_open(0, 1, [*both, hung], 1026.1)
    newcomer = learner(THREE, steps=0)
    newcomer.merged_rate_per_s = 0.0
    assert one.may_open(0, 1, [*both, newcomer], 1016.0)


def test_a_learner_that_brings_nothing_is_in_no_quorum_until_it_does():
    one, both, mute = pace(quorum=3), [learner(ONE), learner(TWO)], learner(THREE)
    mute.unanswered = UNANSWERED_MAX
    assert one.may_open(0, 1, [*both, mute], 0.0)
    assert one.quorum(0, 1, [*both, mute], 0.0) == 2
    assert one.quorum(0, 1, [mute], 0.0) == 3
    mute.unanswered = 0
    assert one.quorum(0, 1, [*both, mute], 0.0) == 3


def test_patience_starts_anew_when_the_steps_are_gone():
    one = pace(quorum=2, patience_s=20.0)
    one.may_open(0, 1, [learner()], 100.0)
    assert one.deadline_s(100.0) == 120.0
    one.may_open(0, 1, [learner(steps=0)], 110.0)
    assert one.deadline_s(110.0) is None


@pytest.mark.parametrize(
    ("times", "median"),
    [([], 0.0), ([0.0], 0.0), ([0.5], 0.5), ([0.1, 0.5], 0.1), ([0.4, 0.5, 0.6], 0.5)],
)
def test_the_median_step_time_is_weighted_by_rate(times, median):
    signers = (ONE, TWO, THREE)
    sessions = [learner(s, step_s=step_s) for s, step_s in zip(signers, times, strict=False)]
    assert median_step_s(sessions, 0.0) == pytest.approx(median)


def test_steps_that_come_in_one_heartbeat_open_as_many_rounds_as_they_are_worth():
    one = pace()
    one.opened([learner(local_step=100)])
    mine = learner(local_step=106)
    mine.stride = 6  # Three openings at two local steps each.
    for fragment in range(3):
        assert one.may_open(fragment, 1, [mine], 0.0)
        one.opened([mine])
    assert not one.may_open(3, 1, [mine], 0.0)


def test_credit_of_earlier_heartbeats_is_not_saved_up():
    one = pace()
    one.opened([learner(local_step=100)])
    mine = learner(local_step=1000)
    mine.stride = 4
    opened = 0
    while one.may_open(0, 1, [mine], 0.0):
        one.opened([mine])
        opened += 1
    assert opened == 3  # What four steps are worth, and the one that was due.


def test_nobody_is_owed_more_than_a_cycle():
    one = pace()
    one.opened([learner(local_step=100)])
    mine = learner(local_step=1000)
    mine.stride = 900
    opened = 0
    while one.may_open(0, 1, [mine], 0.0):
        one.opened([mine])
        opened += 1
    assert opened == FRAGMENTS + 1
