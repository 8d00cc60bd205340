"""One liar among four, with a real model, where all count and where trust is earned."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.project import (
    Charter,
    Genesis,
    LimitSpec,
    OuterSpec,
    RoundSpec,
    TrustRule,
    Voter,
    encode,
    project_id,
)
from simulator.attack.forgeries import FORGERIES
from simulator.attack.trial import Trial, attempt
from simulator.compare.bench import open_bench
from simulator.compare.setting import Setting
from tests.support.choices import first
from tests.support.tiny_project import INNER, SEQUENCE_TOKENS, tiny_genesis

LEARNERS, STEPS = 4, 120
TOKENS = (LEARNERS - 1) * STEPS * INNER.batch_sequences * SEQUENCE_TOKENS

Project = tuple[Genesis, Charter, Path]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny project in which the first push is enough, and nobody is waited for."""
    folder = tmp_path_factory.mktemp("attack")
    genesis = tiny_genesis(folder)
    charter = Charter(
        project=project_id(encode(genesis)),
        revision=1,
        voters=(Voter(bytes([1]) * 32, "syncer", 50),),
        banned=(),
        inner=INNER,
        outer=OuterSpec(0.4, 0.7, 3.0),
        rounds=RoundSpec(6, 2, 1, 0.0, 0.0, 20.0, 20.0, "overwrite", "int4", "int4"),
        limits=LimitSpec(TOKENS, 16, 10**6, 8, 60.0, 64),
    )
    return genesis, charter, folder / "cache"


def trial(project: Project, trust: TrustRule, attack: str | None) -> Trial:
    genesis, charter, cache = project
    outer = msgspec.structs.replace(charter.outer, trust=trust)
    bench = open_bench(genesis, msgspec.structs.replace(charter, outer=outer), cache)
    learners = LEARNERS if attack else LEARNERS - 1
    setting = Setting(seed=1, learners=learners, steps=STEPS)
    return attempt(bench, setting, 1 if attack else 0, FORGERIES[attack or "flip-1"])


@pytest.fixture(scope="module")
def quiet(project: Project) -> Trial:
    """The run without the liar."""
    return trial(project, "earned", None)


@pytest.mark.parametrize(
    "attack", first(1, ["flip-10", "constant", "noise-10", "spike", "flip-1", "flip-100"])
)
def test_a_liar_is_named_at_once_and_changes_little(
    project: Project, quiet: Trial, attack: str
) -> None:
    found = trial(project, "earned", attack)
    assert found.loss < 1.2 * quiet.loss
    assert found.liar_share < 0.02
    assert found.pushes_until_named is not None
    assert found.pushes_until_named <= 5
    assert found.honest_doubted == 0


def test_where_all_count_the_same_liar_wrecks_the_model(project: Project, quiet: Trial) -> None:
    assert trial(project, "all", "flip-10").loss > 2 * quiet.loss


@pytest.mark.slow
def test_one_that_turns_is_named_within_five_pushes(project: Project, quiet: Trial) -> None:
    found = trial(project, "earned", "turning")
    assert found.loss < 1.3 * quiet.loss
    assert found.pushes_until_named is not None
    assert 15 < found.pushes_until_named <= 25
