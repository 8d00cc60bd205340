"""The checkers must bite: plant a fault in the machines, and see it found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol import commit
from protocol.messages import Certificate
from protocol.records import Span
from simulator.checkers import Violation
from simulator.scenario import build_swarm
from syncer_node.jobs import Append, Appended
from syncer_node.merging import Merging


def test_broadcasting_before_the_fsync_is_found_when_the_syncer_dies(monkeypatch):
    swarm = build_swarm(1)
    swarm.world.run(40.0)
    machine = swarm.syncer.syncer

    def store_in_memory_only(start, answer):
        if isinstance(start.job, Append):
            swarm.world.after(0.001, lambda: answer(Appended(start.job.index)))
        else:
            type(swarm.syncer).run_job(swarm.syncer, start, answer)

    monkeypatch.setattr(swarm.syncer, "run_job", store_in_memory_only)
    before = machine.state.global_step
    with pytest.raises(Violation, match="uncommitted"):
        swarm.world.run(60.0)
    assert machine.state.global_step > before


def test_leasing_the_same_blocks_twice_is_found(monkeypatch):
    swarm = build_swarm(2)
    monkeypatch.setattr("protocol.leases.LeaseBook._take", lambda self, span: None)
    monkeypatch.setattr("protocol.leases.LeaseBook.pick", lambda self, n: (Span(0, n, 0),))
    swarm.world.run(40.0)
    with pytest.raises(Violation, match="leased twice"):
        swarm.check()


def test_merging_a_push_twice_is_found(monkeypatch):
    swarm = build_swarm(3)
    honest = Merging.on_merged

    remembered: dict[int, object] = {}

    def repeat(self, job, result, now_s):
        parts = remembered.setdefault(len(job.parts), job.parts)
        honest(self, replace(job, parts=parts), result, now_s)

    monkeypatch.setattr(Merging, "on_merged", repeat)
    swarm.world.run(40.0)
    with pytest.raises(Violation, match="merged twice"):
        swarm.check()


def test_a_certificate_by_somebody_else_is_refused_by_every_learner(monkeypatch):
    swarm = build_swarm(4)
    swarm.world.run(30.0)
    step = [learner.learner.shared.state.global_step for learner in swarm.learners]
    honest = commit.certify

    def forge(record, digest, votes) -> Certificate:
        certificate = honest(record, digest, votes)
        vote = certificate.votes[0]
        forged = type(vote)(vote.voter, bytes(64))
        return Certificate(
            certificate.epoch, certificate.term, certificate.index, certificate.record, (forged,)
        )

    monkeypatch.setattr(commit, "certify", forge)
    swarm.world.run(45.0)
    for learner, before in zip(swarm.learners, step, strict=True):
        assert learner.learner.shared.state.global_step == before
        assert learner.learner.shared.tally.faults["bad-signature"] > 0
        assert learner.trainer.local_step > 0
