"""A leader whose model is wrecked: what the guard stops, what becomes of pushes, what goes on."""

from __future__ import annotations

import pytest

from protocol.log.records import CheckpointMarked, FragmentMerged
from protocol.messages import Evaluation, Pull
from protocol.trace import RoundAbandoned
from syncer_node.machine.evaluating import STILL_S
from syncer_node.machine.jobs import FetchPush, Forget, Merge, PushFetched
from syncer_node.machine.rounds import GUARD_PAUSED
from tests.support.builders import ONE, THREE, TWO, actions, facts
from tests.support.guard_bench import ALL, GuardBench


@pytest.fixture
def bench():
    return GuardBench.sound()


def wreck(bench):
    bench.measure(9.7)
    assert bench.state.pause is not None
    return bench.state.pause.record


def test_no_round_opens_and_nobody_measures_while_it_is_paused(bench):
    wreck(bench)
    merges, marks = len(bench.records(FragmentMerged)), len(bench.records(CheckpointMarked))
    pulls = {one.key: len(bench.all(one.key, Pull)) for one in ALL}
    for _ in range(20):
        bench.go_on()
    assert pulls == {one.key: len(bench.all(one.key, Pull)) for one in ALL}
    assert len(bench.records(FragmentMerged)) == merges
    assert len(bench.records(CheckpointMarked)) == marks
    assert not bench.seat.rounds.rounds


def test_what_was_handed_in_is_abandoned_with_the_reason(bench):
    bench.hand_in(ONE)
    bench.hold = {FetchPush}
    bench.hand_in(TWO)
    wreck(bench)
    assert bench.fate(ONE) == bench.fate(TWO) == ("abandoned", GUARD_PAUSED)
    assert bench.fate(THREE) is None
    assert facts(bench.effects, RoundAbandoned)[-1].reason == GUARD_PAUSED
    effects = bench.done(FetchPush, PushFetched())
    assert actions(effects, Forget), "what comes now is dropped"


def test_a_merge_that_was_being_computed_is_dropped(bench):
    bench.hold = {Merge}
    bench.hand_in()
    assert len(bench.jobs(Merge)) == 1
    wreck(bench)
    assert bench.fate(ONE) is None
    merges = len(bench.records(FragmentMerged))
    bench.done(Merge, bench.answer(bench.jobs(Merge)[0]))
    assert bench.fate(ONE) == bench.fate(THREE) == ("abandoned", GUARD_PAUSED)
    assert len(bench.records(FragmentMerged)) == merges
    assert not bench.seat.rounds.rounds


def test_the_sentence_says_since_when_and_both_ways_out(bench):
    wreck(bench)
    assert bench.said.startswith("Merging is paused since ")
    assert (
        "the held-out loss is 9.70, the best was 2.00 at global step 2 (measured by" in bench.said
    )
    assert bench.said.endswith(
        "`shoal project undo PROJECT` goes back to it; `shoal project resume PROJECT` goes on."
    )


def test_the_owners_word_to_go_on_opens_rounds_again(bench):
    record = wreck(bench)
    bench.offer(2, resumed=bytes(32))
    assert bench.state.pause is not None
    bench.offer(3, resumed=record)
    assert bench.state.pause is None
    merges = len(bench.records(FragmentMerged))
    pulls = bench.go_on()
    assert set(pulls) == {one.key for one in ALL}
    bench.pulls |= pulls
    bench.hand_in()
    assert len(bench.records(FragmentMerged)) == merges + 1


def test_doubt_is_measured_again_before_anything_more_is_merged(bench):
    """The second disagrees: who lies is not known, so another pair measures at once."""
    marks = len(bench.records(CheckpointMarked))
    evaluating = bench.seat.evaluating
    bench.say(evaluating.evaluator, Evaluation(evaluating.pending, 9.7, 100, 1.0))
    bench.say(evaluating.evaluator, Evaluation(evaluating.pending, 2.0, 100, 1.0))
    assert bench.state.curve[-1].is_disputed
    assert len(bench.records(CheckpointMarked)) == marks + 1


@pytest.mark.parametrize(("rule", "marks"), [("pause", 1), ("off", 0)])
def test_a_guarded_run_that_stands_still_is_measured_once(rule, marks):
    """Learners of a model that gives no numbers hand in nothing: no merge makes a mark due."""
    bench = GuardBench(rule)
    bench.seat.evaluating.every = 1000
    bench.measure(5.0)
    bench.merge()
    before = len(bench.records(CheckpointMarked))
    for _ in range(int(STILL_S)):
        for learner in ALL:
            bench.beat(learner, local_step=8, tokens=256)
        bench.wait(3.0)
        bench.measure(4.0)
    assert len(bench.records(CheckpointMarked)) == before + marks


def test_without_a_guard_merging_goes_on():
    bench = GuardBench("off")
    for loss in (5.0, 3.0, 2.0, 9.7, 9.7):
        bench.measure(loss)
        bench.merge()
    assert bench.state.pause is None
    assert len(bench.records(FragmentMerged)) == 5
