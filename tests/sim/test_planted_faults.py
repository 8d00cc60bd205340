"""The checkers must bite: plant a fault in the machines, and see it found."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from node.machine.fragment_sync import FragmentSync
from protocol.log import records
from protocol.log.records import Span
from protocol.messages import Certificate, Vote
from simulator.checkers.merging import Violation
from simulator.scenarios.swarm import build_swarm
from syncer_node.machine.rounds import Rounds
from syncer_node.raft.jobs import Append, Appended
from tests.support.builders import rounds


def test_broadcasting_before_the_fsync_is_found_when_the_syncer_dies(monkeypatch):
    swarm = build_swarm(1)
    swarm.world.run(40.0)
    machine = swarm.syncer.syncer

    def store_in_memory_only(start, answer):
        if isinstance(start.job, Append):
            after, records = start.job.after, start.job.records
            swarm.world.after(0.001, lambda: answer(Appended(after + len(records))))
        else:
            type(swarm.syncer).run_job(swarm.syncer, start, answer)

    monkeypatch.setattr(swarm.syncer, "run_job", store_in_memory_only)
    before = machine.state.global_step
    swarm.world.run(60.0)
    assert machine.state.global_step > before
    monkeypatch.undo()
    swarm.syncer.crash()
    swarm.syncer.boot()
    with pytest.raises(Violation, match="another record"):
        swarm.world.run(90.0)


def test_leasing_the_same_blocks_twice_is_found(monkeypatch):
    swarm = build_swarm(2)
    monkeypatch.setattr("protocol.log.leases.LeaseBook._take", lambda self, span: None)
    monkeypatch.setattr("protocol.log.leases.LeaseBook.pick", lambda self, n: (Span(0, n, 0),))
    swarm.world.run(40.0)
    with pytest.raises(Violation, match="leased twice"):
        swarm.check()


def test_merging_a_push_twice_is_found(monkeypatch):
    swarm = build_swarm(3)
    honest = Rounds.on_merged

    remembered: dict[int, object] = {}

    def repeat(self, job, result, now_s):
        parts = remembered.setdefault(len(job.parts), job.parts)
        honest(self, replace(job, parts=parts), result, now_s)

    monkeypatch.setattr(Rounds, "on_merged", repeat)
    # The repeated push is also older than its weight says: that is seen first.
    with pytest.raises(Violation, match="versions behind"):
        swarm.world.run(40.0)


@pytest.mark.parametrize("apply", ["overwrite", "blend"])
def test_a_delivery_that_leaves_the_counters_standing_is_found(monkeypatch, apply):
    honest = FragmentSync.on_delivered

    def forget_to_reset(self, job, result):
        honest(self, replace(job, is_assign=False), result)

    monkeypatch.setattr(FragmentSync, "on_delivered", forget_to_reset)
    swarm = build_swarm(5, rounds=rounds(apply=apply))
    swarm.world.run(40.0)
    with pytest.raises(Violation, match="an honest push was refused"):
        swarm.check()


def forged(monkeypatch):
    """From now on certificates carry no signature of anybody."""
    honest = records.certify

    def forge(record, digest, votes) -> Certificate:
        certificate = honest(record, digest, votes)
        void = tuple(Vote(vote.voter, bytes(64)) for vote in certificate.votes)
        return msgspec.structs.replace(certificate, votes=void)

    monkeypatch.setattr(records, "certify", forge)


def test_a_record_that_is_applied_without_proof_is_found(monkeypatch):
    swarm = build_swarm(4)
    swarm.world.run(30.0)
    forged(monkeypatch)
    with pytest.raises(Violation, match="unproven"):
        swarm.world.run(45.0)


@pytest.mark.parametrize("syncers", [1, 3])
def test_a_certificate_by_somebody_else_is_refused_by_everybody(monkeypatch, syncers):
    swarm = build_swarm(4, syncers=syncers)
    swarm.world.run(30.0)
    forged(monkeypatch)
    monkeypatch.setattr(swarm.ledger, "_check", lambda host, entry: None)
    swarm.world.run(32.0)  # What was proven before arrives.
    step = [learner.learner.context.state.global_step for learner in swarm.learners]
    leader = swarm.syncer
    behind = [one.syncer.state.index for one in swarm.syncers if one is not leader]
    swarm.world.run(45.0)
    for learner, before in zip(swarm.learners, step, strict=True):
        assert learner.learner.context.state.global_step == before
        assert learner.learner.context.tally.faults["bad-signature"] > 0
        assert learner.trainer.local_step > 0
    standbys = [one for one in swarm.syncers if one is not leader]
    assert [one.syncer.state.index for one in standbys] == behind
    assert all(one.syncer.faults["bad-signature"] > 0 for one in standbys)
