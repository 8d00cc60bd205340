"""Whom a round asks where it may ask only some."""

from __future__ import annotations

from protocol.messages import Decline
from protocol.rounds import PullState
from syncer_node.machine.jobs import Merge
from tests.support.builders import LEARNERS, SyncerBench, heartbeat, project, rounds

MOST = 4


def bench(count: int) -> tuple[SyncerBench, list]:
    learners = LEARNERS[:count]
    made = SyncerBench(project(rounds(quorum=1, participants_max=MOST, overlap_steps=1)))
    return made.start(*learners), list(learners)


def test_a_round_asks_so_many():
    made, learners = bench(6)
    made.train(*learners)
    (current,) = made.seat.rounds.rounds.values()
    assert len(current.tickets) == MOST
    made.wait(5.0)
    assert len(current.tickets) == MOST


def test_somebody_else_is_asked_in_place_of_one_who_declines():
    made, learners = bench(6)
    made.train(*learners)
    (current,) = made.seat.rounds.rounds.values()
    assert len(current.tickets) == MOST
    one = next(one for one in learners if one.key in current.tickets)
    made.say(one.key, Decline(current.number, current.fragment, "not training"))
    made.wait(0.1)
    assert len(current.tickets) == MOST + 1
    assert current.tickets[one.key].state is PullState.FAILED


def test_who_has_shown_nothing_yet_takes_half_of_the_places_at_most(monkeypatch):
    made, learners = bench(6)
    known = {one.key for one in learners[3:]}
    monkeypatch.setattr(type(made.machine.state), "has_merges", lambda _, key: key in known)
    made.train(*learners)
    (current,) = made.seat.rounds.rounds.values()
    assert len(current.tickets) == MOST
    assert sum(key in known for key in current.tickets) == MOST // 2


def test_newcomers_take_no_more_places_than_are_left(monkeypatch):
    made, learners = bench(6)
    known = {one.key for one in learners[:3]}
    monkeypatch.setattr(type(made.machine.state), "has_merges", lambda _, key: key in known)
    made.lease(*learners)
    for some in (learners[:3], learners[3:]):
        for one in some:
            made.say(one.key, heartbeat())  # Too soon after the last look to be looked at.
        made.wait(0.05)
    (current,) = made.seat.rounds.rounds.values()
    assert known < current.tickets.keys()
    assert len(current.tickets) == MOST


def test_a_round_waits_for_nobody_whom_it_cannot_ask(monkeypatch):
    """Half of its places went to newcomers, whose pushes make no quorum."""
    learners = list(LEARNERS[:6])
    spec = rounds(quorum=MOST, participants_max=MOST, overlap_steps=1, patience_s=600.0)
    made = SyncerBench(project(spec)).start(*learners)
    known, new = learners[2:], {one.key for one in learners[:2]}
    monkeypatch.setattr(type(made.seat.rounds.judge), "without_say", lambda _: new)
    monkeypatch.setattr(type(made.machine.state), "has_merges", lambda _, key: key not in new)
    pulls = made.train(*learners)
    asked = [one for one in learners if one.key in pulls]
    assert len(asked) == MOST
    assert 0 < sum(one in known for one in asked) < MOST
    made.hold.add(Merge)
    for one in asked:
        made.push(one, pulls[one.key])
    made.wait(1.0)
    assert made.jobs(Merge), "all that it asked for is here"


def test_without_a_bound_all_are_asked():
    made = SyncerBench(project(rounds(quorum=1, overlap_steps=1))).start(*LEARNERS[:6])
    made.train(*LEARNERS[:6])
    (current,) = made.seat.rounds.rounds.values()
    assert len(current.tickets) == 6
