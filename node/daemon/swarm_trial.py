"""A trial of the network: `python -m node.daemon.swarm_trial`, wish on stdin, answer on stdout.

Starts the engine with a key of its own, joins the swarm that a link names if there is one, and says
who answers, how, and how fast. Nothing is announced and nobody is served.
A process of its own, because the engine may hang, and takes seconds to be imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from host.addresses import parse_peer
from host.bulk import speed_probe
from host.files import keystore
from host.join_link import JoinLink, parse_link
from host.network.leader_discovery import learners_topic, seat_topic
from host.options import BulkAt
from host.transport import Transport
from node.daemon.swarm_trial_facts import NamedHost, SwarmAnswer, SwarmWish
from node.download.locator import Locator
from protocol import decoders, wire
from protocol.errors import PeerUnreachable, RemoteError, ShoalError, TransientError, UserError
from protocol.messages import Envelope

START_S: Final = 30.0
DESCRIBE_S: Final = 15.0
PATHS_S: Final = 12.0
"""The engine looks at its connections every 10 s."""

REACH_S: Final = 20.0
"""A host is asked to dial back, and again after a while whether it carries streams for others."""

LOOK_S: Final = 0.25
SEAT_S: Final = 10.0
SAMPLE_S: Final = 3.0
SAMPLE_S_MAX: Final = 8.0
SAMPLES_BYTES_MAX: Final = 32 << 20
SAMPLES_AT_ONCE: Final = 2


async def try_out(wish: SwarmWish) -> SwarmAnswer:
    """Runs the trial. What goes wrong is in the answer."""
    answer = SwarmAnswer()
    link = parse_link(wish.link) if wish.link else None
    with tempfile.TemporaryDirectory(prefix="shoal-trial-") as folder:
        transport = Transport(
            keystore.load_or_create(Path(folder) / "trial.key"),
            port=wish.port,
            bootstrap=link.addresses if link else (),
            topics=(seat_topic(link.project), learners_topic(link.project)) if link else (),
            on_state=lambda state: None,
            listen_host=wish.listen_host,
            map_port=wish.map_port,
            bulk=BulkAt(is_on=False),
        )
        try:
            await _in_swarm(transport, link, answer)
        except ShoalError as error:
            answer.trouble = str(error)
            answer.is_clock_off = "clock differs" in answer.trouble
            answer.is_swarm_away = isinstance(error, PeerUnreachable) or answer.is_clock_off
        except TimeoutError:
            answer.trouble = f"the network engine did not start within {START_S:g} s"
        finally:
            await transport.close()
    return answer


async def _in_swarm(transport: Transport, link: JoinLink | None, answer: SwarmAnswer) -> None:
    started = time.monotonic()
    answer.hosts = [NamedHost(address=text) for text in link.addresses] if link else []
    async with asyncio.timeout(START_S):
        await transport.start()
    answer.engine_s = time.monotonic() - started
    answer.addresses = transport.addresses()
    if link is None:
        return
    try:
        async with asyncio.timeout(DESCRIBE_S):
            await _describe(transport, link, answer)
    except TimeoutError:
        answer.trouble = f"none of the link's hosts answered within {DESCRIBE_S:g} s"
        return
    await _measure(transport, answer)
    with contextlib.suppress(TransientError, TimeoutError):
        await _ask_charter(transport, link, answer)
    await _paths(transport, answer)
    await _reach(transport, answer)


async def _describe(transport: Transport, link: JoinLink, answer: SwarmAnswer) -> None:
    """Fetches the project's description from whichever host gives it."""
    for host in answer.hosts:
        key = parse_peer(host.address).key
        try:
            answer.genesis = bytes(await transport.fetch(key, link.project, link.genesis_bytes))
        except (TransientError, RemoteError) as error:
            answer.trouble = f"{host.address} does not give the project's description: {error}"
            continue
        answer.trouble = ""
        return


async def _measure(transport: Transport, answer: SwarmAnswer) -> None:
    """How fast a sample comes from those that answer, all of them together."""
    keys = [parse_peer(host.address).key for host in answer.hosts]
    started, got = time.monotonic(), 0

    async def again(key: bytes) -> None:
        nonlocal got
        while time.monotonic() - started < SAMPLE_S and got < SAMPLES_BYTES_MAX:
            got += len(await transport.fetch(key, speed_probe.name(), speed_probe.SAMPLE_BYTES))

    async def ask(key: bytes) -> None:
        with contextlib.suppress(TransientError, RemoteError):  # Another may have it.
            await again(key)

    try:
        async with asyncio.timeout(SAMPLE_S_MAX):
            await asyncio.gather(*(ask(key) for key in keys for _ in range(SAMPLES_AT_ONCE)))
    except TimeoutError:
        got = got or speed_probe.SAMPLE_BYTES  # Less than one came: the line is slower than this.
    answer.down_bytes_per_s = got / max(time.monotonic() - started, 1e-9)


async def _ask_charter(transport: Transport, link: JoinLink, answer: SwarmAnswer) -> None:
    """The rules in force, from whoever leads."""
    locator = Locator.of(transport, link, answer.genesis)
    async with asyncio.timeout(SEAT_S):
        found = await locator.find_seat(None)
    answer.charter = wire.encode(found.charter)
    assert isinstance(found.charter, Envelope)


async def _paths(transport: Transport, answer: SwarmAnswer) -> None:
    """How each of the hosts is reached, once the engine has looked."""
    wanted = {parse_peer(host.address).key: host for host in answer.hosts}
    for _ in range(int(PATHS_S / LOOK_S)):
        if wanted.keys() & {one.key for one in transport.peers()}:
            break
        await asyncio.sleep(LOOK_S)
    paths = transport.paths()
    for key, host in wanted.items():
        host.path = paths.get(key, "")
        host.rtt_s = transport.round_trips.of(key)


async def _reach(transport: Transport, answer: SwarmAnswer) -> None:
    """Whether others can dial this host, or carry streams to it, once some have tried."""
    for _ in range(int(REACH_S / LOOK_S)):
        answer.reach = transport.reachability.verdict
        is_asking = transport.router.may_ask and not transport.router.is_settled
        if answer.reach == "direct" or (answer.reach == "relayed" and not is_asking):
            break
        await asyncio.sleep(LOOK_S)
    answer.could_dial, answer.tried_to_dial = transport.reachability.count
    answer.port = transport.port_outside
    answer.router = transport.router.sentence(transport.port)


def main() -> int:
    """The exit code; 2 for a wish that cannot be read."""
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    try:
        wish = decoders.json_decoder(SwarmWish).decode(sys.stdin.buffer.read(1 << 20))
        answer = asyncio.run(try_out(wish))
    except (msgspec.MsgspecError, ShoalError) as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
