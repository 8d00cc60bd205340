"""Hosts for tests: real engines, throw-away keys, everything closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from host.files import keystore
from host.files.local_settings import RELAY_BYTES_PER_S
from host.network.foreign_errors import TransportState
from host.network.streams import ControlStream
from host.options import BulkAt
from host.transport import Transport

TOPICS = ("shoal/00/seat", "shoal/00/learners")


def run(main: Awaitable[None], *, timeout_s: float = 60.0) -> None:
    """Runs one test on the loop that the daemons use; a hang fails it instead of stopping all."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Host:
    """One host: its transport, and the states that it reported."""

    def __init__(
        self,
        home: Path,
        name: str,
        *,
        bootstrap: list[str],
        port: int = 0,
        listen_host: str = "127.0.0.1",
        bulk: BulkAt = BulkAt(),  # noqa: B008  # Frozen.
        map_port: bool | None = False,
    ) -> None:
        self.states: list[TransportState] = []
        self.changed = asyncio.Event()
        self.identity = keystore.load_or_create(home / name / "key")
        self.transport = Transport(
            self.identity,
            port=port,
            bootstrap=bootstrap,
            topics=TOPICS,
            listen_host=listen_host,
            on_state=self._note,
            relay_bytes_per_s=RELAY_BYTES_PER_S,
            bulk=bulk,
            map_port=map_port,
        )

    def _note(self, state: TransportState) -> None:
        self.states.append(state)
        self.changed.set()

    async def until(self, is_reached: Callable[[TransportState], bool]) -> TransportState:
        """The first reported state, from now or before, that satisfies the condition."""
        while not any(map(is_reached, self.states)):
            self.changed.clear()
            await self.changed.wait()
        return next(filter(is_reached, self.states))

    @property
    def engine_pid(self) -> int:
        """Only tests reach into the engine: they kill it."""
        return self.transport._engine._p2p._child.pid

    @property
    def engine_sockets(self) -> set[str]:
        """Paths of the engine's own sockets; tests beside this one have others there."""
        p2p = self.transport._engine._p2p
        return {at["unix"] for at in (p2p._daemon_listen_maddr, p2p._client_listen_maddr)}


@asynccontextmanager
async def swarm(
    home: Path,
    count: int,
    bulk: BulkAt = BulkAt(),  # noqa: B008  # Frozen.
) -> AsyncIterator[list[Host]]:
    """`count` hosts, the first of which is the others' bootstrap."""
    hosts: list[Host] = []
    try:
        for number in range(count):
            bootstrap = hosts[0].transport.addresses() if hosts else []
            host = Host(home, f"host{number}", bootstrap=bootstrap, bulk=bulk)
            hosts.append(host)
            await host.transport.start()
        yield hosts
    finally:
        for host in reversed(hosts):
            await host.transport.close()


async def echo(stream: ControlStream) -> None:
    """A control handler that returns every frame."""
    while True:
        stream.send(await stream.recv())
