"""Three syncers, one swarm: whoever dies or is cut off, merging goes on and nothing is lost."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from protocol import limits
from protocol.log.records import SeatTaken
from protocol.messages import AccountsPart, IndexPart, StateOffer
from protocol.project import encode
from protocol.signing import seal
from protocol.trace import RecordCommitted, SessionOpened
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first
from tests.support.swarm_faults import afflict

FAILOVER_S_MAX = 10.0
"""From the death of a leader to the next committed merge."""


@pytest.fixture
def swarm():
    """Three syncers that merge, the first of them leading."""
    made = build_swarm(1, syncers=3)
    made.world.run(40.0)
    assert made.syncer is made.syncers[0]
    assert made.merges > 20
    return made


def steps(swarm):
    return [learner.trainer.local_step for learner in swarm.learners]


def assert_nobody_paused(swarm, before, for_s):
    """All learners took nearly every local step that this time had room for."""
    for learner, then, now in zip(swarm.learners, before, steps(swarm), strict=True):
        assert now - then >= 0.8 * for_s / learner.step_s - 1


def run_until(swarm, is_so, within_s):
    """Seconds until something is so."""
    start_s = swarm.world.now_s
    swarm.world.run(start_s + within_s, stop=is_so)
    assert is_so(), f"not within {within_s} s"
    return swarm.world.now_s - start_s


def wait_for_merges(swarm, count, within_s=FAILOVER_S_MAX):
    wanted = swarm.merges + count
    return run_until(swarm, lambda: swarm.merges >= wanted, within_s)


def standbys(swarm):
    return [one for one in swarm.syncers if one is not swarm.syncer]


def committed_by(swarm, host, since_s):
    """Records that this host held for committed since then."""
    return [
        fact.index
        for at_s, key, fact in swarm.world.facts
        if key == host.key and at_s >= since_s and isinstance(fact, RecordCommitted)
    ]


def isolate(swarm, host, for_s):
    """Cut one syncer off the others, not off the learners."""
    for other in swarm.syncers:
        if other is not host:
            swarm.world.partition(host.key, other.key, for_s=for_s)


def keep_all_certificates(host):
    """The disk has them all, though some are not written at once."""
    log = host.syncer.raft.log
    host.disk.proofs = [log.prove(index) for index in range(1, log.certified + 1)]


def versions(host):
    return [fragment.version for fragment in host.syncer.state.fragments]


def held(host):
    return [host.bank.current(at).number for at in range(len(host.layout.fragments))]


# Of 48 seeds votes split in two, which takes another round of three seconds or two.
@pytest.mark.parametrize("seed", first(2, (0, 2, 3, 4, 5)))
def test_a_killed_leader_is_replaced_and_no_committed_merge_is_lost(seed):
    swarm = build_swarm(seed, syncers=3)
    swarm.world.run(40.0)
    victim, before = swarm.syncer, steps(swarm)
    committed = [record.index for record in swarm.ledger.records]
    merged = list(swarm.ledger.merges)
    victim.crash()
    wait_for_merges(swarm, 1)
    assert swarm.syncer is not victim
    assert swarm.ledger.merges[: len(merged)] == merged
    assert swarm.syncer.syncer.state.index > committed[-1]
    swarm.world.run(60.0)
    assert_nobody_paused(swarm, before, 20.0)
    victim.boot()
    swarm.world.run(80.0)
    swarm.check()
    assert victim.syncer.state.index >= swarm.syncer.syncer.state.index - 2


@pytest.mark.slow
def test_learners_resume_their_sessions_and_hand_in_what_they_had_not(swarm):
    died_s, incarnations = swarm.world.now_s, [learner.life for learner in swarm.learners]
    swarm.syncer.crash()
    swarm.world.run(70.0)
    successor = swarm.syncer
    opened = [
        fact
        for at_s, key, fact in swarm.world.facts
        if key == successor.key and at_s > died_s and isinstance(fact, SessionOpened)
    ]
    assert {fact.peer for fact in opened} == {learner.key for learner in swarm.learners}
    assert all(fact.is_resumed for fact in opened)
    assert [learner.life for learner in swarm.learners] == incarnations
    swarm.check()


def test_a_leader_cut_off_from_the_other_syncers_certifies_nothing_more(swarm):
    former, before = swarm.syncer, steps(swarm)
    isolate(swarm, former, for_s=30.0)
    cut_s = swarm.world.now_s
    run_until(swarm, lambda: swarm.syncer is not former, FAILOVER_S_MAX)
    wait_for_merges(swarm, 5, 2 * FAILOVER_S_MAX)
    assert former.syncer.leadership is None
    assert committed_by(swarm, former, cut_s + 0.2) == []
    assert_nobody_paused(swarm, before, swarm.world.now_s - cut_s)
    swarm.world.run(90.0)
    swarm.check()
    assert former.syncer.state.index >= swarm.syncer.syncer.state.index - 2
    assert held(former) == versions(former)


@pytest.mark.slow
def test_a_leader_that_nobody_hears_any_more_certifies_nothing_more(swarm):
    former = swarm.syncer
    for host in swarm.world.hosts.values():
        if host is not former:
            swarm.world.cut_one_way(former.key, host.key, for_s=40.0)
    mute_s = swarm.world.now_s
    swarm.world.run(mute_s + 30.0)
    assert swarm.syncer is not former
    assert committed_by(swarm, former, mute_s + 1.0) == []
    swarm.world.run(mute_s + 70.0)
    swarm.check()
    wait_for_merges(swarm, 5)


@pytest.mark.slow
def test_all_syncers_restart_one_after_the_other(swarm):
    before, began_s = steps(swarm), swarm.world.now_s
    for host in list(swarm.syncers):
        merges = swarm.merges
        host.crash()
        swarm.world.run(swarm.world.now_s + 3.0)
        host.boot()
        swarm.world.run(swarm.world.now_s + 15.0)
        assert swarm.merges > merges
    assert_nobody_paused(swarm, before, swarm.world.now_s - began_s)
    swarm.check()


def test_all_syncers_at_once_come_back_to_the_same_log(swarm):
    merged = list(swarm.ledger.merges)
    for host in swarm.syncers:
        host.crash()
    swarm.world.run(45.0)
    for host in swarm.syncers:
        host.boot()
    wait_for_merges(swarm, 5, 2 * FAILOVER_S_MAX)
    assert swarm.ledger.merges[: len(merged)] == merged
    swarm.check()


def test_a_leader_that_is_asked_to_stop_hands_over_without_waiting_for_its_silence(swarm):
    former, merges = swarm.syncer, swarm.merges
    for effect in former.syncer.drain(swarm.world.now_s):
        former._carry_out(effect)
    run_until(
        swarm, lambda: swarm.syncer is not former and swarm.syncer.syncer.leadership is not None, 4
    )
    swarm.world.run(swarm.world.now_s + 10.0)
    assert swarm.merges > merges
    assert former.is_up
    assert former.syncer.phase == "standby"
    swarm.check()


def test_a_standby_that_lost_its_disk_is_refused_and_the_swarm_goes_on_with_two(swarm):
    lost = standbys(swarm)[0]
    lost.crash()
    lost.wipe()
    merges = swarm.merges
    lost.boot()
    swarm.world.run(60.0)
    assert swarm.merges > merges + 10
    assert lost.syncer.state.index == 0
    refusals = [peer.refusal for peer in lost.syncer.raft.context.peers.values()]
    assert all("another disk" in words for words in refusals)
    assert swarm.syncer is not lost
    swarm.check()


def test_a_wiped_standby_cannot_give_a_vote_that_replaces_the_majority(swarm):
    lost, other = standbys(swarm)
    other.crash()
    lost.crash()
    lost.wipe()
    lost.boot()
    swarm.world.run(45.0)
    merges = swarm.merges
    swarm.world.run(60.0)
    assert swarm.merges == merges
    other.boot()
    wait_for_merges(swarm, 5, 2 * FAILOVER_S_MAX)
    swarm.check()


def test_a_standby_that_was_away_is_told_the_state_in_pieces(monkeypatch, swarm):
    """The accounts of a hundred thousand contributors are more than may wait for it."""
    monkeypatch.setattr(limits, "ENTRIES_BYTES_MAX", 700)
    monkeypatch.setattr(limits, "PIECES_AHEAD_MAX", 2)
    away, _ = standbys(swarm)
    swarm.syncer.syncer.raft.log.entries_kept = 8
    pieces = []

    def tap(what, host, peer, message):
        is_told = isinstance(message, IndexPart | AccountsPart | StateOffer)
        if what == "sent" and peer == away.key and is_told:
            pieces.append((swarm.world.now_s, message))

    swarm.world.taps.append(tap)
    away.crash()
    swarm.world.after(60.0, away.boot)
    wait_for_merges(swarm, 10, 80.0)
    swarm.world.run(swarm.world.now_s + 80.0)
    offers = [message for _, message in pieces if isinstance(message, StateOffer)]
    assert len(offers) == 1, "it is told once, however long that takes"
    assert len(pieces) > 2 * limits.PIECES_AHEAD_MAX
    assert max(Counter(at_s for at_s, _ in pieces).values()) == limits.PIECES_AHEAD_MAX
    assert swarm.syncer.syncer.state.index - away.syncer.state.index < 5
    swarm.check()


@pytest.mark.slow
def test_payloads_lost_by_a_standby_are_repaired_and_then_it_can_lead(swarm):
    damaged, other = standbys(swarm)
    keep_all_certificates(damaged)
    damaged.crash()
    damaged.disk.payloads.clear()
    damaged.boot()
    assert damaged.syncer.standby.missing == list(range(len(damaged.layout.fragments)))
    assert not damaged.syncer.can_lead()
    swarm.world.run(55.0)
    assert damaged.syncer.standby.missing == []
    assert damaged.syncer.can_lead()
    leader = swarm.syncer
    other.crash()
    leader.crash()
    other.boot()
    other.syncer.drain(swarm.world.now_s)
    wait_for_merges(swarm, 3, 2 * FAILOVER_S_MAX)
    assert swarm.syncer is damaged
    assert held(damaged) == versions(damaged)
    swarm.check()


@pytest.mark.slow
def test_two_of_three_syncers_down_means_no_merge_and_no_pause_either(swarm):
    leader = swarm.syncer
    for host in standbys(swarm):
        host.crash()
    swarm.world.run(41.0)
    merges, before = swarm.merges, steps(swarm)
    swarm.world.run(56.0)
    assert swarm.merges == merges
    assert leader.syncer.leadership is None
    assert_nobody_paused(swarm, before, 15.0)
    swarm.syncers[-1].boot()
    wait_for_merges(swarm, 3, 2 * FAILOVER_S_MAX)
    swarm.world.run(90.0)
    swarm.check()
    assert swarm.merges > merges + 10


def test_a_leader_with_a_full_disk_is_no_end(swarm):
    former = swarm.syncer
    former.disk.is_full = True
    swarm.world.run(45.0)
    merges = swarm.merges
    former.disk.is_full = False
    wait_for_merges(swarm, 5, 2 * FAILOVER_S_MAX)
    assert swarm.merges > merges
    swarm.check()


@pytest.mark.slow
def test_a_standby_with_a_full_disk_holds_nobody_up_for_good(swarm):
    full = standbys(swarm)[0]
    full.disk.is_full = True
    swarm.world.run(60.0)
    merges = swarm.merges
    swarm.world.run(75.0)
    assert swarm.merges > merges + 5
    full.disk.is_full = False
    swarm.world.run(100.0)
    assert full.syncer.state.index >= swarm.syncer.syncer.state.index - 2
    swarm.world.run(105.0, stop=lambda: full.syncer.standby.is_idle)
    assert held(full) == versions(full)
    swarm.check()


@pytest.mark.slow
def test_standbys_hold_the_bits_that_the_leader_holds(swarm):
    swarm.world.run(60.0)
    swarm.syncer.syncer.leadership.is_closing = True
    swarm.world.run(75.0)
    bits = [
        [host.bank.current(at).theta.tobytes() for at in range(len(host.layout.fragments))]
        for host in swarm.syncers
    ]
    assert bits[0] == bits[1] == bits[2]
    assert held(swarm.syncer) == versions(swarm.syncer)


@pytest.mark.parametrize("seed", first(1, range(12)))
def test_whatever_happens_to_three_syncers_is_safe_and_the_swarm_recovers(seed):
    swarm = build_swarm(seed, syncers=3)
    afflict(swarm, seed, until_s=90.0)
    swarm.world.run(120.0)
    swarm.check()
    healed = swarm.merges
    swarm.world.run(160.0)
    swarm.check()
    assert swarm.merges > healed + 12
    terms = [record.term for record in swarm.ledger.records]
    assert terms == sorted(terms)
    seats = [one.term for one in swarm.ledger.records if isinstance(one.body, SeatTaken)]
    assert len(seats) == len(set(seats))


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["majority", "leader"])
@pytest.mark.parametrize("seed", range(2))
def test_every_degree_of_durability_is_safe(seed, durability):
    swarm = build_swarm(100 + seed, syncers=3, durability=durability)
    afflict(swarm, 100 + seed, until_s=90.0)
    swarm.world.run(120.0)
    healed = swarm.merges
    swarm.world.run(160.0)
    swarm.check()
    assert swarm.merges > healed + 12


# The owner changes who votes


def offer(swarm, host, **changes):
    """The owner hands a newer charter to one of the syncers."""
    tiny = swarm.syncers[0].tiny
    charter = msgspec.structs.replace(host.syncer.setup.charter, **changes)
    charter = msgspec.structs.replace(charter, revision=charter.revision + 1)
    envelope = seal("charter", tiny.project, encode(charter), tiny.owner)
    for effect in host.syncer.offer_charter(envelope, swarm.world.now_s):
        host._carry_out(effect)
    return charter


def charters(swarm):
    return [learner.learner.context.charter for learner in swarm.learners]


def test_a_charter_that_any_syncer_is_given_is_soon_everybodys(swarm):
    rounds = msgspec.structs.replace(swarm.syncers[0].tiny.charter.rounds, down_codec="int8")
    charter = offer(swarm, standbys(swarm)[0], rounds=rounds)
    swarm.world.run(45.0)
    assert charters(swarm) == [charter] * 3
    assert [host.syncer.setup.charter for host in swarm.syncers] == [charter] * 3
    wait_for_merges(swarm, 5)
    assert swarm.ledger.merges[-1].codec == "int8"
    swarm.check()


@pytest.mark.slow
def test_a_syncer_that_lost_its_disk_is_readmitted_by_the_owner_and_can_lead_again(swarm):
    lost, other = standbys(swarm)
    lost.crash()
    lost.wipe()
    lost.boot()
    swarm.world.run(50.0)
    voters = tuple(
        msgspec.structs.replace(voter, disk=voter.disk + (voter.key == lost.key))
        for voter in swarm.syncer.syncer.setup.charter.voters
    )
    offer(swarm, swarm.syncer, voters=voters)
    swarm.world.run(130.0)
    leader = swarm.syncer
    assert lost.syncer.state.index >= leader.syncer.state.index - 2
    assert lost.syncer.can_lead()
    other.crash()
    wait_for_merges(swarm, 3)
    other.boot()
    swarm.world.run(150.0)
    leader.crash()
    wait_for_merges(swarm, 3, 2 * FAILOVER_S_MAX)
    swarm.check()


@pytest.mark.slow
def test_a_syncer_that_the_owner_replaces_has_no_say_any_more(swarm):
    leader = swarm.syncer
    gone = standbys(swarm)[1]
    voters = tuple(voter for voter in leader.syncer.setup.charter.voters if voter.key != gone.key)
    offer(swarm, leader, voters=voters)
    swarm.world.run(60.0)
    merges = swarm.merges
    gone.crash()
    swarm.world.run(70.0)
    assert swarm.merges > merges
    assert gone.key not in leader.syncer.raft.context.peers
    gone.boot()
    standbys(swarm)[0].crash()
    swarm.world.run(75.0)
    merges = swarm.merges
    swarm.world.run(85.0)
    assert swarm.merges == merges
    swarm.check()
