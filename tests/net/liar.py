"""A learner that trains nothing and claims a lot, over a real stream; its push is refused."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from host.addresses import parse_peer
from host.join_link import JoinLink
from host.network.streams import ControlStream
from protocol import wire
from protocol.errors import TransientError
from protocol.fragments import Layout
from protocol.log.records import read_record, record_hash
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import (
    Committed,
    Cursor,
    Heartbeat,
    LeaseRequest,
    Message,
    Pull,
    Push,
    PushHeader,
    Settled,
    Welcome,
)
from protocol.numerics.codecs import payload_bytes
from protocol.project import Charter, Genesis
from protocol.signing import seal
from tests.net.hosts import Host
from tests.support.builders import hello

NAME = "mallory\x1b[2J"
CLAIM = 10**12
"""Tokens that it says it read in one step."""


class Liar:
    """Follows the log far enough to be asked for a push."""

    def __init__(self, folder: Path, link: JoinLink, genesis: Genesis, layout: Layout) -> None:
        self.host = Host(folder, "mallory", bootstrap=list(link.addresses))
        self.link, self.genesis, self.layout = link, genesis, layout
        self.state = SwarmState(genesis.data.block_sequences)
        self.step = 0

    async def hand_in(self) -> Settled:
        """Joins, is pulled, lies; what became of the push."""
        try:
            await self.host.transport.start()
            syncer = parse_peer(self.link.addresses[0]).key
            stream = await self.host.transport.open_control(syncer)
            greeting = hello(
                project=self.link.project, layout=self.layout.digest, name=NAME, agent="liar"
            )
            stream.send(wire.encode(greeting))
            async with asyncio.timeout(60):
                return await self._talk(stream)
        finally:
            await self.host.transport.close()

    async def _talk(self, stream: ControlStream) -> Settled:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    said = wire.decode_message(await stream.recv())
                    if isinstance(said, Settled):
                        return said
                    self._hear(stream, said)
            if self.state.fragments:
                self.step += 50
                stream.send(wire.encode(self.beat()))

    def _hear(self, stream: ControlStream, said: Message) -> None:
        match said:
            case Welcome(charter, index=index):
                self.charter = wire.decode(charter.payload, Charter)
                summary = wire.decode(index.summary, SwarmSummary)
                self.state = SwarmState.restore(summary, self.genesis.data.block_sequences)
                stream.send(wire.encode(LeaseRequest(8)))
            case Committed(entries):
                for entry in entries:
                    record = read_record(entry.record)
                    self.state.apply(record, record_hash(entry.record))
            case Pull():
                stream.send(wire.encode(self.push(said)))
            case _:
                pass

    def beat(self) -> Heartbeat:
        fragments = len(self.layout.fragments)
        return Heartbeat(
            state="training",
            device="cpu",
            local_step=self.step,
            tokens=self.step,
            step_s=0.5,
            loss=3.0,
            steps=(self.step,) * fragments,
            versions=tuple(one.version for one in self.state.fragments),
            cursor=Cursor(0, 0),
            work_s=4.0,
            alive_s=5.0,
        )

    def push(self, pull: Pull) -> Push:
        return self.sealed(pull, incarnation=1, sequence=1, tokens=CLAIM, digest=bytes(32))

    def sealed(self, pull: Pull, **claims: object) -> Push:
        """The answer to a pull: one step, and what else is claimed."""
        codec = self.charter.rounds.up_codec
        header = PushHeader(
            project=self.link.project,
            round=pull.round,
            fragment=pull.fragment,
            base_version=pull.version,
            codec=codec,
            payload_bytes=payload_bytes(codec, self.layout.fragments[pull.fragment].numel),
            steps=1,
            local_step=self.step,
            **{"cursor": Cursor(0, 0), **claims},
        )
        return Push(seal("push", self.link.project, wire.encode(header), self.host.identity))


async def hand_in_a_lie(folder: Path, link: JoinLink, genesis: Genesis, layout: Layout) -> Settled:
    """See `Liar`. TransientError if the swarm sends it away before."""
    with contextlib.suppress(TimeoutError):
        return await Liar(folder, link, genesis, layout).hand_in()
    raise TransientError("it was never asked for a push")
