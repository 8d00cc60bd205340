"""Pushes that their round did not wait for: they are in the next merge of the fragment, once."""

from __future__ import annotations

import pytest

from protocol import limits
from protocol.log.records import FragmentMerged, read_record
from protocol.machine import Failed, PeerDown
from protocol.messages import Committed, Decline, Pull, Settled
from syncer_node.machine.jobs import FetchPush, Forget, PushFetched
from syncer_node.machine.uplinks import Uplinks
from tests.support.builders import ONE, TWO, SyncerBench, actions, heartbeat, project, rounds

QUICK = project(rounds(quorum=1, pull_timeout_s=1000.0))


def merges(bench, fragment=0):
    entries = [entry for said in bench.all(TWO.key, Committed) for entry in said.entries]
    bodies = [read_record(entry.record).body for entry in entries]
    found = [body for body in bodies if isinstance(body, FragmentMerged)]
    return [body for body in found if body.fragment == fragment]


def left_behind(tiny=QUICK):
    """ONE's push of fragment 0 is on its way, and TWO's made version 1 of it."""
    bench = SyncerBench(tiny).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.hold = {FetchPush}
    bench.push(ONE, pulls[ONE.key])
    bench.hold = set()
    bench.push(TWO, pulls[TWO.key])
    assert [part.learner for part in merges(bench)[0].contributions] == [TWO.key]
    assert bench.last(ONE.key, Settled) is None
    return bench, pulls[ONE.key]


def cycle(bench, *, until, incarnation=1):
    """TWO goes on training and answering until fragment 0 has that version."""
    merging, session = bench.seat.rounds, (TWO.key, incarnation)
    rounds_done = {pull.round for pull in bench.all(TWO.key, Pull)[: len(merges(bench))]}
    for step in range(300):
        if len(merges(bench)) >= until:
            return
        versions = tuple(one.version for one in bench.machine.state.fragments)
        bench.now_s += 0.2
        bench.say(TWO.key, heartbeat(steps=(8,) * 4, versions=versions, local_step=100 + 2 * step))
        bench.wait(0.1)
        for pull in [one for one in bench.all(TWO.key, Pull) if one.round not in rounds_done]:
            rounds_done.add(pull.round)
            bench.push(
                TWO,
                pull,
                incarnation=incarnation,
                sequence=1 + merging.last_sequence.get(session, 0),
                local_step=1000,
            )
    raise AssertionError(f"fragment 0 never came to version {until}")


def parts(body):
    return {part.learner: part for part in body.contributions}


def test_a_payload_that_comes_after_its_round_is_in_the_next_merge_at_half_its_weight():
    bench, _ = left_behind()
    bench.done(FetchPush, PushFetched())
    cycle(bench, until=2)
    both = parts(merges(bench)[1])
    assert set(both) == {ONE.key, TWO.key}
    assert both[ONE.key].base_version == 0
    assert both[ONE.key].weight == 256 * 256 / 8 / 2
    assert bench.last(ONE.key, Settled) is None
    cycle(bench, until=3)
    assert ONE.key not in parts(merges(bench)[2])


def test_a_payload_may_still_be_on_its_way_when_the_next_round_opens():
    bench, _ = left_behind()
    cycle(bench, until=2)
    assert ONE.key not in parts(merges(bench)[1])
    bench.done(FetchPush, PushFetched())
    cycle(bench, until=3)
    assert parts(merges(bench)[2])[ONE.key].weight == 256 * 256 / 8 / 3


def test_a_payload_that_misses_too_many_merges_is_stale_and_forgotten():
    bench, _ = left_behind()
    cycle(bench, until=limits.PUSH_LAG_MAX + 2)
    assert bench.last(ONE.key, Settled).outcome == "stale"
    effects = bench.done(FetchPush, PushFetched())
    assert [forget.pushes for forget in actions(effects, Forget)] == [((ONE.key, 1, 1),)]
    assert all(ONE.key not in parts(body) for body in merges(bench))


def test_a_header_that_comes_after_its_round_counts_too():
    bench = SyncerBench(QUICK).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.push(TWO, pulls[TWO.key])
    bench.push(ONE, pulls[ONE.key])
    assert bench.last(ONE.key, Settled) is None
    cycle(bench, until=2)
    assert set(parts(merges(bench)[1])) == {ONE.key, TWO.key}


def test_a_decline_after_the_round_ends_the_matter():
    bench = SyncerBench(QUICK).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.push(TWO, pulls[TWO.key])
    bench.say(ONE.key, Decline(pulls[ONE.key].round, 0, "not training"))
    bench.push(ONE, pulls[ONE.key])
    assert bench.last(ONE.key, Settled).outcome == "late"


def test_after_the_deadline_of_its_pull_a_push_is_late():
    bench, _ = left_behind(project(rounds(quorum=1, pull_timeout_s=5.0)))
    assert bench.wake_s is not None
    assert bench.wake_s <= bench.now_s + 5.0
    bench.wait(6.0)
    assert bench.last(ONE.key, Settled).outcome == "late"
    effects = bench.done(FetchPush, PushFetched())
    assert [forget.pushes for forget in actions(effects, Forget)] == [((ONE.key, 1, 1),)]


def test_a_payload_that_cannot_be_fetched_after_its_round_is_abandoned():
    bench, _ = left_behind()
    bench.done(FetchPush, Failed("unreachable"))
    assert bench.last(ONE.key, Settled).outcome == "abandoned"
    cycle(bench, until=2)
    assert ONE.key not in parts(merges(bench)[1])


def test_while_it_is_sending_a_learner_is_asked_for_nothing_else():
    bench, _ = left_behind()
    before = len(bench.all(ONE.key, Pull))
    bench.now_s += 1.0
    bench.say(ONE.key, heartbeat(steps=(8,) * 4, versions=(1, 0, 0, 0), local_step=50))
    cycle(bench, until=2)
    assert len(bench.all(ONE.key, Pull)) == before


def test_a_push_said_again_meanwhile_has_no_second_fate():
    bench, pull = left_behind()
    bench.push(ONE, pull)
    assert bench.last(ONE.key, Settled) is None
    bench.done(FetchPush, PushFetched())
    bench.push(ONE, pull)
    cycle(bench, until=2)
    assert [
        part.sequence for part in merges(bench)[1].contributions if part.learner == ONE.key
    ] == [1]


def test_the_push_of_a_session_whose_blocks_went_to_others_is_not_merged_later():
    bench, _ = left_behind()
    bench.done(FetchPush, PushFetched())
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.wait(bench.tiny.charter.limits.lease_s + 60.0)
    bench.join(TWO, incarnation=2)
    assert (ONE.key, 1) not in bench.machine.state.leases.since_s
    bench.lease(TWO)
    cycle(bench, until=2, incarnation=2)
    assert set(parts(merges(bench)[1])) == {TWO.key}
    assert bench.seat.rounds.outcomes["abandoned"] == 1


# Who is asked


KEY = (ONE.key, 1)


def test_a_fast_uplink_is_asked_every_time():
    uplinks = Uplinks()
    for number in range(8):
        assert uplinks.is_turn(KEY, [(number + at) % 4 for at in range(4)])
        uplinks.arrived(KEY, number % 4, asked_after=number, newest=number)


@pytest.mark.parametrize("span", [2, 3, 4, 7])
@pytest.mark.parametrize("fragments", [2, 4, 6])
def test_a_slow_uplink_sends_every_fragment_equally_often(span, fragments):
    uplinks = Uplinks()
    sent = [0] * fragments
    free_at = 0
    for number in range(60 * fragments):
        coming = [(number + at) % fragments for at in range(fragments)]
        if number >= free_at and uplinks.is_turn(KEY, coming):
            sent[coming[0]] += 1
            free_at = number + span
            uplinks.arrived(KEY, coming[0], asked_after=number, newest=number + span - 1)
    assert min(sent) > 0
    assert max(sent) - min(sent) <= max(2, max(sent) // 3)


def test_sessions_that_are_over_are_forgotten():
    uplinks = Uplinks()
    uplinks.arrived(KEY, 0, asked_after=1, newest=3)
    uplinks.keep(set())
    assert not uplinks.spans
    assert not uplinks.sent


@pytest.mark.parametrize(("quorum", "is_asked"), [(1, False), (2, True)])
def test_whose_payloads_did_not_come_is_asked_only_if_the_quorum_needs_it(quorum, is_asked):
    bench = SyncerBench(project(rounds(quorum=quorum, overlap_steps=1))).start(ONE, TWO)
    for _ in range(2):
        bench.seat.members.sessions[ONE.key].missed(bench.now_s)
    for learner in (TWO, ONE):
        bench.beat(learner)
    bench.wait(0.1)
    assert bench.last(TWO.key, Pull) is not None
    assert (bench.last(ONE.key, Pull) is not None) == is_asked


def test_a_fetch_knows_its_deadline_and_a_payload_that_does_not_come_is_counted():
    bench, _ = left_behind(project(rounds(quorum=1, pull_timeout_s=5.0)))
    (job,) = [job for job in bench.machine.effects.jobs.values() if isinstance(job, FetchPush)]
    assert 4.0 < job.left_s <= 5.0
    assert not job.is_proven
    bench.done(FetchPush, Failed("it did not come before the pull's deadline"))
    assert bench.seat.members.sessions[ONE.key].misses == 1
    assert bench.seat.members.sessions[TWO.key].misses == 0
