"""A learner and those who lead one after the other: when it looks around, and when it goes over."""

from __future__ import annotations

import msgspec
import pytest

from node.machine.jobs import FindSeat, FollowLeader, UseCharter
from node.machine.syncer_link import Link
from protocol import limits
from protocol.log.records import CharterAdopted, Record, SeatTaken, record_hash
from protocol.machine import Connect, Do, Failed, PeerDown, PeerUp
from protocol.messages import Alive, Hello, Refused, Welcome
from protocol.project import Voter
from simulator.stand_ins.tiny import SimSigner
from tests.support.builders import (
    SYNCER,
    LearnerBench,
    certified,
    disconnected,
    founded,
    merged,
    sealed_charter,
    seat_found,
    weights,
)

OTHER = SimSigner("another syncer")
QUIET_S = limits.LEADER_SUSPECT_AFTER_S + 0.5


@pytest.fixture
def log():
    return founded(weights())


@pytest.fixture
def bench(log):
    made = LearnerBench().follow(log)
    made.hold = {FindSeat}
    return made


def dialled(effects):
    return [effect.peer for effect in effects if isinstance(effect, Connect)]


def done(effects, kind):
    """Actions of this kind."""
    actions = [effect.action for effect in effects if isinstance(effect, Do)]
    return [action for action in actions if isinstance(action, kind)]


def quiet(bench):
    """The leader was silent for so long that the learner looks around."""
    bench.wait(QUIET_S)
    assert len(bench.jobs(FindSeat)) == 1


def answer(bench, result):
    return bench.done(FindSeat, result)


def test_a_leader_that_is_heard_is_not_doubted(bench):
    for _ in range(20):
        bench.wait(1.0)
        bench.say(SYNCER.key, Alive(4))
    assert bench.jobs(FindSeat) == []


def test_a_silent_leader_is_looked_behind_while_the_link_stays(bench):
    quiet(bench)
    assert bench.machine.link is Link.FOLLOWING
    bench.wait(limits.LEADER_SUSPECT_AFTER_S)
    assert len(bench.jobs(FindSeat)) == 1


def test_another_leader_of_a_newer_term_is_gone_over_to_at_once(bench):
    quiet(bench)
    before_s = bench.now_s
    effects = answer(bench, seat_found(bench.charter, leader=OTHER.key, term=2))
    assert disconnected(effects) == [SYNCER.key]
    assert dialled(effects) == [OTHER.key]
    assert done(effects, FollowLeader) == [FollowLeader(OTHER.key)]
    assert bench.jobs(FindSeat) == []
    assert bench.now_s == before_s
    bench.feed(PeerUp(OTHER.key))
    said = bench.last(OTHER.key, Hello)
    assert said.head_index == bench.machine.context.state.index
    bench.say(OTHER.key, Welcome(bench.charter, 0, 2, None))
    assert bench.machine.link is Link.FOLLOWING
    bench.feed(PeerDown(SYNCER.key, "another leader was elected"))
    assert bench.machine.link is Link.FOLLOWING


@pytest.mark.parametrize(
    ("leader", "term"),
    [(SYNCER, 1), (SYNCER, 2), (OTHER, 1), (OTHER, 0)],
    ids=["the same", "the same elected again", "another of the same term", "a former one"],
)
def test_who_was_not_elected_later_is_not_gone_over_to(bench, leader, term):
    quiet(bench)
    effects = answer(bench, seat_found(bench.charter, leader=leader.key, term=term))
    assert bench.machine.link is Link.FOLLOWING
    assert disconnected(effects) == []
    assert done(effects, FollowLeader) == []
    assert bench.machine.context.leader == SYNCER.key


def test_a_look_around_that_fails_keeps_the_link_and_is_repeated(bench):
    for _ in range(3):
        quiet(bench)
        answer(bench, Failed("nobody announces itself"))
        assert bench.machine.link is Link.FOLLOWING
    bench.say(SYNCER.key, Alive(4))
    assert bench.machine.link is Link.FOLLOWING


def test_a_leader_that_is_silent_for_good_is_left(bench):
    quiet(bench)
    answer(bench, Failed("nobody announces itself"))
    effects = bench.wait(limits.GONE_AFTER_S)
    assert SYNCER.key in disconnected(effects)
    assert bench.machine.link is not Link.FOLLOWING


def test_a_syncer_that_stands_by_sends_learners_on_after_its_stated_pause():
    bench = LearnerBench().greet()
    effects = bench.say(SYNCER.key, Refused("not-leading", "this syncer is a standby", 1.0))
    assert disconnected(effects) == [SYNCER.key]
    assert bench.machine.link is Link.WAITING
    bench.hold = {FindSeat}
    bench.wait(1.5)
    assert dialled(answer(bench, seat_found(bench.charter, leader=OTHER.key, term=2))) == [
        OTHER.key
    ]


# Voters that change


def test_after_a_change_of_voters_only_the_new_ones_prove_records(bench, log):
    charter = msgspec.structs.replace(
        log.tiny.charter, revision=2, voters=(Voter(OTHER.key, "syncer", 50),)
    )
    change = CharterAdopted(sealed_charter(charter))
    effects = bench.commit(certified(following(log, change), SYNCER, OTHER))
    assert bench.machine.context.charter == charter
    assert done(effects, UseCharter) == [UseCharter(charter)]
    assert bench.machine.link is Link.FOLLOWING
    step = following(log, merged())
    effects = bench.commit(certified(step, SYNCER))
    assert disconnected(effects) == [SYNCER.key]
    assert bench.machine.context.tally.faults == {"bad-signature": 1}
    assert bench.machine.context.state.global_step == 0


def test_new_voters_prove_what_comes_after_their_charter(bench, log):
    charter = msgspec.structs.replace(
        log.tiny.charter, revision=2, voters=(Voter(OTHER.key, "syncer", 50),)
    )
    change = certified(following(log, CharterAdopted(sealed_charter(charter))), SYNCER, OTHER)
    bench.commit(change, certified(following(log, SeatTaken(OTHER.key)), OTHER))
    bench.commit(certified(following(log, merged()), OTHER))
    assert bench.machine.context.state.global_step == 1
    assert bench.machine.context.state.leader == OTHER.key
    assert bench.machine.context.tally.faults == {}


def test_a_change_that_only_one_side_signed_is_refused(bench, log):
    charter = msgspec.structs.replace(
        log.tiny.charter, revision=2, voters=(Voter(OTHER.key, "syncer", 50),)
    )
    effects = bench.commit(
        certified(following(log, CharterAdopted(sealed_charter(charter))), SYNCER)
    )
    assert disconnected(effects) == [SYNCER.key]
    assert bench.machine.context.charter.revision == 1


def following(log, body) -> Record:
    """The next record of this log, which takes it in."""
    log.add(body)
    assert log.state.head == record_hash(log.entries[-1].record)
    return log.records[-1]
