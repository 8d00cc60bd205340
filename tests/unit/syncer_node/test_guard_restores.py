"""A leader whose guard goes back by itself: what it waits for, what it says, when it gives up."""

from __future__ import annotations

import pytest

from protocol.log.records import FragmentMerged, WeightsRestored
from protocol.machine import Failed, Start
from protocol.trace import GuardWentBack
from syncer_node.machine.jobs import (
    AdoptRestored,
    HoldCheckpoint,
    Merge,
    OfferCheckpoint,
    PayloadKept,
    PayloadNotWritten,
    WriteCheckpoint,
)
from syncer_node.machine.restoring import RETRY_S, TRIES
from tests.support.builders import ONE, actions, facts
from tests.support.guard_bench import GuardBench


@pytest.fixture
def bench():
    return GuardBench.sound("restore")


def wreck(bench):
    """The guard is about to go back, and waits for the weights."""
    bench.hold.add(HoldCheckpoint)
    bench.measure(9.7)
    assert bench.state.pause is not None


def go_back(bench):
    wreck(bench)
    bench.done(HoldCheckpoint, PayloadKept())


def test_the_weights_are_at_hand_before_the_record_says_so(bench):
    best = bench.state.best
    wreck(bench)
    (job,) = bench.jobs(HoldCheckpoint)
    assert job == HoldCheckpoint(*bench.state.restoring)
    assert job.checkpoint == best.checkpoint
    assert not bench.records(WeightsRestored)
    effects = bench.done(HoldCheckpoint, PayloadKept())
    (body,) = bench.records(WeightsRestored)
    assert (body.checkpoint, body.fragments) == (job.checkpoint, job.states)
    assert actions(effects, AdoptRestored) == [AdoptRestored(body)]
    assert bench.state.pause is None


def test_it_is_a_checkpoint_of_its_own_and_people_read_of_it(bench):
    go_back(bench)
    started = [one.job for one in bench.effects if isinstance(one, Start)]
    written = [job.index for job in started if isinstance(job, WriteCheckpoint)]
    assert bench.state.restored.index in written
    assert bench.state.checkpoint == written[-1] > bench.state.restored.index, "measured at once"
    (fact,) = facts(bench.effects, GuardWentBack)
    assert (
        "to the weights of global step 2: the held-out loss was 9.70, there it was 2.00"
        in fact.text
    )
    assert not bench.said.startswith("Merging is paused")


def test_merging_goes_on_from_the_restored_versions(bench):
    go_back(bench)
    versions = bench.state.restored.versions
    bench.pulls |= bench.go_on()
    pull = bench.pulls[ONE.key]
    assert pull.version == versions[pull.fragment]
    merges = len(bench.records(FragmentMerged))
    bench.hand_in()
    assert len(bench.records(FragmentMerged)) == merges + 1


def test_a_push_from_void_weights_does_not_count(bench):
    go_back(bench)
    bench.pulls |= bench.go_on()
    pull = bench.pulls[ONE.key]
    bench.pushes += 1
    bench.push(
        ONE,
        pull,
        project=bench.tiny.project,
        sequence=bench.pushes,
        base_version=pull.version - 1,
    )
    assert bench.fate(ONE) == ("stale", "stale: from weights that the guard gave up")


def test_a_merge_that_is_being_computed_is_waited_for(bench):
    bench.hold = {Merge}
    bench.hand_in()
    go_back(bench)
    assert bench.state.pause is not None
    assert not bench.records(WeightsRestored)
    bench.done(Merge, bench.answer(bench.jobs(Merge)[0]))
    bench.wait(1.0)
    assert len(bench.records(WeightsRestored)) == 1


def test_nobody_has_the_weights_so_the_owner_decides(bench):
    wreck(bench)
    assert bench.said.endswith("The guard goes back to it by itself.")
    for _ in range(TRIES):
        assert not bench.state.pause.is_given_up
        bench.done(HoldCheckpoint, Failed("no known host has it"))
        bench.wait(RETRY_S + 1.0)
    assert bench.state.pause.is_given_up
    assert not bench.jobs(HoldCheckpoint)
    assert "does not go back by itself, because no syncer holds that checkpoint" in bench.said
    assert bench.said.endswith("`shoal project resume PROJECT` goes on.")


def test_another_try_may_succeed(bench):
    wreck(bench)
    bench.done(HoldCheckpoint, PayloadNotWritten("the disk is full"))
    bench.wait(RETRY_S / 2)
    assert not bench.jobs(HoldCheckpoint)
    bench.wait(RETRY_S)
    bench.done(HoldCheckpoint, PayloadKept())
    assert len(bench.records(WeightsRestored)) == 1


def test_the_owners_word_comes_first_if_it_comes_first(bench):
    wreck(bench)
    bench.offer(2, resumed=bench.state.pause.record)
    assert bench.state.pause is None
    bench.done(HoldCheckpoint, PayloadKept())
    bench.wait(1.0)
    assert not bench.records(WeightsRestored)
    offers = actions(bench.effects, OfferCheckpoint)
    assert [bool(one.checkpoint) for one in offers] == [True, False]


def test_with_the_rule_pause_it_only_pauses():
    bench = GuardBench.sound()
    wreck(bench)
    bench.wait(60.0)
    assert bench.state.pause is not None
    assert not bench.records(WeightsRestored)
    assert not actions(bench.effects, OfferCheckpoint)
