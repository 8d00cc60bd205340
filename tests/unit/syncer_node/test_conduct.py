"""Who takes part and gives nothing is named; who only begins, or comes back, is not."""

from __future__ import annotations

import pytest

from protocol.peers.membership import MISSES_MAX, Membership
from syncer_node.machine.trust.conduct import (
    EMPTY_HANDED,
    PATIENCE_S,
    REFUSALS,
    TOLD_S,
    UNDELIVERED,
    charges,
)
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    contribution,
    founded,
    heartbeat,
    hello,
    merged,
    weights,
)

H = 8
LATER_S = 100.0


def membership():
    members = Membership()
    session = members.open(ONE.key, hello(), 0.0)
    session.hear(heartbeat(local_step=3 * H, steps=(0,) * FRAGMENTS), 1.0)
    return members, session


def state(*bodies):
    return founded(weights(), *bodies).state


def said(members, log, now_s=LATER_S):
    found = charges(members, log, local_steps=H, now_s=now_s)
    return {words: [one.peer for one in those] for words, those in found.items()}


def test_who_trains_for_long_and_hands_in_nothing_is_named():
    members, _ = membership()
    assert said(members, state()) == {EMPTY_HANDED: [ONE.key]}


def test_not_before_it_has_been_here_for_a_while():
    members, _ = membership()
    assert said(members, state(), PATIENCE_S - 0.1) == {}


@pytest.mark.parametrize(
    "beat",
    [
        heartbeat(local_step=3 * H - 1, steps=(0,) * FRAGMENTS),
        heartbeat(local_step=3 * H, steps=(H,) + (0,) * (FRAGMENTS - 1)),
        heartbeat(local_step=3 * H, steps=(0,) * FRAGMENTS, state="paused"),
    ],
)
def test_who_begins_or_holds_something_or_pauses_is_not(beat):
    members, session = membership()
    session.hear(beat, 2.0)
    assert said(members, state()) == {}


def test_nor_whose_work_the_log_knows():
    members, _ = membership()
    known = state(merged(contributions=(contribution(learner=ONE.key),)))
    assert said(members, known) == {}


def test_announced_payloads_that_never_came_are_told_also_after_a_return():
    members, session = membership()
    session.hear(heartbeat(), 2.0)
    for _ in range(MISSES_MAX):
        session.missed(90.0)
    assert said(members, state()) == {UNDELIVERED: [ONE.key]}
    again = members.open(ONE.key, hello(incarnation=2), 95.0)
    assert again.misses == MISSES_MAX
    assert said(members, state()) == {UNDELIVERED: [ONE.key]}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_was_refused_is_told_for_a_while_with_its_reason(reason):
    members, session = membership()
    session.hear(heartbeat(), 2.0)
    for _ in range(MISSES_MAX):
        session.missed(90.0)
    session.did_wrong(reason, 90.0)
    assert said(members, state()) == {REFUSALS[reason]: [ONE.key]}
    assert said(members, state(), 90.0 + TOLD_S) == {}


def test_who_has_gone_is_not_told():
    members, _ = membership()
    members.close(ONE.key, "gone")
    assert said(members, state()) == {}
