"""Real trainer processes, suspended into files and woken again, against one left in peace."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal

import numpy as np
import psutil
import pytest
import uvloop

from node.machine.jobs import (
    Capture,
    Captured,
    Evaluate,
    Feed,
    NotRestored,
    StartTrainer,
    Starved,
    TrainerLost,
    TrainerReady,
    TrainerSuspended,
    WakeTrainer,
)
from node.trainer.link import messages
from node.trainer_client.client import READY_TIMEOUT_S, TrainerPort
from node.trainer_client.process import TrainerProcess
from node.trainer_client.suspended_trainer import Gate
from protocol.log.records import Span
from protocol.machine import Failed
from tests.net.swarms import is_gone
from tests.support.tiny_project import INNER, tiny_genesis
from tests.support.trainer_bench import BLOCKS, bench, open_files

pytestmark = pytest.mark.net

LAUNCH = TrainerPort.launch
SEND = TrainerProcess.send


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("suspending")


@pytest.fixture(scope="module")
def genesis(folder):
    return tiny_genesis(folder)


def test_a_start_that_takes_too_long_leaves_no_second_trainer(genesis, folder):
    async def start():
        async with bench(genesis, folder) as one:
            # Over at the loop's next turn: a forked trainer can be ready within any time longer.
            one.port.ready_timeout_s = 0.0
            for _ in range(3):
                failed = await one.port.start(StartTrainer(2, INNER))
                assert isinstance(failed, Failed)
                assert "not ready after" in failed.reason
                assert one.port.pid is None
                assert is_gone(one.port.process.pid), "it would take memory beside its successor"
            one.port.ready_timeout_s = READY_TIMEOUT_S
            assert isinstance(await one.port.start(StartTrainer(2, INNER)), TrainerReady)
            first = one.port.pid
            # Whatever asks for another while one runs: there is one.
            assert isinstance(await one.port.start(StartTrainer(2, INNER)), TrainerReady)
            assert is_gone(first)
            assert not is_gone(one.port.pid)

    uvloop.run(start())


def test_a_trainer_suspended_again_and_again_goes_on_bit_for_bit(genesis, folder):
    async def train(pauses):
        async with bench(genesis, folder) as one:
            await one.begin()
            for after in pauses:
                await one.until(lambda after=after: len(one.steps) >= after)
                pid = one.port.pid
                assert isinstance(await one.suspend(), TrainerSuspended)
                assert one.port.pid is None
                assert not psutil.pid_exists(pid)
                assert isinstance(await one.wake(), TrainerReady)
            await one.until(lambda: Starved() in one.notes)
            assert not any(isinstance(note, TrainerLost) for note in one.notes)
            return one.steps, one.losses, await one.weights()

    calm = uvloop.run(train([]))
    before = open_files()
    disturbed = uvloop.run(train([3, 11]))
    assert open_files() == before
    assert calm[0] == disturbed[0] == list(range(1, BLOCKS * 6 // 4 + 1))
    assert calm[1] == disturbed[1]
    np.testing.assert_array_equal(calm[2], disturbed[2])


def test_deliveries_captures_and_blocks_reach_a_suspended_trainer(genesis, folder):
    async def run():
        async with bench(genesis, folder, blocks=4) as one:
            await one.begin()
            await one.until(lambda: Starved() in one.notes)
            trained = await one.weights()
            assert isinstance(await one.suspend(), TrainerSuspended)
            captured = await one.port.capture(Capture(1, 7))
            assert isinstance(captured, Captured)
            assert (captured.local_step, captured.tokens) == (6, 6 * 4 * 32)
            assert captured.payload_bytes > 0
            delivered = await one.deliver(2)
            assert (delivered.version, delivered.local_step) == (0, 6)
            one.port.feed(Feed((Span(10, 12, 0),)))
            one.port.set_progress(0.25)
            evaluated = await asyncio.gather(
                one.port.evaluate(Evaluate(0, 4)), return_exceptions=True
            )
            assert isinstance(evaluated[0], Exception)
            assert isinstance(await one.port.wake(WakeTrainer(None, INNER)), TrainerReady)
            woken = await one.weights()
            sizes = np.cumsum([0, *(cut.numel for cut in one.bank.layout.fragments)])
            np.testing.assert_array_equal(woken[: sizes[2]], trained[: sizes[2]])
            np.testing.assert_array_equal(woken[sizes[2] :], one.bank.theta(2))
            one.notes.clear()
            one.port.begin()
            await one.until(lambda: Starved() in one.notes)
            assert one.steps == [7, 8, 9]

    uvloop.run(run())


def test_where_there_is_no_room_it_holds_and_goes_on(genesis, folder):
    async def run():
        async with bench(genesis, folder) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= 2)
            refused = await one.suspend(bytes_max=1000)
            assert isinstance(refused, Failed)
            assert "limits.disk_bytes_max" in refused.reason
            assert one.port.pid is not None
            at = len(one.steps)
            one.port.hold(is_held=False)
            await one.until(lambda: len(one.steps) > at + 1)

    uvloop.run(run())


def kill_and_send(process, command):
    """A trainer that is dead before it is told what to train, so that it is never ready."""
    if isinstance(command, messages.Configure):
        kill_at_once(process.pid)
    return SEND(process, command)


async def launch_and_kill(port, *how):
    """A launch whose trainer got ready, and is dead before anything more is said to it."""
    ready = await LAUNCH(port, *how)
    kill_at_once(port.pid)
    return ready


def kill_at_once(pid):
    """It is dead afterwards, and its owner still has to hear of it."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 60.0)[0], "it is not killed"
    finally:
        os.close(handle)


def test_a_trainer_that_dies_while_it_wakes_leaves_its_state_where_it_was(
    genesis, folder, monkeypatch
):
    async def run():
        async with bench(genesis, folder) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= 2)
            assert isinstance(await one.suspend(), TrainerSuspended)
            with monkeypatch.context() as patched:
                patched.setattr(TrainerProcess, "send", kill_and_send)
                failed = await one.wake()
            assert isinstance(failed, Failed)
            assert not isinstance(failed, NotRestored)
            assert one.port.suspended is not None
            # And once more, ready but before it is given its state.
            with monkeypatch.context() as patched:
                patched.setattr(TrainerPort, "launch", launch_and_kill)
                assert isinstance(await one.wake(), NotRestored)
            assert one.port.suspended is not None
            at = one.steps[-1]
            assert isinstance(await one.wake(), TrainerReady)
            await one.until(lambda: Starved() in one.notes)
            assert one.steps[-1] == BLOCKS * 6 // 4 > at
            assert not any(isinstance(note, TrainerLost) for note in one.notes)

    uvloop.run(run())


def test_a_trainer_that_dies_while_it_is_suspended_is_told_as_lost(genesis, folder):
    async def run():
        async with bench(genesis, folder) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= 2)
            psutil.Process(one.port.pid).suspend()
            suspending = asyncio.ensure_future(one.suspend())
            await asyncio.sleep(0.1)
            psutil.Process(one.port.pid).kill()
            result = await suspending
            assert isinstance(result, Failed)
            assert one.port.suspended is None
            assert [note for note in one.notes if isinstance(note, TrainerLost)]

    uvloop.run(run())


def test_a_gate_closes_once_everybody_is_out():
    async def run():
        gate, order, draw = Gate(), [], random.Random(3)

        async def guest(name):
            async with gate.passing():
                order.append(("in", name))
                await asyncio.sleep(draw.random() / 100)
                order.append(("out", name))

        async def keeper(name):
            async with gate.closed():
                order.append(("closed", name))
                await asyncio.sleep(0.01)
                order.append(("open", name))

        works = [guest(at) for at in range(20)] + [keeper(100), keeper(101)]
        await asyncio.gather(*works, *(guest(at) for at in range(20, 30)))
        inside = 0
        for at, (what, _) in enumerate(order):
            inside += {"in": 1, "out": -1}.get(what, 0)
            if what == "closed":
                assert inside == 0
                assert order[at + 1][0] == "open"
        assert len(order) == 2 * 32

    asyncio.run(run())
