"""What a syncer does as its seat opens, changes its charter and closes; and while it stands by."""

from __future__ import annotations

import msgspec
import pytest

from protocol import limits
from protocol.log.records import (
    NO_RECORD,
    CharterAdopted,
    FragmentMerged,
    SeatTaken,
    read_record,
)
from protocol.machine import Connect, Failed, PeerDown, PeerUp, Started, StopAsked
from protocol.messages import (
    CharterOffer,
    Committed,
    Goodbye,
    IndexPart,
    Pull,
    Refused,
    Replicate,
    Replicated,
    Settled,
    VoterHello,
    Watch,
    Welcome,
)
from protocol.project import Voter
from protocol.trace import PhaseChanged
from simulator.stand_ins.tiny import SimSigner, tiny_project
from syncer_node.machine.jobs import (
    FetchPayload,
    FetchWeights,
    KeepCharter,
    Merge,
    PayloadKept,
    TellWatchers,
)
from syncer_node.machine.leadership import Phase
from syncer_node.machine.voter import NOT_LEADING_RETRY_S
from syncer_node.raft.jobs import Append, SaveBallot
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    THREE,
    TWO,
    Log,
    SyncerBench,
    actions,
    digest_of,
    disconnected,
    facts,
    founded,
    heartbeat,
    hello,
    merged,
    project,
    rounds,
    sealed_charter,
    stops,
    weights,
)

DUO = project(rounds(quorum=2))
OTHERS = (SimSigner("first other"), SimSigner("second other"))
TRIO = tiny_project(
    SYNCER.key,
    voters=(
        Voter(SYNCER.key, "syncer", 50),
        *(Voter(other.key, "syncer", 40) for other in OTHERS),
    ),
)
LEADER = OTHERS[0]


def bodies(bench, peer, kind):
    """Bodies of this kind that were broadcast to the peer."""
    entries = [entry for said in bench.all(peer, Committed) for entry in said.entries]
    found = [read_record(entry.record).body for entry in entries]
    return [body for body in found if isinstance(body, kind)]


def revised(tiny, **changes):
    return msgspec.structs.replace(tiny.charter, **{"revision": 2, **changes})


def offer(bench, charter):
    """The owner's hand brings a newer charter."""
    bench.now_s += 0.1
    return bench.say(STRANGER.key, CharterOffer(sealed_charter(charter, bench.tiny)))


# Another charter while it leads


def test_a_newer_charter_is_kept_committed_and_told_to_everybody():
    bench = SyncerBench(DUO).start(ONE, TWO)
    charter = revised(DUO, banned=(THREE.key,))
    effects = offer(bench, charter)
    envelope = sealed_charter(charter, DUO)
    assert [action.envelope for action in actions(effects, KeepCharter)] == [envelope]
    assert bodies(bench, ONE.key, CharterAdopted) == [CharterAdopted(envelope)]
    assert bench.machine.setup.charter == charter
    bench.join(THREE)
    assert bench.last(THREE.key, Refused).reason == "banned"


def test_a_session_that_the_new_charter_bans_is_told_and_closed():
    bench = SyncerBench(DUO).start(ONE, TWO)
    effects = offer(bench, revised(DUO, banned=(ONE.key,)))
    assert bench.last(ONE.key, Refused) == Refused(
        "banned", "the project's owner has banned this key", None
    )
    assert disconnected(effects) == [ONE.key]
    assert [session.peer for session in bench.seat.members.live()] == [TWO.key]
    assert bench.last(TWO.key, Refused) is None


def test_a_charter_that_is_not_newer_or_not_the_owners_changes_nothing():
    bench = SyncerBench(DUO).start(ONE)
    index = bench.machine.state.index
    offer(bench, revised(DUO, revision=1, banned=(ONE.key,)))
    forged = msgspec.structs.replace(sealed_charter(revised(DUO)), signature=bytes(64))
    bench.say(STRANGER.key, CharterOffer(forged))
    assert bench.machine.state.index == index
    assert bench.machine.setup.charter == DUO.charter
    assert bench.machine.faults == {"bad-signature": 1}


def test_a_merge_in_flight_ends_under_its_own_codec_and_the_next_takes_the_new_one():
    bench = SyncerBench(DUO).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.hold = {Merge}
    for learner in (ONE, TWO):
        bench.push(learner, pulls[learner.key], project=DUO.project)
    (under_way,) = bench.jobs(Merge)
    outer = msgspec.structs.replace(DUO.charter.outer, learning_rate=0.25)
    offer(bench, revised(DUO, rounds=rounds(quorum=2, down_codec="int8"), outer=outer))
    bench.hold = set()
    bench.done(Merge, bench.answer(under_way))
    (first,) = bodies(bench, ONE.key, FragmentMerged)
    assert (first.codec, first.learning_rate) == ("int4", DUO.charter.outer.learning_rate)
    bench.now_s += 10.0
    for learner in (ONE, TWO):
        bench.beat(learner, steps=(8,) * 4, versions=(1, 0, 0, 0), local_step=20, tokens=20 * 32)
    bench.wait(0.05)
    for learner in (ONE, TWO):
        pull = bench.last(learner.key, Pull)
        bench.push(learner, pull, project=DUO.project, sequence=2, local_step=20)
    second = bodies(bench, ONE.key, FragmentMerged)[-1]
    assert second.fragment != first.fragment
    assert (second.codec, second.learning_rate) == ("int8", 0.25)


def test_another_token_budget_ends_the_run_when_it_is_reached():
    bench = SyncerBench(DUO).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    for learner in (ONE, TWO):
        bench.push(learner, pulls[learner.key], project=DUO.project)
    assert bench.seat.phase is Phase.TRAINING
    budget = msgspec.structs.replace(DUO.charter.limits, tokens=1)
    offer(bench, revised(DUO, limits=budget))
    bench.wait(1.0)
    assert bench.seat.phase is not Phase.TRAINING


def test_a_newer_charter_survives_a_restart_and_goes_to_those_who_join():
    log = founded(weights())
    newest = sealed_charter(revised(log.tiny))
    log.add(CharterAdopted(newest))
    bench = SyncerBench(recovered=log.recovered(), charter=revised(log.tiny)).start(ONE)
    welcome = bench.last(ONE.key, Welcome)
    assert welcome.charter == newest
    part = bench.last(ONE.key, IndexPart)
    assert [one.charter for one in part.charters] == [log.records[1].body.charter, newest]


# The end of a seat


def test_an_answer_to_the_former_seat_means_nothing_to_the_next():
    bench = SyncerBench(DUO).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.hold = {Merge}
    for learner in (ONE, TWO):
        bench.push(learner, pulls[learner.key], project=DUO.project)
    former = bench.seat
    bench.machine._close_leadership("another one was elected")
    bench.wait(0.1)
    assert bench.seat is not former
    for learner in (ONE, TWO):
        bench.join(learner)
        bench.beat(learner, local_step=20, tokens=20 * 32)
    bench.wait(1.0)
    (current,) = bench.seat.rounds.rounds.values()
    assert current.number == 1
    index = bench.machine.state.index
    late = bench.jobs(Merge)[0]
    bench.done(Merge, bench.answer(late))
    assert bench.machine.state.index == index
    assert bodies(bench, ONE.key, FragmentMerged) == []
    assert list(bench.seat.rounds.rounds.values()) == [current]


def test_who_asks_the_next_seat_for_the_fate_of_a_push_hears_that_it_is_void():
    bench = SyncerBench(DUO).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.push(ONE, pulls[ONE.key], project=DUO.project)
    bench.machine._close_leadership("another one was elected")
    bench.wait(0.1)
    bench.join(ONE)
    bench.push(ONE, pulls[ONE.key], project=DUO.project)
    assert bench.last(ONE.key, Settled).outcome in ("late", "abandoned")
    assert bench.machine.faults == {}


def test_a_closed_seat_says_goodbye_so_that_learners_look_elsewhere():
    bench = SyncerBench(DUO).start(ONE, TWO)
    bench.machine._close_leadership("another one was elected")
    effects = bench.wait(0.1)
    assert bench.last(ONE.key, Goodbye) == Goodbye("another one was elected")
    assert set(disconnected(effects)) == {ONE.key, TWO.key}


# Standing by


def standby():
    """One of three syncers that nobody leads yet."""
    bench = SyncerBench(TRIO)
    bench.feed(Started())
    return bench


def led(bench, log, *, hold=()):
    """Somebody else leads, and sends its log."""
    bench.hold = {FetchPayload, FetchWeights, *hold}
    bench.feed(PeerUp(LEADER.key))
    bench.say(
        LEADER.key,
        VoterHello(
            wire_version=limits.WIRE_VERSION,
            project=TRIO.project,
            disk=digest_of("disk of the leader"),
            boot=1,
            nonce=1,
            epoch=0,
            term=1,
            charter=sealed_charter(TRIO.charter, TRIO),
            addresses=(),
        ),
    )
    return say_log(bench, log)


def say_log(bench, log):
    """What the leader says again and again."""
    message = Replicate(
        epoch=0,
        term=1,
        previous_index=0,
        previous=NO_RECORD,
        records=tuple(log.encoded),
        certified=0,
        beat=1,
    )
    return bench.say(LEADER.key, message)


def stored(bench):
    """Last record that this host told the leader it has."""
    return bench.last(LEADER.key, Replicated).index


def test_a_standby_dials_the_others_and_does_not_lead_by_itself():
    bench = standby()
    bench.wait(10.0)
    assert {e.peer for e in bench.effects if isinstance(e, Connect)} == {o.key for o in OTHERS}
    assert bench.machine.leadership is None
    assert bench.machine.phase == "electing"


@pytest.mark.parametrize("message", [hello(project=TRIO.project), Watch(2, TRIO.project)])
def test_who_asks_a_standby_is_sent_away_for_a_moment(message):
    bench = standby()
    bench.feed(PeerUp(ONE.key))
    effects = bench.say(ONE.key, message)
    refused = bench.last(ONE.key, Refused)
    assert (refused.reason, refused.retry_after_s) == ("not-leading", NOT_LEADING_RETRY_S)
    assert "no leader is elected" in refused.text
    assert disconnected(effects) == [ONE.key]
    assert bench.machine.faults == {}


def test_a_standby_names_the_leader_that_it_follows():
    bench = standby()
    led(bench, Log(SeatTaken(LEADER.key), tiny=TRIO))
    bench.say(ONE.key, hello(project=TRIO.project))
    assert LEADER.key.hex()[:8] in bench.last(ONE.key, Refused).text
    assert bench.machine.phase == "standby"


def test_anything_else_that_a_learner_says_to_a_standby_is_a_fault_and_no_crash():
    bench = standby()
    bench.say(ONE.key, heartbeat())
    bench.feed(PeerDown(ONE.key, "cable"))
    assert bench.machine.faults == {"unexpected-message": 1}


def test_a_standby_stores_no_record_before_the_bytes_that_it_names():
    bench = standby()
    log = Log(SeatTaken(LEADER.key), weights(), merged(), tiny=TRIO)
    led(bench, log)
    assert stored(bench) == 1
    assert [job.index for job in bench.jobs(FetchWeights)] == [2]
    assert [job.index for job in bench.jobs(FetchPayload)] == [3]
    bench.done(FetchPayload, PayloadKept())
    assert stored(bench) == 1
    bench.done(FetchWeights, PayloadKept())
    assert stored(bench) == 3
    assert bench.machine.state.index == 0


def test_a_standby_votes_for_no_record_before_it_is_stored():
    bench = standby()
    led(bench, Log(SeatTaken(LEADER.key), tiny=TRIO), hold=(Append,))
    assert bench.last(LEADER.key, Replicated).votes == ()
    bench.store()
    assert [vote.index for vote in bench.last(LEADER.key, Replicated).votes] == [1]


def test_a_voter_says_nothing_before_its_ballot_is_on_disk():
    bench = standby()
    led(bench, Log(SeatTaken(LEADER.key), tiny=TRIO), hold=(SaveBallot,))
    assert bench.last(LEADER.key, Replicated) is None
    while bench.jobs(SaveBallot):
        bench.done(SaveBallot, bench.answer(bench.jobs(SaveBallot)[0]))
    assert stored(bench) == 1


def test_a_standby_whose_disk_fails_stores_nothing_and_says_so_once():
    bench = standby()
    log = Log(SeatTaken(LEADER.key), tiny=TRIO)
    led(bench, log, hold=(Append,))
    effects = bench.done(Append, Failed("the disk is full"))
    told = [f for f in facts(effects, PhaseChanged) if f.detail == "the disk is full"]
    assert len(told) == 1
    assert not bench.machine.can_lead()
    bench.hold -= {Append}
    for _ in range(5):
        assert stored(bench) == 0
        bench.now_s += 1.2
        effects = say_log(bench, log)
    assert stored(bench) == 1
    assert [fact.detail for fact in facts(effects, PhaseChanged)] == ["the log is writable again"]


def test_a_standby_that_is_stopped_stops_at_once():
    bench = standby()
    led(bench, Log(SeatTaken(LEADER.key), tiny=TRIO))
    effects = bench.feed(StopAsked("owner"))
    assert [stop.exit_code for stop in stops(effects)] == [0]


# Learners that somebody looks at


def look(bench, learner):
    return bench.say(learner.key, Watch(limits.WIRE_VERSION, bench.tiny.project, is_once=True))


def told(effects):
    return [action.learners for action in actions(effects, TellWatchers)]


def test_a_learner_that_asks_gets_one_report():
    bench = SyncerBench(DUO).start(ONE, TWO)
    assert told(look(bench, ONE)) == [(ONE.key,)]
    assert [told(bench.wait(1.1)) for _ in range(3)] == [[], [], []]
    assert bench.last(ONE.key, Refused) is None


def test_reports_leave_once_a_second_however_many_ask_and_no_more_than_that_wait():
    bench = SyncerBench(DUO).start(ONE, TWO)
    look(bench, ONE)
    assert told(look(bench, ONE)) == []
    assert told(look(bench, TWO)) == []
    bench.seat.asking.update(dict.fromkeys(bytes([n]) * 32 for n in range(limits.WATCHERS_MAX)))
    assert len(bench.seat.asking) == limits.WATCHERS_MAX + 2
    bench.join(THREE)
    look(bench, THREE)
    assert THREE.key not in bench.seat.asking
    (asked,) = told(bench.wait(1.1))
    assert asked[:2] == (ONE.key, TWO.key)
    assert not bench.seat.asking


def test_who_is_no_learner_is_told_nothing_when_it_asks_as_one():
    bench = SyncerBench(DUO).start(ONE)
    bench.feed(PeerUp(STRANGER.key))
    effects = look(bench, STRANGER)
    assert disconnected(effects) == [STRANGER.key]
    assert told(effects) == []
    assert bench.machine.faults == {"unexpected-message": 1}


def test_who_has_gone_is_told_nothing():
    bench = SyncerBench(DUO).start(ONE, TWO)
    look(bench, ONE)
    look(bench, TWO)
    bench.feed(PeerDown(TWO.key, "cable"))
    assert told(bench.wait(1.1)) == []
