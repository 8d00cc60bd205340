"""A swarm over links as between homes, and one learner of it cut off from all others for a while.

A syncer and two learners, each in a network of its own. It happens once; the tests look at what was
seen.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.host.home import Home
from shoal import projects
from tests.net.test_swarm_processes import status, until, write_project
from tests.netlab import Lab, Link
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab
from tests.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(150), needs_lab]

LEARNERS = ("ada", "bob")
AWAY = "bob"
STAYS = "ada"
LINK = Link(latency_s=0.04, loss_frac=0.01)
PORT = 4100
PARTITION_S = 15.0
LOOK_EVERY_S = 1.0
BACK_S = 40.0
"""TCP's longest pause after such a cut is about as long as the cut; then a round has to pass."""


@dataclass
class Seen:
    """What was seen on the way."""

    before: Any = None
    after: Any = None
    """The syncer's status around the partition."""
    returned: Any = None
    """The syncer's status when it had merged from the other side again; None if it never did."""
    returned_s: float = 0.0
    """How long after healing that was."""
    steps: dict[str, list[int]] = field(default_factory=dict)
    """Local steps of each learner, once a second of the partition and at its end."""
    dropped: int = 0
    outputs: dict[str, str] = field(default_factory=dict)


class Daemons:
    """The daemons, each in its node, with its output in a file."""

    def __init__(self, lab, folder, home):
        self.lab = lab
        self.folder = folder
        self.home = home
        self.running = {}

    def start(self, node, *arguments):
        with (self.folder / f"{node}.out").open("ab") as output:
            self.running[node] = self.lab.run(
                node,
                [sys.executable, "-m", "shoal", "--home", self.home.root, *arguments],
                env={"PYTHONPATH": str(ROOT)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def start_syncer(self, path):
        address = self.lab.address("syncer")
        self.start(
            "syncer",
            *("syncer", "run", str(path), "--listen", address, "--port", str(PORT)),
            *("--host-address", f"/ip4/{address}/tcp/{PORT}"),
        )

    def join(self, link, name):
        self.start(
            name,
            *("join", link, "--name", name, "--instance", name, "--no-evaluate"),
            *("--listen", self.lab.address(name)),
            *("--threads", "1", "--device", "cpu", "--duty", "0.3"),
        )

    def check(self):
        for node, process in self.running.items():
            assert process.poll() is None, f"{node} ended: {self.output(node)}"

    def output(self, node):
        return (self.folder / f"{node}.out").read_text(errors="replace")


def merges(home):
    """How many merges each learner is in, as the syncer's table says."""
    now = status(home, "syncer")
    return {peer.name: peer.merges for peer in now.peers} if now else {}


def local_steps(home, name):
    node = status(home, "learner", name)
    return node.local_step if node else None


def go_through_it(seen, lab, daemons):
    home = daemons.home
    path = write_project(daemons.folder, 10**9)
    projects.sign(path, home, instance="default")
    daemons.start_syncer(path)
    ready = until(
        lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
        timeout_s=40,
        what="a syncer with weights",
    )
    for name in LEARNERS:
        daemons.join(ready.join_link, name)

    def both_merge():
        daemons.check()
        found = merges(home)
        return len(found) == len(LEARNERS) and all(found.values())

    until(both_merge, timeout_s=60, what="both learners in merges")
    cut_off(seen, lab, home)
    healed_s = time.monotonic()
    lab.heal()
    with contextlib.suppress(AssertionError):
        merged = status(home, "learner", AWAY).merged
        until(
            lambda: (node := status(home, "learner", AWAY)) and node.merged > merged,
            timeout_s=BACK_S,
            what="merges from the one that was away",
        )
        seen.returned_s = time.monotonic() - healed_s
        seen.returned = status(home, "syncer")
    daemons.check()
    seen.outputs = {node: daemons.output(node) for node in lab.nodes}


def cut_off(seen, lab, home):
    """The partition; what is on its way when it begins has come to rest before the first look."""
    dropped = lab.counts("syncer", AWAY).cut + lab.counts(AWAY, "syncer").cut
    lab.partition({"syncer", STAYS}, {AWAY})
    ends_s = time.monotonic() + PARTITION_S
    time.sleep(LOOK_EVERY_S)
    seen.before = status(home, "syncer")
    while time.monotonic() < ends_s:
        for name in LEARNERS:
            seen.steps.setdefault(name, []).append(local_steps(home, name))
        time.sleep(LOOK_EVERY_S)
    seen.after = status(home, "syncer")
    seen.dropped = lab.counts("syncer", AWAY).cut + lab.counts(AWAY, "syncer").cut - dropped


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    write_text(folder / "text.txt", chars=60_000)
    seen = Seen()
    with Lab(["syncer", *LEARNERS], link=LINK, seed=1) as lab:
        daemons = Daemons(lab, folder, Home(folder / "home"))
        try:
            go_through_it(seen, lab, daemons)
        except BaseException:
            for node in daemons.running:
                print(f"--- {node}\n{daemons.output(node)[-3000:]}")
            raise
    print(seen.returned_s, seen.steps)
    return seen


def test_local_steps_never_stop(seen):
    for name in LEARNERS:
        steps = seen.steps[name]
        assert len(steps) > PARTITION_S / 2
        assert None not in steps, name
        assert all(later > earlier for earlier, later in zip(steps, steps[1:], strict=False)), steps


def test_the_one_that_is_away_is_in_no_merge(seen):
    assert seen.dropped > 0
    before, after = (
        {peer.name: peer.merges for peer in one.peers} for one in (seen.before, seen.after)
    )
    assert after.get(AWAY, 0) - before[AWAY] <= 0


def test_merging_goes_on_with_the_other(seen):
    assert seen.after.swarm.global_step > seen.before.swarm.global_step
    before, after = (
        {peer.name: peer.merges for peer in one.peers} for one in (seen.before, seen.after)
    )
    assert after[STAYS] > before[STAYS]


def test_it_merges_again_after_healing(seen):
    assert seen.returned is not None
    assert seen.returned_s < BACK_S
    (back,) = [peer for peer in seen.returned.peers if peer.name == AWAY]
    assert back.merges > 0


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
