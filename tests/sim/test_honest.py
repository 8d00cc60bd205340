"""Where nobody lies, nobody is doubted, with a real model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.log.records import PushProbed
from protocol.project import OuterSpec
from simulator.attack.honest import MIXTURES, Mixed, train
from simulator.attack.trial import silent
from simulator.compare.bench import open_bench
from simulator.compare.setting import Setting
from tests.support.tiny_project import tiny_charter, tiny_genesis

LEARNERS, STEPS = 4, 120


@pytest.mark.slow
def test_a_learner_with_text_of_its_own_says_so_and_is_not_probed(tmp_path: Path) -> None:
    genesis = tiny_genesis(tmp_path)
    outer = OuterSpec(0.4, 0.7, 3.0, trust="earned", probes_frac=4.0)
    charter = tiny_charter(
        genesis, steps=LEARNERS * STEPS, outer=outer, grace_safety=0.9, pace_share=0.5
    )
    setting = Setting(seed=3, learners=LEARNERS, steps=STEPS // 2)
    run = Mixed(open_bench(genesis, charter, tmp_path / "cache"), setting, MIXTURES["kind"])
    run.run(silent)
    probed = [r.body.learner for r in run.ledger.records if isinstance(r.body, PushProbed)]
    assert probed
    assert run.learners[-1].key not in probed


@pytest.mark.slow
@pytest.mark.parametrize("mixture", ["alike", "slow"])
def test_nobody_honest_is_doubted(tmp_path: Path, mixture: str) -> None:
    genesis = tiny_genesis(tmp_path)
    charter = tiny_charter(
        genesis,
        steps=LEARNERS * STEPS,
        outer=OuterSpec(0.4, 0.7, 3.0),
        grace_safety=0.9,
        pace_share=0.5,
    )
    outer = msgspec.structs.replace(charter.outer, trust="earned")
    bench = open_bench(genesis, msgspec.structs.replace(charter, outer=outer), tmp_path / "cache")
    found = train(bench, Setting(seed=3, learners=LEARNERS, steps=STEPS), MIXTURES[mixture], silent)
    assert found.merges > 20
    assert found.pushes > 60
    assert (found.doubted, found.refused) == (0, 0)
