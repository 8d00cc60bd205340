"""Many keys of one stranger that speak the real protocol and want to stop a run.

    python -m tests.net.hostile_keys FOLDER SIGNED_PROJECT LINK KIND COUNT

Prints `here` once all are welcomed, and goes on until it is killed. KIND:

- `racers` say that they take 200 local steps a second, and never have anything to hand in;
- `announcers` answer every pull with a push whose payload nobody can fetch, and claim no more than
  the text that they were leased;
- `returners` do so too, and come back over a new connection, with a new incarnation, every second;
- `flooders` send pushes with a false signature, as many as the stream takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import uvloop

from host.addresses import parse_peer
from host.files.signed_project import read_signed
from host.join_link import JoinLink, parse_link
from host.network.streams import ControlStream
from protocol import wire
from protocol.errors import ShoalError
from protocol.fragments import build_layout
from protocol.log.records import BlocksLeased, read_record
from protocol.log.state import SwarmState
from protocol.messages import Committed, Cursor, Hello, LeaseRequest, Pull, Push, Refused, Welcome
from tests.net.liar import Liar
from tests.support.builders import hello

BEAT_S = 0.3
BLOCKS, LOW = 64, 16
STEPS_PER_S = {"racers": 200.0, "announcers": 2.0, "returners": 2.0, "flooders": 2.0}
FLOOD, FLOOD_EVERY_S = 400, 0.01
RETURNS_AFTER_S = 1.0


class HostileKey(Liar):
    """One of them: it takes part for as long as it is let."""

    def __init__(self, folder: Path, link: JoinLink, signed, layout, kind: str, number: int):
        super().__init__(folder, link, signed.genesis, layout)
        self.kind = kind
        self.incarnation = 0
        self.is_here = asyncio.Event()
        self._number = number
        self._began_s = time.monotonic()
        self._sequence = 0
        self._unread: deque[int] = deque()
        """Positions that this incarnation was leased and has not claimed."""

    async def take_part(self) -> None:
        """Until it is cancelled; who sends it away meets it again."""
        await self.host.transport.start()
        syncer = parse_peer(self.link.addresses[0]).key
        while True:
            with contextlib.suppress(ShoalError, TimeoutError):
                stream = await self.host.transport.open_control(syncer)
                self.incarnation += 1
                stream.send(wire.encode(self._greeting()))
                if self.kind == "flooders":
                    await self._flood(stream)
                else:
                    await self._stay(stream)
            await asyncio.sleep(0.2)

    def _greeting(self) -> Hello:
        greeting = hello(
            project=self.link.project,
            layout=self.layout.digest,
            name=f"{self.kind}-{self._number}",
            agent="hostile",
        )
        return msgspec.structs.replace(greeting, incarnation=self.incarnation)

    async def _flood(self, stream: ControlStream) -> None:
        """Until the stream takes no more."""
        while not self.is_here.is_set():
            said = wire.decode_message(await stream.recv())
            self._hear(stream, said)
            if isinstance(said, Welcome):
                self.is_here.set()
        push = self.sealed(Pull(1, 0, 0), incarnation=1, sequence=1, tokens=1, digest=bytes(32))
        false = msgspec.structs.replace(push.header, signature=bytes(64))
        frame = wire.encode(Push(false))
        try:
            while True:
                for _ in range(FLOOD):
                    stream.send(frame)
                await asyncio.sleep(FLOOD_EVERY_S)
        finally:
            stream.close()

    async def _stay(self, stream: ControlStream) -> None:
        self.state = SwarmState(self.genesis.data.block_sequences)
        self._unread.clear()
        until_s = time.monotonic() + (RETURNS_AFTER_S if self.kind == "returners" else 1e9)
        beat_s = 0.0
        try:
            while (now_s := time.monotonic()) < until_s:
                if self.state.fragments and now_s >= beat_s:
                    beat_s = now_s + BEAT_S
                    self.step = 1 + int((now_s - self._began_s) * STEPS_PER_S[self.kind])
                    stream.send(wire.encode(self.beat()))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        said = wire.decode_message(await stream.recv())
                    if isinstance(said, Refused):
                        return
                    if isinstance(said, Welcome):
                        self.is_here.set()
                    if isinstance(said, Committed):
                        self._note_leases(said)
                    is_answered = self.kind != "racers" and len(self._unread) > 1
                    if is_answered or not isinstance(said, Pull):
                        self._hear(stream, said)
                    if isinstance(said, Pull) and len(self._unread) < LOW:
                        stream.send(wire.encode(LeaseRequest(BLOCKS)))
        finally:
            stream.close()

    def beat(self):
        said = super().beat()
        idle = (0,) * len(said.steps)
        steps = idle if self.kind == "racers" else said.steps
        return msgspec.structs.replace(said, steps=steps, step_s=1 / STEPS_PER_S[self.kind])

    def _note_leases(self, said: Committed) -> None:
        for entry in said.entries:
            body = read_record(entry.record).body
            mine = (self.host.identity.key, self.incarnation)
            if isinstance(body, BlocksLeased) and (body.learner, body.incarnation) == mine:
                for span in body.spans:
                    self._unread.extend(range(span.start, span.stop))

    def push(self, pull: Pull):
        """It has read a block more, it says."""
        self._sequence += 1
        self._unread.popleft()
        tokens = self.genesis.data.sequence_tokens
        return self.sealed(
            pull,
            incarnation=self.incarnation,
            sequence=self._sequence,
            tokens=tokens,
            digest=self._sequence.to_bytes(32, "big"),
            cursor=Cursor(self._unread[0], 0),
        )


async def main(folder: Path, signed_file: Path, link: str, kind: str, count: int) -> None:
    signed = read_signed(signed_file)
    genesis = signed.genesis
    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    async with asyncio.TaskGroup() as tasks:
        keys = [
            HostileKey(folder / f"key-{number}", parse_link(link), signed, layout, kind, number)
            for number in range(count)
        ]
        for key in keys:
            tasks.create_task(key.take_part())
        for key in keys:
            await key.is_here.wait()
        print("here", flush=True)


if __name__ == "__main__":
    place, signed_at, join_link, which, some = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(place), Path(signed_at), join_link, which, int(some)))
