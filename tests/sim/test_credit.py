"""Credit from the outside: accounts against sets of local steps, receipts against the log."""

from __future__ import annotations

import pytest

from protocol import wire
from protocol.log.receipts import Credit
from protocol.log.records import AccountsNoted, read_record, record_hash
from protocol.log.state import SwarmState
from protocol.project import LimitSpec, RoundSpec
from protocol.trace import PushSettled
from simulator.checkers.credit import check_accounts
from simulator.checkers.ledger import Violation
from simulator.scenarios.swarm import build_swarm
from syncer_node.machine.contributor_notes import ContributorNotes
from tests.support.sets_of_steps import set_swarm
from tests.support.snapshot_swarms import go_back, take_at, watched


def assert_accounts_are_sets(swarm):
    """Tokens in the ledger are the local steps that are in the global value."""
    per_step = (
        swarm.syncer.tiny.charter.inner.batch_sequences
        * swarm.syncer.tiny.genesis.data.sequence_tokens
    )
    state = swarm.syncer.syncer.state
    assert state.index == len(swarm.ledger.records)
    for learner in swarm.learners:
        steps = swarm.sets.merged_of(learner.key)
        assert steps > 0
        assert state.accounts[learner.key].tokens == steps * per_step
        assert state.accounts[learner.key].name == learner.name


@pytest.mark.parametrize("syncers", [1, 3])
def test_the_ledger_is_what_is_in_the_weights_whoever_died_meanwhile(syncers):
    swarm = set_swarm(2, syncers=syncers)
    world, victim = swarm.world, swarm.learners[1]
    world.at(25.0, victim.crash)
    world.at(30.0, victim.boot)
    world.at(35.0, lambda: swarm.syncer.crash())
    world.at(37.0, lambda: [host.revive() for host in swarm.syncers if not host.is_up])
    world.at(45.0, swarm.learners[2].lose_trainer)
    world.run(80.0)
    swarm.check()
    assert_accounts_are_sets(swarm)
    assert all(learner.kept for learner in swarm.learners)


def test_every_syncer_has_the_same_ledger():
    swarm = build_swarm(3, syncers=3)
    swarm.world.run(60.0)
    swarm.check()
    low = min(host.syncer.state.index for host in swarm.syncers)
    assert low > 50
    found = []
    for host in swarm.syncers:
        state = SwarmState(host.tiny.genesis.data.block_sequences)
        for encoded in host.disk.log[:low]:
            state.apply(read_record(encoded), record_hash(encoded))
        found.append(state.accounts)
    assert found[0] == found[1] == found[2]
    assert {one.name for one in found[0].values()} == {host.name for host in swarm.learners}


def test_what_was_refused_is_in_the_log_in_the_end():
    """A learner that answers only at its step's end comes late for pulls of a second."""
    swarm = build_swarm(
        8,
        limits=LimitSpec(6_000, 256, 10, 8, 60.0, 64),
        rounds=RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 1.0, "overwrite", "int4", "int4"),
        steps_s=(0.3, 0.3, 2.5),
    )
    swarm.world.run(300.0)
    swarm.check()
    state = swarm.syncer.syncer.state
    assert state.ended is not None
    settled = [
        fact
        for _, who, fact in swarm.world.facts
        if who == swarm.syncer.key
        and isinstance(fact, PushSettled)
        and fact.outcome not in ("merged", "clipped")
    ]
    assert len(settled) > 3
    assert sum(one.refusals for one in state.accounts.values()) == len(settled)


@pytest.mark.slow
def test_what_the_owner_went_back_over_is_not_counted_and_its_receipts_stay():
    swarm = watched(5)
    take_at(swarm, 40.0)
    swarm.world.run(60.0)
    (manifest,) = swarm.cuts.kept
    learner = swarm.learners[0]
    before = swarm.syncer.syncer.state.accounts[learner.key].tokens
    kept = len(learner.kept)
    go_back(swarm, manifest)
    state = swarm.syncer.syncer.state
    assert state.epoch == 1
    assert state.accounts[learner.key].tokens > 0
    assert_accounts_are_sets(swarm)
    credits = [wire.decode(receipt.payload, Credit) for _, receipt, _ in learner.kept]
    assert credits[kept - 1].epoch == 0
    assert {one.epoch for one in credits} == {0, 1}
    assert before > 0


# Faults planted in what the daemons run.


def test_a_ledger_that_counts_twice_is_found(monkeypatch):
    honest = SwarmState._merge

    def twice(self, merged, record):
        honest(self, merged, record)
        self.accounts[merged.contributions[0].learner].tokens += merged.contributions[0].tokens

    monkeypatch.setattr(SwarmState, "_merge", twice)
    swarm = build_swarm(1)
    swarm.world.run(40.0)
    with pytest.raises(Violation, match="for a learner, the log says"):
        check_accounts(swarm.ledger, swarm.syncers, swarm.world.facts)
    with pytest.raises(Violation):
        swarm.check()


def test_refusals_that_never_were_are_found(monkeypatch):
    honest = ContributorNotes.on_merged

    def slanders(self, merged):
        honest(self, merged)
        self.on_refused(merged.contributions[0].learner, "rejected", "not-finite")

    monkeypatch.setattr(ContributorNotes, "on_merged", slanders)
    swarm = build_swarm(1)
    swarm.world.run(60.0)
    assert any(isinstance(one.body, AccountsNoted) for one in swarm.ledger.records)
    with pytest.raises(Violation, match="refused pushes"):
        swarm.check()
