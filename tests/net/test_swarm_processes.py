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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from host.addresses import parse_peer
from host.files.home import TAPES, Home
from host.files.signed_project import read_signed
from host.join_link import parse_link
from node.trainer.model import whole_tensors
from protocol import wire
from protocol.errors import TransientError
from protocol.fragments import build_layout
from protocol.messages import Refused
from shoal.local_swarm.swarm import HANG_S
from syncer_node.storage.store import find_checkpoint, read_checkpoint
from tests.net.hosts import Host
from tests.net.hosts import run as run_async
from tests.net.swarms import TinySwarm, is_gone, shoal
from tests.support.builders import hello

pytestmark = [pytest.mark.net, pytest.mark.bare, pytest.mark.timeout(1800)]

LEARNERS = ("ada", "bob", "eve")
VICTIM = "eve"
SURVIVORS = ("ada", "bob")
NOISE_STREAMS = 5
TOKENS_LEFT = 100_000
"""Some seconds of training for those who are left."""

DUTY = "0.5"


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
    alone_json: Any = None
    """What one learner says where nobody asks the syncer."""
    left_behind: Any = None
    """What outlived the killed learner."""
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
    outputs: dict[str, str] = field(default_factory=dict)
    export: str = ""
    model: Any = None


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


def go_through_it(seen, swarm):
    """Everything that happens to the swarm, in order."""
    swarm.prepare()
    swarm.begin("--exit-when-done")
    for name in LEARNERS:
        swarm.start_learner(name, "--duty", DUTY)
    # The learners need seconds to start: time for somebody else.
    run_async(_keep(seen, talk_nonsense(swarm.folder, parse_link(swarm.link))), timeout_s=HANG_S)
    see_all_train(seen, swarm)
    kill_a_learner(seen, swarm)
    kill_the_syncer(seen, swarm)
    end_the_run(seen, swarm)


def see_all_train(seen, swarm):
    def all_train():
        now = swarm.syncer()
        merging = [peer.name for peer in now.peers if peer.merges] if now else []
        named = [row.name for row in now.contributors] if now else []
        return now if sorted(merging) == sorted(named) == sorted(LEARNERS) else None

    seen.training = swarm.until(all_train, "three learners in merges, and named")
    seen.status_json = json.loads(swarm.run("status", "--json"))
    ada = swarm.instance("ada", "learner")
    seen.alone_json = json.loads(swarm.run("status", "--json", "--instance", ada))


def kill_a_learner(seen, swarm):
    trainer = swarm.learner(VICTIM).trainer_pid
    swarm.kill(VICTIM)
    swarm.until(lambda: is_gone(trainer), "the end of a trainer without a daemon")
    seen.left_behind = swarm.processes.left_behind(HANG_S)


def kill_the_syncer(seen, swarm):
    """kill -9 and a restart; learners notice, go on by themselves, and come back."""
    before = {name: swarm.learner(name) for name in SURVIVORS}
    seen.trainers = {name: node.trainer_pid for name, node in before.items()}
    seen.before_kill = swarm.syncer()
    swarm.kill("syncer")

    def adrift():
        nodes = {name: swarm.learner(name) for name in SURVIVORS}
        return nodes if all(n and n.state == "adrift" for n in nodes.values()) else None

    away = swarm.until(adrift, "learners that notice")
    swarm.start_syncer("syncer", "--exit-when-done")
    seen.after_kill = swarm.until(swarm.syncer, "the return")
    seen.returned = swarm.all_merge(*SURVIVORS)
    after = {name: swarm.learner(name) for name in SURVIVORS}
    seen.trainers_after = {name: node.trainer_pid for name, node in after.items()}
    seen.steps_away = {name: after[name].local_step - away[name].local_step for name in SURVIVORS}


def end_the_run(seen, swarm):
    """The owner's way to change a running project: stop, sign with a smaller budget, run again."""
    done = swarm.syncer().swarm.tokens
    swarm.tell("syncer", "stop")
    seen.stopped_code = swarm.ended("syncer")
    swarm.prepare(limits__tokens=done + TOKENS_LEFT)
    swarm.start_syncer("syncer", "--exit-when-done")
    seen.codes = {name: swarm.ended(name) for name in ("syncer", *SURVIVORS)}
    seen.outputs = swarm.outputs()
    seen.export = swarm.run("export", "--to", "model", "--checkpoint=latest")
    seen.model = swarm.folder / "model" / "model.safetensors"


async def _keep(seen, nonsense):
    seen.refusal = await nonsense


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("swarm")) as swarm:
        seen = Seen(swarm.home, swarm.folder / "tiny.shoal")
        go_through_it(seen, swarm)
        yield seen


def test_the_status_of_every_daemon_is_told_as_json(seen):
    roles = sorted(one["type"] for one in seen.status_json)
    assert roles == ["node"] * len(LEARNERS) + ["syncer"]
    (syncer,) = [one for one in seen.status_json if one["type"] == "syncer"]
    assert sorted(peer["name"] for peer in syncer["peers"]) == sorted(LEARNERS)


def test_a_learner_alone_shows_the_whole_swarm_as_its_leader_says(seen):
    (ada,) = seen.alone_json
    led = ada["swarm_seen"]["status"]
    assert sorted(peer["name"] for peer in led["peers"]) == sorted(LEARNERS)
    assert led["swarm"]["leader"] == led["key"] == seen.training.key
    assert (led["pid"], led["checkpoint_dir"]) == (0, ""), "nothing of the syncer's machine"
    assert not any("swarm_seen" in one and one["swarm_seen"] for one in seen.status_json)


def test_nonsense_is_counted_and_the_swarm_goes_on(seen):
    assert seen.refusal == "wrong-project"
    faults = seen.training.faults
    assert faults["malformed"] == NOISE_STREAMS
    assert faults["limit-exceeded"] == 1
    assert faults["wrong-project"] == 1
    assert sum(faults.values()) == NOISE_STREAMS + 2
    assert len(seen.training.peers) == len(LEARNERS)


def test_a_killed_learner_leaves_nothing_behind(seen):
    assert seen.left_behind == []


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


@pytest.mark.slow
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
    assert seen.codes == dict.fromkeys(("syncer", *SURVIVORS), 0)


def test_nobody_prints_a_traceback(seen):
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name


def test_the_exported_model_is_the_checkpoint_bit_for_bit(seen):
    project = read_signed(seen.signed)
    store = seen.home.syncer_store(project.id)
    checkpoint = read_checkpoint(find_checkpoint(store, "latest"))
    exported = load_file(seen.model)
    genesis = project.genesis
    cut = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    wanted = whole_tensors(cut, checkpoint.theta)
    assert sorted(exported) == sorted(wanted)
    for name, values in wanted.items():
        assert exported[name].dtype == np.float32
        assert exported[name].tobytes() == values.tobytes(), name


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
