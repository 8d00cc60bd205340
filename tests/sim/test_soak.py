"""Hours of pausing, resuming and killing: nothing that a daemon holds grows with them.

A day in full: `python benchmarks/soak.py`.
"""

from __future__ import annotations

import pytest

from node.machine.trainer_control import TrainerControl
from protocol.log import state
from simulator.scenarios.soak import Soak, grown, held_by
from syncer_node.machine import recent_entries, rounds
from syncer_node.raft import log

HOURS = 12


@pytest.fixture
def soak(monkeypatch):
    """Bounded memories are made short, so that they are full within the first hours."""
    monkeypatch.setattr(state, "CURVE_POINTS_MAX", 8)
    monkeypatch.setattr(rounds, "FATES_MAX", 2)
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
