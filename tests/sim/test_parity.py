"""A swarm of one ends where its loop ends alone, with H, codecs and outer step of a new project."""

from __future__ import annotations

import msgspec
import pytest

from protocol.project import OuterSpec
from simulator.compare.bench import open_bench
from simulator.compare.data_parallel import DataParallel
from simulator.compare.decoupled import Decoupled
from simulator.compare.setting import Setting
from tests.support.tiny_project import tiny_charter, tiny_genesis

STEPS = 800
LOSS_ABOVE_FRAC_MAX = 0.01
LEARNED = 3.0
"""Nats by which the loss falls at least, from almost 5.6 of random weights."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_swarm_of_one_ends_within_a_hundredth_of_its_loop_alone(tmp_path):
    seed = 3  # The one of three that came out furthest off.
    genesis = msgspec.structs.replace(tiny_genesis(tmp_path), seed=seed)
    charter = tiny_charter(
        genesis, steps=STEPS, outer=OuterSpec(0.4, 0.7, 3.0), grace_safety=0.9, pace_share=0.5
    )
    rounds = msgspec.structs.replace(charter.rounds, local_steps=8)
    limits = msgspec.structs.replace(charter.limits, heldout_sequences=64)
    charter = msgspec.structs.replace(charter, rounds=rounds, limits=limits)
    bench = open_bench(genesis, charter, tmp_path / "cache")
    size = bench.layout.parameters
    setting = Setting(seed=seed, learners=1, steps=STEPS, clock_parameters=size)
    before = bench.heldout_loss(bench.loop(), bench.first)
    swarm = Decoupled(bench, setting, fails=False).run(lambda share: None)
    alone = DataParallel(bench, setting, fails=False, is_elastic=False).run(lambda share: None)
    print(f"seed {seed}: alone {alone.eval_loss:.4f}, swarm of one {swarm.eval_loss:.4f}")
    assert swarm.tokens == alone.tokens
    assert alone.eval_loss < before - LEARNED
    assert swarm.eval_loss < (1.0 + LOSS_ABOVE_FRAC_MAX) * alone.eval_loss
