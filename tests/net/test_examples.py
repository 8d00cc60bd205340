"""The projects of `examples/` as their pages say: a syncer and two learners, real processes."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM

from tests.net.example_swarm import ExampleSwarm
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

GUESSING = 5.55
"""Nats per byte of somebody who knows nothing: log 257."""


@pytest.mark.parametrize("name", ["own-text", "moe"])
def test_two_learners_train_the_example_and_its_export_loads(tmp_path, name):
    changes = {"limits__evaluate_every": 10, "limits__heldout_sequences": 16}
    if name == "own-text":
        texts = tmp_path / "my-text"
        texts.mkdir()
        for number in range(20):
            write_text(texts / f"{number}.txt", chars=10_000, seed=number)
        changes["data__heldout_frac"] = 0.2
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example(f"{name}/project.toml", **changes)
        swarm.begin()
        for learner in ("ada", "bob"):
            words = ("--data", str(tmp_path / "my-text")) if name == "own-text" else ()
            swarm.start_learner(learner, *words)
        swarm.all_merge("ada", "bob")

        def has_learned():
            now = swarm.syncer()
            return now and now.swarm.curve and now.swarm.curve[-1][2] < GUESSING - 1.0

        swarm.until(has_learned, "a held-out loss that is not a guess", limit_s=400.0)
        swarm.run("export", "--to", str(tmp_path / "out"), "--checkpoint", "latest")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.num_parameters() > 500_000
