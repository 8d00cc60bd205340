"""A syncer says that it lives when it has said nothing else for a while."""

from __future__ import annotations

from itertools import pairwise

from protocol.limits import ALIVE_EVERY_S, ALIVE_EVERY_S_MAX
from protocol.machine import Effect, Send
from protocol.messages import Alive, Committed, LeaseRequest
from simulator.stand_ins.tiny import SimSigner
from tests.support.builders import SyncerBench

ONE, OTHER = SimSigner("one"), SimSigner("another")


def said(effects: list[Effect], kind: type) -> set[bytes]:
    """Who was sent such a message."""
    return {e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, kind)}


def test_silence_is_broken_after_a_second():
    bench = SyncerBench().start(ONE, OTHER)
    bench.wait(ALIVE_EVERY_S)
    for _ in range(3):
        assert said(bench.wait(ALIVE_EVERY_S / 2), Alive) == set()
        assert said(bench.wait(ALIVE_EVERY_S / 2), Alive) == {ONE.key, OTHER.key}


def test_a_record_that_all_hear_of_is_a_sign_of_life():
    bench = SyncerBench().start(ONE, OTHER)
    bench.wait(ALIVE_EVERY_S)
    bench.wait(ALIVE_EVERY_S / 2)
    assert said(bench.say(ONE.key, LeaseRequest(8)), Committed) == {ONE.key, OTHER.key}
    recorded_s = bench.now_s
    assert said(bench.wait(ALIVE_EVERY_S / 2), Alive) == set()
    assert bench.wake_s == recorded_s + ALIVE_EVERY_S, "the silence ends in time"
    assert said(bench.wait(ALIVE_EVERY_S / 2), Alive) == {ONE.key, OTHER.key}


def test_however_many_records_there_are_it_tells_how_often_it_wants_news():
    bench = SyncerBench().start(ONE, OTHER)
    told_s = []
    for _ in range(40):
        bench.say(ONE.key, LeaseRequest(1))
        if said(bench.wait(ALIVE_EVERY_S / 2), Alive):
            told_s.append(bench.now_s)
    pauses_s = {later - former for former, later in pairwise(told_s)}
    assert pauses_s == {ALIVE_EVERY_S_MAX}
