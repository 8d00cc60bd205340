"""Sets of local steps: what was counted, how often; and faults in the machines that must be found.

A table of faults planted in what the daemons run, each with the checker that sees it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.machine.fragment_sync import FragmentSync
from node.trainer_client.fragment_bank import FragmentBank, PendingPush
from protocol.log.leases import LeaseBook
from protocol.log.records import Span
from protocol.numerics.codecs import decode
from protocol.numerics.merge import token_weight
from protocol.numerics.outer import digest, encode_with_feedback
from protocol.project import RoundSpec
from simulator.checkers.ledger import Violation
from simulator.checkers.provenance import ProvenanceChecker
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.provenance import OUTER, ProvenanceBackend
from syncer_node.machine import jobs
from syncer_node.machine.rounds import Rounds
from syncer_node.raft.jobs import Append, Appended
from syncer_node.storage.merge_bank import MergeBank
from tests.support.choices import first
from tests.support.sets_of_steps import CAPACITY, lose_answers, restarts, set_swarm


@pytest.mark.slow
@pytest.mark.parametrize("codec", first(2, ["int4", "f32", "bf16", "int8"]))
@pytest.mark.parametrize("apply", ["overwrite", "rebase"])
def test_every_codec_carries_sets_exactly(codec, apply):
    swarm = set_swarm(2, apply=apply, codec=codec)
    restarts(swarm)
    swarm.world.run(60.0)
    swarm.check()
    assert swarm.sets.compared > 30
    assert swarm.merges > 15


def broadcast_before_commit(patch, swarm):
    """(a) The leader's log is in memory only when it says that it is stored."""
    swarm.world.run(30.0)
    host = swarm.syncer
    honest = type(host).run_job

    def in_memory(start, answer):
        if isinstance(start.job, Append):
            last = start.job.after + len(start.job.records)
            swarm.world.after(0.001, lambda: answer(Appended(last)))
        else:
            honest(host, start, answer)

    patch.setattr(host, "run_job", in_memory)
    swarm.world.run(45.0)
    patch.delattr(host, "run_job")
    host.crash()
    host.boot()


def participants_by_learner(patch, swarm):
    """(b) Participants are no push ids: a merge counts for whatever push is open."""
    honest = FragmentSync.on_committed

    def by_learner(self, merged):
        mine, setup = self.local_fragments[merged.fragment].push, self.context.setup
        for part in merged.contributions:
            if part.learner != setup.signer.key and mine is not None:
                self._resolve(self.local_fragments[merged.fragment], mine.sequence, "merged", "")
        honest(self, merged)

    patch.setattr(FragmentSync, "on_committed", by_learner)
    lose_answers(swarm)


def two_unresolved_pushes(patch, swarm):
    """(c) A learner hands in again before it knows what became of the last push."""
    honest = FragmentSync.on_captured

    def forgetful(self, job, result):
        honest(self, job, result)
        self.local_fragments[job.fragment].push = None

    patch.setattr(FragmentSync, "on_captured", forgetful)


def separate_error_feedback(patch, swarm):
    """(d) Rebase keeps what the codec left out, and feeds it back a second time."""
    honest = FragmentBank.push
    carried = {}

    def twice(self, fragment, sequence, local):
        made = honest(self, fragment, sequence, local)
        base = self._base[fragment]
        key = (id(self), fragment)
        wanted = base.theta - local
        residual = carried.get(key, wanted * 0)
        payload, carried[key] = encode_with_feedback("int4", wanted, residual)
        decoded = decode("int4", payload, local.size)
        name = self._pending[fragment, sequence].digest
        self.blob_store.drop(name)
        name = digest(payload)
        self.blob_store.put(name, payload)
        self._pending[fragment, sequence] = PendingPush(name, decoded, None)
        return replace(made, digest=name)

    patch.setattr(FragmentBank, "push", twice)


def restart_with_displacement(patch, swarm):
    """(e) A new trainer is given the displacement of the one that died."""
    kept = {}
    honest_push, honest_deliver = FragmentBank.push, FragmentBank.deliver

    def push(self, fragment, sequence, local):
        kept[id(self), fragment] = self._base[fragment].theta - local
        return honest_push(self, fragment, sequence, local)

    def deliver(self, fragment, **how):
        made = honest_deliver(self, fragment, **how)
        left = kept.pop((id(self), fragment), None)
        if made.is_assign and left is not None:
            return replace(made, values=made.values - left)
        return made

    patch.setattr(FragmentBank, "push", push)
    patch.setattr(FragmentBank, "deliver", deliver)
    restarts(swarm, trainers=True)


def counters_not_reset(patch, swarm):
    """A merged push does not set its steps and tokens back."""
    honest = FragmentSync._resolve

    def keep_counting(self, track, sequence, outcome, reason, **how):
        marked = (track.marked_step, track.marked_tokens)
        honest(self, track, sequence, outcome, reason, **how)
        track.marked_step, track.marked_tokens = marked

    patch.setattr(FragmentSync, "_resolve", keep_counting)


def displacement_not_reduced(patch, swarm):
    """The bank does not give a merged push back to the inner loop."""
    patch.setattr(FragmentBank, "_forget_merged", lambda self, fragment, sequence: None)


def displacement_lost(patch, swarm):
    """A push that was not merged is taken off the displacement all the same."""
    honest = FragmentSync._resolve

    def always_merged(self, track, sequence, outcome, reason, **how):
        honest(self, track, sequence, "merged", reason, **how)

    patch.setattr(FragmentSync, "_resolve", always_merged)
    lose_answers(swarm)


def lease_to_two(patch, swarm):
    """Blocks are handed out that somebody has."""
    patch.setattr(LeaseBook, "_take", lambda self, span: None)
    patch.setattr(LeaseBook, "pick", lambda self, blocks: (Span(0, blocks, 0),))


def tokens_not_capped(patch, swarm):
    """A learner claims tenfold, and the syncer believes it."""
    honest_seal = FragmentSync._seal

    def boast(self, push, captured, steps, tokens):
        return honest_seal(self, push, captured, steps, 10 * tokens)

    patch.setattr(FragmentSync, "_seal", boast)
    patch.setattr(Rounds, "_judge", lambda *_: None)


def push_dropped_from_merge(patch, swarm):
    """The payload leaves out a push that the record names."""
    honest = MergeBank.merge

    def merge(self, job):
        made = honest(self, replace(job, parts=job.parts[:1]))
        count = len(job.parts)
        names = ("norms", "scales", "cosines", "trusts", "shares")
        return replace(made, **{name: getattr(made, name) * count for name in names})

    patch.setattr(MergeBank, "merge", merge)


FAULTS = {
    "a-broadcast-before-commit": (broadcast_before_commit, {}, "another record"),
    "b-participants-by-learner": (participants_by_learner, {}, "lacks|claims"),
    "c-two-unresolved-pushes": (two_unresolved_pushes, {}, "merged before"),
    "d-separate-error-feedback": (
        separate_error_feedback,
        {"is_uneven": True},
        "not the displacement",
    ),
    "e-restart-with-displacement": (restart_with_displacement, {}, "a trainer that is gone"),
    "counters-not-reset": (counters_not_reset, {}, "claim"),
    "displacement-not-reduced": (displacement_not_reduced, {}, "merged before"),
    "displacement-lost": (displacement_lost, {}, "lacks"),
    "lease-to-two": (lease_to_two, {}, "leased twice"),
    "tokens-not-capped": (tokens_not_capped, {}, "tokens of"),
    "push-dropped-from-merge": (push_dropped_from_merge, {}, "not what was handed in"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch, fault):
    plant, settings, words = FAULTS[fault]
    swarm = set_swarm(1, **settings)

    def play():
        plant(monkeypatch, swarm)
        swarm.world.run(110.0)
        swarm.check()

    with pytest.raises(Violation, match=words):
        play()


@pytest.mark.parametrize("settings", [{}, {"is_uneven": True}, {"syncers": 3}])
def test_without_a_fault_nothing_is_found(settings):
    swarm = set_swarm(1, **settings)
    lose_answers(swarm)
    restarts(swarm, trainers=True)
    swarm.world.run(110.0)
    swarm.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, range(6)))
def test_a_push_merged_late_is_taken_off_before_the_next_hand_in(seed):
    """Its version may reach the inner loop before the learner knows that its push is in it."""
    backend = ProvenanceBackend(CAPACITY)
    swarm = build_swarm(
        seed,
        steps_s=(0.4, 0.6, 1.2),
        rounds=RoundSpec(2, 3, 2, 0.9, 0.2, 10.0, 10.0, "rebase", "int8", "int4"),
        outer=OUTER,
        backend=backend,
        fragments=1,
        tensors_of=(1, CAPACITY),
    )
    swarm.sets = ProvenanceChecker(swarm.ledger, backend, swarm.learners)
    swarm.world.run(150.0)
    swarm.check()
    late = [
        part
        for merged in swarm.ledger.merges
        for part in merged.contributions
        if part.base_version < merged.version - 1
    ]
    assert late


def test_a_stale_push_that_counts_fully_is_found(monkeypatch):
    swarm = set_swarm(1)
    honest = jobs.MergePart
    monkeypatch.setattr(
        jobs,
        "MergePart",
        lambda peer, header, weight, *known: honest(
            peer, header, token_weight(header.tokens, header.steps), *known
        ),
    )
    honest_seal = FragmentSync._seal

    def behind(self, push, captured, steps, tokens):
        base = max(0, captured.base_version - 1)
        return honest_seal(self, push, replace(captured, base_version=base), steps, tokens)

    monkeypatch.setattr(FragmentSync, "_seal", behind)
    with pytest.raises(Violation, match="versions behind the weight"):
        swarm.world.run(110.0)
