"""Rounds of what came too late for the round that asked for it, with nobody else to ask."""

from __future__ import annotations

from protocol.machine import PeerDown
from protocol.messages import Pull
from syncer_node.machine.jobs import FetchPush, PushFetched
from tests.support.builders import ONE, TWO, SyncerBench, project, rounds


def late_and_alone() -> SyncerBench:
    """Two was slow for the first round of fragment 0; its push is here now, and One is gone."""
    bench = SyncerBench(project(rounds(quorum=1))).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.hold = {FetchPush}
    bench.push(TWO, pulls[TWO.key])
    bench.hold = set()
    bench.push(ONE, pulls[ONE.key])
    assert versions(bench)[0] == 1, "merged without Two"
    bench.feed(PeerDown(ONE.key, "cable"))
    bench.done(FetchPush, PushFetched())
    return bench


def versions(bench: SyncerBench) -> list[int]:
    return [fragment.version for fragment in bench.seat.rounds.state.fragments]


def go_on(bench: SyncerBench, seconds: float, state: str) -> None:
    """Two trains or leaves, and answers what it is asked for."""
    answered = bench.last(TWO.key, Pull)
    sequence, step, ends_s = 1, 8, bench.now_s + seconds
    while bench.now_s < ends_s:
        if state == "training":
            bench.lease(TWO)
            step += 1
        bench.beat(TWO, local_step=step, versions=tuple(versions(bench)), state=state)
        bench.wait(0.25)
        pull = bench.last(TWO.key, Pull)
        if pull != answered:
            answered, sequence = pull, sequence + 1
            bench.push(TWO, pull, sequence=sequence, local_step=step, steps=1, tokens=32)


def test_one_that_trains_on_alone_is_not_held_up_by_a_push_that_was_late():
    bench = late_and_alone()
    go_on(bench, 60.0, "training")
    assert min(versions(bench)) >= 2
    assert bench.seat.rounds.stragglers == {}
    assert set(bench.seat.rounds.outcomes) == {"merged"}


def test_one_that_leaves_has_its_late_push_merged():
    bench = late_and_alone()
    go_on(bench, 60.0, "finishing")
    assert versions(bench)[0] >= 2
    assert bench.seat.rounds.stragglers == {}
