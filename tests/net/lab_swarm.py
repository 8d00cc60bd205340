"""Shoal's daemons in the nodes of a network lab, and what they say of themselves.

All use one home: control sockets are files, so they are asked from outside whatever becomes of the
network.
"""

from __future__ import annotations

import subprocess

from tests.net.swarms import TinySwarm
from tests.netlab import Lab

PORT = 4100


class LabSwarm(TinySwarm):
    """Each daemon runs in the node of its name, or in one that `nodes` names."""

    def __init__(self, lab: Lab, folder, **options):
        super().__init__(folder, spawn=self._spawn, **options)
        self.lab = lab
        self.nodes = {}

    def _spawn(self, name, command, environment, output):
        return self.lab.run(
            self.node(name),
            command,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def node(self, name):
        return self.nodes.get(name, name)

    def address(self, name):
        return self.lab.address(self.node(name))

    def port(self, name):
        return PORT

    def kill(self, name):
        """kill -9 for everything in its node, as a power cut would."""
        child = self.running.pop(name)
        child.is_stray = True
        self.lab.kill(self.node(name))
        return child

    def close(self):
        for name in list(self.running):
            self.kill(name)
        return super().close()
