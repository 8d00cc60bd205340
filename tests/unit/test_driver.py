"""A machine that fails stops its driver, whichever way its event came; ended streams are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque

import pytest

from host import driver as driver_module
from host.driver import Driver
from protocol import wire
from protocol.errors import InternalError, MalformedMessage, PeerUnreachable, TransientError
from protocol.machine import (
    Connect,
    Do,
    Failed,
    JobDone,
    Note,
    PeerDown,
    PeerUp,
    Received,
    Start,
    Started,
    Stop,
    StopAsked,
    WakeAt,
    Woke,
)
from protocol.messages import Alive

PEER, OTHER = b"p" * 32, b"o" * 32
ONCE_S = 5.0
"""Nothing here takes time: whatever lasts so long hangs."""


class Stream:
    """A control stream that gives these frames and then ends, by itself or when it is closed."""

    def __init__(self, *frames, stays=True, error=None, peer=PEER):
        self.peer = peer
        self.address = "/ip6/2001:db8::7/tcp/4100"
        self.frames = deque(frames)
        self.error = error or PeerUnreachable("the stream ended")
        self.ended = asyncio.Event()
        if not stays:
            self.ended.set()

    @property
    def has_frame(self):
        return bool(self.frames)

    async def recv(self):
        if not self.frames:
            await self.ended.wait()
            raise self.error
        return self.frames.popleft()

    def send(self, frame):
        pass

    def close(self):
        self.ended.set()

    def abort(self, reason):
        self.ended.set()


class Network:
    """Gives the driver one stream when it dials, and hands it those that peers open."""

    def __init__(self, dialled=None):
        self.dialled = dialled

    def serve_control(self, handler):
        self.accept = handler

    async def open_control(self, peer):
        if self.dialled is None:
            raise PeerUnreachable("nobody is there")
        return self.dialled


class Machine:
    """Remembers what it was given; fails over events of one kind."""

    def __init__(self, fails_over=(), first=()):
        self.fails_over = fails_over
        self.first = list(first)
        self.seen = []

    def handle(self, event, now_s):
        self.seen.append(event)
        if isinstance(event, self.fails_over):
            raise ZeroDivisionError("planted")
        if isinstance(event, StopAsked):
            return [Stop(event.reason)]
        return self.first if isinstance(event, Started) else []

    def fault(self, peer, error):
        self.seen.append(error)
        if isinstance(error, self.fails_over):
            raise ZeroDivisionError("planted")
        return []

    def wish(self, now_s):
        raise ZeroDivisionError("planted")


@pytest.fixture(autouse=True)
def no_farewell(monkeypatch):
    monkeypatch.setattr(driver_module, "FAREWELL_S", 0.0)


async def fail_over_job(job):
    return Failed("as wanted")


def driven(machine, network=None, act=lambda action: None, **more):
    return Driver(
        machine,
        network or Network(),
        run_job=fail_over_job,
        act=act,
        on_fact=lambda fact: None,
        **more,
    )


def run(work):
    async def bounded():
        async with asyncio.timeout(ONCE_S):
            return await work()

    return asyncio.run(bounded())


ALIVE = wire.encode(Alive(0))


@pytest.mark.parametrize(
    ("fails_over", "first", "frames"),
    [
        (Started, [], None),
        (Woke, [WakeAt(0.0)], None),
        (JobDone, [Start(1, object())], None),
        (Received, [Connect(PEER)], [ALIVE]),
        (PeerUp, [Connect(PEER)], []),
        (PeerDown, [Connect(PEER)], []),
        (PeerDown, [Connect(PEER)], None),
        (MalformedMessage, [Connect(PEER)], [b"\xc1"]),
    ],
)
def test_a_machine_that_fails_stops_the_role_at_its_first_fault(fails_over, first, frames):
    async def work():
        machine = Machine(fails_over, first)
        stream = None if frames is None else Stream(*frames, stays=False)
        driver = driven(machine, Network(stream))
        with pytest.raises(InternalError, match=r"ZeroDivisionError over .*: planted") as caught:
            await driver.run()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        return machine, driver

    machine, driver = run(work)
    assert isinstance(machine.seen[-1], fails_over), "nothing is handled after the first fault"
    seen = len(machine.seen)
    driver.take(Woke())
    driver.fault(PEER, MalformedMessage("more"))
    assert len(machine.seen) == seen


@pytest.mark.parametrize("fails_over", [PeerUp, Received, MalformedMessage, PeerDown])
def test_a_machine_that_fails_over_a_stream_that_a_peer_opened_stops_the_role(fails_over):
    """The task that serves the stream belongs to the transport, which goes on after its errors."""

    async def work():
        machine, network = Machine(fails_over), Network()
        driver = driven(machine, network)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        frames = [b"\xc1"] if fails_over is MalformedMessage else [ALIVE]
        await network.accept(Stream(*frames, stays=False))
        with pytest.raises(InternalError, match="planted"):
            await running
        return machine

    machine = run(work)
    assert isinstance(machine.seen[-1], fails_over)


def test_a_machine_that_fails_over_its_owners_command_stops_the_role_and_tells_the_owner():
    async def work():
        machine = Machine()
        driver = driven(machine)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        with pytest.raises(InternalError, match="a request of its owner: planted"):
            driver.ask(machine.wish)
        with pytest.raises(TransientError):
            driver.ask(machine.wish)
        with pytest.raises(InternalError, match="planted"):
            await running

    run(work)


def test_a_machine_that_failed_before_the_start_is_never_driven():
    async def work():
        machine = Machine()
        driver = driven(machine)
        with pytest.raises(InternalError):
            driver.ask(machine.wish)
        with pytest.raises(InternalError, match="planted"):
            await driver.run()
        assert machine.seen == []

    run(work)


def test_a_command_that_the_machine_refuses_stops_nothing():
    async def work():
        machine = Machine()
        driver = driven(machine)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)

        def refused(now_s):
            raise MalformedMessage("not signed")

        with pytest.raises(MalformedMessage):
            driver.ask(refused)
        driver.take(StopAsked("done"))
        return await running

    assert run(work).reason == "done"


def test_an_effect_that_fails_stops_the_role():
    """The machine believes that it happened."""

    async def work():
        def act(action):
            raise OSError("planted")

        with pytest.raises(InternalError, match="OSError over Started: planted"):
            await driven(Machine(first=[Do("this")]), act=act).run()

    run(work)


def test_events_that_wait_behind_the_fault_are_dropped():
    async def work():
        machine = Machine(Note)
        driver = driven(machine, act=lambda action: [driver.take(Note(n)) for n in range(3)])
        machine.first = [Do("this")]
        with pytest.raises(InternalError):
            await driver.run()
        return machine.seen

    assert run(work) == [Started(), Note(0)]


class ReadingFails(Exception):
    """A bug outside of the machine."""


@pytest.mark.parametrize("error", [PeerUnreachable("gone"), ReadingFails()])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_stream_that_ends_is_told_exactly_once(error, is_replaced):
    async def work():
        machine, network = Machine(), Network()
        driver = driven(machine, network)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        stream = Stream(error=error)
        reading = asyncio.create_task(network.accept(stream))
        await asyncio.sleep(0)
        if is_replaced:
            newer = Stream()
            other = asyncio.create_task(network.accept(newer))
            await asyncio.sleep(0)
        stream.ended.set()
        await asyncio.wait({reading})
        assert isinstance(reading.exception(), ReadingFails | None)
        seen = [type(event) for event in machine.seen]
        driver.take(StopAsked("done"))
        await running
        if is_replaced:
            await other
        return seen

    assert run(work) == [Started, PeerUp, PeerDown, *[PeerUp] * is_replaced]


def test_a_machine_hears_where_a_peer_comes_from():
    async def work():
        machine, network = Machine(), Network()
        driver = driven(machine, network)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        stream = Stream(stays=False)
        with contextlib.suppress(PeerUnreachable):
            await network.accept(stream)
        driver.take(StopAsked("done"))
        await running
        return [event for event in machine.seen if isinstance(event, PeerUp)]

    assert run(work) == [PeerUp(PEER, "2001:db8::/64")]


def talk(streams, **more):
    """Who said something in which order, until nobody who is read says more."""

    async def work():
        machine, network = Machine(), Network()
        driver = driven(machine, network, **more)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        reading = [asyncio.create_task(network.accept(stream)) for stream in streams]
        for _ in range(10 * sum(len(stream.frames) for stream in streams)):
            await asyncio.sleep(0)
        driver.take(StopAsked("done"))
        await running
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        return [event.peer for event in machine.seen if isinstance(event, Received)]

    return run(work)


def test_everybody_has_a_turn_between_two_messages_of_one_peer():
    said = talk([Stream(*[ALIVE] * 50), Stream(*[ALIVE] * 3, peer=OTHER)])
    assert said.count(PEER) == 50
    assert said[:6] == [PEER, OTHER] * 3


def test_a_peer_that_took_more_than_its_share_of_the_loop_is_not_read_for_a_while():
    clock = itertools.count(step=1000.0)  # So long does each message take.
    streams = [Stream(*[ALIVE] * 5), Stream(*[ALIVE] * 5, peer=OTHER)]
    said = talk(streams, cpu_s=lambda: next(clock), has_vote=lambda peer: peer == OTHER)
    assert said == [PEER, *[OTHER] * 5]


def test_a_stream_whose_task_is_cancelled_is_told():
    async def work():
        machine, network = Machine(), Network()
        driver = driven(machine, network)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        reading = asyncio.create_task(network.accept(Stream()))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        assert isinstance(machine.seen[-1], PeerDown)
        driver.take(StopAsked("done"))
        await running

    run(work)


def test_a_task_that_fails_leaves_no_timer_behind():
    async def work():
        async def broken(peer):
            raise ZeroDivisionError("not of the machine")

        machine, network = Machine(first=[WakeAt(0.0), Connect(PEER)]), Network()
        network.open_control = broken
        with pytest.raises(ExceptionGroup):
            await driven(machine, network).run()
        seen = len(machine.seen)
        await asyncio.sleep(0.01)
        assert len(machine.seen) == seen

    run(work)


class Timer:
    """One that the loop was asked for."""

    def __init__(self, at_s, callback):
        self.at_s, self.callback, self.is_cancelled = at_s, callback, False

    def cancel(self):
        self.is_cancelled = True


class Wakes:
    """A machine that wants to be woken when it is told, and the timers that this sets."""

    def __init__(self, monkeypatch):
        self.now_s, self.woken_s, self.timers = 100.0, [], []
        monkeypatch.setattr(driver_module, "time", self)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", self.call_later)

    def monotonic(self):
        return self.now_s

    def handle(self, event, now_s):
        if isinstance(event, Woke):
            self.woken_s.append(now_s)
            return [WakeAt(now_s + 1000.0)]
        return [WakeAt(event.value)] if isinstance(event, Note) else []

    def call_later(self, delay_s, callback):
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def pass_until(self, until_s):
        while due := [one for one in self.timers if one.at_s <= until_s and not one.is_cancelled]:
            timer = min(due, key=lambda one: one.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            timer.callback()


def test_a_machine_is_woken_when_it_said_last_and_a_later_time_sets_no_timer(monkeypatch):
    async def work():
        wakes = Wakes(monkeypatch)
        driver = driven(wakes)
        running = asyncio.create_task(driver.run())
        await asyncio.sleep(0)
        for at_s in (110.0, 120.0, 130.0, 125.0):
            driver.take(Note(at_s))
        assert len(wakes.timers) == 1
        wakes.pass_until(124.0)
        assert wakes.woken_s == []
        wakes.pass_until(126.0)
        assert wakes.woken_s == [125.0]
        driver.take(Note(127.0))
        wakes.pass_until(900.0)
        assert wakes.woken_s == [125.0, 127.0], "sooner than it had said before"
        wakes.pass_until(1200.0)
        assert wakes.woken_s == [125.0, 127.0, 1127.0]
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    run(work)
