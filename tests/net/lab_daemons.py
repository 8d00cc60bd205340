"""Shoal's daemons in the nodes of a network lab, and what they say of themselves.

All use one home: control sockets are files, so they are asked from outside whatever becomes of the
network. A daemon's instance is the name of its node.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from host.files.home import Home
from tests.net.test_swarm_processes import status
from tests.netlab import Lab
from tests.netlab.lab import ROOT

PORT = 4100
TAIL_CHARS = 3000


class Daemons:
    """Started each in its node, with its output in a file; the lab kills them at its end."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.home = Home(folder / "home")
        self.running: dict[str, subprocess.Popen] = {}

    def start(self, node, *arguments):
        """`shoal ARGUMENTS` in a node, for the first time or again."""
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

    def run_syncer(self, node, project, *options):
        """A syncer at the node's address and `PORT`."""
        address = self.lab.address(node)
        self.start(
            node,
            *("syncer", "run", project, "--instance", node),
            *("--listen", address, "--port", str(PORT)),
            *("--host-address", f"/ip4/{address}/tcp/{PORT}", *options),
        )

    def join(self, node, link, *options):
        """A learner on one CPU thread, named like its node."""
        self.start(
            node,
            *("join", link, "--name", node, "--instance", node),
            *("--listen", self.lab.address(node)),
            *("--threads", "1", "--device", "cpu", *options),
        )

    def kill(self, node):
        """kill -9 for a node's daemon and its children."""
        self.lab.kill(node)
        del self.running[node]

    def syncer(self, node):
        """The status of a syncer, or None while it does not answer."""
        return status(self.home, "syncer", node)

    def learner(self, node):
        """The status of a learner, or None while it does not answer."""
        return status(self.home, "learner", node)

    def merges(self, syncer):
        """How many merges each learner is in, as this syncer's table says."""
        now = self.syncer(syncer)
        return {peer.name: peer.merges for peer in now.peers} if now else {}

    def check(self):
        """AssertionError if one has ended."""
        for node, process in self.running.items():
            assert process.poll() is None, f"{node} ended: {self.output(node)}"

    def output(self, node):
        return (self.folder / f"{node}.out").read_text(errors="replace")

    def print_ends(self):
        """The last lines of everybody, for a test that has failed."""
        for node in self.running:
            print(f"--- {node}\n{self.output(node)[-TAIL_CHARS:]}")
