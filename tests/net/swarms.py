"""Tiny swarms of real processes: their project, and how they begin."""

from __future__ import annotations

import subprocess
import sys

import psutil

from host.files.home import Home
from shoal.local_swarm.swarm import HANG_S, LocalSwarm
from tests.support.tiny_project import write_text

TINY = {
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
    "limits.tokens": 10**9,
    "rounds.local_steps": 24,
    "rounds.overlap_steps": 2,
    "rounds.patience_s": 3.0,
    "rounds.pull_timeout_s": 5.0,
    "limits.evaluate_every": 30,
    "limits.heldout_sequences": 4,
}
"""A Llama of 19 000 parameters, trained without end."""


class Merging:
    """Who is in merges from the first look on: what a syncer counts, its log remembers."""

    def __init__(self):
        self._before = None

    def names(self, status):
        """Of the learners in a merge since; status: a syncer's."""
        if self._before is None:
            self._before = {one.key: one.merges for one in (*status.contributors, *status.peers)}
        return {one.name for one in status.peers if one.merges > self._before.get(one.key, 0)}


class TinySwarm(LocalSwarm):
    """Daemons on one machine that train a tiny model on a text of their own."""

    def prepare(self, *, chars=60_000, voters=None, base=None, **changes):
        """The signed project; keys of `changes` have `__` for a dot. base: what it starts from."""
        text = self.folder / "text.txt"
        if not text.exists():
            write_text(text, chars=chars)
        named = {key.replace("__", "."): value for key, value in changes.items()}
        settings = {**TINY, "data.location": str(text), **named}
        if base is not None:
            settings = {k: v for k, v in settings.items() if not k.startswith("model.config.")}
        self.write_project("tiny", settings, voters, base)
        self.sign()

    def begin(self, *options):
        """Starts a syncer; its status once it has weights and a join link."""
        self.start_first(*options)
        return self.until(
            lambda: (now := self.syncer()) and now.phase == "training" and now,
            "a syncer with weights",
        )

    def all_merge(self, *names):
        """Waits until each of these is in a merge from now on; the syncer's status then."""

        merging = Merging()

        def look():
            now = self.syncer()
            return now if now and merging.names(now) >= set(names) else None

        return self.until(look, f"{', '.join(names)} in merges")

    def merge_counts(self):
        """How many merges each learner is in, as the syncer's table says."""
        now = self.syncer()
        return {peer.name: peer.merges for peer in now.peers} if now else {}

    def outputs(self):
        """What everybody has printed, by name."""
        return {name: self.output(name) for name in (*self.syncers, *self.learners)}


class Elsewhere(TinySwarm):
    """A swarm whose learners have a home each, and no copy of the text."""

    def daemon(self, name):
        found = super().daemon(name)
        if self.role(name) != "learner":
            return found
        home = Home(self.folder / name)
        return found._replace(socket=home.socket("learner", found.instance))

    def start_learner(self, name, *options):
        home = str(self.folder / name)
        return super().start_learner(name, "--home", home, *options)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shoal(home, *arguments):
    """A verb of the command, run to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, "-m", "shoal", "--home", str(home.root), *arguments],
        capture_output=True,
        text=True,
        timeout=3 * HANG_S,
        check=False,
    )
