"""What was merged lately and is handed in again does not count; honest pushes do."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.log.records import Contribution
from protocol.novelty import ECHO_MAX
from protocol.project import Charter, Genesis, OuterSpec
from simulator.attack.attacks import ATTACKS
from simulator.attack.honest import MIXTURES, Mixed
from simulator.attack.trial import TRUSTED, Attacked, silent
from simulator.compare.bench import open_bench
from simulator.compare.decoupled import Decoupled
from simulator.compare.setting import Setting
from tests.support.tiny_project import tiny_charter, tiny_genesis

LEARNERS, STEPS = 4, 120
SETTING = Setting(seed=1, learners=LEARNERS, steps=STEPS)

Project = tuple[Genesis, Charter, Path]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("echoes")
    genesis = tiny_genesis(folder)
    outer = OuterSpec(0.4, 0.7, 3.0, trust="earned")
    charter = tiny_charter(
        genesis, steps=(LEARNERS - 1) * STEPS, outer=outer, grace_safety=1.0, pace_share=1.0
    )
    return genesis, charter, folder / "cache"


def pushes(run: Decoupled) -> list[Contribution]:
    run.run(silent)
    return [part for merge in run.ledger.merges for part in merge.contributions]


@pytest.mark.slow
@pytest.mark.parametrize("mixture", ["alike", "kind"])
def test_honest_pushes_are_no_echoes_and_nobody_is_doubted(project: Project, mixture: str) -> None:
    parts = pushes(Mixed(open_bench(*project), SETTING, MIXTURES[mixture]))
    echoes = [part.echo for part in parts if part.echo]
    novelties = [part.novelty for part in parts if part.novelty is not None]
    assert min(len(echoes), len(novelties)) > 40
    # Everybody learns nearly the same of this text: of no other model are echoes as strong.
    assert max(echoes) < ECHO_MAX
    assert min(novelties) > 0.05
    assert all(part.trust >= TRUSTED for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["copy", "blur", "stale", "blend"])
def test_who_hands_in_what_was_merged_does_not_count(project: Project, attack: str) -> None:
    run = Attacked(open_bench(*project), SETTING, 1, ATTACKS[attack])
    parts, liar = pushes(run), run.learners[-1].key
    false = [part for part in parts if part.learner == liar and part.echo]
    assert len(false) > 20
    assert all(part.trust < TRUSTED for part in false), "from the first one on"
    assert all(part.trust >= TRUSTED for part in parts if part.learner != liar)
    state = run.syncer.syncer.state
    assert state.taken_back[liar] == state.accounts[liar].tokens
