"""Asynchronous merging, one and two levels, against what it should be by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.trainer.model import FragmentView
from protocol.project import Charter, Genesis, OuterSpec
from simulator.compare.algorithms import ALGORITHMS
from simulator.compare.asynchronous import Asynchronous, AsynchronousSpec, Server
from simulator.compare.bench import Bench, open_bench
from simulator.compare.setting import Setting
from tests.support.tiny_project import INNER, SEQUENCE_TOKENS, tiny_charter, tiny_genesis

SETTING = Setting(seed=11, learners=4, steps=20)
PLAIN = AsynchronousSpec(learning_rate=1.0, momentum=0.0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A tiny project in one fragment, merged after six local steps."""
    folder: Path = tmp_path_factory.mktemp("asynchronous")
    genesis: Genesis = tiny_genesis(folder)
    charter: Charter = tiny_charter(
        genesis,
        steps=SETTING.learners * SETTING.steps,
        outer=OuterSpec(0.7, 0.3, 3.0),
        grace_safety=0.9,
        pace_share=0.5,
    )
    one = ALGORITHMS["asynchronous"]
    return open_bench(one.genesis(genesis), one.charter(charter), folder / "cache")


def ran(bench: Bench, setting: Setting, spec: AsynchronousSpec) -> tuple[Asynchronous, float]:
    """The run, and its held-out loss."""
    run = Asynchronous(bench, setting, spec)
    outcome = run.run(lambda share: None)
    assert outcome.tokens == (
        setting.learners * setting.steps * INNER.batch_sequences * SEQUENCE_TOKENS
    )
    return run, outcome.eval_loss


def test_one_learner_whose_displacements_are_merged_as_they_are_trains_alone(bench):
    alone = replace(SETTING, learners=1)
    run, _ = ran(bench, alone, PLAIN)
    blocks = -(-alone.steps * INNER.batch_sequences // bench.genesis.data.block_sequences)
    loop = bench.loop(bench.reader(0, blocks), bench.charter.inner)
    for step in range(alone.steps):
        loop.progress = step / alone.steps
        loop.step()
    (expected,) = FragmentView(loop.trainer.model, bench.layout).copies()
    np.testing.assert_allclose(run.top.server.theta, expected, atol=2e-6)


def test_momentum_moves_once_for_as_many_displacements_as_there_are_learners():
    server = Server(np.zeros(2, np.float32), 0.5, 0.8, every=2)
    server.take(np.array([2.0, 0.0], np.float32))
    np.testing.assert_allclose(server.theta, [-0.5, 0.0])
    server.take(np.array([0.0, 4.0], np.float32))
    # The momentum is the mean of both, (1, 2), and adds 0.8 of itself once.
    np.testing.assert_allclose(server.momentum, [1.0, 2.0])
    np.testing.assert_allclose(server.theta, [-0.5 - 0.4, -1.0 - 0.8])
    server.take(np.array([2.0, 0.0], np.float32))
    np.testing.assert_allclose(server.theta, [-1.4, -1.8])
    server.take(np.array([2.0, 0.0], np.float32))
    np.testing.assert_allclose(server.momentum, [2.8, 1.6])


@pytest.mark.slow
@pytest.mark.parametrize("regions", [1, 2])
def test_what_the_global_model_moved_is_what_all_displacements_add_up_to(
    bench, regions, monkeypatch
):
    """None is lost, and none goes in twice, whatever was on its way when another came."""
    taken: list[tuple[Server, np.ndarray]] = []
    take = Server.take

    def noted(self: Server, moved: np.ndarray) -> None:
        taken.append((self, moved))
        take(self, moved)

    monkeypatch.setattr(Server, "take", noted)
    spec = replace(PLAIN, regions=regions)
    run, loss = ran(bench, SETTING, spec)
    lowest = [moved for server, moved in taken if regions == 1 or server is not run.top.server]
    assert len(lowest) == 14  # 13 of six local steps, and one of the two that are left.
    moved = np.sum(lowest, axis=0) / SETTING.learners
    np.testing.assert_allclose(bench.first[0] - run.top.server.theta, moved, atol=1e-5)
    assert loss < bench.heldout_loss(bench.loop(), bench.first) - 0.1


@pytest.mark.slow
def test_slow_learners_take_fewer_local_steps_where_these_are_dynamic(bench, monkeypatch):
    taken: dict[int, int] = {}

    def stop_there(run: Asynchronous, learner: int, moved: np.ndarray) -> None:
        taken[learner] = run.loops[learner].tokens_total

    monkeypatch.setattr(Asynchronous, "_send", stop_there)
    slow = replace(SETTING, slowness=(1.0, 1.0, 2.0, 4.0))
    spec = ALGORITHMS["asynchronous-dynamic"].asynchronous
    of_a_step = INNER.batch_sequences * SEQUENCE_TOKENS
    Asynchronous(bench, slow, spec).run(lambda share: None)
    assert [taken[at] / of_a_step for at in range(4)] == [6, 6, 3, 2]
    Asynchronous(bench, slow, PLAIN).run(lambda share: None)
    assert [taken[at] / of_a_step for at in range(4)] == [6, 6, 6, 6]


@pytest.mark.slow
def test_who_is_fast_takes_more_of_the_budget(bench):
    slow = replace(SETTING, slowness=(1.0, 1.0, 4.0, 4.0))
    run, _ = ran(bench, slow, PLAIN)
    fast, other, slower, slowest = (loop.tokens_total for loop in run.loops)
    assert fast + other > 2 * (slower + slowest)


@pytest.mark.slow
def test_a_slow_link_is_waited_for_and_regions_wait_for_their_own_only(bench):
    slow = replace(SETTING, link_mbps=100.0)
    spec = ALGORITHMS["asynchronous"].asynchronous
    two = ALGORITHMS["two-level"].asynchronous
    walls = [
        Asynchronous(bench, slow, one).run(lambda share: None).virtual_wall_s for one in (spec, two)
    ]
    # 400 MB for each of 14 displacements over one line of 12.5 MB/s.
    assert walls[0] > 14 * 32
    assert walls[1] < walls[0] / 2
