"""Seconds that a swarm is without a leader, and without merges, when its leader is killed.

    python benchmarks/failover.py --kills 50 --json failover.json

Three syncers and two learners run as real processes on this machine. Again and again the leader is
ended with SIGKILL; once another one leads and merges, the dead one is started anew and has to catch
up. What was certified before a kill must be in the log after it, and learners' local steps are
watched all the time: the longest pause of each is reported beside the median step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from host.control import client
from host.files import keystore
from host.files.home import Home
from host.files.signed_project import read_signed, seal_project, write_signed
from protocol.errors import TransientError
from protocol.project import Voter
from protocol.status import NodeStatus, SyncerStatus
from shoal.project import file_commands
from shoal.project.template import create_text

SYNCERS = ("s0", "s1", "s2")
LEARNERS = ("ada", "bob")
PORT = 4780
LOOK_S = 0.05
PATIENCE_S = 90.0

TINY: dict[str, Any] = {
    "model.fragments": 3,
    "model.config.hidden_size": 32,
    "model.config.intermediate_size": 64,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.num_key_value_heads": 2,
    "model.config.max_position_embeddings": 32,
    "data.sequence_tokens": 32,
    "data.block_sequences": 64,
    "training.batch_sequences": 2,
    "rounds.local_steps": 24,
    "rounds.overlap_steps": 2,
    "limits.evaluate_every": 1000,
    "limits.heldout_sequences": 4,
}


@dataclass
class Kill:
    """What one kill cost."""

    without_leader_s: float
    without_merges_s: float
    records_lost: int
    back_s: float
    """From its start until the killed syncer had everything again."""


@dataclass
class Bench:
    """The processes, and what was seen."""

    home: Home
    project: Path
    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    link: str = ""
    bootstrap: str = ""
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each learner: newest local step, and when it was first seen."""
    pause_s: dict[str, float] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)

    def start(self, name: str, *arguments: str) -> None:
        output = (self.folder / f"{name}.out").open("ab")
        command = [sys.executable, "-m", "shoal", "--home", str(self.home.root), *arguments]
        self.running[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def start_syncer(self, name: str) -> None:
        others = ["--bootstrap", self.bootstrap] if self.bootstrap and name != "s0" else []
        port = str(PORT + SYNCERS.index(name))
        self.start(
            name,
            *("syncer", "run", str(self.project), "--instance", name, "--port", port),
            *("--listen", "127.0.0.1", *others),
        )

    def start_learner(self, name: str) -> None:
        self.start(
            name,
            *("join", self.link, "--instance", name, "--name", name, "--threads", "1"),
            *("--device", "cpu", "--duty", "0.4", "--listen", "127.0.0.1", "--no-evaluate"),
        )

    def syncer(self, name: str) -> SyncerStatus | None:
        said = ask(self.home.socket("syncer", name))
        return None if said is None else msgspec.convert(said, SyncerStatus)

    def learner(self, name: str) -> NodeStatus | None:
        said = ask(self.home.socket("learner", name))
        return None if said is None else msgspec.convert(said, NodeStatus)

    def leader(self) -> tuple[str, SyncerStatus] | None:
        """The syncer whose seat is open, of the highest term."""
        found = [(name, self.syncer(name)) for name in SYNCERS]
        open_seats = [
            (name, status)
            for name, status in found
            if status is not None and status.phase == "training"
        ]
        return max(open_seats, key=lambda pair: pair[1].swarm.term, default=None)

    def watch_steps(self) -> None:
        """Notice when a learner's local step has stood still."""
        for name in LEARNERS:
            status, now_s = self.learner(name), time.monotonic()
            if status is None:
                continue
            step, since_s = self.steps.get(name, (-1, now_s))
            if status.local_step != step:
                self.steps[name] = (status.local_step, now_s)
            else:
                self.pause_s[name] = max(self.pause_s.get(name, 0.0), now_s - since_s)

    def until(self, what: str, look: Any) -> Any:
        """What `look` finds, watching local steps meanwhile."""
        ends_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_s:
            found = look()
            if found:
                return found
            self.watch_steps()
            time.sleep(LOOK_S)
        raise SystemExit(f"waited {PATIENCE_S:g} s in vain for {what}; logs in {self.folder}")

    # The benchmark.

    def begin(self) -> None:
        """Three syncers, two learners, merging."""
        self.start_syncer("s0")
        first = self.until("s0", lambda: (s := self.syncer("s0")) and s.join_link and s)
        self.link = first.join_link
        self.bootstrap = first.network.addresses[0]
        for name in SYNCERS[1:]:
            self.start_syncer(name)
        for name in LEARNERS:
            self.start_learner(name)
        self.until("merges", lambda: (f := self.leader()) and f[1].merges_here > 20)
        self.until("standbys", self.all_caught_up)
        self.pause_s.clear()

    def all_caught_up(self) -> bool:
        found = self.leader()
        if found is None or found[1].seat is None:
            return False
        rows = found[1].seat.voters
        return all(row.is_here and row.lag is not None and row.lag <= 4 for row in rows)

    def kill_once(self) -> Kill:
        found = self.until("a leader", self.leader)
        name, before = found
        killed_s = time.monotonic()
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()
        self.until("another leader", lambda: self._other(name))
        led_s = time.monotonic()
        merged = self.until(
            "merges", lambda: (f := self._other(name)) and f[1].merges_here > 0 and f
        )
        merged_s = time.monotonic()
        lost = max(0, before.swarm.log_index - merged[1].swarm.log_index)
        self.start_syncer(name)
        started_s = time.monotonic()
        self.until(f"{name} to catch up", self.all_caught_up)
        return Kill(led_s - killed_s, merged_s - killed_s, lost, time.monotonic() - started_s)

    def _other(self, name: str) -> tuple[str, SyncerStatus] | None:
        found = self.leader()
        return found if found is not None and found[0] != name else None

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(socket: Path) -> Any:
    """The daemon's status, or None while it does not answer."""
    try:
        return client.call(socket, "status", timeout_s=2.0)["status"]
    except TransientError:
        return None


def prepare(folder: Path) -> Bench:
    """A signed project with three syncers as voters."""
    home = Home(folder / "home")
    path = folder / "failover.toml"
    path.write_text(create_text("failover", changes={**TINY, "limits.tokens": 10**10}))
    file_commands.sign(path, home, instance=SYNCERS[0])
    signed = path.with_suffix(".shoal")
    project = read_signed(signed)
    voters = tuple(
        Voter(keystore.load_or_create(home.identity("syncer", name)).key, "syncer", 50 - at)
        for at, name in enumerate(SYNCERS)
    )
    charter = msgspec.structs.replace(project.charter, voters=voters)
    owner = keystore.load_or_create(home.identity("owner"))
    write_signed(signed, seal_project(project.genesis, charter, owner))
    later = time.time() + 5
    os.utime(signed, (later, later))
    return Bench(home, signed, folder)


def spread(values: list[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum."""
    ranked = sorted(values)
    return {
        "p50": round(statistics.median(ranked), 2),
        "p95": round(ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))], 2),
        "max": round(ranked[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--json", type=Path)
    choices = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="shoal-failover-"))
    bench = prepare(place)
    try:
        bench.begin()
        for number in range(choices.kills):
            kill = bench.kill_once()
            bench.kills.append(kill)
            print(
                f"kill {number + 1:3d}: {kill.without_leader_s:5.2f} s without a leader, "
                f"{kill.without_merges_s:5.2f} s without merges, "
                f"{kill.records_lost} records lost, back after {kill.back_s:5.2f} s",
                flush=True,
            )
    finally:
        bench.end()
    shutil.rmtree(place)  # Only after success: otherwise the logs say why.
    result = {
        "kills": len(bench.kills),
        "without_leader_s": spread([kill.without_leader_s for kill in bench.kills]),
        "without_merges_s": spread([kill.without_merges_s for kill in bench.kills]),
        "back_s": spread([kill.back_s for kill in bench.kills]),
        "records_lost": sum(kill.records_lost for kill in bench.kills),
        "longest_pause_of_local_steps_s": max(bench.pause_s.values(), default=0.0),
    }
    print(json.dumps(result, indent=2))
    if choices.json is not None:
        choices.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
