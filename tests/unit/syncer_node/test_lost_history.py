"""A syncer whose log lacks what learners can prove leads no further; a claim alone stops nobody."""

from __future__ import annotations

import msgspec
import pytest

from protocol import limits
from protocol.log.records import CheckpointMarked, SeatTaken
from protocol.messages import YOUNGER, Goodbye, Refused, Watch, Welcome
from protocol.trace import PhaseChanged
from syncer_node.daemon import status
from syncer_node.machine.jobs import InitialiseWeights
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    THREE,
    TWO,
    Log,
    SyncerBench,
    certified,
    digest_of,
    facts,
    heartbeat,
    project,
    weights,
)


def long_log(epoch=0):
    """A log that is longer than that of a syncer that has just begun."""
    log = Log(SeatTaken(SYNCER.key), weights())
    for number in range(20):
        log.add(CheckpointMarked(number, None))
    if epoch:
        log.records[-1] = msgspec.structs.replace(log.records[-1], epoch=epoch)
        log.entries[-1] = certified(log.records[-1])
    return log


def proof_of(log):
    return log.entries[-1].certificate


def known(log):
    return {"head_index": log.state.index, "head": log.state.head}


def test_a_proven_record_behind_the_logs_end_stops_the_syncer():
    bench = SyncerBench().start(ONE)
    own, log = bench.machine.state.index, long_log()
    effects = bench.join(TWO, proof=proof_of(log), **known(log))
    refused = bench.last(TWO.key, Refused)
    assert refused.reason == YOUNGER
    assert refused.retry_after_s > 0
    assert "shoal project reset-seat" in refused.text
    assert bench.last(TWO.key, Welcome) is None
    assert bench.last(ONE.key, Goodbye) is not None
    assert bench.machine.leadership is None
    assert bench.machine.phase == "stopped"
    said = status.sentence(bench.machine, bench.now_s)
    assert f"record {log.state.index:,}" in said
    assert f"ends at record {own:,}" in said
    assert "shoal project reset-seat" in said
    assert facts(effects, PhaseChanged)[-1].phase == "stopped"


def test_a_stopped_syncer_takes_nothing_and_leads_no_more_however_long_it_runs():
    bench = SyncerBench().start(ONE)
    log = long_log()
    bench.join(TWO, proof=proof_of(log), **known(log))
    own = bench.machine.state.index
    bench.say(ONE.key, heartbeat())
    for _ in range(20):
        bench.wait(5.0)
    bench.join(THREE)
    assert bench.last(THREE.key, Refused).reason == YOUNGER
    bench.say(STRANGER.key, Watch(limits.WIRE_VERSION, project().project))
    assert bench.last(STRANGER.key, Refused).reason == YOUNGER
    assert bench.machine.leadership is None
    assert bench.machine.state.index == own


def test_it_is_stopped_before_it_has_weights():
    bench = SyncerBench()
    bench.hold = {InitialiseWeights}
    bench.start()
    log = long_log()
    bench.join(ONE, proof=proof_of(log), **known(log))
    assert bench.machine.phase == "stopped"
    assert bench.last(ONE.key, Refused).reason == YOUNGER


def test_another_record_at_a_place_that_the_log_has_stops_it_too():
    bench = SyncerBench().start(ONE)
    log = Log(SeatTaken(SYNCER.key))
    bench.join(TWO, proof=proof_of(log), **known(log))
    assert "another record 1" in bench.machine.lost.text
    assert bench.machine.phase == "stopped"


def test_a_record_that_the_log_has_is_no_news():
    bench = SyncerBench().start(ONE)
    log = bench.machine.raft.log
    for index in (1, log.last):
        bench.join(TWO, proof=log.entry(index).certificate, head_index=index)
        assert bench.last(TWO.key, Welcome) is not None
    assert bench.machine.lost is None


def forged(log):
    return msgspec.structs.replace(proof_of(log), index=10**6)


def of_strangers(log):
    return certified(log.records[-1], STRANGER, ONE).certificate


def without_votes(log):
    return msgspec.structs.replace(proof_of(log), votes=())


@pytest.mark.parametrize("forge", [forged, of_strangers, without_votes])
def test_what_a_stranger_makes_up_stops_nobody(forge):
    bench = SyncerBench().start(ONE)
    log = long_log()
    bench.join(TWO, proof=forge(log), **known(log))
    assert bench.machine.lost is None
    assert bench.last(TWO.key, Welcome).index is not None
    assert bench.machine.leadership is not None


def test_a_mere_claim_of_a_long_log_stops_nobody():
    bench = SyncerBench().start(ONE)
    bench.join(TWO, head_index=10**9, head=digest_of("made up"))
    assert bench.machine.lost is None
    assert bench.last(TWO.key, Welcome).index is not None


def test_the_proof_of_another_epoch_means_nothing():
    bench = SyncerBench().start(ONE)
    log = long_log(epoch=1)
    bench.join(TWO, proof=proof_of(log), **known(log))
    assert bench.machine.lost is None
    assert bench.machine.leadership is not None
