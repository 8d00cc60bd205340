"""Several syncers merge: whoever dies or is slow, no merge is lost, and none counts twice."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from msgspec import structs

from protocol import trace
from protocol.messages import MergeOrder
from protocol.project import OuterSpec
from simulator.checkers.ledger import Violation
from simulator.scenarios.scenarios import FAULT_KINDS
from simulator.scenarios.swarm import build_swarm
from simulator.virtual.network import AccessLink
from tests.support.builders import rounds
from tests.support.choices import first
from tests.support.swarm_faults import afflict

ALL = rounds(overlap_steps=4, mergers_max=0)
TAKEN_OVER_S_MAX = 12.0
"""From the death of a merger to the commit of what it was merging."""


def shares(swarm, since=0):
    """Merges of each syncer, by name; the leader's own under its name at the end."""
    names = {host.key: host.name for host in swarm.syncers}
    leader = swarm.syncer.name
    return Counter(names.get(one.merger, leader) for one in swarm.ledger.merges[since:])


def facts(swarm, kind, since_s=0.0):
    found = swarm.world.facts
    return [(at_s, fact) for at_s, _, fact in found if at_s >= since_s and isinstance(fact, kind)]


def assert_all_stand_where_the_log_stands(swarm):
    newest = {at: state.theta for at, (_, state) in swarm.ledger.newest.items()}
    for host in swarm.syncers:
        here = {at: host.bank.current(at).state.theta for at in newest}
        assert here == newest, host.name


def stop_training(swarm):
    """So that whatever is under way comes to its end."""
    for learner in swarm.learners:
        learner.crash()
    swarm.world.run(swarm.world.now_s + 60.0)


@pytest.fixture
def swarm():
    made = build_swarm(1, syncers=3, rounds=ALL)
    made.world.run(40.0)
    assert made.syncer is made.syncers[0]
    return made


def merging_at(swarm, host, within_s=60.0):
    """Let time pass until the leader has ordered a merge of this syncer; its round."""
    ordered = []

    def tap(what, sender, peer, message):
        if what == "came" and sender is host and isinstance(message, MergeOrder):
            ordered.append(message)

    swarm.world.taps.append(tap)
    swarm.world.run(swarm.world.now_s + within_s, stop=lambda: bool(ordered))
    assert ordered
    return ordered[0]


def merge_of(swarm, order, within_s):
    """The record of the merge that was ordered, once it is committed; and how long that took."""

    def found():
        merges = [one for one in swarm.ledger.merges if one.round == order.round]
        return merges[0] if merges else None

    start_s = swarm.world.now_s
    swarm.world.run(start_s + within_s, stop=lambda: found() is not None)
    assert found() is not None, f"not within {within_s} s"
    return found(), swarm.world.now_s - start_s


def test_every_syncer_merges_and_all_of_them_stand_where_the_log_stands(swarm):
    swarm.world.run(90.0)
    counts = shares(swarm, since=40)
    assert set(counts) == {host.name for host in swarm.syncers}
    assert min(counts.values()) > 0.2 * sum(counts.values())
    stop_training(swarm)
    assert_all_stand_where_the_log_stands(swarm)
    swarm.check()


def test_one_syncer_alone_works_as_without_the_setting():
    made = [build_swarm(3, rounds=rounds(overlap_steps=4, mergers_max=most)) for most in (1, 0)]
    for swarm in made:
        swarm.world.run(60.0)
    alone, all_of_them = made
    assert alone.ledger.merges == all_of_them.ledger.merges
    alike = trace.RoundOpened | trace.QuorumReached | trace.PushSettled | trace.FragmentApplied
    assert facts(alone, alike) == facts(all_of_them, alike)
    assert len(facts(alone, alike)) > 100


def test_with_mergers_max_no_more_syncers_merge():
    swarm = build_swarm(1, syncers=4, rounds=rounds(overlap_steps=4, mergers_max=2))
    swarm.world.run(60.0)
    assert len(shares(swarm)) == 2
    swarm.check()


def test_what_a_killed_merger_was_merging_is_merged_by_another_from_the_same_pushes(swarm):
    victim = swarm.syncers[2]
    victim.merge_s = 30.0
    order = merging_at(swarm, victim)
    victim.crash()
    merged, took_s = merge_of(swarm, order, 60.0)
    assert took_s < TAKEN_OVER_S_MAX
    assert merged.merger != victim.key
    pushes = {(one.learner, one.header.sequence) for one in order.parts}
    assert pushes == {(one.learner, one.sequence) for one in merged.contributions}
    assert facts(swarm, trace.MergerFailed)
    victim.merge_s = 0.02
    victim.boot()
    before = swarm.merges
    swarm.world.run(swarm.world.now_s + 120.0)
    assert shares(swarm, since=before)[victim.name] > 0, "it merges again"
    swarm.check()


def test_a_slow_merger_is_passed_over(swarm):
    slow = swarm.syncers[2]
    slow.merge_s = 1000.0
    order = merging_at(swarm, slow)
    merged, _ = merge_of(swarm, order, 70.0)
    assert merged.merger != slow.key
    (_, told), *_ = facts(swarm, trace.MergerFailed)
    assert told.merger == slow.key
    assert "too long" in told.text
    swarm.world.run(swarm.world.now_s + 60.0)
    swarm.check()


def test_a_merger_that_is_cut_off_from_the_leader_is_passed_over(swarm):
    victim = swarm.syncers[1]
    victim.merge_s = 30.0
    order = merging_at(swarm, victim)
    swarm.world.partition(swarm.syncer.key, victim.key, for_s=30.0)
    merged, took_s = merge_of(swarm, order, 60.0)
    assert merged.merger != victim.key
    assert took_s < TAKEN_OVER_S_MAX
    victim.merge_s = 0.02
    swarm.world.run(swarm.world.now_s + 120.0)
    swarm.check()


def test_a_leader_that_dies_in_the_middle_of_a_merge_costs_no_more_than_that_round(swarm):
    leader, merger = swarm.syncers[0], swarm.syncers[1]
    merger.merge_s = 5.0
    merging_at(swarm, merger)
    leader.crash()
    before = swarm.merges
    swarm.world.run(swarm.world.now_s + 20.0)
    assert swarm.syncer is not leader
    assert swarm.merges > before
    merger.merge_s = 0.02
    leader.boot()
    swarm.world.run(swarm.world.now_s + 60.0)
    assert shares(swarm, since=before + 10)[leader.name] > 0, "now it merges for the other"
    stop_training(swarm)
    assert_all_stand_where_the_log_stands(swarm)
    swarm.check()


def test_learners_that_a_merger_cannot_reach_are_fetched_from_by_the_leader(swarm):
    hidden = swarm.learners[0]
    for merger in swarm.syncers[1:]:
        swarm.world.partition(merger.key, hidden.key, for_s=1000.0)
    before = swarm.merges
    swarm.world.run(120.0)
    elsewhere = [one for one in swarm.ledger.merges[before:] if one.merger is not None]
    assert any(part.learner == hidden.key for one in elsewhere for part in one.contributions)
    swarm.check()


def test_a_merger_behind_a_slow_line_gets_fewer_fragments():
    swarm = build_swarm(
        2,
        syncers=2,
        steps_s=(0.3,) * 6,
        rounds=structs.replace(ALL, overlap_steps=8),
        fragments=16,
        tensors_of=(16, 96),
    )
    for host, bytes_per_s in zip(swarm.syncers, (4000.0, 800.0), strict=True):
        swarm.world.wires.links[host.key] = AccessLink(bytes_per_s, bytes_per_s)
    swarm.world.run(200.0)
    mergers = swarm.syncer.syncer.leadership.mergers.assignment.mergers
    held = Counter(mergers.values())
    fast, slow = (held[host.key] for host in swarm.syncers)
    assert slow < fast / 2
    swarm.check()


def test_one_merge_after_another_keeps_what_quantising_left_over(swarm):
    """A merger goes on from its own merges as a leader does from its own."""
    merger = swarm.syncers[1]
    leadership = swarm.syncer.syncer.leadership
    mine = [at for at, key in leadership.mergers.assignment.mergers.items() if key == merger.key]
    assert mine
    assert all(merger.bank.current(at).residual is not None for at in mine)


def test_pushes_are_dropped_once_they_have_their_fate(swarm):
    swarm.world.run(100.0)
    stop_training(swarm)
    for host in swarm.syncers:
        assert not host.syncer.merger.pushes
        assert not host.syncer.merger.fetching
    mergers = swarm.syncer.syncer.leadership.mergers
    assert not mergers.merging
    assert not mergers.fetching


def test_pushes_that_mergers_hold_are_probed():
    swarm = build_swarm(1, syncers=3, rounds=ALL, outer=OuterSpec(0.7, 0.5, 3.0, probes_frac=1.0))
    swarm.world.run(120.0)
    answered = len(facts(swarm, trace.ProbeAnswered))
    assert answered > 3
    assert len(facts(swarm, trace.ProbeUnanswered)) < answered / 4
    swarm.check()


def test_the_charter_may_end_it_and_begin_it_again(swarm):
    swarm.revise(rounds=structs.replace(ALL, mergers_max=1))
    swarm.world.run(60.0)
    before = swarm.merges
    swarm.world.run(90.0)
    assert set(shares(swarm, since=before)) == {swarm.syncer.name}
    swarm.revise(rounds=ALL)
    swarm.world.run(120.0)
    before = swarm.merges
    swarm.world.run(150.0)
    assert len(shares(swarm, since=before)) == 3
    swarm.check()


def test_a_drained_leader_hands_over_with_its_mergers_merges_done(swarm):
    former = swarm.syncer
    former.carry_out(former.syncer.drain(former.clock_s))
    swarm.world.run(swarm.world.now_s + 15.0)
    assert swarm.syncer is not former
    abandoned = facts(swarm, trace.PushSettled, since_s=40.0)
    assert not [fact for _, fact in abandoned if fact.outcome == "abandoned"]
    swarm.world.run(swarm.world.now_s + 30.0)
    swarm.check()


@pytest.mark.parametrize("seed", first(1, range(40)))
def test_whatever_happens_no_merge_is_lost_and_none_counts_twice(seed):
    swarm = build_swarm(seed, syncers=3, witnesses=seed % 2, rounds=ALL)
    afflict(swarm, seed, until_s=120.0, every_s=6.0, kinds=FAULT_KINDS)
    swarm.world.run(280.0)
    swarm.check()
    assert swarm.merges > 60
    assert any(one.merger is not None for one in swarm.ledger.merges)


# The checker itself.


def test_a_merge_with_fewer_pushes_than_its_round_is_a_violation(swarm):
    (term, number), pushes = next(iter(swarm.mergers.ordered.items()))
    swarm.mergers.ordered[term, number] = {*pushes, (bytes(32), 1, 1)}
    with pytest.raises(Violation, match="lost 1 pushes"):
        swarm.check()


def test_a_merge_with_a_push_that_was_not_in_its_round_is_a_violation(swarm):
    place, pushes = next(iter(swarm.mergers.ordered.items()))
    swarm.mergers.ordered[place] = set(list(pushes)[1:])
    with pytest.raises(Violation, match="did not close with"):
        swarm.check()


def test_a_merge_that_is_taken_over_by_nobody_is_a_violation(swarm, monkeypatch):
    def forget(mergers, current):
        current.until_s = math.inf

    monkeypatch.setattr("syncer_node.machine.merging.mergers.Mergers._gather", forget)
    victim = swarm.syncers[2]
    swarm.world.run(swarm.world.now_s + 5.0)
    victim.crash()
    swarm.world.run(swarm.world.now_s + 200.0)
    with pytest.raises(Violation, match="never ended"):
        swarm.check()
