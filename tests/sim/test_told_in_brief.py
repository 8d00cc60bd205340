"""Swarms in which one learner is told the whole log, and all others what concerns them."""

from __future__ import annotations

import pytest

from node.machine.syncer_link import Link
from protocol.log.records import Record
from protocol.machine import StopAsked
from protocol.trace import RecordCommitted
from simulator.scenarios.swarm import build_swarm
from syncer_node.machine.telling import followers
from tests.support.choices import first
from tests.support.swarm_faults import afflict

LEARNERS = 8
HEALED_S = 150.0


@pytest.fixture
def one_whole(monkeypatch):
    monkeypatch.setattr(followers, "WHOLE_LOGS", 1)
    monkeypatch.setattr(followers, "WHOLE_LOGS_MAX", 2)


def crowd(seed, **changes):
    return build_swarm(seed, steps_s=(0.3,) * LEARNERS, **changes)


def following(swarm):
    return [one for one in swarm.learners if one.is_up and one.learner.link is Link.FOLLOWING]


def agree(one, leader):
    """What both say of the swarm, and of this learner, once it heard all that it is told."""
    mine, theirs = one.learner.context.state, leader.syncer.state
    session = leader.syncer.leadership.members.sessions.get(one.key)
    if session is None or not session.is_connected or session.told_index != mine.index:
        return False
    assert mine.fragments == theirs.fragments
    assert mine.tokens_by_fragment == theirs.tokens_by_fragment
    assert mine.tokens == theirs.tokens
    assert (mine.global_step, mine.rounds) == (theirs.global_step, theirs.rounds)
    assert mine.leases.learners == theirs.leases.learners
    sessions = [key for key in theirs.leases.held if key[0] == one.key]
    assert [mine.leases.held[key] for key in sessions] == [
        theirs.leases.held[key] for key in sessions
    ]
    if mine.is_brief:
        assert set(mine.accounts) <= {one.key}
        assert mine.leases.returned == []
        assert [key for key, spans in mine.leases.held.items() if spans and key[0] != one.key] == []
    return True


def records_of(swarm, key):
    return [fact for _, host, fact in swarm.world.facts if host == key and is_record(fact)]


def is_record(fact):
    return isinstance(fact, RecordCommitted)


@pytest.mark.usefixtures("one_whole")
def test_they_say_the_same_of_the_swarm_and_of_themselves():
    swarm = crowd(1)
    compared = 0
    for at_s in range(20, 120):
        swarm.world.run(float(at_s))
        compared += sum(agree(one, swarm.syncer) for one in swarm.learners)
    swarm.check()
    assert compared > 3 * LEARNERS
    told = {one.learner.context.state.is_brief: set() for one in swarm.learners}
    for one in swarm.learners:
        told[one.learner.context.state.is_brief].add(len(records_of(swarm, one.key)))
    assert len(told[False]) == 1
    assert max(told[True]) < min(told[False])
    sizes = [len(one.contributions) for one in swarm.ledger.merges]
    assert sum(sizes) > 2 * len(sizes), "and learners hand in as they do elsewhere"


@pytest.mark.usefixtures("one_whole")
@pytest.mark.parametrize("seed", first(4, range(24)))
def test_that_holds_while_hosts_die_and_leaders_change(seed):
    swarm = crowd(seed, syncers=3)
    afflict(swarm, seed, until_s=HEALED_S)
    compared = 0
    for at_s in range(20, int(HEALED_S) + 60):
        swarm.world.run(float(at_s))
        if swarm.syncer.is_up and swarm.syncer.syncer.leadership is not None:
            compared += sum(agree(one, swarm.syncer) for one in following(swarm))
    swarm.check()
    assert compared > LEARNERS
    assert len(following(swarm)) == LEARNERS
    whole = [one for one in swarm.learners if not one.learner.context.state.is_brief]
    assert len(whole) <= followers.WHOLE_LOGS_MAX


@pytest.mark.usefixtures("one_whole")
def test_where_the_whole_logs_are_gone_somebody_begins_one():
    swarm = crowd(3)
    swarm.world.run(60.0)
    (whole,) = (one for one in swarm.learners if not one.learner.context.state.is_brief)
    whole.crash()
    swarm.world.run(100.0)
    assert all(one.learner.context.state.is_brief for one in following(swarm))
    one = following(swarm)[0]
    one.take(StopAsked("its owner"))
    swarm.world.after(5.0, one.revive)
    swarm.world.run(160.0)
    swarm.check()
    assert not one.learner.context.state.is_brief
    assert one.learner.link is Link.FOLLOWING
    merged = {part.learner for merge in swarm.ledger.merges[-8:] for part in merge.contributions}
    assert one.key in merged, "and trains on as before"


@pytest.mark.usefixtures("one_whole")
def test_what_one_that_was_told_in_brief_kept_it_goes_on_from():
    swarm = crowd(4)
    swarm.world.run(60.0)
    one = next(one for one in swarm.learners if one.learner.context.state.is_brief)
    before = one.learner.context.state.accounts[one.key].merges
    one.take(StopAsked("its owner"))
    swarm.world.after(6.0, one.revive)
    swarm.world.run(110.0)
    swarm.check()
    state = one.learner.context.state
    assert state.is_brief
    assert state.accounts[one.key].merges > before
    assert isinstance(swarm.ledger.records[-1], Record)
