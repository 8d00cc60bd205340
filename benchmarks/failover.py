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
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from protocol.status import SyncerStatus
from shoal.local_swarm.swarm import LocalSwarm

SYNCERS = ("s0", "s1", "s2")
LEARNERS = ("ada", "bob")
LOOK_S = 0.05

TINY = {
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
    "limits.tokens": 10**10,
}


@dataclass
class Kill:
    """What one kill cost."""

    without_leader_s: float
    without_merges_s: float
    records_lost: int
    back_s: float
    """From its start until the killed syncer had everything again."""


class Bench(LocalSwarm):
    """The processes, and what was seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, poll_s=LOOK_S)
        self.steps: dict[str, tuple[int, float]] = {}
        """Of each learner: newest local step, and when it was first seen."""
        self.pause_s: dict[str, float] = {}

    def on_wait(self) -> None:
        """Notices when a learner's local step has stood still."""
        for name in self.learners:
            status, now_s = self.learner(name), time.monotonic()
            if status is None:
                continue
            step, since_s = self.steps.get(name, (-1, now_s))
            if status.local_step != step:
                self.steps[name] = (status.local_step, now_s)
            else:
                self.pause_s[name] = max(self.pause_s.get(name, 0.0), now_s - since_s)

    # The benchmark.

    def begin(self) -> None:
        """Three syncers, two learners, merging."""
        self.write_project("failover", TINY, dict.fromkeys(SYNCERS, "syncer"))
        self.sign()
        self.start_first()
        for name in SYNCERS[1:]:
            self.start_syncer(name)
        for name in LEARNERS:
            self.start_learner(name, "--duty", "0.4", "--no-evaluate")
        self.until(lambda: (f := self.leader()) is not None and f[1].merges_here > 20, "merges")
        self.until(lambda: not self.trouble(), "standbys")
        self.pause_s.clear()

    def kill_once(self) -> Kill:
        name, before = self.until(self.leader, "a leader")
        self.kill(name)
        killed_s = time.monotonic()

        def other() -> tuple[str, SyncerStatus] | None:
            found = self.leader()
            return found if found is not None and found[0] != name else None

        def merging() -> tuple[str, SyncerStatus] | None:
            found = other()
            return found if found is not None and found[1].merges_here > 0 else None

        self.until(other, "another leader")
        led_s = time.monotonic()
        _, merged = self.until(merging, "merges")
        merged_s = time.monotonic()
        lost = max(0, before.swarm.log_index - merged.swarm.log_index)
        self.start_syncer(name)
        started_s = time.monotonic()
        self.until(lambda: not self.trouble(), f"the return of {name}")
        return Kill(led_s - killed_s, merged_s - killed_s, lost, time.monotonic() - started_s)


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
    kills = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, Bench(Path(folder)) as bench:
        bench.begin()
        for number in range(choices.kills):
            kill = bench.kill_once()
            kills.append(kill)
            print(
                f"kill {number + 1:3d}: {kill.without_leader_s:5.2f} s without a leader, "
                f"{kill.without_merges_s:5.2f} s without merges, "
                f"{kill.records_lost} records lost, back after {kill.back_s:5.2f} s",
                flush=True,
            )
    result = {
        "kills": len(kills),
        "without_leader_s": spread([kill.without_leader_s for kill in kills]),
        "without_merges_s": spread([kill.without_merges_s for kill in kills]),
        "back_s": spread([kill.back_s for kill in kills]),
        "records_lost": sum(kill.records_lost for kill in kills),
        "longest_pause_of_local_steps_s": max(bench.pause_s.values(), default=0.0),
    }
    print(json.dumps(result, indent=2))
    if choices.json is not None:
        choices.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
