"""One swarm of real processes on loopback, through everything that may happen to it, to its end.

A syncer and three learners train a Llama of 19 000 parameters. On the way a hostile peer talks
nonsense, one learner and then the syncer are killed, and the syncer comes back with a smaller token
budget, which ends the run. All of it is done once; the tests look at what was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from host.addresses import parse_peer
from host.files.home import TAPES, Home
from host.files.signed_project import read_signed
from host.join_link import parse_link
from protocol import wire
from protocol.errors import TransientError
from protocol.fragments import build_layout
from protocol.messages import Refused
from shoal.project import file_commands
from shoal.project.template import create_text
from syncer_node.storage.store import find_checkpoint, read_checkpoint
from tests.net.hosts import Host
from tests.net.hosts import run as run_async
from tests.net.processes import Processes, free_port, shoal, status, until
from tests.support.builders import hello
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.smoke, pytest.mark.timeout(600)]

LEARNERS = ("ada", "bob", "eve")
VICTIM = "eve"
SURVIVORS = ("ada", "bob")
NOISE_STREAMS = 5
TOKENS_LEFT = 100_000
"""Some seconds of training for those who are left."""
END_S = 75.0

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
    "limits.lease_s": 15.0,
    "rounds.local_steps": 24,
    "rounds.overlap_steps": 2,
    "rounds.patience_s": 3.0,
    "rounds.pull_timeout_s": 5.0,
    "limits.evaluate_every": 30,
    "limits.heldout_sequences": 4,
}


@dataclass
class Seen:
    """What was seen on the way."""

    home: Home
    signed: Path
    refusal: str = ""
    """What another project's hello was answered with."""
    training: Any = None
    """The syncer's status when everybody was in merges."""
    status_json: Any = None
    orphan_s: float | None = None
    """How long the killed learner's trainer outlived it; None for longer than was waited."""
    before_kill: Any = None
    after_kill: Any = None
    """The first status after the restart."""
    returned: Any = None
    """The status when both learners were in merges again."""
    trainers: dict[str, int] = field(default_factory=dict)
    """Trainer pids before the syncer was killed."""
    trainers_after: dict[str, int] = field(default_factory=dict)
    steps_away: dict[str, int] = field(default_factory=dict)
    stopped_code: int | None = None
    codes: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    """Who did not end in time."""
    outputs: dict[str, str] = field(default_factory=dict)
    export: Any = None
    model: Any = None


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


def start_learner(processes, link, name, *words):
    processes.start(
        name,
        *("join", link, "--name", name, "--instance", name, "--listen", "127.0.0.1"),
        *("--threads", "1", "--device", "cpu", "--duty", "0.5"),
        *words,
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
    syncer = parse_peer(link.addresses[0]).key
    try:
        await host.transport.start()
        for _ in range(NOISE_STREAMS):
            stream = await host.transport.open_control(syncer)
            stream.send(chance.randbytes(chance.randrange(1, 200)))
            await _drain(stream)
        stream = await host.transport.open_control(syncer)
        await stream._wire.write((1 << 30).to_bytes(4, "big"), timeout_s=5)
        await _drain(stream)
        stream = await host.transport.open_control(syncer)
        stream.send(wire.encode(hello()))  # Of the tiny project of the unit tests.
        refused = wire.decode_message(await stream.recv())
        assert isinstance(refused, Refused)
        return refused.reason
    finally:
        await host.transport.close()


async def _drain(stream):
    """Until the other end has had enough of us."""
    with contextlib.suppress(TransientError):
        async with asyncio.timeout(10):
            while True:
                await stream.recv()


def go_through_it(seen, processes, folder):
    """Everything that happens to the swarm, in order."""
    home, port = seen.home, free_port()
    path = write_project(folder, 10**9)
    file_commands.sign(path, home, instance="default")
    start_syncer(processes, path, port)
    ready = until(
        lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
        timeout_s=40,
        what="a syncer with weights",
    )
    for name in LEARNERS:
        start_learner(processes, ready.join_link, name)
    # The learners need seconds to start: time for somebody else.
    run_async(_keep(seen, talk_nonsense(folder, parse_link(ready.join_link))), timeout_s=30)
    see_all_train(seen, processes)
    kill_a_learner(seen, processes)
    kill_the_syncer(seen, processes, path, port)
    end_the_run(seen, processes, folder, path, port)


def see_all_train(seen, processes):
    def all_train():
        processes.check("syncer", *LEARNERS)
        now = status(seen.home, "syncer")
        merging = [peer.name for peer in now.peers if peer.merges] if now else []
        named = [row.name for row in now.contributors] if now else []
        return now if sorted(merging) == sorted(named) == sorted(LEARNERS) else None

    seen.training = until(all_train, timeout_s=60, what="three learners in merges, and named")
    asked = shoal(seen.home, "status", "--json")
    seen.status_json = json.loads(asked.stdout)


def kill_a_learner(seen, processes):
    trainer = status(seen.home, "learner", VICTIM).trainer_pid
    processes.kill(VICTIM)
    died_s = time.monotonic()
    with contextlib.suppress(AssertionError):
        until(lambda: is_gone(trainer), timeout_s=10, what="the orphan's end")
        seen.orphan_s = time.monotonic() - died_s


def kill_the_syncer(seen, processes, path, port):
    """kill -9 and a restart; learners notice, go on by themselves, and come back."""
    home = seen.home
    before = {name: status(home, "learner", name) for name in SURVIVORS}
    seen.trainers = {name: node.trainer_pid for name, node in before.items()}
    seen.before_kill = status(home, "syncer")
    processes.kill("syncer")

    def adrift():
        nodes = {name: status(home, "learner", name) for name in SURVIVORS}
        return nodes if all(n and n.state == "adrift" for n in nodes.values()) else None

    away = until(adrift, timeout_s=20, what="learners that notice")
    start_syncer(processes, path, port)
    seen.after_kill = until(lambda: status(home, "syncer"), timeout_s=30, what="the return")

    def merged_again():
        processes.check("syncer", *SURVIVORS)
        now = status(home, "syncer")
        merging = [peer.name for peer in now.peers if peer.merges] if now else []
        return now if sorted(merging) == sorted(SURVIVORS) else None

    seen.returned = until(merged_again, timeout_s=60, what="merges after the return")
    after = {name: status(home, "learner", name) for name in SURVIVORS}
    seen.trainers_after = {name: node.trainer_pid for name, node in after.items()}
    seen.steps_away = {name: after[name].local_step - away[name].local_step for name in SURVIVORS}


def end_the_run(seen, processes, folder, path, port):
    """The owner's way to change a running project: stop, sign with a smaller budget, run again."""
    try:
        done = status(seen.home, "syncer").swarm.tokens
        shoal(seen.home, "stop", "--role", "syncer")
        seen.stopped_code = processes.running["syncer"].wait(20)
        write_project(folder, done + TOKENS_LEFT)
        file_commands.sign(path, seen.home, instance="default")
        start_syncer(processes, path, port)
        ends_s = time.monotonic() + END_S
        for name in ("syncer", *SURVIVORS):
            left_s = max(0.1, ends_s - time.monotonic())
            seen.codes[name] = processes.running[name].wait(left_s)
    except subprocess.TimeoutExpired as error:
        seen.trouble = str(error)
        processes.kill("syncer")  # Its newest checkpoint is compared with the export.
    seen.outputs = {name: processes.output(name) for name in ("syncer", *LEARNERS)}
    seen.export = shoal(seen.home, "export", "--to", str(folder / "model"), "--checkpoint=latest")
    seen.model = folder / "model" / "model.safetensors"


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


def test_the_status_of_every_daemon_is_told_as_json(seen):
    roles = sorted(one["type"] for one in seen.status_json)
    assert roles == ["node"] * len(LEARNERS) + ["syncer"]
    (syncer,) = [one for one in seen.status_json if one["type"] == "syncer"]
    assert sorted(peer["name"] for peer in syncer["peers"]) == sorted(LEARNERS)


def test_nonsense_is_counted_and_the_swarm_goes_on(seen):
    assert seen.refusal == "wrong-project"
    faults = seen.training.faults
    assert faults["malformed"] == NOISE_STREAMS
    assert faults["limit-exceeded"] == 1
    assert faults["wrong-project"] == 1
    assert sum(faults.values()) == NOISE_STREAMS + 2
    assert len(seen.training.peers) == len(LEARNERS)


def test_a_killed_learner_leaves_no_trainer_behind(seen):
    assert seen.orphan_s is not None
    assert seen.orphan_s < 5.0


def test_a_killed_syncer_goes_on_from_its_last_committed_record(seen):
    before, after, later = (one.swarm for one in (seen.before_kill, seen.after_kill, seen.returned))
    assert after.log_index >= before.log_index > 0
    assert after.global_step >= before.global_step > 0
    assert later.global_step > after.global_step
    assert later.term == before.term + 1
    assert seen.after_kill.pid != seen.before_kill.pid


def test_learners_outlive_their_syncer_and_lose_nothing(seen):
    assert seen.trainers_after == seen.trainers
    assert all(steps > 0 for steps in seen.steps_away.values())


def test_all_of_it_is_on_tape_and_replays(seen, tmp_path):
    """Three starts of the syncer, one of them ended with kill -9, and four learners' lives."""
    figures = tmp_path / "figures.json"
    tapes = seen.home.root / TAPES
    done = shoal(seen.home, "replay", str(tapes), "--json", str(figures))
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert found["rounds"] > 10
    assert found["audit"] == found["merge"] == found["rounds"]
    assert found["pushes_again"] >= 0.9 * found["pushes"], found["untried"]
    assert found["retrain"] >= 0.8 * found["rounds"], found["untried"]


def test_a_stopped_syncer_leaves_well(seen):
    assert seen.stopped_code == 0


def test_a_run_reaches_its_end_by_itself_and_everybody_leaves_well(seen):
    assert not seen.trouble
    assert seen.codes == dict.fromkeys(("syncer", *SURVIVORS), 0)


def test_nobody_prints_a_traceback(seen):
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name


def test_the_exported_model_is_the_checkpoint_bit_for_bit(seen):
    assert seen.export.returncode == 0, seen.export.stderr
    project = read_signed(seen.signed)
    store = seen.home.syncer_store(project.id)
    checkpoint = read_checkpoint(find_checkpoint(store, "latest"))
    exported = load_file(seen.model)
    genesis = project.genesis
    cut = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    spans = [(f.index, span) for f in cut.fragments for span in f.spans]
    assert sorted(exported) == sorted(span.name for _, span in spans)
    for index, span in spans:
        values = checkpoint.theta[index][span.offset : span.offset + span.numel]
        assert exported[span.name].dtype == np.float32
        assert exported[span.name].tobytes() == values.tobytes(), span.name


def test_receipts_and_ledger_say_the_same_once_everybody_left(seen):
    """What the killed learner gave has no later receipt."""
    shown = shoal(seen.home, "contributions", "--json")
    assert shown.returncode == 0, shown.stderr
    gave = {one["name"]: one for one in json.loads(shown.stdout)}
    assert sorted(gave) == sorted(LEARNERS)
    (ledger,) = json.loads(shoal(seen.home, "syncer", "ledger", "--json").stdout)
    counted = {row["name"]: row for row in ledger["contributors"]}
    assert sorted(counted) == sorted(LEARNERS)
    for name in SURVIVORS:
        for what in ("merges", "tokens", "clipped"):
            assert gave[name][what] == counted[name][what], (name, what)
    assert 0 < gave[VICTIM]["merges"] <= counted[VICTIM]["merges"]
    assert ledger["fragment_tokens"] == sum(row["fragment_tokens"] for row in counted.values())
