"""Probes in whole swarms: a copier is suspended, and no lying or dead prober matters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protocol.log.records import BlocksLeased, PushProbed
from protocol.messages import Gain, SequencePlaces
from protocol.numerics.codecs import F32
from protocol.project import OuterSpec, Reinstated
from protocol.trace import ProbeUnanswered
from simulator.checkers.ledger import Ledger
from simulator.hosts.learner import SimLearner
from simulator.hosts.prober import Answer, SimProber
from simulator.hosts.tape import SwarmTape
from simulator.replay.replay import replay
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.backends import Backend
from tests.support.choices import first

OUTER = OuterSpec(0.7, 0.5, 3.0, probes_frac=1.0)
PUSHES_MAX = 100
STEPS_S = (1.0,) * 4


class Texts(Backend):
    """Learners whose text gains as it does for pushes that were trained on it, or were copied."""

    ledger: Ledger

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.copiers: set[bytes] = set()

    def gains(
        self, pushed: list[F32], fragment: int, own: SequencePlaces, other: SequencePlaces
    ) -> tuple[Gain, Gain]:
        contrast = self.rng.gauss(0.0 if self._reader(own[0].position) in self.copiers else 2.1, 1)
        error = 0.1 * (1 / len(own) + 1 / len(other)) ** 0.5
        return Gain(3.0, 0.1 + contrast * error, 0.1, len(own)), Gain(3.0, 0.1, 0.1, len(other))

    def _reader(self, position: int) -> bytes:
        """Who was leased it last."""
        for record in reversed(self.ledger.records):
            body = record.body
            if isinstance(body, BlocksLeased):
                for span in body.spans:
                    if span.start <= position < span.stop:
                        return body.learner
        raise AssertionError("a probe names what its learner was leased")


class Slander(Backend):
    """Whoever measures with this says of every push that it was not trained."""

    def gains(
        self, pushed: list[F32], fragment: int, own: SequencePlaces, other: SequencePlaces
    ) -> tuple[Gain, Gain]:
        return Gain(3.0, -0.1, 0.01, len(own)), Gain(3.0, 0.1, 0.01, len(other))


class Dead(SimProber):
    """It takes probes and never answers."""

    def run_job(self, job: object, answer: Answer) -> None:
        pass


def swarm_of(seed: int, *, copiers: int = 0, **choices: object) -> Swarm:
    texts = Texts(seed)
    swarm = build_swarm(seed, steps_s=STEPS_S, outer=OUTER, backend=texts, **choices)
    texts.ledger = swarm.ledger
    texts.copiers = {one.key for one in swarm.learners[:copiers]}
    return swarm


def suspended(swarm: Swarm) -> set[bytes]:
    state = swarm.syncer.syncer.state
    return {key for key, one in state.accounts.items() if one.is_suspended}


def pushes_until(swarm: Swarm, learner: SimLearner) -> int:
    """How many pushes of it were merged before it was suspended."""
    (index,) = (
        record.index
        for record in swarm.ledger.records
        if isinstance(record.body, PushProbed) and record.body.suspends
        if record.body.learner == learner.key
    )
    parts = [
        part
        for record in swarm.ledger.records[:index]
        for part in getattr(record.body, "contributions", ())
    ]
    return sum(part.learner == learner.key for part in parts)


@pytest.mark.parametrize("seed", first(1, (1, 2, 3)))
def test_a_copier_is_suspended_and_nothing_of_it_is_merged_any_more(seed: int) -> None:
    swarm = swarm_of(seed, copiers=1)
    copier = swarm.learners[0]
    swarm.world.run(1200.0, stop=lambda: bool(suspended(swarm)))
    assert suspended(swarm) == {copier.key}
    assert pushes_until(swarm, copier) <= PUSHES_MAX
    merges = swarm.merges
    swarm.world.run(swarm.world.now_s + 30.0)
    later = [part for one in swarm.ledger.merges[merges + 1 :] for part in one.contributions]
    assert later
    assert copier.key not in {part.learner for part in later}
    assert copier.learner.context.state.is_suspended(copier.key)
    assert copier.is_up
    swarm.check()


@pytest.mark.slow
def test_nobody_honest_is_suspended_though_one_prober_slanders_all() -> None:
    swarm = swarm_of(5)
    swarm.learners[0].backend = Slander()
    swarm.world.run(600.0)
    accounts = swarm.syncer.syncer.state.accounts
    assert sum(account.probes for account in accounts.values()) > 60
    assert suspended(swarm) == set()
    swarm.check()


@pytest.mark.slow
def test_a_prober_that_never_answers_delays_no_merge_and_is_asked_less() -> None:
    swarm = swarm_of(6)
    dead = swarm.learners[0]
    dead.prober = Dead(dead)
    swarm.world.run(500.0)
    passed_over = [fact for _, _, fact in swarm.world.facts if isinstance(fact, ProbeUnanswered)]
    assert {fact.prober for fact in passed_over} == {dead.key}
    assert len(passed_over) <= 2
    accounts = swarm.syncer.syncer.state.accounts
    assert sum(account.probes for account in accounts.values()) > 30
    untroubled = swarm_of(6)
    untroubled.world.run(500.0)
    assert swarm.merges >= 0.95 * untroubled.merges


@pytest.mark.slow
def test_evidence_outlives_the_leader_and_so_does_a_suspension() -> None:
    swarm = swarm_of(7, copiers=1, syncers=3)
    copier = swarm.learners[0]
    account = None
    while not suspended(swarm):
        leader = swarm.syncer
        swarm.world.run(swarm.world.now_s + 60.0, stop=lambda: bool(suspended(swarm)))
        before = account.probes if account is not None else 0
        leader.crash()
        swarm.world.run(swarm.world.now_s + 12.0)
        leader.boot()
        account = swarm.syncer.syncer.state.accounts[copier.key]
        assert account.probes >= before
        assert swarm.world.now_s < 1500.0
    assert suspended(swarm) == {copier.key}
    swarm.syncer.crash()
    merges = swarm.merges
    swarm.world.run(swarm.world.now_s + 30.0)
    later = [part for one in swarm.ledger.merges[merges:] for part in one.contributions]
    assert later
    assert copier.key not in {part.learner for part in later}
    assert copier.learner.context.state.is_suspended(copier.key)
    swarm.check()


def test_the_owner_lets_a_suspended_learner_take_part_again() -> None:
    swarm = swarm_of(1, copiers=1)
    copier = swarm.learners[0]
    swarm.world.run(1200.0, stop=lambda: bool(suspended(swarm)))
    swarm.world.run(swarm.world.now_s + 10.0)
    merges = swarm.merges
    charter = swarm.syncer.syncer.setup.charter
    swarm.revise(reinstated=(Reinstated(copier.key, charter.revision + 1),))
    swarm.world.run(swarm.world.now_s + 20.0)
    assert suspended(swarm) == set()
    later = [part for one in swarm.ledger.merges[merges:] for part in one.contributions]
    assert copier.key in {part.learner for part in later}
    swarm.check()


@pytest.mark.slow
def test_a_tape_of_a_swarm_with_probes_replays_exactly(tmp_path: Path) -> None:
    tape = SwarmTape(tmp_path, mib_max=64)
    swarm = swarm_of(8, copiers=1, tape=tape.of)
    swarm.world.run(120.0)
    assert not tape.close()
    assert any(isinstance(record.body, PushProbed) for record in swarm.ledger.records)
    report = replay(tmp_path, tmp_path)  # Raises where anything differs.
    assert len(report.audited) > 20
