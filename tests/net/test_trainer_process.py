from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import uvloop

from host.runtime.processor import has_bf16
from node.trainer.builtin import builtin_loop
from node.trainer.link import messages
from node.trainer.loop import is_in_bf16, make_accelerator
from node.trainer.model import (
    FragmentView,
    build_model,
    describe_model,
    initial_weights,
    layout_of,
)
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from node.trainer_client.process import TrainerProcess
from protocol.errors import TransientError
from tests.support.tiny_project import (
    BLOCK_SEQUENCES,
    CONFIG,
    FRAGMENTS,
    INNER,
    configure,
    data_spec,
    tiny_genesis,
)

pytestmark = [pytest.mark.net, pytest.mark.bare]

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 180.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def genesis(folder):
    return tiny_genesis(folder)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def driven_by(run):
    """Runs an async test on a loop of this kind; daemons use uvloop, others need not."""

    def decorate(test):
        @functools.wraps(test)
        def wrapper(**fixtures):
            run(test(**fixtures))

        return wrapper

    return decorate


class Daemon:
    """A daemon's view of one trainer, with waits instead of callbacks."""

    def __init__(self, log_path):
        self.events = asyncio.Queue()
        self.exits = []
        self.has_exited = asyncio.Event()
        self.trainer = TrainerProcess(
            log_path=log_path, on_event=self.events.put_nowait, on_exit=self.on_exit
        )

    def on_exit(self, reason):
        self.exits.append(reason)
        self.has_exited.set()

    async def next(self, kind):
        """The next event, which must be of this kind."""
        async with asyncio.timeout(ANSWER_S):
            event = await self.events.get()
        assert isinstance(event, kind), event
        return event

    async def until(self, kind):
        """The next event of this kind, and those before it."""
        before = []
        async with asyncio.timeout(ANSWER_S):
            while not isinstance(event := await self.events.get(), kind):
                before.append(event)
        return event, before

    async def exited(self):
        async with asyncio.timeout(ANSWER_S):
            await self.has_exited.wait()
        (reason,) = self.exits
        return reason

    async def put(self, command, fragment, values):
        """Assigns or adds values, and waits until it is done."""
        slot = self.trainer.slot(values.size)
        slot.values[:] = values
        self.trainer.send(command(1, fragment, slot.identity, slot.numel))
        done = await self.next(messages.Done)
        self.trainer.release(slot)
        return done

    async def snapshot(self, sizes):
        """Every fragment, as it is at the next boundary."""
        found = []
        for fragment, numel in enumerate(sizes):
            slot = self.trainer.slot(numel)
            self.trainer.send(messages.Snapshot(2, fragment, slot.identity, numel))
            await self.until(messages.Done)
            found.append(slot.values.copy())
            self.trainer.release(slot)
        return found


@contextlib.asynccontextmanager
async def daemon(folder, command):
    """A started trainer that is gone afterwards, with every descriptor it cost."""
    before = open_descriptors()
    one = Daemon(folder / "trainer.log")
    await one.trainer.start(command)
    try:
        yield one
    finally:
        await one.trainer.stop(0.0)
        assert not one.trainer.is_running
    del one
    assert open_descriptors() == before


def train_here(genesis, folder, *, steps):
    """The fragments after these local steps in this process, and the losses."""
    torch.set_num_threads(1)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    reader = BlockReader(corpus, block_sequences=BLOCK_SEQUENCES)
    reader.append(((0, 100),))
    model = build_model(genesis.model, seed=genesis.seed)
    loop = builtin_loop(model, reader, INNER, accelerator=make_accelerator("cpu"))
    loop.progress = 0.1
    losses = [loop.step().loss for _ in range(steps)]
    view = FragmentView(model, layout_of(genesis))
    fragments = [np.empty(view.numel(index), dtype=np.float32) for index in range(FRAGMENTS)]
    for index, values in enumerate(fragments):
        view.read(index, values)
    return fragments, losses, loop, corpus


async def check_weights(one, weights):
    """Assign and add do to the weights what they say."""
    sizes = [values.size for values in weights]
    for fragment, values in enumerate(weights):
        await one.put(messages.Assign, fragment, values)
    for seen, values in zip(await one.snapshot(sizes), weights, strict=True):
        np.testing.assert_array_equal(seen, values)
    await one.put(messages.Add, 1, weights[1])
    np.testing.assert_array_equal((await one.snapshot(sizes))[1], weights[1] * 2)
    await one.put(messages.Assign, 1, weights[1])


async def check_steps(one, genesis, folder, sizes):
    """Three blocks of six are four steps of four; then the trainer starves, and waits."""
    expected, losses, _, _ = train_here(genesis, folder, steps=4)
    one.trainer.send(messages.SetProgress(0.1))
    one.trainer.send(messages.Blocks(((0, 1), (1, 3))))
    one.trainer.send(messages.Begin())
    starved, steps = await one.until(messages.Starved)
    assert starved.local_step == 4
    assert [step.local_step for step in steps] == [1, 2, 3, 4]
    assert [(step.position, step.sequence) for step in steps] == [(0, 4), (1, 2), (1, 6), (2, 4)]
    assert [step.tokens_total for step in steps] == [128, 256, 384, 512]
    assert [step.loss for step in steps] == losses
    assert all(0.0 < step.work_s <= step.step_s for step in steps)
    trained = await one.snapshot(sizes)
    for seen, values in zip(trained, expected, strict=True):
        np.testing.assert_array_equal(seen, values)
    return trained


async def check_evaluation(one, genesis, folder, weights, trained):
    """The loss is that of the weights given, and the model in training stays as it was."""
    everything = np.concatenate(weights)
    slot = one.trainer.slot(everything.size)
    slot.values[:] = everything
    one.trainer.send(messages.Evaluate(3, slot.identity, slot.numel, 8))
    one.trainer.send(messages.Generate(4, "the quiet", 5, slot.identity, slot.numel, seed=1))
    one.trainer.send(messages.Generate(5, "the quiet", 5))
    evaluated = await one.next(messages.Evaluated)
    _, _, loop, corpus = train_here(genesis, folder, steps=0)
    heldout = corpus.heldout(8)
    expected = loop.evaluate(heldout, layout=layout_of(genesis), values=everything)
    assert evaluated.loss == pytest.approx(expected, rel=1e-6)
    assert (evaluated.job, evaluated.tokens) == (3, 8 * 32)
    assert [(await one.next(messages.Generated)).job for _ in range(2)] == [4, 5]
    for seen, values in zip(await one.snapshot([v.size for v in trained]), trained, strict=True):
        np.testing.assert_array_equal(seen, values)


async def check_pause_and_duty(one):
    """A pause outlasts new blocks, dropped blocks are not trained on, half duty sleeps as long."""
    one.trainer.send(messages.Pause())
    one.trainer.send(messages.Blocks(((10, 11),)))
    one.trainer.send(messages.DropBlocks())
    one.trainer.send(messages.Blocks(((20, 21),), 2))
    one.trainer.send(messages.SetDuty(0.5))
    await asyncio.sleep(0.1)
    assert one.events.empty()
    one.trainer.send(messages.Resume())
    step = await one.next(messages.Stepped)
    assert (step.local_step, step.position, step.sequence) == (5, 20, 6)
    await one.next(messages.Starved)
    one.trainer.send(messages.Blocks(((30, 36),)))
    _, steps = await one.until(messages.Starved)
    assert len(steps) == 9
    assert sum(step.step_s for step in steps[1:]) > 1.9 * sum(step.work_s for step in steps[:-1])


@driven_by(uvloop.run)
async def test_a_trainer_lives_a_whole_life(genesis, folder):
    weights = initial_weights(genesis)
    async with daemon(folder, configure(genesis, folder, micro_batch=4)) as one:
        ready = await one.next(messages.Ready)
        assert ready.layout_digest == layout_of(genesis).digest
        assert ready.corpus_matches
        assert (ready.device, ready.micro_batch) == ("cpu", 4)
        assert set(ready.startup_s) == {"data", "import", "device", "model"}
        await check_weights(one, weights)
        trained = await check_steps(one, genesis, folder, [values.size for values in weights])
        await check_evaluation(one, genesis, folder, weights, trained)
        await check_pause_and_duty(one)
        reason = await one.trainer.stop(10.0)
        assert (reason.code, reason.kind, reason.was_asked) == (0, None, True)
        assert one.exits == [reason]
        assert not one.trainer.send(messages.Pause())
        with pytest.raises(TransientError):
            one.trainer.slot(8)


@pytest.mark.parametrize("in_f32", [False, True])
def test_a_large_model_is_trained_in_bf16_where_that_is_faster(genesis, folder, in_f32):
    larger = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}
    model = describe_model("LlamaForCausalLM", CONFIG | larger | {"num_key_value_heads": 4})
    large = msgspec.structs.replace(genesis, model=model)
    is_faster = is_in_bf16("cpu", sum(one.numel for one in model.tensors))
    assert is_faster == has_bf16()

    async def look():
        async with daemon(folder, configure(large, folder, micro_batch=4, in_f32=in_f32)) as one:
            return (await one.next(messages.Ready)).precision

    assert uvloop.run(look()) == ("bf16" if is_faster and not in_f32 else "f32")


@driven_by(uvloop.run)
async def test_missing_text_is_told_before_torch_is_loaded(genesis, folder, tmp_path, monkeypatch):
    lost = msgspec.structs.replace(genesis, data=data_spec("/nowhere"))
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Every import is in the log.
    async with daemon(folder, configure(lost, tmp_path)) as one:
        failed = await one.next(messages.Failed)
        assert failed == messages.Failed("data", failed.message)
        assert "no file /nowhere" in failed.message
        reason = await one.exited()
        assert (reason.code, reason.kind, reason.oom) == (messages.EXIT_DATA, "data", False)
        assert reason.message == failed.message
        told = (folder / "trainer.log").read_text()
        assert "UserError" in told
        loaded = {line.rpartition("|")[2].strip() for line in told.splitlines()}
        assert "node.trainer.text.corpus" in loaded
        assert "torch" not in loaded


@driven_by(uvloop.run)
async def test_a_killed_trainer_is_reported_once_with_its_signal(genesis, folder):
    async with daemon(folder, configure(genesis, folder)) as one:
        slot = one.trainer.slot(64)
        os.kill(one.trainer.pid, signal.SIGKILL)
        reason = await one.exited()
        assert (reason.code, reason.signal, reason.was_asked) == (None, signal.SIGKILL, False)
        assert "SIGKILL" in reason.message
        slot.values[:] = 1.0  # What the daemon still reads or writes does not crash it.
        one.trainer.release(slot)
        assert await one.trainer.stop() == reason
        del slot


@driven_by(asyncio.run)
async def test_a_frozen_trainer_is_stopped_within_bounds(genesis, folder):
    async with daemon(folder, configure(genesis, folder)) as one:
        os.kill(one.trainer.pid, signal.SIGSTOP)
        for _ in range(3_000):
            one.trainer.send(messages.Generate(1, "x" * 500, 1))  # More than the socket takes.
        started = time.monotonic()
        reason = await one.trainer.stop(0.1)
        assert reason.signal == signal.SIGKILL
        assert time.monotonic() - started < 60.0


ORPHANING = """
import asyncio, sys
from pathlib import Path
from node.trainer.link.messages import Configure
from node.trainer_client.process import TrainerProcess

async def main():
    trainer = TrainerProcess(log_path=Path(sys.argv[1]), on_event=print, on_exit=print)
    await trainer.start(Configure(b"", b"", "", 1))
    print(trainer.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def state_of(pid):
    """The kernel's letter for the state of a process; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def test_a_trainer_does_not_outlive_its_daemon(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(tmp_path / "log")], stdout=subprocess.PIPE, cwd=ROOT
    )
    child = int(parent.stdout.readline())
    assert state_of(child) not in (None, "Z")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60.0
    while state_of(child) not in (None, "Z") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state_of(child) in (None, "Z")
