"""Machines on one network find the project without an address, and find it again.

The syncer gives an address that nobody can dial, so whoever joins found it on the network. It
happens once; the tests look at what was seen.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from protocol.ids import short
from protocol.peers.project_code import code_of
from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(900), needs_lab]

SYNCER, ADA, BOB, AWAY = NODES = ("syncer", "ada", "bob", "away")
NOWHERE = "/ip4/203.0.113.9/tcp/4100"
OTHER_PORT = 4200


class NearbySwarm(LabSwarm):
    """Daemons listen everywhere; learners join by the code, and the syncer's address is wrong."""

    now_port = 4100

    def port(self, name):
        return self.now_port

    def start(self, role, name, *arguments):
        words = list(arguments)
        if "--listen" in words:
            words[words.index("--listen") + 1] = "0.0.0.0"
        if role == "syncer":
            words[words.index("--host-address") + 1] = NOWHERE
        if words[0] == "join":
            words[1:2] = ["--nearby", code_of(self.project_id)]
        return super().start(role, name, *words)

    def shoal(self, node, *words):
        """A verb in a node: its exit code and what it printed."""
        process = self.lab.run(
            node,
            [sys.executable, "-P", "-m", "shoal", *words],
            env=self.processes.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed, _ = process.communicate(timeout=120)
        return process.returncode, printed


@dataclass
class Seen:
    """What was seen on the way."""

    code: str = ""
    link: str = ""
    listed: tuple[int, str] = (0, "")
    wrong: tuple[int, str] = (0, "")
    alone: tuple[int, str] = (0, "")
    status: tuple[int, str] = (0, "")
    joined: Any = None
    again: Any = None
    keys: dict[str, str] = field(default_factory=dict)
    told_by_both: tuple[int, str] = (0, "")
    outputs: dict[str, str] = field(default_factory=dict)


def go_through_it(seen, swarm):
    swarm.prepare()
    swarm.begin()
    seen.code, seen.link = code_of(swarm.project_id), swarm.link
    seen.listed = swarm.shoal(BOB, "join", "--nearby")
    seen.wrong = swarm.shoal(BOB, "join", "--nearby", "otter-lamp-river-stone")
    swarm.lab.silence(AWAY)
    seen.alone = swarm.shoal(AWAY, "join", "--nearby")
    swarm.start_learner(ADA, "--no-evaluate")
    seen.joined = swarm.until(
        lambda: (n := swarm.learner(ADA)) and n.merged > 0 and n, "a learner in a merge"
    )
    seen.status = swarm.shoal(SYNCER, "status")
    swarm.kill(ADA)
    swarm.kill(SYNCER)
    swarm.processes.environment["SHOAL_NETWORK_NEARBY"] = "true"
    swarm.now_port = OTHER_PORT
    swarm.start_syncer()
    swarm.until(lambda: swarm.syncer() is not None, "the syncer at another port")
    swarm.start("learner", ADA, "run", "--instance", ADA, "--log-text")
    seen.again = swarm.until(
        lambda: (n := swarm.learner(ADA)) and n.merged > 0 and n, "the learner again"
    )
    seen.keys = {SYNCER: swarm.syncer().key, ADA: swarm.learner(ADA).key}
    seen.told_by_both = swarm.shoal(BOB, "join", "--nearby")
    seen.outputs = {node: swarm.output(node) for node in (SYNCER, ADA)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nearby")
    seen = Seen()
    with Lab(NODES, seed=9) as lab, NearbySwarm(lab, folder) as swarm:
        go_through_it(seen, swarm)
    return seen


def test_whoever_looks_sees_the_code_that_the_host_shows(seen):
    code, printed = seen.listed
    assert code == 0
    assert f"{seen.code}  tiny: a language model" in printed
    assert "0 learners" in printed
    assert f"shoal join --nearby {seen.code}" in printed
    assert f"shoal join --nearby {seen.code}" in seen.outputs[SYNCER]
    assert f"the code of tiny: {seen.code}" in seen.status[1]


def test_a_wrong_code_says_what_was_found_instead(seen):
    code, printed = seen.wrong
    assert code == 2
    assert "No project on this network has the code otter-lamp-river-stone" in printed
    assert seen.code in printed


def test_who_is_on_another_network_finds_nothing_and_is_told_why_that_may_be(seen):
    code, printed = seen.alone
    assert code == 3
    assert "Nothing was found on this network" in printed
    assert "UDP port 4109" in printed


def test_a_learner_joined_by_the_code_alone(seen):
    assert seen.joined.merged > 0
    assert "203.0.113.9" not in str(seen.joined.network.addresses)


def test_a_learner_finds_the_project_again_at_another_address(seen):
    assert seen.again.merged > 0
    assert "found on this network: /ip4/10.77.0.1/tcp/4200" in seen.outputs[ADA]


def test_a_learner_answers_once_its_owner_wants_that(seen):
    learner = f"learner {short(bytes.fromhex(seen.keys[ADA]))} at 10.77.0.2"
    syncer = f"syncer {short(bytes.fromhex(seen.keys[SYNCER]))} at 10.77.0.1"
    assert syncer in seen.listed[1]
    assert learner not in seen.listed[1]
    assert learner in seen.told_by_both[1]
    assert syncer in seen.told_by_both[1]
    assert "1 learner" in seen.told_by_both[1]


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
