"""When a syncer looks at its rounds: after each push while learners are few, together when many."""

from __future__ import annotations

import pytest

from protocol.limits import ALIVE_EVERY_S, HEARTBEATS_PER_S
from protocol.machine import WakeAt
from protocol.messages import Alive, Pull
from simulator.stand_ins.tiny import SimSigner
from syncer_node.machine.look_throttle import BEATS_LOOK_S, BEATS_LOOK_S_MAX, FEW, PUSHES_LOOK_S
from tests.support.builders import SyncerBench, heartbeat, project, rounds

MANY = FEW + 4


def asked(count: int, quorum: int) -> tuple[SyncerBench, dict[SimSigner, Pull], list[float]]:
    """So many learners who were just asked for a fragment; and when the syncer looks from now."""
    learners = [SimSigner(f"one of many {at}") for at in range(count)]
    bench = SyncerBench(project(rounds(quorum=quorum))).start(*learners)
    pulls = bench.train(*learners)
    assert len(pulls) == count
    looks: list[float] = []
    look = bench.seat.look

    def counted(now_s: float, **others: bool) -> None:
        looks.append(now_s)
        look(now_s, **others)

    bench.seat.look = counted  # type: ignore[method-assign]
    return bench, {one: pulls[one.key] for one in learners}, looks


def test_pushes_of_few_are_looked_at_one_by_one():
    bench, pulls, looks = asked(FEW, FEW)
    first = next(iter(pulls))
    bench.push(first, pulls[first])
    assert len(looks) == 2, "its header, and its payload"


def test_pushes_of_many_are_looked_at_together():
    bench, pulls, looks = asked(MANY, MANY)
    *others, last = pulls
    for learner in others:
        bench.push(learner, pulls[learner])
    assert looks == []
    bench.wait(PUSHES_LOOK_S * MANY)
    assert len(looks) == 1
    bench.push(last, pulls[last])
    assert len(looks) > 1, "nobody is left to wait for"


def test_the_last_push_of_many_closes_the_round_at_once():
    bench, pulls, _ = asked(MANY, MANY)
    version = bench.machine.state.fragments[0].version
    for learner in pulls:
        bench.push(learner, pulls[learner])
    assert bench.machine.state.fragments[0].version == version + 1


def test_a_quorum_of_many_is_seen_at_once():
    bench, pulls, looks = asked(MANY, 3)
    pushed = list(pulls)[:3]
    for learner in pushed[:2]:
        bench.push(learner, pulls[learner])
    assert looks == []
    bench.push(pushed[2], pulls[pushed[2]])
    assert looks


def wakes(effects: list[object]) -> list[float]:
    return [one.at_s for one in effects if isinstance(one, WakeAt)]


def test_whoever_is_not_looked_at_now_is_soon():
    bench, pulls, looks = asked(MANY, MANY)
    bench.wait(0.5)
    looks.clear()
    first, second = list(pulls)[:2]
    due_s = bench.now_s + PUSHES_LOOK_S * MANY
    assert wakes(bench.push(first, pulls[first])) == [pytest.approx(due_s)]
    bench.push(second, pulls[second])
    assert looks == []


@pytest.mark.parametrize(("learners", "pause_s"), [(2, 2 * BEATS_LOOK_S), (MANY, BEATS_LOOK_S_MAX)])
def test_news_of_heartbeats_need_no_other_event_to_be_looked_at(learners, pause_s):
    bench, pulls, looks = asked(learners, learners)
    one, other, *_ = pulls
    bench.wait(0.5)
    looks.clear()
    first = wakes(bench.say(one.key, heartbeat(local_step=100)))
    assert first == [pytest.approx(bench.now_s + pause_s)]
    assert wakes(bench.say(other.key, heartbeat(local_step=100))) == []
    assert looks == []
    bench.wait(pause_s)
    assert len(looks) == 1


@pytest.mark.parametrize(("count", "every_s"), [(1, 0.0025), (40, 0.1), (80, 0.2)])
def test_many_learners_are_asked_to_tell_their_news_less_often(count, every_s):
    learners = [SimSigner(f"one of many {at}") for at in range(count)]
    bench = SyncerBench().start(*learners)
    bench.wait(ALIVE_EVERY_S)
    told = {bench.last(one.key, Alive).beat_every_s for one in learners}
    assert told == {every_s}
    assert count * (1 / every_s) == pytest.approx(HEARTBEATS_PER_S)
