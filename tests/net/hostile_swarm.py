"""A tiny swarm of real processes, and strangers that are not its friends."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys

from tests.net.swarms import TinySwarm


class HostileSwarm(TinySwarm):
    """One that `hostile_keys` attacks for a while."""

    _attacks = itertools.count()

    @contextlib.contextmanager
    def attacked_by(self, kind, count):
        """So many keys of that kind take part, once entered and until left; their process."""
        folder = self.folder / f"attack-{next(self._attacks)}"
        folder.mkdir()
        named = [str(folder), str(self.signed), self.link, kind, str(count)]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.net.hostile_keys", *named],
            stdout=subprocess.PIPE,
            stderr=(folder / "err").open("wb"),
            stdin=subprocess.DEVNULL,
        ) as process:
            try:
                assert process.stdout.readline() == b"here\n", (folder / "err").read_text()
                yield process
            finally:
                process.kill()

    def rows(self):
        """What the syncer says of each learner, by name."""
        now = self.until(self.syncer, "the syncer")
        return {peer.name: peer for peer in now.peers}
