"""Forty learners get what was merged from each other: the syncer sends sixteen copies of it."""

from __future__ import annotations

from collections import Counter

import pytest

from node.download.payload_donors import PATIENCE_S_MIN
from node.machine.jobs import Advance
from protocol.limits import SYNCER_COPIES
from protocol.project import LimitSpec
from simulator.hosts.learner import SimLearner
from simulator.scenarios.swarm import build_swarm

LEARNERS = 40
TRANSFER_S = 2.0
"""For a payload, once it is asked of the syncer."""


@pytest.fixture
def copies(monkeypatch):
    """How often a merged payload was asked of the syncer."""
    asked = Counter()
    plain = SimLearner.fetch_of_syncer

    def counted(self, job: Advance, answer):
        asked[job.merged.payload] += 1
        plain(self, job, answer)

    monkeypatch.setattr(SimLearner, "fetch_of_syncer", counted)
    return asked


def crowd():
    return build_swarm(
        3,
        steps_s=(0.5,) * LEARNERS,
        limits=LimitSpec(10**9, 256, 40, 8, 60.0, 64),
        join_s=2.0,
    )


def settled(swarm, merges):
    """Runs until so many were made, and behind them for as long as a payload may take."""
    while swarm.merges < merges:
        swarm.world.run(swarm.world.now_s + 1.0)
    made = [merged.payload for merged in swarm.ledger.merges]
    swarm.world.run(swarm.world.now_s + 10.0)
    return made


def versions(learner):
    return [learner.bank.version(fragment) for fragment in range(4)]


def newest(swarm):
    return [fragment.version for fragment in swarm.syncer.syncer.state.fragments]


def test_the_syncer_sends_a_bounded_number_of_copies_and_everybody_has_what_was_merged(copies):
    swarm = crowd()
    made = settled(swarm, 16)
    assert max(copies[payload] for payload in made[8:]) <= SYNCER_COPIES
    for learner in swarm.learners:
        behind = [at - own for at, own in zip(newest(swarm), versions(learner), strict=True)]
        assert max(behind) <= 1, learner.name
    swarm.check()


def test_learners_that_give_nothing_cost_copies_and_nobody_waits_beyond_its_patience(
    copies, monkeypatch
):
    """Who has only such donors asks the syncer in the end."""
    swarm = crowd()
    refusing = {learner.key for learner in swarm.learners[::4]}
    gives = SimLearner.may_be_given
    monkeypatch.setattr(
        SimLearner,
        "may_be_given",
        lambda self, key, payload: key not in refusing and gives(self, key, payload),
    )
    made = settled(swarm, 16)
    assert max(copies[payload] for payload in made[8:]) <= SYNCER_COPIES + 4
    wanted = newest(swarm)
    swarm.world.run(swarm.world.now_s + PATIENCE_S_MIN + TRANSFER_S)
    for learner in swarm.learners:
        lacking = [at - own for at, own in zip(wanted, versions(learner), strict=True)]
        assert max(lacking) <= 0, learner.name
    swarm.check()
