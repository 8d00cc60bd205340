"""Comparisons on a tiny model: each algorithm trains, and the budgets are equal to the token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.trainer import builtin
from node.trainer.model import FragmentView
from protocol.project import Charter, Genesis, OuterSpec
from simulator.compare.algorithms import ALGORITHMS, Algorithm
from simulator.compare.bench import Bench, open_bench
from simulator.compare.data_parallel import DataParallel, JoinedReader
from simulator.compare.decoupled import Decoupled
from simulator.compare.lockstep import Lockstep, LockstepSpec
from simulator.compare.outcome import Outcome
from simulator.compare.setting import Setting, failures_until
from simulator.hosts.learner import SimLearner
from tests.support.choices import first
from tests.support.tiny_project import INNER, SEQUENCE_TOKENS, tiny_charter, tiny_genesis

STEPS, LEARNERS = 24, 3
SETTING = Setting(seed=11, learners=LEARNERS, steps=STEPS, mtbi_s=20.0, away_s=10.0)
TOKENS = LEARNERS * STEPS * INNER.batch_sequences * SEQUENCE_TOKENS


MERGING = [
    name
    for name, one in ALGORITHMS.items()
    if int(one.rounds.get("local_steps", 0)) < STEPS
    and int(one.rounds.get("quorum", 0)) <= LEARNERS
    and not one.batches
]
"""Those that merge more than once in so few steps of so few learners, and whose batches divide the
budget."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Genesis, Charter, Path]:
    """A tiny project on invented text."""
    folder = tmp_path_factory.mktemp("compare")
    genesis = tiny_genesis(folder)
    charter = tiny_charter(
        genesis,
        steps=LEARNERS * STEPS,
        outer=OuterSpec(0.7, 0.3, 3.0),
        grace_safety=0.9,
        pace_share=0.5,
    )
    return genesis, charter, folder / "cache"


def bench_of(project: tuple[Genesis, Charter, Path], algorithm: Algorithm) -> Bench:
    genesis, charter, cache = project
    return open_bench(algorithm.genesis(genesis), algorithm.charter(charter), cache)


def outcome_of(
    project: tuple[Genesis, Charter, Path], algorithm: Algorithm, setting: Setting = SETTING
) -> Outcome:
    return algorithm.run(bench_of(project, algorithm), setting, lambda share: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", first(2, MERGING))
def test_every_algorithm_trains_on_exactly_the_same_tokens(project, name):
    bench = bench_of(project, ALGORITHMS[name])
    before = bench.heldout_loss(bench.loop(), bench.first)
    outcome = outcome_of(project, ALGORITHMS[name])
    assert outcome.tokens == TOKENS
    assert outcome.eval_loss < before - 0.3
    assert 0.0 < outcome.goodput <= 1.0
    assert outcome.bytes > 0
    assert outcome.virtual_wall_s >= STEPS * SETTING.step_s * 0.9


@pytest.mark.slow
def test_learners_with_batches_of_their_own_share_the_same_tokens(project):
    uneven = replace(
        ALGORITHMS["decoupled-uneven"],
        inner={"batch_sequences": 1, "batch_sequences_max": 8},
        batches=(1, 1, 8),
    )
    run = Decoupled(bench_of(project, uneven), SETTING, fails=False, batches=uneven.batches)
    outcome = run.run(lambda share: None)
    assert outcome.tokens == TOKENS
    small, other, large = (learner.tokens for learner in run.learners)
    assert 6 * (small + other) < 2 * large < 10 * (small + other)


@pytest.mark.slow
@pytest.mark.parametrize("rejoins_locally", [False, True])
def test_who_comes_back_begins_from_the_global_value_or_from_anothers_local_one(
    project, rejoins_locally
):
    bench = bench_of(project, ALGORITHMS["decoupled-failing"])
    run = Decoupled(bench, SETTING, fails=True, rejoins_locally=rejoins_locally)
    seasoned: list[bool] = []

    def look(host: SimLearner, fragment: int) -> None:
        if host.life > 1 and host.trainer is not None and host.trainer.local_step == 0:
            seasoned.append(any(values.any() for values in host.trainer.moments))

    for learner in run.learners:
        learner.on_assign.append(look)
    outcome = run.run(lambda share: None)
    assert outcome.tokens == TOKENS
    # Another's weights and moments are there with the last fragment, before the first local step.
    assert seasoned
    assert any(seasoned) == rejoins_locally


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoupled-failing", "elastic-dp-failing", "fedavg"])
def test_the_same_seed_gives_the_same_outcome(project, name):
    assert outcome_of(project, ALGORITHMS[name]) == outcome_of(project, ALGORITHMS[name])


def test_data_parallel_is_one_learner_with_the_whole_batch(project):
    run = DataParallel(bench_of(project, ALGORITHMS["dp"]), SETTING, fails=False, is_elastic=False)
    run.run(lambda share: None)
    bench, batch = run.bench, LEARNERS * INNER.batch_sequences
    twin = DataParallel(bench, SETTING, fails=False, is_elastic=False)
    whole = msgspec.structs.replace(bench.charter.inner, batch_sequences=batch)
    alone = bench.loop(twin.reader, whole)
    for step in range(STEPS):
        alone.progress = step / STEPS
        alone.step()
    for one, other in zip(
        run.loop.trainer.model.parameters(), alone.trainer.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_fedavg_after_every_step_of_sgd_is_data_parallel_sgd(project, monkeypatch):
    def sgd(model, inner, **options):
        return torch.optim.SGD(model.parameters(), lr=inner.learning_rate)

    monkeypatch.setattr(builtin, "make_optimizer", sgd)
    genesis, charter, cache = project
    inner = msgspec.structs.replace(INNER, learning_rate=0.3, grad_norm_max=1e6)
    charter = msgspec.structs.replace(charter, inner=inner)
    bench = open_bench(ALGORITHMS["fedavg"].genesis(genesis), charter, cache)
    # The same text for both: as many blocks for each learner as its batches fill.
    setting = replace(SETTING, steps=12)
    federated = Lockstep(bench, setting, LockstepSpec(local_steps=1))
    federated.run(lambda share: None)
    parallel = DataParallel(bench, setting, fails=False, is_elastic=False)
    parallel.run(lambda share: None)
    found = np.zeros_like(bench.first[0])
    FragmentView(parallel.loop.trainer.model, bench.layout).read(0, found)
    moved = np.abs(found - bench.first[0]).max()
    assert moved > 0.01
    np.testing.assert_allclose(federated.theta[0], found, atol=1e-3 * moved)


@pytest.mark.slow
def test_learners_that_come_for_half_of_each_day_take_a_part_of_the_same_tokens(project):
    setting = replace(SETTING, steps=240, learners=4)
    genesis, charter, cache = project
    tokens = 4 * setting.steps * INNER.batch_sequences * SEQUENCE_TOKENS
    limits = msgspec.structs.replace(charter.limits, tokens=tokens)
    charter = msgspec.structs.replace(charter, limits=limits)
    run = Decoupled(open_bench(genesis, charter, cache), setting, fails=False, is_daily=True)
    outcome = run.run(lambda share: None)
    assert outcome.tokens == tokens
    always = min(run.learners[0].tokens, run.learners[2].tokens)
    sometimes = max(run.learners[1].tokens, run.learners[3].tokens)
    assert 0.2 * always < sometimes < 0.8 * always
    assert min(run.learners[1].life, run.learners[3].life) > 1


@pytest.mark.slow
def test_a_slow_learner_holds_up_data_parallelism_and_not_the_decoupled(project):
    uneven = replace(SETTING, slowness=(1.0, 1.0, 3.0))
    bench = bench_of(project, ALGORITHMS["decoupled"])
    run = Decoupled(bench, uneven, fails=False)
    outcome = run.run(lambda share: None)
    fast, other, slow = (learner.tokens for learner in run.learners)
    assert 2.5 * slow < min(fast, other)
    assert outcome.virtual_wall_s < 1.6 * STEPS
    assert outcome_of(project, ALGORITHMS["dp"], uneven).virtual_wall_s > 2.9 * STEPS


@pytest.mark.slow
def test_a_step_that_an_interruption_cuts_short_is_taken_by_somebody_else(project):
    setting = replace(SETTING, mtbi_s=6.0)
    run = Decoupled(bench_of(project, ALGORITHMS["decoupled"]), setting, fails=True)
    outcome = run.run(lambda share: None)
    assert outcome.tokens == TOKENS
    assert sum(learner.life for learner in run.learners) > 2 * LEARNERS
    assert outcome.goodput < 0.9


@pytest.mark.slow
def test_interruptions_cost_rigid_data_parallelism_most(project):
    goodput = {
        name: outcome_of(project, ALGORITHMS[name]).goodput
        for name in ("dp", "dp-failing", "elastic-dp-failing")
    }
    assert goodput["dp"] > goodput["elastic-dp-failing"]
    assert goodput["dp"] > goodput["dp-failing"]


@pytest.mark.slow
def test_a_slow_link_holds_up_data_parallelism_and_not_the_decoupled(project):
    slow = replace(SETTING, link_mbps=200.0)
    wall = {
        name: outcome_of(project, ALGORITHMS[name], slow).virtual_wall_s
        for name in ("dp", "decoupled")
    }
    assert wall["dp"] > 5 * STEPS
    assert wall["decoupled"] < 1.3 * STEPS


def test_the_last_batch_of_fewer_learners_is_cut(project):
    bench = bench_of(project, ALGORITHMS["dp"])
    reader = JoinedReader(bench, [bench.reader(at, 4) for at in range(3)], 4)
    assert len(reader.take(10)) == 10
    reader.active = [0, 2]
    assert len(reader.take(3)) == 3


def test_interruptions_are_the_same_for_every_algorithm_of_a_seed():
    first = failures_until(SETTING, 500.0)
    assert first == failures_until(SETTING, 500.0)
    assert first != failures_until(replace(SETTING, seed=12), 500.0)
    assert [time_s for time_s, _ in first] == sorted(time_s for time_s, _ in first)
    # About 500 s for 3 learners that last 20 s and are away for 10.
    assert 30 < len(first) < 75
    assert not failures_until(replace(SETTING, mtbi_s=0.0), 500.0)
