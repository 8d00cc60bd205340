"""One host as a program, for tests that give each host a network of its own.

    python -m tests.net.lab_peer FOLDER NAME LISTEN_ADDRESS [BOOTSTRAP_ADDRESS ...]

It serves the blob of `blob(n)` for any n in `SIZES` and echoes control frames. Its first line of
output is `{"key": ..., "addresses": [...]}`. After that, each line of input is a question in JSON,
and each is answered with one line that repeats its number; questions do not wait for each other:

- `{"number": 1, "fetch": KEY, "size": 1000}`: `seconds`, once the blob is here and checked; with
  `"carried": false` by no relay;
- `{"number": 3, "how": KEY}`: `verdict` on this host, its `relays`, `addresses`
  and ports, and the `path` to that peer;
- `{"number": 4, "relays_of": KEY, "are": [KEY, ...]}`: nothing, once it is noted;
- `{"number": 2, "say": KEY, "text": "hi"}`: `text`, once the echo is back on the standing stream;
- `{"number": 3, "way": KEY}`: `connections` that are direct, `bytes` that came over them, and the
  `reason` why there are none; `shown`, the way in words as `shoal status` has it, the `port`, and
  `up_bytes_per_s`, what the line sends as far as that is known;
- what failed is answered with `error`, the name of the exception.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

import uvloop
from blake3 import blake3

from host.control.status_parts import bulk_rows
from host.network.streams import ControlStream
from protocol.errors import ShoalError
from tests.net.hosts import Host, echo

SIZES = (10_000, 300_000, 3_000_000)


def blob(size):
    return random.Random(size).randbytes(size)


class Peer:
    """A host and its standing streams."""

    def __init__(self, host):
        self.host = host
        self.blobs = {blake3(blob(size)).digest(): blob(size) for size in SIZES}
        self.digests = dict(zip(SIZES, self.blobs, strict=True))
        self.streams: dict[bytes, ControlStream] = {}

    def lookup(self, _, asked):
        found = self.blobs.get(asked)
        return memoryview(found) if found is not None else None

    async def answer(self, asked):
        started_s = time.monotonic()
        try:
            if "fetch" in asked:
                size = asked["size"]
                key = bytes.fromhex(asked["fetch"])
                await self.host.transport.fetch(
                    key, self.digests[size], size, may_be_carried=asked.get("carried", True)
                )
                said = {"seconds": time.monotonic() - started_s}
            elif "way" in asked:
                said = self.way(bytes.fromhex(asked["way"]))
            elif "how" in asked:
                said = await self.how(bytes.fromhex(asked["how"]))
            elif "relays_of" in asked:
                relays = [bytes.fromhex(key) for key in asked["are"]]
                self.host.transport.relay.tell_relays(bytes.fromhex(asked["relays_of"]), relays)
                said = {}
            else:
                said = {"text": await self.say(bytes.fromhex(asked["say"]), asked["text"])}
        except ShoalError as error:
            said = {"error": type(error).__name__, "detail": str(error)}
        print(json.dumps({"number": asked["number"], **said}), flush=True)

    def way(self, key):
        channels = self.host.transport.bulk.channels
        carried = channels.traffic.get(key)
        return {
            "connections": len(channels.to(key)),
            "bytes": carried.down_bytes if carried else 0,
            "reason": channels.reason(key),
            "port": channels.port,
            "up_bytes_per_s": self.host.transport.rate_limiter.up.bytes_per_s,
            "shown": [
                [row.way, row.detail]
                for row in bulk_rows(self.host.transport)
                if row.key == key.hex()
            ],
        }

    async def how(self, key):
        transport = self.host.transport
        await transport.look_at_connections()
        return {
            "verdict": transport.reachability.verdict,
            "sentence": transport.reachability.sentence,
            "addresses": transport.addresses(),
            "port": transport.port,
            "bulk_port": transport.bulk.channels.port,
            "relays": [relay.hex() for relay in transport.reachability.relays],
            "path": transport.paths().get(key, ""),
            "carried_bytes": transport.relay.carried_bytes,
        }

    async def say(self, key, text):
        if key not in self.streams:
            self.streams[key] = await self.host.transport.open_control(key)
        self.streams[key].send(text.encode())
        return (await self.streams[key].recv()).decode()

    async def serve(self):
        transport = self.host.transport
        transport.serve_control(echo)
        transport.serve_blobs(self.lookup)
        await transport.start()
        try:
            told = {"key": self.host.identity.key.hex(), "addresses": transport.addresses()}
            print(json.dumps(told), flush=True)
            async with asyncio.TaskGroup() as tasks:
                while line := await asyncio.to_thread(sys.stdin.readline):
                    tasks.create_task(self.answer(json.loads(line)))
        finally:
            await transport.close()


def main(folder, name, listen_host, *bootstrap):
    # Where a test gives the node a router, that is asked to forward.
    host = Host(
        Path(folder),
        name,
        bootstrap=list(bootstrap),
        listen_host=listen_host,
        map_port=True if "BY_ENGINE" in os.environ else None,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Peer(host).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
