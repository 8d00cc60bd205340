"""A learner is never taken back to a log that lacks what voters signed before, but by the owner."""

from __future__ import annotations

import msgspec
import pytest

from node.daemon import status
from node.machine.jobs import FetchState
from node.machine.learner import YOUNGER_RETRY_S
from node.machine.syncer_link import Link
from protocol.log.records import CheckpointMarked, SeatTaken
from protocol.machine import Connect, PeerDown, PeerUp
from protocol.messages import YOUNGER, Hello, Refused, Welcome
from simulator.stand_ins.tiny import charter_envelope
from tests.support.builders import (
    SYNCER,
    LearnerBench,
    Log,
    disconnected,
    merged,
    project,
    state_digests,
    stops,
    weights,
)


def grown(merges=3, *, marks=0):
    log = Log(SeatTaken(SYNCER.key), weights())
    for number in range(marks):
        log.add(CheckpointMarked(number, None))
    for version in range(1, merges + 1):
        log.add(merged(version=version, state=state_digests(marks, version)))
    return log


@pytest.fixture
def log():
    return grown()


@pytest.fixture
def bench(log):
    """A learner that followed a log from its second record to its head, and lost the syncer."""
    short = Log(SeatTaken(SYNCER.key), weights())
    made = LearnerBench().follow(short)
    made.commit(*log.entries[2:])
    assert made.machine.context.state == log.state
    made.feed(PeerDown(SYNCER.key, "killed"))
    made.wait(2.0)
    made.feed(PeerUp(SYNCER.key))
    return made


def test_a_learner_shows_the_proof_of_the_newest_record_that_it_has(bench, log):
    said = bench.last(SYNCER.key, Hello)
    assert said.proof == log.entries[-1].certificate
    assert said.head_index == said.proof.index == log.state.index


def test_one_that_joined_by_an_index_shows_the_newest_origin():
    log = grown()
    log.add(CheckpointMarked(3, None))
    bench = LearnerBench().follow(log)
    bench.feed(PeerDown(SYNCER.key, "killed"))
    bench.wait(2.0)
    bench.feed(PeerUp(SYNCER.key))
    assert bench.last(SYNCER.key, Hello).proof == log.entries[-2].certificate


def test_a_newcomer_has_nothing_to_show():
    bench = LearnerBench().greet()
    assert bench.last(SYNCER.key, Hello).proof is None


def assert_stayed(bench, log, effects):
    machine = bench.machine
    assert machine.context.state == log.state, "nothing is thrown away"
    assert machine.context.proofs.head == log.entries[-1]
    assert disconnected(effects) == [SYNCER.key]
    assert stops(effects) == []
    assert machine.link is Link.WAITING
    assert machine.context.tally.faults == {}, "a host whose disk was lost is no liar"
    said = status.sentence(machine, bench.now_s)
    assert "younger history" in said
    assert "shoal project reset-seat" in said


@pytest.mark.parametrize(
    "younger",
    [Log(SeatTaken(SYNCER.key), weights()), grown(1), grown(2, marks=1), grown(3, marks=10)],
    ids=["without a merge", "a shorter log", "of equal length", "a longer log"],
)
def test_a_younger_history_is_refused_and_everything_is_kept(bench, log, younger):
    fetched = len(bench.jobs(FetchState))
    effects = bench.admit(younger)
    assert_stayed(bench, log, effects)
    assert len(bench.jobs(FetchState)) == fetched


def test_it_keeps_trying_calmly_and_goes_on_with_a_leader_that_has_its_records(bench, log):
    effects = bench.admit(grown(1))
    assert not [one for one in effects if isinstance(one, Connect)]
    bench.wait(YOUNGER_RETRY_S - 0.1)
    assert bench.machine.link is Link.WAITING
    bench.wait(20.0)
    assert bench.machine.link is Link.CONNECTING
    bench.feed(PeerUp(SYNCER.key))
    bench.say(SYNCER.key, Welcome(bench.charter, 0, 1, None))
    assert bench.machine.link is Link.FOLLOWING
    assert bench.machine.younger == ""
    assert bench.machine.context.state == log.state


def test_what_the_syncer_says_of_its_loss_is_told_on(bench, log):
    effects = bench.say(SYNCER.key, Refused(YOUNGER, "shoal project reset-seat is due", 8.0))
    assert stops(effects) == []
    assert "shoal project reset-seat is due" in status.sentence(bench.machine, bench.now_s)
    assert bench.machine.context.state == log.state


def test_the_owner_can_take_learners_back_by_a_new_epoch(bench):
    former = project().charter
    charter = msgspec.structs.replace(former, revision=former.revision + 1, epoch=1)
    younger = grown(1)
    for record in younger.records:
        assert record.epoch == 0
    bench.admit(younger, charter=charter_envelope(project(), charter))
    assert bench.machine.link is Link.FOLLOWING
    assert bench.machine.context.state.head == younger.state.head
