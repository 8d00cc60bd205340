"""One swarm of real processes on loopback, through everything that may happen to it, to its end.

A syncer and three learners train a Llama of 19 000 parameters. On the way a hostile peer talks
nonsense, one learner and then the syncer are killed, and the syncer comes back with a smaller token
budget, which ends the run. All of it is done once; the tests look at what was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from node.host.home import Home
from node.host.joinlink import parse_link
from node.host.signed_project import read_signed
from protocol import wire
from protocol.errors import TransientError
from protocol.fragments import build_layout
from protocol.machine import Event
from protocol.messages import Refused
from shoal import daemons, projects
from shoal.project_text import create_text
from syncer_node.store import find_checkpoint, read_checkpoint
from tests.builders import hello
from tests.net.hosts import Host
from tests.net.hosts import run as run_async
from tests.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(120)]

LEARNERS = ("ada", "bob", "eve")
VICTIM = "eve"
POLL_S = 0.05

CHANGES = {
    "model.fragments": 3,
    "model.config.hidden_size": 32,
    "model.config.intermediate_size": 64,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.num_key_value_heads": 2,
    "model.config.max_position_embeddings": 32,
    "data.source": "file",
    "data.sequence_tokens": 32,
    "data.block_sequences": 64,
    "data.heldout_frac": 0.2,
    "training.batch_sequences": 2,
    "rounds.local_steps": 24,
    "rounds.patience_s": 3.0,
    "rounds.pull_timeout_s": 5.0,
    "limits.evaluate_every": 30,
    "limits.heldout_sequences": 4,
}


@dataclass
class Seen:
    """What was seen on the way."""

    home: Home
    signed: object
    project: bytes = b""
    before: object = None
    """The syncer's status when everybody trained."""
    after_nonsense: object = None
    refusal: str = ""
    status_json: list = field(default_factory=list)
    victim_trainer_gone_s: float | None = None
    before_kill: object = None
    after_kill: object = None
    trainers: dict = field(default_factory=dict)
    """Trainer pids before the syncer was killed, and after it came back."""
    trainers_after: dict = field(default_factory=dict)
    local_steps_away: dict = field(default_factory=dict)
    codes: dict = field(default_factory=dict)
    outputs: dict = field(default_factory=dict)
    export: subprocess.CompletedProcess | None = None


class Processes:
    """Daemons of the test, each with its output in a file; all are gone at the end."""

    def __init__(self, folder, home):
        self.folder = folder
        self.home = home
        self.running = {}
        self.every = []

    def start(self, name, *arguments):
        output = (self.folder / f"{name}.out").open("ab")
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "shoal", "--home", str(self.home.root), *arguments],
            cwd=self.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        output.close()
        self.every.append(self.running[name])

    def check(self, *names):
        for name in names:
            assert self.running[name].poll() is None, f"{name} ended: {self.output(name)}"

    def output(self, name):
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def kill(self, name):
        """kill -9, and what it leaves behind."""
        process = self.running.pop(name)
        process.kill()
        process.wait(10)
        return process

    def clean_up(self):
        for process in self.every:
            if process.poll() is not None:
                continue
            children = []
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait(10)
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()


def status(home, role, instance="default"):
    """The status of a daemon, or None while it does not answer."""
    found = [d for d in home.daemons() if (d.role, d.instance) == (role, instance)]
    with contextlib.suppress(TransientError):
        return daemons.ask_status(found[0]) if found else None
    return None


def until(look, *, timeout_s, what):
    """The first result of `look` that is true; a failure with its last result after the time."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        if found := look():
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_project(folder, tokens):
    changes = {**CHANGES, "data.location": str(folder / "text.txt"), "limits.tokens": tokens}
    path = folder / "tiny.toml"
    path.write_text(create_text("tiny", changes=changes))
    return path


def start_syncer(processes, path, port):
    processes.start(
        "syncer",
        *("syncer", "run", str(path), "--port", str(port), "--listen", "127.0.0.1"),
        "--exit-when-done",
    )


def start_learner(processes, link, name):
    processes.start(
        name,
        *("join", link, "--name", name, "--instance", name, "--listen", "127.0.0.1"),
        *("--threads", "1", "--device", "cpu"),
    )


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def talk_nonsense(folder, link):
    """Noise, too much, and another project's hello; the reason of the refusal."""
    chance = random.Random(1)
    host = Host(folder, "hostile", bootstrap=list(link.addresses))
    syncer = _key_of(link)
    try:
        await host.transport.start()
        for _ in range(5):
            stream = await host.transport.open_control(syncer)
            stream.send(chance.randbytes(chance.randrange(1, 200)))
            await _drain(stream)
        stream = await host.transport.open_control(syncer)
        await stream._wire.write((1 << 30).to_bytes(4, "big"), timeout_s=5)
        await _drain(stream)
        stream = await host.transport.open_control(syncer)
        stream.send(wire.encode(hello()))
        refused = wire.decode_message(await stream.recv())
        assert isinstance(refused, Refused)
        return refused.reason
    finally:
        await host.transport.close()


def _key_of(link):
    from node.host.addresses import parse_peer

    return parse_peer(link.addresses[0]).key


async def _drain(stream):
    """Until the other end has had enough of us."""
    with contextlib.suppress(TransientError):
        async with asyncio.timeout(10):
            while True:
                await stream.recv()


def go_through_it(seen, processes, folder):
    home, port = seen.home, free_port()
    started = [time.monotonic()]

    def mark(what):
        now = time.monotonic()
        print(f"{now - started[0]:6.1f} s  {what}")

    path = write_project(folder, 10**9)
    projects.sign(path, home, instance="default")
    mark("signed")
    start_syncer(processes, path, port)
    link = until(
        lambda: (s := status(home, "syncer")) and s.join_link, timeout_s=30, what="a join link"
    )
    mark("syncer up")
    for name in LEARNERS:
        start_learner(processes, link, name)
    seen.project = parse_link(link).project

    def holder():
        return seen.refusal

    run_async(_keep(seen, talk_nonsense(folder, parse_link(link))), timeout_s=30)
    mark("nonsense told")

    def all_train():
        processes.check("syncer", *LEARNERS)
        now = status(home, "syncer")
        if now is None or now.merges_here < 6:
            return None
        training = [p.name for p in now.peers if p.state == "training" and p.merges]
        return now if sorted(training) == sorted(LEARNERS) else None

    seen.before = until(all_train, timeout_s=60, what="three learners in merges")
    mark("all train")
    asked = subprocess.run(
        [sys.executable, "-m", "shoal", "--home", str(home.root), "status", "--json"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    seen.status_json = json.loads(asked.stdout)
    mark("status asked")

    victim = status(home, "learner", VICTIM)
    processes.kill(VICTIM)
    died_s = time.monotonic()
    with contextlib.suppress(AssertionError):
        until(lambda: is_gone(victim.trainer_pid), timeout_s=10, what="the orphan's end")
        seen.victim_trainer_gone_s = time.monotonic() - died_s
    mark("victim gone")

    others = [name for name in LEARNERS if name != VICTIM]
    nodes = {name: status(home, "learner", name) for name in others}
    seen.trainers = {name: node.trainer_pid for name, node in nodes.items()}
    seen.before_kill = status(home, "syncer")
    processes.kill("syncer")
    mark("syncer killed")
    # Away long enough for every learner to notice, and to go on by itself.
    until(
        lambda: all(status(home, "learner", name).state == "adrift" for name in others),
        timeout_s=20,
        what="learners adrift",
    )
    mark("adrift")
    away = {name: status(home, "learner", name).local_step for name in others}
    tokens = int(seen.before_kill.swarm.tokens * 1.5)
    write_project(folder, tokens)
    projects.sign(path, home, instance="default")
    start_syncer(processes, path, port)
    seen.after_kill = until(
        lambda: status(home, "syncer"), timeout_s=30, what="the syncer's return"
    )
    mark("syncer back")

    def merged_again():
        processes.check("syncer", *others)
        now = status(home, "syncer")
        return now if now is not None and now.merges_here >= 2 else None

    until(merged_again, timeout_s=40, what="merges after the return")
    mark("merges again")
    nodes = {name: status(home, "learner", name) for name in others}
    seen.trainers_after = {name: node.trainer_pid for name, node in nodes.items()}
    seen.local_steps_away = {name: nodes[name].local_step - away[name] for name in others}
    for name in ("syncer", *others):
        seen.codes[name] = processes.running[name].wait(60)
    mark("ended")
    seen.outputs = {name: processes.output(name) for name in ("syncer", *LEARNERS)}
    seen.export = subprocess.run(
        [sys.executable, "-m", "shoal", "--home", str(home.root)]
        + ["export", "--to", str(folder / "model")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    mark("exported")


async def _keep(seen, nonsense):
    seen.refusal = await nonsense


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swarm")
    write_text(folder / "text.txt", chars=60_000)
    home = Home(folder / "home")
    seen = Seen(home, folder / "tiny.shoal")
    processes = Processes(folder, home)
    try:
        go_through_it(seen, processes, folder)
        yield seen
    except BaseException:
        for name in ("syncer", *LEARNERS):
            with contextlib.suppress(OSError):
                print(f"--- {name}\n{processes.output(name)[-3000:]}")
        raise
    finally:
        processes.clean_up()


def test_a_run_reaches_its_end_by_itself_and_everybody_leaves_well(seen):
    assert set(seen.codes.values()) == {0}, seen.outputs
    assert len(seen.codes) == 3


def test_nobody_prints_a_traceback(seen):
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, f"{name}: {output}"
