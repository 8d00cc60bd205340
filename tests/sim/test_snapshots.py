"""Consistent snapshots of simulated swarms, and going back to them; planted faults are found."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from dataclasses import replace

import pytest
from msgspec import structs

from node.machine.fragment_state import NONE
from node.machine.fragment_sync import FragmentSync
from node.machine.snapshot_participant import SnapshotParticipant
from protocol.snapshots import cut as cut_module
from protocol.snapshots.cut import Taking
from protocol.snapshots.manifest import stamp
from simulator.checkers.ledger import Violation
from simulator.hosts.parts import SimParts, TrainerCopy
from simulator.scenarios import runs, scenarios
from syncer_node.machine.snapshots import Snapshots
from tests.support.choices import first
from tests.support.snapshot_swarms import go_back, take_at, watched

TOKENS_PER_STEP = 2 * 16


def quiet(text, is_routine):
    pass


def kept(swarm):
    return list(swarm.syncer.disk.snapshots)


def test_a_snapshot_has_everybody_and_nobody_stops_for_it():
    swarm = watched(1)
    swarm.world.run(30.0)
    before = [learner.trainer.local_step for learner in swarm.learners]
    merges = swarm.merges
    swarm.take_snapshot()
    swarm.world.run(34.0)
    (manifest,) = swarm.cuts.kept
    assert sorted(part.name for part in manifest.parts) == ["learner-0", "learner-1", "learner-2"]
    assert manifest.skipped == ()
    assert manifest.seconds < 3.0
    steps = [learner.trainer.local_step for learner in swarm.learners]
    calm = [4.0 / learner.step_s for learner in swarm.learners]
    for done, was, wanted in zip(steps, before, calm, strict=True):
        assert done - was >= 0.8 * wanted
    assert swarm.merges >= merges + 2


def test_learners_that_die_meanwhile_are_named_and_left_out():
    swarm = watched(2)
    swarm.world.run(30.0)
    swarm.take_snapshot()
    swarm.world.run(30.1)
    swarm.learners[2].crash()
    swarm.world.run(45.0)
    (manifest,) = swarm.cuts.kept
    assert sorted(part.name for part in manifest.parts) == ["learner-0", "learner-1"]
    ((name, reason),) = [(one.name, one.reason) for one in manifest.skipped]
    assert name == "learner-2"
    assert reason


def test_a_full_disk_costs_one_part_or_one_snapshot_and_no_earlier_one():
    swarm = watched(3)
    take_at(swarm, 30.0, 40.0, 50.0)
    swarm.world.run(39.0)
    swarm.learners[0].parts.is_full = True
    swarm.world.run(49.0)
    last = swarm.cuts.kept[-1]
    assert [(one.name, one.reason) for one in last.skipped] == [
        ("learner-0", "disk: the disk is full")
    ]
    swarm.syncer.disk.is_full = True
    swarm.world.run(53.0)
    assert len(swarm.cuts.kept) == 2
    seat = swarm.syncer.syncer.leadership
    assert seat.snapshots.trouble == "disk full"
    assert len(kept(swarm)) == 2


@pytest.mark.parametrize("apply", first(1, ["overwrite", "rebase"]))
def test_a_swarm_that_went_back_goes_on_with_everybodys_own_state(apply):
    swarm = watched(4, apply=apply)
    take_at(swarm, 40.0)
    swarm.world.run(70.0)
    (manifest,) = swarm.cuts.kept
    former = swarm.syncer.syncer.state
    assert former.index > manifest.index
    copies = {at.key: at.parts.disk[manifest.snapshot].trainer for at in swarm.learners}
    seen = {}
    for learner in swarm.learners:
        learner.parts.restores.append(
            lambda part, host=learner: seen.setdefault(
                host.key, TrainerCopy.of(host.trainer, host.trainer_number, part.trainer.reads)
            )
        )
    go_back(swarm, manifest)
    state = swarm.syncer.syncer.state
    assert state.epoch == 1
    assert state.global_step > manifest.global_step
    for key, copied in copies.items():
        got = seen[key]
        assert (got.local_step, got.tokens, got.spans) == (
            copied.local_step,
            copied.tokens,
            copied.spans,
        )
        assert got.noise == copied.noise
        pairs = zip(got.theta + got.moments, copied.theta + copied.moments, strict=True)
        assert all((one == other).all() for one, other in pairs)
    told = swarm.syncer.syncer.leadership.snapshots.restores
    assert {one.name: one.is_restored for one in told.values()} == {
        "learner-0": True,
        "learner-1": True,
        "learner-2": True,
    }


@pytest.mark.slow
def test_a_learner_without_a_part_begins_as_a_joiner():
    swarm = watched(5)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    swarm.learners[1].parts.disk.clear()
    go_back(swarm, manifest)
    told = {one.name: one for one in swarm.syncer.syncer.leadership.snapshots.restores.values()}
    assert not told["learner-1"].is_restored
    assert "missing" in told["learner-1"].trouble
    assert told["learner-0"].is_restored


@pytest.mark.slow
def test_a_part_is_gone_on_from_once_in_an_epoch():
    swarm = watched(6)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    go_back(swarm, manifest)
    learner = swarm.learners[0]
    resumed = len(swarm.cuts.restored)
    learner.crash()
    learner.boot()
    swarm.world.run(swarm.world.now_s + 40.0)
    swarm.check()
    assert len(swarm.cuts.restored) == resumed
    assert learner.incarnation > 1
    # A later epoch at the same snapshot may use it again.
    go_back(swarm, manifest)
    assert len(swarm.cuts.restored) == resumed + 3


@pytest.mark.slow
def test_what_a_trainer_had_read_counts_though_it_dies_before_it_says_so():
    swarm = watched(14)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    learner = swarm.learners[2]
    learner.parts.restores.append(lambda _: swarm.world.after(0.05, learner.lose_trainer))
    pending = [one.accounts for one in learner.parts.disk[manifest.snapshot].state.local_fragments]
    go_back(swarm, manifest)
    swarm.take_snapshot()
    swarm.world.run(swarm.world.now_s + 20.0)
    swarm.check()
    assert len(swarm.cuts.kept) == 2
    lost = [track.accounts.lost for track in learner.learner.fragment_sync.local_fragments]
    assert sum(lost) > sum(books.lost for books in pending)


@pytest.mark.slow
def test_three_syncers_go_back_together():
    swarm = watched(7, syncers=3)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    go_back(swarm, manifest)
    assert {syncer.syncer.state.epoch for syncer in swarm.syncers} == {1}
    assert len(swarm.cuts.restored) == 3


def test_a_schedule_is_kept_and_the_oldest_go():
    scenario = scenarios.BUILT_IN["snapshots"]
    scenario = structs.replace(
        scenario,
        faults=scenarios.Faults(),
        snapshots=scenarios.Snapshots(every_s=10.0, kept=2),
    )
    outcome = runs.run(scenario, 1, until_s=75.0, line=quiet)
    assert not outcome.violation
    taken = [one.snapshot for one in outcome.swarm.cuts.kept]
    assert len(taken) >= 5
    gaps = [after - before for before, after in itertools.pairwise(taken)]
    assert set(gaps) <= {10, 11}
    assert kept(outcome.swarm) == taken[-2:]
    parts = {at for learner in outcome.swarm.learners for at in learner.parts.disk}
    assert parts <= set(taken[-3:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_snapshots_under_all_kinds_of_faults(seed):
    outcome = runs.run(scenarios.BUILT_IN["snapshots"], seed, line=quiet)
    assert not outcome.violation
    assert outcome.parts > 20
    assert outcome.handed > 100


# Planted faults.


def found(swarm, until_s=80.0):
    with pytest.raises(Violation) as caught:
        live(swarm, until_s)
    return str(caught.value)


def live(swarm, until_s):
    swarm.world.run(until_s)
    swarm.check()


def often(swarm):
    take_at(swarm, *(25.0 + 3.7 * at for at in range(14)))
    return swarm


@pytest.mark.slow
def test_a_learner_that_takes_what_came_after_the_marker_is_left_out(monkeypatch):
    monkeypatch.setattr(SnapshotParticipant, "holds", lambda self, message: False)
    swarm = often(watched(8))
    swarm.world.run(80.0)
    reasons = [one.reason for cut in swarm.cuts.kept for one in cut.skipped]
    assert any("it was cut at record" in reason for reason in reasons)


def test_what_came_after_the_marker_is_found_in_a_part(monkeypatch):
    monkeypatch.setattr(SnapshotParticipant, "holds", lambda self, message: False)
    monkeypatch.setattr(cut_module, "disagreement", lambda *args: "")
    words = found(often(watched(8)))
    assert "is counted and was made after" in words or "merged" in words


@pytest.mark.slow
def test_a_channel_that_is_not_recorded_loses_pushes(monkeypatch):
    monkeypatch.setattr(Taking, "on_push", lambda self, session, sequence: None)
    swarm = often(watched(9))
    swarm.world.run(80.0)
    reasons = [one.reason for cut in swarm.cuts.kept for one in cut.skipped]
    assert any("and never came" in reason for reason in reasons)
    monkeypatch.setattr(cut_module, "disagreement", lambda *args: "")
    assert "is nowhere" in found(often(watched(9)))


def test_a_syncer_that_goes_on_before_it_is_cut_is_found(monkeypatch):
    honest = Snapshots._try_finish

    def late(self, now_s):
        if self._cut is not None:
            state = self.rounds.state
            self._cut = structs.replace(self._cut, index=state.index, head=state.head)
        honest(self, now_s)

    monkeypatch.setattr(Snapshots, "_try_finish", late)
    assert "the syncer was cut at record" in found(often(watched(10)))


def test_deliveries_that_go_on_during_the_cut_are_found(monkeypatch):
    """The copy is then of no moment at which the learner's books were as they say."""
    honest = SimParts._make_cut

    def torn(self, snapshot, trainer):
        made = honest(self, snapshot, trainer)
        return replace(made, tokens=made.tokens + trainer.tokens_per_step)

    monkeypatch.setattr(SimParts, "_make_cut", torn)
    assert "tokens were read" in found(often(watched(11)))


@pytest.mark.slow
def test_a_part_that_is_used_twice_is_found(monkeypatch):
    swarm = watched(12)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    go_back(swarm, manifest)

    for learner in swarm.learners:
        disk = learner.parts.disk
        disk[manifest.snapshot] = replace(disk[manifest.snapshot], taken_up=-1)
        learner.crash()
        learner.boot()
    with pytest.raises(Violation):
        live(swarm, swarm.world.now_s + 60.0)


@pytest.mark.slow
def test_a_queue_that_is_not_restored_is_found(monkeypatch):
    honest = TrainerCopy.give

    def forgetful(self, trainer):
        honest(self, trainer)
        trainer.spans = deque(trainer.spans)
        trainer.spans.clear()

    monkeypatch.setattr(TrainerCopy, "give", forgetful)
    swarm = watched(13)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    go_back(swarm, manifest)
    copied = swarm.learners[0].parts.disk[manifest.snapshot].trainer
    first = (copied.spans[0].start, copied.spans[0].skip)
    read = [one[1:] for one in swarm.learners[0].reads[copied.reads :]]
    assert first not in read


def test_a_push_of_the_cut_that_counts_as_merged_is_found(monkeypatch):
    """After going back nobody has it: its steps must be handed in again."""
    honest = FragmentSync.take_up

    def hasty(self, part):
        honest(self, part)
        for track in self.local_fragments:
            track.marked_step += 3
            track.marked_tokens += 3 * TOKENS_PER_STEP

    monkeypatch.setattr(FragmentSync, "take_up", hasty)
    swarm = watched(14)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    with pytest.raises(Violation, match="claims"):
        go_back(swarm, manifest)


def test_names_are_times():
    assert stamp(1700000000) == "20231114-221320"


def test_a_version_of_a_void_record_is_not_taken_for_the_new_one_of_its_number():
    swarm = watched(15)
    swarm.world.run(40.0)
    fragment_sync = swarm.learners[0].learner.fragment_sync
    former = copy.deepcopy(fragment_sync.context.state)
    held = [fragment.version for fragment in former.fragments]
    for track, version in zip(fragment_sync.local_fragments, held, strict=True):
        track.held = track.standing = version
    state = fragment_sync.context.state
    state.epoch += 1
    other = structs.replace(state.fragments[1].state, theta=bytes(32))
    state.fragments[1] = structs.replace(state.fragments[1], state=other)
    fragment_sync.restart_from_index(former)
    assert [track.held for track in fragment_sync.local_fragments] == [held[0], NONE, held[2]]
    assert [track.standing for track in fragment_sync.local_fragments] == [held[0], NONE, held[2]]
