"""Real processes on loopback: learners with training loops of their own."""

from __future__ import annotations

import numpy as np
import pytest
import uvloop
from safetensors.numpy import load_file

from host.files.signed_project import read_signed
from node.machine.jobs import Starved, TrainerReady, TrainerSuspended
from node.trainer import making
from node.trainer.own import installed
from shoal.common.exit_codes import ExitCode
from tests.net.example_swarm import ExampleSwarm
from tests.net.swarms import shoal
from tests.support.own_loops import install, signed_example
from tests.support.tiny_project import write_text
from tests.support.trainer_bench import bench

pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("name", "goal"), [("digits", 0.6), ("letters", 3.0)])
def test_two_learners_train_with_a_loop_of_their_own(tmp_path, monkeypatch, name, goal):
    install(tmp_path, monkeypatch)
    changes = {"limits__evaluate_every": 10, "limits__heldout_sequences": 64}
    if name == "letters":
        text = write_text(tmp_path / "text.txt")
        changes |= {"data__source": "file", "data__location": str(text), "data__heldout_frac": 0.2}
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example(f"own-loop/{name}.toml", **changes)
        swarm.begin()
        swarm.start_learner("ada")
        swarm.start_learner("bob")
        swarm.all_merge("ada", "bob")

        def is_there():
            now = swarm.syncer()
            return now and now.swarm.curve and now.swarm.curve[-1][2] < goal

        swarm.until(is_there, f"a held-out loss below {goal}")
        swarm.run("export", "--to", "trained", "--checkpoint", "latest")
        tensors = load_file(tmp_path / "trained" / "model.safetensors")
        genesis = read_signed(swarm.signed).genesis
        assert {key: one.shape for key, one in tensors.items()} == {
            one.name: one.shape for one in genesis.model.tensors
        }


def test_who_lacks_the_code_is_refused_in_words_and_who_has_another_version_too(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as here:
        lone = {"package": "lone-loops", "prefix": "lone-"}  # The examples may well be installed.
        install(tmp_path, here, **lone)
        swarm = ExampleSwarm(tmp_path)
        with swarm:
            swarm.prepare_example("own-loop/digits.toml", model__trainer="lone-digits")
            swarm.begin()
            del swarm.processes.environment["PYTHONPATH"]
            swarm.start_learner("without")
            assert swarm.ended("without") == ExitCode.WRONG_INPUT
            wanted = "trainer lone-digits of the package lone-loops 0.1.0, which is not installed"
            assert wanted in swarm.output("without")
            newer = install(tmp_path, here, version="0.2.0", **lone)
            swarm.processes.environment["PYTHONPATH"] = str(newer)
            swarm.start_learner("newer")
            assert swarm.ended("newer") == ExitCode.WRONG_INPUT
            assert "lone-loops 0.2.0 is installed here" in swarm.output("newer")
            here.setenv("PYTHONPATH", str(newer))
            told = shoal(swarm.home, "doctor", "--quick", str(swarm.signed))
            assert "lone-loops 0.2.0 is installed here" in " ".join(told.stdout.split())
            assert told.returncode == ExitCode.FAILED


@pytest.mark.parametrize("name", ["digits", "letters"])
def test_a_parked_loop_goes_on_bit_for_bit_as_if_nothing_had_been(tmp_path, monkeypatch, name):
    install(tmp_path, monkeypatch)
    genesis = signed_example(tmp_path, name)
    place = installed.require(genesis.trainer)
    weights = making.first_weights(place, genesis, tmp_path)

    async def train(parked_at):
        async with bench(genesis, tmp_path, blocks=4, weights=weights) as one:
            await one.begin()
            for at in parked_at:
                await one.until(lambda at=at: len(one.steps) >= at)
                assert isinstance(await one.suspend(), TrainerSuspended)
                assert one.port.pid is None
                assert isinstance(await one.wake(), TrainerReady)
            await one.until(lambda: Starved() in one.notes)
            return one.steps, one.losses, await one.weights()

    calm, parked = uvloop.run(train([])), uvloop.run(train([3]))
    assert calm[:2] == parked[:2]
    np.testing.assert_array_equal(calm[2], parked[2])
