"""Single hosts in nodes of the network lab, asked to fetch and to talk."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time

from tests.netlab.lab import ROOT

START_S = 90.0


class Peer:
    """A `lab_peer` that runs in a node."""

    def __init__(self, lab, node, folder, bootstrap=(), **environment):
        place = (folder, node, lab.address(node))
        self.process = lab.run(
            node,
            [sys.executable, "-m", "tests.net.lab_peer", *place, *bootstrap],
            env={"PYTHONPATH": str(ROOT), **environment},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[dict] = queue.Queue()
        self._number = 0
        self._early: dict[int, dict] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self):
        """Until it is up."""
        told = self._lines.get(timeout=START_S)
        self.key, self.addresses = told["key"], told["addresses"]

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def ask(self, **question):
        """Asks and does not wait; the number for `answer`."""
        self._number += 1
        self.process.stdin.write(json.dumps({"number": self._number, **question}) + "\n")
        self.process.stdin.flush()
        return self._number

    def answer(self, number, *, timeout_s):
        """The answer to a question; queue.Empty if it does not come in time."""
        ends_s = time.monotonic() + timeout_s
        while number not in self._early:
            told = self._lines.get(timeout=max(0.001, ends_s - time.monotonic()))
            self._early[told["number"]] = told
        return self._early.pop(number)

    def fetch(self, peer, size, *, timeout_s, carried=True):
        asked = self.ask(fetch=peer.key, size=size, carried=carried)
        return self.answer(asked, timeout_s=timeout_s)

    def say(self, peer, text, *, timeout_s):
        return self.answer(self.ask(say=peer.key, text=text), timeout_s=timeout_s)
