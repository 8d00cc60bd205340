from __future__ import annotations

import itertools

import pytest

from protocol.quorum import GraceWindow
from protocol.rounds import ROUND_TRANSITIONS, PullState, Round, RoundState
from tests.support.builders import ONE, THREE, TWO, push_header, rounds

T0 = 100.0
TRIGGERS = ("quorum", "close", "abandon", "merged", "committed")
LEGAL = {
    (RoundState.OPEN, "quorum"): RoundState.GRACE,
    (RoundState.OPEN, "close"): RoundState.MERGING,
    (RoundState.OPEN, "abandon"): RoundState.ABANDONED,
    (RoundState.GRACE, "close"): RoundState.MERGING,
    (RoundState.GRACE, "abandon"): RoundState.ABANDONED,
    (RoundState.MERGING, "merged"): RoundState.COMMITTING,
    (RoundState.MERGING, "abandon"): RoundState.ABANDONED,
    (RoundState.COMMITTING, "committed"): RoundState.COMMITTED,
}


def a_round(*asked, at_s=T0, **spec):
    made = Round(1, 0, 1, T0, rounds(**spec))
    for signer in asked:
        made.ask(signer.key, at_s)
    return made


def deliver(one, signer):
    ticket = one.tickets[signer.key]
    ticket.header = push_header()
    one.arrive(ticket)


def fail(one, signer):
    one.tickets[signer.key].state = PullState.FAILED


def look(one, now_s, *, live=3, grace_s=0.0):
    """With a window that allows this grace and no more."""
    window = GraceWindow(1.0, 1)
    window.opening.observe(grace_s)
    window.quorum.observe(0.0)
    window.sync.observe(0.0)
    return one.look(now_s, live=live, window=window, slowest_step_s=1000.0)


@pytest.mark.parametrize(
    ("state", "trigger"), list(itertools.product(RoundState, TRIGGERS)), ids=str
)
def test_every_transition_is_in_the_table_or_is_a_bug(state, trigger):
    one = a_round()
    one.state = state
    if (state, trigger) in LEGAL:
        one.fire(trigger)
        assert one.state is LEGAL[state, trigger]
        return
    with pytest.raises(KeyError):
        one.fire(trigger)


def test_the_table_has_no_trigger_beyond_these():
    assert ROUND_TRANSITIONS == LEGAL


def test_a_push_that_is_struck_makes_no_quorum_and_is_not_waited_for():
    one = a_round(ONE, TWO, quorum=2)
    deliver(one, ONE)
    one.strike(one.tickets[ONE.key])
    assert (one.fresh, one.arrived, one.is_waiting(T0)) == (0, [], True)
    one.strike(one.tickets[TWO.key])
    assert (one.fresh, one.is_waiting(T0)) == (0, False)


def test_a_round_waits_while_somebody_may_still_deliver():
    one = a_round(ONE, TWO, quorum=2)
    deliver(one, ONE)
    assert look(one, T0 + 1) == "wait"
    assert one.state is RoundState.OPEN


def test_the_quorum_starts_the_grace_window_and_its_end_closes():
    one = a_round(ONE, TWO)
    deliver(one, ONE)
    assert look(one, T0 + 1, grace_s=2.0) == "quorum"
    assert one.state is RoundState.GRACE
    assert one.grace_s == 2.0
    assert one.deadline_s(T0 + 1) == T0 + 3
    assert look(one, T0 + 2.9) == "wait"
    assert look(one, T0 + 3) == "close"


def test_grace_ends_at_once_when_nobody_is_left_to_wait_for():
    one = a_round(ONE, TWO)
    deliver(one, ONE)
    look(one, T0 + 1, grace_s=2.0)
    deliver(one, TWO)
    assert look(one, T0 + 1.5) == "close"


def test_there_is_no_grace_when_everybody_has_delivered():
    one = a_round(ONE)
    deliver(one, ONE)
    assert look(one, T0 + 1, grace_s=2.0) == "quorum"
    assert one.grace_s == 0.0


def test_a_round_in_which_everybody_fails_is_abandoned():
    one = a_round(ONE, TWO)
    fail(one, ONE)
    assert look(one, T0 + 1) == "wait"
    fail(one, TWO)
    assert look(one, T0 + 1) == "abandon"


def test_a_round_in_which_nobody_answers_is_abandoned_at_the_pull_deadline():
    one = a_round(ONE, TWO, pull_timeout_s=5.0)
    assert one.deadline_s(T0) == T0 + 5
    assert look(one, T0 + 4.9) == "wait"
    assert look(one, T0 + 5) == "abandon"


def test_too_few_pushes_are_merged_after_patience_when_nobody_else_comes():
    one = a_round(ONE, TWO, quorum=2, patience_s=20.0, pull_timeout_s=5.0)
    deliver(one, ONE)
    assert look(one, T0 + 5, live=2) == "wait"
    assert one.deadline_s(T0 + 5) == T0 + 20
    assert look(one, T0 + 20, live=2) == "close"


def test_the_quorum_falls_to_those_alive_after_patience():
    one = a_round(ONE, TWO, quorum=2, patience_s=5.0, pull_timeout_s=20.0)
    deliver(one, ONE)
    assert one.required(T0 + 4.9) == 2
    assert look(one, T0 + 4.9, live=1) == "wait"
    assert look(one, T0 + 5.5, live=1) == "quorum"


def test_a_learner_asked_later_has_its_own_deadline():
    one = a_round(ONE, pull_timeout_s=5.0)
    one.ask(TWO.key, T0 + 3)
    assert list(one.pending(T0 + 6)) == [TWO.key]
    assert one.deadline_s(T0 + 6) == T0 + 8
    assert list(one.pending(T0 + 8)) == []


def test_a_push_under_way_is_waited_for_until_the_pull_deadline():
    one = a_round(ONE, pull_timeout_s=5.0)
    one.tickets[ONE.key].state = PullState.SENDING
    assert list(one.pending(T0 + 4.9)) == [ONE.key]
    assert list(one.pending(T0 + 5)) == []


def test_what_arrived_is_in_learner_order():
    one = a_round(THREE, ONE, TWO)
    for signer in (TWO, THREE, ONE):
        deliver(one, signer)
    assert [peer for peer, _ in one.arrived] == sorted(s.key for s in (ONE, TWO, THREE))


def test_a_collecting_round_always_has_a_deadline_and_a_closed_one_none():
    for state in (RoundState.OPEN, RoundState.GRACE):
        one = a_round(ONE)
        one.state, one.quorum_s = state, T0
        assert one.deadline_s(T0 + 1e6) is not None
    for state in set(RoundState) - {RoundState.OPEN, RoundState.GRACE}:
        one = a_round(ONE)
        one.state = state
        assert one.deadline_s(T0) is None
        with pytest.raises(AssertionError):
            look(one, T0)


def test_a_round_is_ripe_with_its_quorum_and_when_nobody_is_left_to_wait_for():
    one = a_round(ONE, TWO, THREE, quorum=2)
    look(one, T0)
    assert not one.is_ripe(T0)
    deliver(one, ONE)
    assert not one.is_ripe(T0)
    deliver(one, TWO)
    assert one.is_ripe(T0)

    alone = a_round(ONE, quorum=2)
    look(alone, T0)
    fail(alone, ONE)
    assert alone.is_ripe(T0)
