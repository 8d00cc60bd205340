"""The syncer's machine and what others may send it: every offence has an outcome and a count."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from protocol import limits, wire
from protocol.errors import LimitExceeded
from protocol.log.records import (
    BlocksLeased,
    CheckpointMarked,
    FragmentMerged,
    SeatTaken,
    read_record,
)
from protocol.log.state import SwarmState
from protocol.machine import Failed, JobDone, PeerDown, StopAsked
from protocol.messages import (
    Committed,
    Cursor,
    Decline,
    Evaluation,
    Goodbye,
    LeaseRequest,
    Pull,
    Push,
    Refused,
    Settled,
    Welcome,
)
from protocol.project import LimitSpec
from protocol.signing import seal
from protocol.trace import PeerMisbehaved, SessionClosed, SessionRefused
from syncer_node.machine.jobs import Adopt, FetchPush, InitialiseWeights, Merge, PushRefused
from syncer_node.machine.leadership import Phase
from syncer_node.machine.text_supply import BLOCKS_HELD_MAX
from syncer_node.raft.jobs import Append, Appended
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    THREE,
    TWO,
    Log,
    SyncerBench,
    actions,
    contribution,
    digest_of,
    disconnected,
    facts,
    founded,
    heartbeat,
    hello,
    merged,
    project,
    push_header,
    rounds,
    sealed_push,
    state_digests,
    stops,
    weights,
)

DUO = project(rounds(quorum=2))


def committed(bench, peer, kind):
    """Bodies of this kind that were broadcast to the peer."""
    entries = [entry for said in bench.all(peer, Committed) for entry in said.entries]
    found = [read_record(entry.record).body for entry in entries]
    return [body for body in found if isinstance(body, kind)]


def in_round(tiny=DUO):
    """Two learners that were just asked for fragment 0."""
    bench = SyncerBench(tiny).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    assert set(pulls) == {ONE.key, TWO.key}
    return bench, pulls


def merged_parts(bench, peer=TWO.key):
    (body,) = committed(bench, peer, FragmentMerged)
    return [part.learner for part in body.contributions]


# Hello


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wire_version": limits.WIRE_VERSION - 1}, "wire-version"),
        ({"wire_version": limits.WIRE_VERSION + 1}, "wire-version"),
        ({"project": digest_of("other")}, "wrong-project"),
        ({"layout": digest_of("other")}, "wrong-layout"),
    ],
)
def test_a_hello_that_cannot_be_served_is_refused_for_good_and_counted(changes, reason):
    bench = SyncerBench().start()
    effects = bench.say(ONE.key, hello(**changes))
    refused = bench.last(ONE.key, Refused)
    assert (refused.reason, refused.retry_after_s) == (reason, None)
    assert disconnected(effects) == [ONE.key]
    assert bench.machine.faults == {reason: 1}
    assert facts(effects, SessionRefused)[0].reason == reason
    assert not list(bench.seat.members.live())


def test_a_banned_key_is_refused_for_good():
    charter = msgspec.structs.replace(project().charter, banned=(ONE.key,))
    bench = SyncerBench(charter=charter).start(TWO)
    bench.join(ONE)
    assert bench.last(ONE.key, Refused).reason == "banned"
    assert bench.last(ONE.key, Refused).retry_after_s is None
    assert bench.last(TWO.key, Welcome) is not None


def test_an_older_session_of_a_key_that_is_here_is_refused():
    bench = SyncerBench().start()
    bench.join(ONE, incarnation=5)
    bench.join(ONE, incarnation=4)
    assert bench.last(ONE.key, Refused).reason == "stale-incarnation"
    assert bench.seat.members.sessions[ONE.key].incarnation == 5


def test_more_learners_than_the_charter_allows_are_asked_to_come_later():
    limit = LimitSpec(10**9, 1, 20, 8, 60.0, 64)
    bench = SyncerBench(project(limit=limit)).start(ONE, TWO)
    refused = bench.last(TWO.key, Refused)
    assert refused.reason == "full"
    assert refused.retry_after_s > 0
    assert bench.machine.faults == {}
    bench.feed(PeerDown(ONE.key, "left"))
    bench.join(TWO)
    assert bench.last(TWO.key, Welcome) is not None


def test_before_there_are_weights_learners_are_asked_to_come_later():
    bench = SyncerBench()
    bench.hold = {InitialiseWeights}
    bench.start(ONE)
    refused = bench.last(ONE.key, Refused)
    assert refused.reason == "not-ready"
    assert refused.retry_after_s > 0


def test_learners_come_into_a_new_epoch_only_once_its_charter_is_in_the_log():
    bench = SyncerBench().start(ONE)
    setup = bench.seat.setup
    bench.seat.setup = replace(setup, charter=msgspec.structs.replace(setup.charter, epoch=1))
    bench.join(TWO)
    refused = bench.last(TWO.key, Refused)
    assert refused.reason == "not-ready"
    assert refused.retry_after_s > 0
    assert bench.last(TWO.key, Welcome) is None


def test_a_newcomer_gets_the_certified_index():
    bench = SyncerBench().start(ONE)
    welcome = bench.last(ONE.key, Welcome)
    assert welcome.index.log_index == bench.machine.state.index
    assert welcome.index.head == bench.machine.state.head


def test_a_learner_that_knows_the_head_continues_its_log():
    bench = SyncerBench().start(ONE)
    head, index = bench.machine.state.head, bench.machine.state.index
    bench.say(ONE.key, LeaseRequest(4))
    bench.join(TWO, head=head, head_index=index)
    assert bench.last(TWO.key, Welcome).index is None
    assert len(committed(bench, TWO.key, BlocksLeased)) == 1


@pytest.mark.parametrize("head_index", [1, 2, 10**6])
def test_a_learner_of_another_history_starts_from_the_index(head_index):
    bench = SyncerBench().start()
    bench.join(ONE, head=digest_of("other"), head_index=head_index)
    assert bench.last(ONE.key, Welcome).index is not None


# Before and after a session


@pytest.mark.parametrize(
    "message",
    [heartbeat(), sealed_push(), Decline(1, 0, ""), LeaseRequest(1), Evaluation(1, 1.0, 1, 1.0)],
    ids=lambda message: type(message).__name__,
)
def test_whatever_is_said_before_hello_is_unexpected_and_counted(message):
    bench = SyncerBench().start()
    effects = bench.say(ONE.key, message)
    assert bench.machine.faults == {"unexpected-message": 1}
    assert facts(effects, PeerMisbehaved)[0].peer == ONE.key
    assert ONE.key not in bench.sent


@pytest.mark.parametrize(
    "message",
    [Pull(1, 0, 0), Committed(()), Refused("no", "no", None), Settled(1, 1, "late", "")],
    ids=lambda message: type(message).__name__,
)
def test_what_only_a_syncer_says_is_unexpected_from_a_learner(message):
    bench = SyncerBench().start(ONE)
    bench.say(ONE.key, message)
    assert bench.machine.faults == {"unexpected-message": 1}
    assert bench.seat.members.sessions[ONE.key].faults == {"unexpected-message": 1}


def test_a_restarted_learner_replaces_its_session_and_its_blocks_come_back():
    bench = SyncerBench().start(ONE)
    bench.say(ONE.key, LeaseRequest(4))
    assert (ONE.key, 1) in bench.machine.state.leases.held
    bench.join(ONE, incarnation=2)
    assert (ONE.key, 1) not in bench.machine.state.leases.held
    assert [s.start for s in bench.machine.state.leases.returned] == [0]


def test_a_silent_learner_is_dropped_and_its_blocks_are_leased_again_later():
    bench = SyncerBench().start(ONE)
    bench.say(ONE.key, LeaseRequest(4))
    effects = bench.wait(limits.GONE_AFTER_S + 1)
    assert disconnected(effects) == [ONE.key]
    assert facts(effects, SessionClosed)[0].peer == ONE.key
    assert (ONE.key, 1) in bench.machine.state.leases.held
    bench.wait(project().charter.limits.lease_s + 1)
    assert (ONE.key, 1) not in bench.machine.state.leases.held
    assert ONE.key not in bench.seat.members.sessions


def test_whoever_says_goodbye_is_gone_without_a_fault():
    bench = SyncerBench().start(ONE)
    effects = bench.say(ONE.key, Goodbye("done"))
    assert disconnected(effects) == [ONE.key]
    assert bench.machine.faults == {}
    assert not list(bench.seat.members.live())


# Pushes


def test_two_pushes_make_one_merge():
    bench, pulls = in_round()
    bench.push(ONE, pulls[ONE.key])
    effects = bench.push(TWO, pulls[TWO.key])
    assert merged_parts(bench) == sorted([ONE.key, TWO.key])
    assert [a.version for a in actions(effects, Adopt)] == [1]
    assert bench.seat.rounds.outcomes == {"merged": 2}
    assert bench.machine.faults == {}


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"fragment": 1}, "rejected", "wrong-fragment"),
        ({"codec": "int8"}, "rejected", "wrong-codec"),
        ({"payload_bytes": 131}, "rejected", "malformed-payload"),
        ({"payload_bytes": 2**40}, "rejected", "malformed-payload"),
        ({"base_version": 1}, "rejected", "unknown-version"),
        ({"steps": 0}, "rejected", "false-claim"),
        ({"steps": 9, "local_step": 8}, "rejected", "false-claim"),
        ({"tokens": 8 * 32 + 1}, "rejected", "false-claim"),
        ({"steps": 10**6, "local_step": 10**6}, "rejected", "false-claim"),
        ({"round": 77}, "late", "late"),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_a_push_that_cannot_count_is_told_so_and_the_others_merge(changes, outcome, reason):
    bench, pulls = in_round(project(rounds(quorum=1)))
    bench.push(ONE, pulls[ONE.key], **changes)
    settled = bench.last(ONE.key, Settled)
    assert (settled.outcome, settled.incarnation, settled.sequence) == (outcome, 1, 1)
    assert bench.seat.rounds.outcomes == {reason: 1}
    assert bench.seat.members.sessions[ONE.key].rejected == {reason: 1}
    bench.push(TWO, pulls[TWO.key])
    assert merged_parts(bench) == [TWO.key]


def at_version_three(tiny=DUO):
    """Two learners that stand on version 3 and were asked for a fragment."""
    log = Log(SeatTaken(SYNCER.key), weights(), tiny=tiny)
    for version in range(1, 4):
        for fragment in range(4):
            log.add(_merge(fragment, version))
    bench = SyncerBench(tiny, recovered=log.recovered()).start(ONE, TWO)
    bench.lease(ONE, TWO)
    for learner in (ONE, TWO):
        bench.beat(learner, versions=(3,) * 4)
    bench.wait(0.1)
    return bench


def test_a_push_against_too_old_a_version_is_stale():
    bench = at_version_three()
    pull = bench.last(ONE.key, Pull)
    assert pull.version == 3
    bench.push(ONE, pull, base_version=0)
    assert bench.last(ONE.key, Settled).outcome == "stale"
    bench.push(TWO, bench.last(TWO.key, Pull), base_version=1)
    assert bench.last(TWO.key, Settled) is None


@pytest.mark.parametrize(
    ("rule", "weight"), [("quality", 256 * 32.0), ("tokens", 256.0), ("equal", 1.0)]
)
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_push_weighs_less_for_each_version_that_it_lags_behind(rule, weight, lag):
    bench = at_version_three(project(rounds(quorum=2, weights=rule)))
    bench.push(ONE, bench.last(ONE.key, Pull), base_version=3 - lag)
    bench.push(TWO, bench.last(TWO.key, Pull))
    (body,) = committed(bench, TWO.key, FragmentMerged)
    weights = {part.learner: part.weight for part in body.contributions}
    assert weights == {ONE.key: weight / (1 + lag), TWO.key: weight}


def _merge(fragment, version):
    step = 4 * (version - 1) + fragment + 1
    return merged(
        round=step,
        global_step=step,
        fragment=fragment,
        version=version,
        state=state_digests(fragment, version),
    )


def test_a_push_signed_by_somebody_else_is_a_fault_and_the_round_goes_on():
    bench, pulls = in_round()
    header = push_header(round=1, project=DUO.project)
    forged = Push(seal("push", DUO.project, wire.encode(header), STRANGER))
    bench.say(ONE.key, forged)
    assert bench.machine.faults == {"bad-signature": 1}
    assert bench.seat.members.sessions[ONE.key].faults == {"bad-signature": 1}
    for learner in (ONE, TWO):
        bench.push(learner, pulls[learner.key], project=DUO.project)
    assert merged_parts(bench) == sorted([ONE.key, TWO.key])


def test_a_push_with_a_flipped_bit_is_a_fault():
    bench, _ = in_round()
    envelope = sealed_push(ONE, project=DUO.project).header
    spoilt = msgspec.structs.replace(envelope, payload=envelope.payload[:-1] + b"\x07")
    bench.say(ONE.key, Push(spoilt))
    assert bench.machine.faults == {"bad-signature": 1}


def test_a_signed_push_that_does_not_decode_is_a_fault():
    bench, _ = in_round()
    bench.say(ONE.key, Push(seal("push", DUO.project, b"\xc1", ONE)))
    assert bench.machine.faults == {"malformed": 1}


@pytest.mark.parametrize("changes", [{"project": digest_of("other")}, {"incarnation": 2}])
def test_a_push_of_another_project_or_session_is_a_fault(changes):
    bench, pulls = in_round()
    bench.push(ONE, pulls[ONE.key], **changes)
    assert bench.machine.faults == {"unexpected-message": 1}


def test_a_push_that_nobody_asked_for_is_late():
    bench, _ = in_round()
    bench.join(THREE)
    bench.say(THREE.key, sealed_push(THREE, project=DUO.project))
    assert bench.last(THREE.key, Settled).outcome == "late"


def test_the_same_push_twice_counts_once():
    bench, pulls = in_round()
    bench.hold = {FetchPush}
    bench.push(ONE, pulls[ONE.key])
    bench.push(ONE, pulls[ONE.key])
    assert len(bench.jobs(FetchPush)) == 1
    assert bench.last(ONE.key, Settled) is None


def test_a_push_said_again_after_its_round_is_told_the_same_fate():
    bench, pulls = in_round(project(rounds(quorum=1)))
    bench.push(ONE, pulls[ONE.key], steps=0)
    bench.push(TWO, pulls[TWO.key])
    first = bench.last(ONE.key, Settled)
    bench.push(ONE, pulls[ONE.key], steps=0)
    assert bench.all(ONE.key, Settled) == [first, first]
    assert bench.seat.rounds.outcomes == {"false-claim": 1, "merged": 1}


def test_a_learner_that_lost_its_link_during_the_fetch_learns_the_fate_of_its_push():
    bench, pulls = in_round()
    bench.hold = {FetchPush}
    bench.push(ONE, pulls[ONE.key])
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.done(FetchPush, Failed("unreachable"))  # Told to nobody: the stream is gone.
    told = len(bench.all(ONE.key, Settled))
    bench.join(ONE)
    bench.push(ONE, pulls[ONE.key])  # What a learner says again after every welcome.
    assert [s.outcome for s in bench.all(ONE.key, Settled)[told:]] == ["abandoned"]


def test_a_payload_that_is_not_what_was_announced_is_rejected_and_the_others_merge():
    bench, pulls = in_round(project(rounds(quorum=1)))
    bench.hold = {FetchPush}
    bench.push(ONE, pulls[ONE.key])
    bench.done(FetchPush, PushRefused("malformed-payload", "not finite"))
    assert bench.last(ONE.key, Settled).outcome == "rejected"
    bench.hold = set()
    bench.push(TWO, pulls[TWO.key])
    assert merged_parts(bench) == [TWO.key]


def test_a_payload_that_cannot_be_fetched_is_abandoned_not_blamed():
    bench, pulls = in_round()
    bench.hold = {FetchPush}
    bench.push(ONE, pulls[ONE.key])
    bench.done(FetchPush, Failed("unreachable"))
    settled = bench.last(ONE.key, Settled)
    assert (settled.outcome, settled.reason) == ("abandoned", "unreachable")
    assert bench.machine.faults == {}


def test_a_learner_that_leaves_mid_round_is_not_waited_for():
    bench, pulls = in_round(project(rounds(quorum=1)))
    bench.hold = {FetchPush}
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.hold = set()
    bench.push(TWO, pulls[TWO.key])
    assert merged_parts(bench) == [TWO.key]


def test_a_push_of_a_learner_that_left_after_it_still_counts():
    bench, pulls = in_round()
    bench.push(ONE, pulls[ONE.key])
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.push(TWO, pulls[TWO.key])
    assert merged_parts(bench) == sorted([ONE.key, TWO.key])


def test_a_round_in_which_all_decline_is_abandoned_and_another_opens():
    bench, pulls = in_round(project(rounds(quorum=1)))
    for learner in (ONE, TWO):
        bench.say(learner.key, Decline(pulls[learner.key].round, 0, "busy"))
    assert [current.number for current in bench.seat.rounds.rounds.values()] != [1]
    assert committed(bench, ONE.key, FragmentMerged) == []


def test_a_decline_of_a_round_that_is_not_there_changes_nothing():
    bench, _ = in_round()
    before = list(bench.seat.rounds.rounds)
    bench.say(ONE.key, Decline(99, 0, "busy"))
    assert list(bench.seat.rounds.rounds) == before


def test_a_failed_merge_pauses_merging_and_goes_on_after_a_while():
    bench, pulls = in_round()
    bench.hold = {Merge}
    for learner in (ONE, TWO):
        bench.push(learner, pulls[learner.key])
    bench.done(Merge, Failed("the disk is full"))
    assert bench.last(ONE.key, Settled).outcome == "abandoned"
    assert bench.seat.rounds.stalled == "the disk is full"
    assert not bench.seat.rounds.rounds
    bench.beat(ONE, local_step=20)
    bench.beat(TWO, local_step=20)
    assert not bench.seat.rounds.rounds
    bench.wait(6.0)
    assert bench.seat.rounds.rounds


# Leases and evaluations


def test_a_flood_of_lease_requests_is_bounded():
    bench = SyncerBench().start(ONE)
    for _ in range(200):
        bench.say(ONE.key, LeaseRequest(4096))
    held = bench.machine.state.leases.unread((ONE.key, 1))
    assert held <= BLOCKS_HELD_MAX + project().charter.limits.lease_blocks


def test_a_flood_of_lease_requests_does_not_keep_others_waiting():
    bench = SyncerBench().start(ONE, TWO)
    bench.hold = {Append}
    for _ in range(500):
        bench.say(ONE.key, LeaseRequest(1))
    bench.say(TWO.key, LeaseRequest(8))
    for _ in range(4):
        if (TWO.key, 1) in bench.machine.state.leases.held:
            break
        bench.store()
    assert (TWO.key, 1) in bench.machine.state.leases.held


def test_two_leases_never_name_the_same_blocks():
    bench = SyncerBench().start(ONE, TWO)
    bench.hold = {Append}
    for learner in (ONE, TWO):
        bench.say(learner.key, LeaseRequest(8))
    assert len(bench.jobs(Append)) == 1
    bench.hold = set()
    bench.store()
    spans = [span for body in committed(bench, ONE.key, BlocksLeased) for span in body.spans]
    assert [(span.start, span.stop) for span in spans] == [(0, 8), (8, 16)]


def test_an_evaluation_of_somebody_who_was_not_asked_is_ignored():
    bench = SyncerBench().start(TWO)
    bench.join(ONE, evaluates=True)
    bench.beat(ONE)
    bench.beat(TWO)
    bench.wait(0.1)
    mark = bench.machine.state.checkpoint
    assert committed(bench, ONE.key, CheckpointMarked)[0].evaluator == ONE.key
    bench.say(TWO.key, Evaluation(mark, 0.001, 100, 1.0))
    bench.say(ONE.key, Evaluation(mark + 1, 0.001, 100, 1.0))
    assert bench.machine.state.curve == []
    bench.say(ONE.key, Evaluation(mark, 2.0, 100, 1.0))
    bench.say(ONE.key, Evaluation(mark, 1.0, 100, 1.0))
    assert [point.loss for point in bench.machine.state.curve] == [2.0]


def test_an_evaluator_that_leaves_is_passed_over():
    bench = SyncerBench().start()
    for learner in (ONE, TWO):
        bench.join(learner, evaluates=True)
    bench.beat(ONE)
    bench.wait(0.1)
    assert bench.seat.evaluating.evaluator == ONE.key
    bench.beat(TWO)
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.wait(0.1)
    assert bench.seat.evaluating.evaluator == TWO.key


# The log


def test_nothing_is_broadcast_before_it_is_stored():
    bench = SyncerBench().start(ONE)
    bench.hold = {Append}
    bench.say(ONE.key, LeaseRequest(8))
    assert committed(bench, ONE.key, BlocksLeased) == []
    bench.store()
    assert len(committed(bench, ONE.key, BlocksLeased)) == 1


def test_a_disk_that_refuses_a_record_is_tried_again_and_nothing_opens_meanwhile():
    bench = SyncerBench().start(ONE)
    bench.hold = {Append}
    bench.say(ONE.key, LeaseRequest(8))
    bench.done(Append, Failed("the disk is full"))
    assert bench.machine.raft.replication.store_trouble == "the disk is full"
    bench.beat(ONE)
    assert bench.last(ONE.key, Pull) is None
    bench.hold = set()
    bench.wait(6.0)
    assert len(committed(bench, ONE.key, BlocksLeased)) == 1
    assert bench.machine.raft.replication.store_trouble == ""
    assert bench.last(ONE.key, Pull) is not None


def test_an_answer_to_a_job_that_is_answered_already_changes_nothing():
    bench = SyncerBench().start(ONE)
    index = bench.machine.state.index
    for number in range(1, 10):
        bench.feed(JobDone(number, Appended(number)))
    assert bench.machine.state.index == index


def test_a_restarted_syncer_goes_on_with_a_new_term_and_the_same_history():
    log = founded(weights(), _merge(0, 1))
    before = log.state.index
    bench = SyncerBench(recovered=log.recovered()).start(ONE)
    state = bench.machine.state
    assert (state.term, state.index, state.global_step) == (2, before + 1, 1)
    assert bench.seat.phase is Phase.TRAINING
    assert bench.last(ONE.key, Welcome).index.log_index == before + 1


def test_weights_that_cannot_be_made_stop_the_syncer():
    bench = SyncerBench()
    usual = bench.answer
    bench.answer = lambda job: (
        Failed("no room") if isinstance(job, InitialiseWeights) else usual(job)
    )
    effects = bench.start().effects
    assert [stop.exit_code for stop in stops(effects)] == [1]
    assert "no room" in stops(effects)[0].reason


def test_who_is_stopped_says_goodbye():
    bench = SyncerBench().start(ONE, TWO)
    effects = bench.feed(StopAsked("owner"))
    assert bench.last(ONE.key, Goodbye) == bench.last(TWO.key, Goodbye) == Goodbye("owner")
    assert [stop.exit_code for stop in stops(effects)] == [0]


def test_a_run_ends_when_its_tokens_are_merged_and_a_last_mark_is_made():
    limit = LimitSpec(64, 256, 20, 8, 60.0, 64)
    tiny = project(rounds(quorum=1), limit)
    bench = SyncerBench(tiny).start(ONE)
    pulls = bench.train(ONE)
    bench.push(ONE, pulls[ONE.key], project=tiny.project, cursor=Cursor(4, 0))
    for _ in range(5):
        bench.wait(1.0)
    assert bench.seat.phase is Phase.ENDED
    state = bench.machine.state
    assert (state.ended.global_step, state.checkpoint_step) == (1, 1)
    assert state.ended.tokens == state.tokens == 64


def test_a_mark_that_nobody_evaluated_yet_survives_a_restart_from_its_checkpoint():
    log = Log(SeatTaken(SYNCER.key), weights(), CheckpointMarked(0, ONE.key))
    restored = SwarmState.restore(log.state.summary(), log.state.block_sequences)
    assert restored.marks == log.state.marks != {}


# Large swarms, slow learners, liars


def slow_third(**spec):
    """Two learners that are ready and a third that is not, with a quorum of all three."""
    bench = SyncerBench(project(rounds(quorum=3, patience_s=5.0, **spec))).start(ONE, TWO, THREE)
    for _ in range(3):
        bench.wait(4.0)
        for learner, steps in ((ONE, 8), (TWO, 8), (THREE, 0)):
            bench.beat(learner, steps=(steps,) * 4, step_s=0.5 if steps else 5.0)
    return bench


def test_a_syncer_that_waits_for_a_slow_learner_sleeps_meanwhile():
    bench = slow_third()
    bench.wait(0.5)
    assert bench.wake_s > bench.now_s


def big_log(participants=256):
    """As many records as a returning learner may have missed, each with many participants."""
    log = Log(SeatTaken(SYNCER.key), weights())
    for number in range(1, 65):
        parts = tuple(
            contribution(learner=digest_of(at), incarnation=1_700_000_000_000 + at)
            for at in range(participants)
        )
        fragment, version = (number - 1) % 4, (number - 1) // 4 + 1
        log.add(
            merged(
                round=number,
                global_step=number,
                fragment=fragment,
                version=version,
                state=state_digests(fragment, version),
                contributions=parts,
            )
        )
    return log


def test_a_returning_learner_of_a_large_swarm_gets_frames_that_fit():
    log = big_log()
    bench = SyncerBench(recovered=log.recovered()).start()
    try:
        bench.join(ONE, head=log.entries[2].certificate.record, head_index=3)
    except LimitExceeded as error:
        pytest.fail(f"the syncer said more than a frame holds: {error}")
    assert len(committed(bench, ONE.key, FragmentMerged)) == 63


def test_one_learner_with_an_invented_step_time_does_not_stop_the_others():
    bench = SyncerBench(DUO).start(ONE, TWO, THREE)
    bench.beat(THREE, step_s=1e-6, steps=(0,) * 4)
    for _ in range(60):
        bench.wait(1.0)
        bench.beat(THREE, step_s=1e-6, steps=(0,) * 4)
        bench.beat(ONE)
        bench.beat(TWO)
    assert bench.last(ONE.key, Pull) is not None


def test_one_learner_cannot_claim_the_whole_token_budget():
    limit = LimitSpec(10**9, 256, 20, 8, 60.0, 64)
    tiny = project(rounds(quorum=1), limit)
    bench = SyncerBench(tiny).start(ONE)
    bench.lease(ONE)
    bench.beat(ONE, local_step=10**9)
    pull = bench.last(ONE.key, Pull)
    bench.push(ONE, pull, project=tiny.project, steps=10**9, local_step=10**9, tokens=32 * 10**9)
    assert not bench.machine.state.is_ending
