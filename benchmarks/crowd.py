"""How long a newcomer waits for its welcome while one address holds every seat of a project.

    python benchmarks/crowd.py [--keys 270] [--seats 256] [--newcomers 10]

A syncer, three honest learners, a stranger with so many keys, and newcomers, each at a network
address of its own: namespaces and links in user space, so it needs Linux and root, as
`tests/netlab` does. The stranger's keys greet the syncer, hold their sessions with heartbeats, and
ask for text as learners do. Then the newcomers come, one after the other, each with a new key. A
welcome is measured from the start of its stream, and does not count the start of its own engine.

The stranger's engines keep no part of the swarm's table (`benchmarks.synthetic.make_light`): so
many whole ones do not fit on one machine. All run on this one, and share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.synthetic import make_light
from host.addresses import parse_peer
from host.files.signed_project import OpenedProject, read_signed
from host.join_link import JoinLink, parse_link
from host.network.streams import ControlStream
from protocol import wire
from protocol.errors import ShoalError
from protocol.fragments import build_layout
from protocol.messages import Refused, Welcome
from tests.net.hosts import Host
from tests.net.lab_swarm import LabSwarm
from tests.net.liar import Liar
from tests.netlab import Lab, Link
from tests.support.builders import hello

HONEST = ("ada", "bob", "eve")
STRANGER, HOME = "stranger", "home"
BEAT_S = 2.0
STARTS_AT_ONCE = 4
WELCOME_S_MAX = 60.0
BAR_S = 5.0


# ------------------------------------------------------------- in the nodes of the lab


class Key(Liar):
    """One key that says what learners say, and hands in nothing."""

    def __init__(self, folder: Path, link: JoinLink, signed: OpenedProject, address: str) -> None:
        genesis = signed.genesis
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        super().__init__(folder, link, genesis, layout)
        self.name = folder.name
        self.host = Host(folder, "key", bootstrap=list(link.addresses), listen_host=address)

    async def greet(self) -> tuple[ControlStream, str]:
        """The stream on which it was answered; the name of the answer."""
        syncer = parse_peer(self.link.addresses[0]).key
        stream = await self.host.transport.open_control(syncer)
        greeting = hello(
            project=self.link.project,
            layout=self.layout.digest,
            name=self.name,
            agent="crowd",
        )
        stream.send(wire.encode(greeting))
        while True:
            said = wire.decode_message(await stream.recv())
            self._hear(stream, said)
            if isinstance(said, Welcome | Refused):
                return stream, type(said).__name__

    async def stay(self, stream: ControlStream) -> None:
        """Until the syncer ends it."""
        beat_s = 0.0
        while True:
            if time.monotonic() >= beat_s and self.state.fragments:
                beat_s = time.monotonic() + BEAT_S
                self.step += 1
                stream.send(wire.encode(self.beat()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    self._hear(stream, wire.decode_message(await stream.recv()))


async def hold_seats(keys: list[Key]) -> None:
    """All keys of the stranger come, and come back whenever they are sent away."""
    starting, here = asyncio.Semaphore(STARTS_AT_ONCE), asyncio.Semaphore(0)

    async def one(key: Key) -> None:
        async with starting:
            await key.host.transport.start()
        is_first = True
        while True:
            with contextlib.suppress(ShoalError, TimeoutError):
                stream, said = await key.greet()
                if is_first:
                    here.release()
                    is_first = False
                if said == "Welcome":
                    await key.stay(stream)
            await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as tasks:
        for key in keys:
            tasks.create_task(one(key))
        for _ in keys:
            await here.acquire()
        print("here", flush=True)


async def come(keys: list[Key]) -> None:
    """Each key comes once, and stays; prints the answer and the seconds until it was here."""
    async with asyncio.TaskGroup() as tasks:
        for key in keys:
            await key.host.transport.start()
            begun_s = time.monotonic()
            async with asyncio.timeout(WELCOME_S_MAX):
                stream, said = await key.greet()
            print(said, f"{time.monotonic() - begun_s:.3f}", flush=True)
            tasks.create_task(key.stay(stream))
        print("done", flush=True)
        sys.stdin.read()
        sys.exit(0)


def serve(who: str, address: str, folder: Path, signed_at: Path, link: str, count: int) -> None:
    """What runs in one node of the lab."""
    signed, parsed = read_signed(signed_at), parse_link(link)
    if who == STRANGER:
        make_light()

    async def main() -> None:
        places = [folder / f"{who}-{number}" for number in range(count)]
        keys = [Key(place, parsed, signed, address) for place in places]
        await (hold_seats if who == STRANGER else come)(keys)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# -------------------------------------------------------------------------------- the measurement


def begun(swarm: LabSwarm, node: str, count: int) -> subprocess.Popen[str]:
    """This file, in a node of the lab."""
    named = [
        node,
        swarm.lab.address(node),
        str(swarm.folder),
        str(swarm.signed),
        swarm.link,
        str(count),
    ]
    return swarm.lab.run(
        node,
        [sys.executable, __file__, "--serve", *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(swarm.folder / f"{node}.err").open("w"),
        text=True,
    )


def measure(swarm: LabSwarm, keys: int, newcomers: int) -> list[float]:
    """Seconds until each newcomer was welcomed. RuntimeError if one was not."""
    stranger = begun(swarm, STRANGER, keys)
    begun_s = time.monotonic()
    assert stranger.stdout is not None
    if stranger.stdout.readline() != "here\n":
        raise RuntimeError((swarm.folder / f"{STRANGER}.err").read_text())
    now = swarm.syncer()
    here = [peer.name for peer in now.peers if peer.state not in ("gone", "silent")] if now else []
    held = sum(name.startswith(STRANGER) for name in here)
    took_s = time.monotonic() - begun_s
    print(f"{keys} keys came in {took_s:.0f} s; {held} of {len(here)} seats are theirs", flush=True)
    home = begun(swarm, HOME, newcomers)
    assert home.stdout is not None
    waited: list[float] = []
    for line in home.stdout:
        said, _, seconds = line.strip().partition(" ")
        if said == "done":
            return waited
        if said != "Welcome":
            raise RuntimeError(f"a newcomer was answered {said}")
        print(f"welcomed after {seconds} s", flush=True)
        waited.append(float(seconds))
    raise RuntimeError((swarm.folder / f"{HOME}.err").read_text())


def main() -> int:
    """0 if every newcomer was welcomed in time."""
    if sys.argv[1:2] == ["--serve"]:
        who, address, folder, signed_at, link, count = sys.argv[2:]
        serve(who, address, Path(folder), Path(signed_at), link, int(count))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=270, help="of the stranger")
    parser.add_argument("--seats", type=int, default=256, help="learners that the project takes")
    parser.add_argument("--newcomers", type=int, default=10)
    chosen = parser.parse_args()
    nodes = ("syncer", *HONEST, STRANGER, HOME)
    with (
        tempfile.TemporaryDirectory(prefix="shoal-crowd-") as folder,
        Lab(nodes, link=Link(latency_s=0.02), seed=1) as lab,
        LabSwarm(lab, Path(folder)) as swarm,
    ):
        swarm.prepare(limits__learners=chosen.seats, rounds__quorum=1)
        swarm.begin()
        for name in HONEST:
            swarm.start_learner(name, "--no-evaluate", "--duty", "0.2")
        swarm.all_merge(*HONEST)
        waited = measure(swarm, chosen.keys, chosen.newcomers)
    print(f"median {median(waited):.2f} s, longest {max(waited):.2f} s of {len(waited)}")
    return 0 if max(waited) < BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
