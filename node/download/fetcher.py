"""Fetching weights: carries out over the network what the planner of downloads asks for.

One for the whole daemon, so that all fragments together keep within bounds and share the donors.
Every chunk comes into memory of its own and is copied once its digest is proven, so that a second
donor that is asked for the same chunk can never spoil the first one's bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial

from host.files.rooms import MemoryRoom, Rooms
from host.transport import Transport
from node.download.assemblies import Assemblies
from node.download.assembly import Assembly
from node.download.locator import DONORS_FRESH_S, Locator
from node.download.planner import Ask, Planner, Progress, Trouble
from node.machine.jobs import FetchState
from protocol.errors import NotHeld, PeerBusy, RemoteError, TransientError, TransportLost

LOOK_EVERY_S = 0.25
"""Rests end, and what is slow shows, without anybody saying so."""


@dataclass(eq=False)
class StateFetcher:
    """All downloads of weights of one learner."""

    transport: Transport
    locator: Locator
    rng: InitVar[random.Random]
    leader: Callable[[], bytes | None]
    newest: Callable[[int], int]
    """Says which version of a fragment is committed."""
    on_fault: Callable[[bytes, RemoteError], None]
    rooms: InitVar[Rooms] = MemoryRoom
    planner: Planner = field(init=False)
    assemblies: Assemblies = field(init=False)
    _waiting: dict[int, asyncio.Future[Assembly]] = field(default_factory=dict)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, rng: random.Random, rooms: Rooms) -> None:
        self.planner = Planner(rng, self.transport.key)
        self.assemblies = Assemblies(rooms)

    async def fetch(self, job: FetchState, numel: int) -> Assembly:
        """The complete state; a second try goes on where the first ended.

        Others are given its chunks until `assemblies` forgets it. Raises TransientError when nobody
        who can be reached has it.
        """
        assembly = self.assemblies.begin(job, numel)
        done = asyncio.get_running_loop().create_future()
        self._waiting[job.fragment] = done
        self.planner.want(assembly)
        self._wanted.set()
        self._woken.set()
        try:
            await done
        finally:
            if self._waiting.get(job.fragment) is done:
                del self._waiting[job.fragment]
                self.planner.drop(job.fragment)
                self._woken.set()
        return assembly

    def progress(self) -> Progress | None:
        """How far the downloads are; None while there are none."""
        return None if self.planner.is_idle else self.planner.progress(time.monotonic())

    async def run(self) -> None:
        """Carry out requests, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_knowing())
            while True:
                self._woken.clear()
                self._look(group)
                pause_s = None if self.planner.is_idle else LOOK_EVERY_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()

    async def _keep_knowing(self) -> None:
        """Ask again and again who holds weights, while some are wanted."""
        while True:
            await self._wanted.wait()
            learners = await self.locator.donors_or_none()
            leader = self.leader()
            others = [key for key in learners if key != leader]
            self.planner.know(others, leader, time.monotonic(), self.locator.joiners())
            self._woken.set()
            await asyncio.sleep(DONORS_FRESH_S)
            if self.planner.is_idle:
                self._wanted.clear()

    def _look(self, group: asyncio.TaskGroup) -> None:
        now_s = time.monotonic()
        for fragment in self._waiting:
            self.planner.supersede(fragment, self.newest(fragment))
        for assembly, trouble in self.planner.ended(now_s):
            done = self._waiting.pop(assembly.fragment)
            if done.done():
                continue
            if trouble is None:
                done.set_result(assembly)
            else:
                done.set_exception(TransientError(trouble))
        for number in self.planner.cancelled():
            if number in self._tasks:
                self._tasks[number].cancel()
        for ask in self.planner.asks(now_s):
            task = self._tasks[ask.number] = group.create_task(self._carry_out(ask))
            task.add_done_callback(partial(self._ended, ask.number))

    def _ended(self, number: int, _: asyncio.Task[None]) -> None:
        del self._tasks[number]
        self._woken.set()

    async def _carry_out(self, ask: Ask) -> None:
        known_bytes = 0

        def count(held_bytes: int) -> None:
            nonlocal known_bytes
            self.planner.received(ask.number, held_bytes - known_bytes, time.monotonic())
            known_bytes = held_bytes

        try:
            content = await self.transport.fetch(
                ask.donor, ask.digest, ask.length, on_progress=count
            )
            if (assembly := self.assemblies.begun(ask.fragment)) is not None:
                # Off the event loop: a disk may be slow, and there may be gigabytes to look at.
                put = assembly.look_for if ask.is_manifest else assembly.write
                await asyncio.to_thread(put, ask.digest, content)
            self.planner.arrived(ask.number, content, time.monotonic())
        except (TransientError, RemoteError) as error:
            if isinstance(error, RemoteError):
                self.on_fault(ask.donor, error)
            held_sections = error.held_sections if isinstance(error, NotHeld) else 0
            self.planner.failed(
                ask.number, trouble_of(error), str(error), time.monotonic(), held_sections
            )


def trouble_of(error: TransientError | RemoteError) -> Trouble:
    """What an error says about the donor."""
    match error:
        case NotHeld():
            return Trouble.NOT_HELD
        case PeerBusy():
            return Trouble.BUSY
        case TransportLost():
            return Trouble.OURS
        case RemoteError():
            return Trouble.WRONG
        case _:
            return Trouble.GONE
