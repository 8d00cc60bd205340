"""Hosts whose address changes while they run, as at home each night, or with another wifi.

The join link names the syncer by a name that follows it, as dynamic DNS does. One learner is behind
a NAT, so that nobody can dial it. It happens once; the tests look at what was seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from tests.net.lab_swarm import PORT, LabSwarm
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200), needs_lab]

SYNCER, ADA, HIDDEN = NODES = ("syncer", "ada", "bob")
LEARNERS = (ADA, HIDDEN)
LINK = Link(latency_s=0.02)
NAME = "train.example.org"
NAMED_AFTER_S = 5.0
"""The name leads to the former address for so long."""


class NamedSwarm(LabSwarm):
    """Daemons listen everywhere, and the syncer's address has a name in it."""

    def start(self, role, name, *arguments):
        words = list(arguments)
        words[words.index("--listen") + 1] = "0.0.0.0"
        if role == SYNCER:
            words[words.index("--host-address") + 1] = f"/dns4/{NAME}/tcp/{PORT}"
        return super().start(role, name, *words)

    def name(self):
        """The name leads to where the syncer is."""
        with self.lab.hosts.open("r+") as file:
            file.write(f"127.0.0.1 localhost\n{self.address(SYNCER)} {NAME}\n")
            file.truncate()


@dataclass
class Seen:
    """What was seen on the way."""

    steps: dict[str, list[int]] = field(default_factory=dict)
    """Of each learner: when the syncer moved, and when both were in merges again."""
    merged: dict[str, list[int]] = field(default_factory=dict)
    """Merges of each learner: before and after the syncer moved, before and after a learner did."""
    outputs: dict[str, str] = field(default_factory=dict)


def note(seen, swarm):
    for name in LEARNERS:
        seen.steps.setdefault(name, []).append(swarm.learner(name).local_step)
        seen.merged.setdefault(name, []).append(swarm.merge_counts()[name])


def all_merge_again(seen, swarm, what):
    """Both are in merges that began since."""
    before = {name: counts[-1] for name, counts in seen.merged.items()}

    def look():
        now = swarm.merge_counts()
        return all(now.get(name, 0) > count + 3 for name, count in before.items())

    swarm.until(look, what)
    note(seen, swarm)


def go_through_it(seen, swarm):
    swarm.name()
    swarm.prepare()
    swarm.begin()
    swarm.lab.put_behind_nat(HIDDEN)
    for name in LEARNERS:
        swarm.start_learner(name, "--no-evaluate", "--duty", "0.2")
    swarm.all_merge(*LEARNERS)
    swarm.lab.move(SYNCER)
    note(seen, swarm)
    time.sleep(NAMED_AFTER_S)
    swarm.name()
    all_merge_again(seen, swarm, "both learners in merges of a syncer that moved")
    swarm.lab.move(ADA)
    note(seen, swarm)
    all_merge_again(seen, swarm, "a learner that moved in merges")
    swarm.processes.check()
    seen.outputs = {node: swarm.output(node) for node in NODES}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving")
    hosts = folder / "hosts"
    hosts.touch()
    seen = Seen()
    with Lab(NODES, link=LINK, seed=3, hosts=hosts) as lab, NamedSwarm(lab, folder) as swarm:
        go_through_it(seen, swarm)
    return seen


def test_learners_follow_a_syncer_that_moved_by_its_name(seen):
    for name in LEARNERS:
        before, moved, *_ = seen.merged[name]
        assert moved > before + 3
        assert seen.steps[name][1] > seen.steps[name][0]


def test_a_learner_that_moved_is_in_merges_again(seen):
    for name in LEARNERS:
        *_, before, moved = seen.merged[name]
        assert moved > before + 3


def test_nobody_says_that_it_has_no_network(seen):
    """There is no way out of the lab, and the only address that they know is a name."""
    for node, output in seen.outputs.items():
        assert "no network" not in output, node


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
