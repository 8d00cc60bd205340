"""Real processes whose calls of Linux are replaced by what other systems have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from host.runtime import fork_server, parent_death, stand_ins
from host.runtime.python_path import python_path
from node.machine.jobs import TrainerLost, TrainerReady, TrainerSuspended
from node.trainer.builtin import builtin_loop
from node.trainer.loop import make_accelerator
from node.trainer.model import build_model
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from tests.net.swarms import TinySwarm, is_gone
from tests.support.tiny_project import BLOCK_SEQUENCES, INNER, tiny_genesis
from tests.support.trainer_bench import BLOCKS, bench, open_files

pytestmark = [pytest.mark.net, pytest.mark.bare, pytest.mark.timeout(600)]

LIMIT_S = 120.0
LOCAL_STEPS = 6


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setenv(stand_ins.VARIABLE, "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def genesis(folder):
    return tiny_genesis(folder)


def losses_here(genesis, folder):
    """Of the first local steps, without a trainer process."""
    torch.set_num_threads(1)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    reader.append(((0, BLOCKS),))
    model = build_model(genesis.model, seed=genesis.seed)
    loop = builtin_loop(model, reader, INNER, accelerator=make_accelerator("cpu"), micro_batch=2)
    return [loop.step().loss for _ in range(LOCAL_STEPS)]


def open_by(pid):
    """What the descriptors of a process lead to."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # The one that lists them.
            found.append(os.readlink(descriptor))
    return found


def until(look):
    ends_s = time.monotonic() + LIMIT_S
    while not (found := look()) and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert found
    return found


def test_a_trainer_trains_is_suspended_and_its_end_is_noticed(genesis, folder):
    async def live():
        before = open_files()
        async with bench(genesis, folder) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= 3)
            assert isinstance(await one.suspend(), TrainerSuspended)
            assert one.port.pid is None
            assert isinstance(await one.wake(), TrainerReady)
            await one.until(lambda: len(one.steps) >= LOCAL_STEPS)
            await one.weights()
            opened = open_by("self")
            assert any("shoal-slot" in name and "(deleted)" in name for name in opened)
            assert not any("memfd:" in name or "pidfd" in name for name in opened)
            os.kill(one.port.pid, signal.SIGKILL)
            await one.until(lambda: any(isinstance(note, TrainerLost) for note in one.notes))
            losses = one.losses
        assert open_files() == before
        return losses

    assert asyncio.run(live())[:LOCAL_STEPS] == losses_here(genesis, folder)


def test_two_ranks_meet_and_leave_nothing(genesis, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def live():
        async with bench(genesis, folder, ranks=2) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= LOCAL_STEPS)
            assert [path.name[:12] for path in tmp_path.iterdir()] == ["shoal-ranks-"]
            return one.losses

    assert asyncio.run(live())[:LOCAL_STEPS] == pytest.approx(
        losses_here(genesis, folder), rel=1e-5
    )
    assert list(tmp_path.iterdir()) == []


STARTER = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-P", "-m", *sys.argv[1:]],
    env={**os.environ, "SHOAL_ENDS_WITH_PARENT": "15"},
    stdin=subprocess.DEVNULL,
)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("forced", ["all", ""], ids=["stand-in", "native"])
def test_a_command_ends_with_whoever_started_it_and_said_so(tmp_path, monkeypatch, forced):
    monkeypatch.setenv(stand_ins.VARIABLE, forced)
    words = ("shoal", "--home", str(tmp_path), "track", "tensorboard", "--to", str(tmp_path))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, *words],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(starter.stdout.readline())
    assert "still looking" in starter.stdout.readline()
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: is_gone(child))


def test_a_fork_server_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv(fork_server.VARIABLE, str(tmp_path / "nobody-listens"))
    process = fork_server.start(
        "this", [], environment=os.environ, output=1, errors=subprocess.DEVNULL
    )
    assert isinstance(process, subprocess.Popen)
    assert process.wait(LIMIT_S) == 0


def test_a_swarm_merges_below_a_deep_home(tmp_path):
    deep = tmp_path / ("d" * 50) / ("e" * 50)
    deep.mkdir(parents=True)
    with TinySwarm(deep) as swarm:
        assert swarm.processes.environment[stand_ins.VARIABLE] == "all"
        assert parent_death.VARIABLE not in swarm.processes.environment
        swarm.prepare()
        swarm.begin()
        swarm.start_learner("ada")
        swarm.all_merge("ada")
        assert Path(swarm.home.root).is_relative_to(deep)
