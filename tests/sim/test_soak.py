"""Hours of pausing, resuming and killing: nothing that a daemon holds grows with them.

A day in full: `python benchmarks/soak.py`.
"""

from __future__ import annotations

import pytest

from node.machine.trainer_control import TrainerControl
from protocol.log import state
from protocol.project import LimitSpec
from simulator.hosts.learner import SimLearner
from simulator.scenarios.soak import Soak, grown, held_by
from simulator.scenarios.swarm import build_swarm
from simulator.virtual.nodes import SpeedModel
from syncer_node.machine import rounds as rounds_module
from syncer_node.machine.telling import receipt_issuer, recent_entries
from syncer_node.raft import log
from tests.support.builders import rounds
from tests.support.containers import knowing

HOURS = 12
NEWCOMERS = 60


@pytest.fixture
def soak(monkeypatch):
    """Bounded memories are made short, so that they are full within the first hours."""
    monkeypatch.setattr(state, "CURVE_POINTS_MAX", 8)
    monkeypatch.setattr(rounds_module, "FATES_MAX", 2)
    monkeypatch.setattr(recent_entries, "RECENT_RECORDS", 64)
    monkeypatch.setattr(log, "ENTRIES_KEPT", 64)
    return Soak(1, steps_s=(12.0, 15.0))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_grows_over_hours_of_an_undecided_owner(soak):
    for _ in range(HOURS):
        soak.run_hour()
    assert {host: grown(soak.hours, host) for host in soak.hours[-1].held} == {
        "syncer": [],
        "learner-0": [],
        "learner-1": [],
    }
    first, second = soak.swarm.learners
    assert first.life == 1, "the first one's daemon lived through all of it"
    assert second.life > HOURS
    tally = first.learner.context.tally
    assert tally.trainer_restarts >= 3
    assert tally.merged > 20 * HOURS
    soak.swarm.check()


@pytest.mark.slow
def test_what_grows_is_found(soak, monkeypatch):
    kept = []
    honest = TrainerControl.pause

    def leaking(trainer_control, seconds):
        kept.append([{}, {}])
        trainer_control.context.tally.outcomes["leak"] = kept
        honest(trainer_control, seconds)

    monkeypatch.setattr(TrainerControl, "pause", leaking)
    monkeypatch.setattr(
        TrainerControl, "resume", lambda trainer_control: leaking(trainer_control, 0.0)
    )
    for _ in range(6):
        soak.run_hour()
    assert "builtins.list" in dict(grown(soak.hours, "learner-0"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_who_came_and_left_only_an_account_is_left(soak, monkeypatch):
    """A run of months sees a hundred thousand that stay for a day."""
    monkeypatch.setattr(receipt_issuer, "DEPARTED_MAX", 8)
    limits = LimitSpec(10**12, 256, 5, 8, 60.0, 64)
    shape = rounds(overlap_steps=4, mergers_max=0)
    swarm = build_swarm(1, syncers=2, witnesses=1, steps_s=(6.0, 8.0), limits=limits, rounds=shape)
    world, staying = swarm.world, list(swarm.learners)
    for number in range(NEWCOMERS):
        newcomer = SimLearner(
            world,
            swarm.syncers[0].tiny,
            swarm.syncers,
            number=10 + number,
            speed=SpeedModel(4.0),
            backend=staying[0].backend,
        )
        swarm.learners.append(newcomer)
        world.at(60.0 + 60.0 * number, newcomer.revive)
        world.at(210.0 + 60.0 * number, newcomer.crash)
    world.run(60.0 * NEWCOMERS + 1200.0)
    keys = {one.key for one in swarm.learners[len(staying) :]}
    assert len(keys & swarm.syncer.syncer.state.accounts.keys()) > 0.9 * NEWCOMERS
    parts = [host.machine for host in swarm.syncers] + [one.learner for one in staying]
    for part in parts:
        found = {path.rpartition(".")[2] for path in knowing(part, "", keys, NEWCOMERS // 2)}
        assert "_by_key" in found, "the account book, and the summaries that share it"
        assert found <= {"_by_key", "_own", "accounts"}
    swarm.check()


def test_everything_that_can_be_reached_is_counted_once():
    shared = [1.5, 2.5]
    held = held_by([{"a": shared}, {"b": shared}])
    assert held.by_type == {
        "builtins.dict": 2,
        "builtins.list": 1,
        "builtins.float": 2,
        "builtins.str": 2,
    }
    assert held.objects == 7
