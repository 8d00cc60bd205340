"""What a learner asks of its leader while somebody looks, and how much that may be."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from node.daemon.swarm_view import PERIOD_S_MIN, UNANSWERED_S, SwarmView
from protocol import limits
from protocol.errors import TransientError
from tests.support import recordings

PROJECT = bytes.fromhex(recordings.PROJECT.id)


def report(learners=3, **changes):
    peers = [recordings.peer(number, 5) for number in range(learners)]
    return msgspec.msgpack.encode(recordings.syncer(5, peers, **changes))


class Bench:
    """A view of the swarm with a clock and a leader made to order."""

    def __init__(self):
        self.now_s = 100.0
        self.is_led = True
        self.asked_s = []
        self.faults = []
        self.view = SwarmView(
            PROJECT, ask=self._ask, on_fault=self.faults.append, now=lambda: self.now_s
        )

    def _ask(self):
        if self.is_led:
            self.asked_s.append(self.now_s)
        return self.is_led

    def look(self, **request):
        return asyncio.run(self.view.answer(request))

    def looks_for(self, seconds, answer=None):
        """Somebody looks twice a second, and the leader answers each request with this."""
        for _ in range(int(2 * seconds)):
            asked = len(self.asked_s)
            with contextlib.suppress(TransientError):  # Before the first report.
                self.look()
            if answer is not None and len(self.asked_s) > asked:
                self.view.take(answer)
            self.now_s += 0.5


def test_who_looks_sees_the_report_of_the_leader_and_its_age():
    bench = Bench()
    with pytest.raises(TransientError, match="has not said yet"):
        bench.look()
    bench.view.take(report())
    bench.view.take(report(64))  # A leader that says more than it was asked is not listened to.
    bench.now_s += 1.5
    seen = bench.look()
    assert (seen["number"], seen["age_s"], seen["period_s"]) == (1, 1.5, PERIOD_S_MIN)
    assert [peer["name"] for peer in seen["status"]["peers"]] == list(recordings.NAMES[:3])
    assert bench.look(seen=1)["status"] is None
    assert bench.faults == []


def test_one_look_asks_once_and_nobody_is_asked_while_nobody_looks():
    bench = Bench()
    bench.looks_for(0.5, report())
    bench.now_s += 3600.0
    assert len(bench.asked_s) == 1


def test_small_reports_come_every_two_seconds_and_large_ones_seldom():
    bench = Bench()
    bench.looks_for(60, report())
    assert len(bench.asked_s) == 60 / PERIOD_S_MIN
    large = report(limits.LEARNERS_TOLD_MAX)
    assert len(large) < 40_000
    bench = Bench()
    bench.looks_for(600, large)
    assert len(bench.asked_s) * len(large) < 610 * limits.REPORT_BYTES_PER_S


def test_a_leader_that_does_not_answer_is_not_pestered():
    bench = Bench()
    bench.looks_for(60)
    assert len(bench.asked_s) == 60 / UNANSWERED_S


def test_without_a_leader_the_old_report_is_told_at_once_with_its_age():
    bench = Bench()
    bench.looks_for(0.5, report())
    bench.is_led = False
    bench.now_s += 30.0
    assert bench.look(wait_s=1.0)["age_s"] == 30.5


def test_who_waits_hears_the_new_report():
    bench = Bench()

    async def run():
        waiting = asyncio.create_task(bench.view.answer({"wait_s": 2.0}))
        await asyncio.sleep(0)
        bench.view.take(report())
        return await waiting

    assert asyncio.run(run())["number"] == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"\xc1", "cannot be read"),
        (b"\x90" * 70_000, "cannot be read"),
        (report(project=msgspec.structs.replace(recordings.PROJECT, id="00" * 32)), "another"),
    ],
)
def test_what_is_no_report_of_this_swarm_is_a_fault_and_is_not_shown(said, words):
    bench = Bench()
    bench.looks_for(0.5, said)
    assert words in str(bench.faults[0])
    with pytest.raises(TransientError):
        bench.look()


def test_a_report_that_nobody_asked_for_is_a_fault():
    bench = Bench()
    bench.view.take(report())
    assert "nobody asked" in str(bench.faults[0])
