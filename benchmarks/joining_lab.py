"""Seconds from `shoal join` to the first merge that has the joiner in it. Needs root.

    python benchmarks/joining_lab.py [--sizes 10,100,500] [--mbps 100] [--rtt-ms 50] [--times 3]
                                     [--text-mb 100]

A syncer and three learners train a Llama, each process in a network of its own (tests/netlab): each
learner's line to the joiner carries so many Mbit/s and takes half the round trip. The sizes are
megabytes that a joiner fetches: weights and momentum, 8 bytes a parameter. Each time a learner with
a fresh key starts. Told are the seconds from its start to its first verified byte, of the download,
from there to its first local step, and from there until a merge has it in; and as a share what the
three lines would need for the bytes over what the download took.

With --text-mb the project's text is published with it: so many megabytes, and as many million
tokens, for one is a byte. A joiner then has a home of its own and no copy: it has the link, as
friends have. Told besides is what it fetched of the text until its first merge, over what it
trained on.

All train on the same few cores, so that what comes after the download is slower than it is where
every learner has its own machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from host.files.home import Daemon, Home
from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link, missing

SYNCER, JOINER = "syncer", "joiner"
DONORS = ("ada", "bob", "cyd")
LOOK_S = 0.02
DUTY = "0.2"
"""Of everybody: four trainers share this machine."""

BYTES_PER_PARAMETER = 8
VOCABULARY = 257
SETTINGS: dict[str, Any] = {
    "model__fragments": 8,
    "model__config__num_attention_heads": 4,
    "model__config__num_key_value_heads": 4,
    "training__batch_sequences": 1,
    "limits__lease_s": 120.0,
    "rounds__local_steps": 8,
    "rounds__overlap_steps": 1,
    "rounds__pull_timeout_s": 60.0,
    "limits__evaluate_every": 100_000,
}

PUBLISHED: dict[str, Any] = {
    "data__publish": True,
    "data__sequence_tokens": 64,
    "model__config__max_position_embeddings": 64,
    "data__block_sequences": 64,
}
"""With them the shards hold half a megabyte each, as those of any project."""


@dataclass(frozen=True, slots=True)
class Joined:
    """One joiner's way in; seconds."""

    megabytes: float
    start_s: float
    download_s: float
    first_step_s: float
    first_merge_s: float
    of_lines: float
    sources: int
    text_fetched: float = 0.0
    """Bytes of text that it fetched over those that it trained on, at its first merge."""

    @property
    def to_step_s(self) -> float:
        """From `shoal join` to the first local step."""
        return self.start_s + self.download_s + self.first_step_s

    @property
    def whole_s(self) -> float:
        return self.start_s + self.download_s + self.first_step_s + self.first_merge_s


def model_of(megabytes: int) -> dict[str, Any]:
    """Settings of a Llama whose weights and momentum are about so many megabytes."""
    wanted = megabytes * 1e6 / BYTES_PER_PARAMETER
    hidden = min((128, 256, 512, 1024), key=lambda width: abs(wanted - 4 * 12 * width**2))
    middle = 11 * hidden // 4
    layer = 4 * hidden**2 + 3 * hidden * middle
    layers = max(1, round((wanted - VOCABULARY * hidden) / layer))
    return {
        "model__config__hidden_size": hidden,
        "model__config__intermediate_size": middle,
        "model__config__num_hidden_layers": layers,
    }


class Bench(LabSwarm):
    """A swarm that trains a model of one size."""

    def open(self, megabytes: int, text_megabytes: int) -> None:
        """The syncer, and three learners of which each is in merges."""
        self.is_published = text_megabytes > 0
        text = {"chars": text_megabytes * 1_000_000, **PUBLISHED} if self.is_published else {}
        self.prepare(**SETTINGS, **model_of(megabytes), **text)
        self.begin()
        for name in DONORS:
            self.join(name)
        self.all_merge(*DONORS)

    def daemon(self, name: str) -> Daemon:
        """Where it is asked."""
        found = super().daemon(name)
        if not self._has_own_home(name):
            return found
        return found._replace(socket=self._own_home(name).socket("learner", found.instance))

    def _has_own_home(self, name: str) -> bool:
        return self.is_published and name.startswith(JOINER)

    def _own_home(self, name: str) -> Home:
        return Home(self.folder / f"home-{name}")

    def join(self, name: str) -> None:
        home = ["--home", str(self._own_home(name).root)] if self._has_own_home(name) else []
        own = ["--no-evaluate", "--duty", DUTY, "--donate-mbps", "10000", *home]
        self.start_learner(name, *own)

    def measure(self, number: int, mbps: float) -> Joined:
        name = f"{JOINER}{number}"

        self.nodes[name] = JOINER

        def node() -> Any:
            return self.learner(name)

        began_s = time.monotonic()
        self.join(name)
        download = self.until(
            lambda: (s := node()) and s.download and s.download.done_bytes and s, "the download"
        ).download
        first_byte_s = time.monotonic()
        total_bytes = download.total_bytes
        missing_bytes = total_bytes - download.done_bytes
        fetched = self.until(
            lambda: (s := node()) and s.weights_held == len(s.versions) > 0 and s, "all weights"
        )
        fetched_s = time.monotonic()
        self.until(lambda: (s := node()) and s.local_step > 0, "the first local step")
        stepped_s = time.monotonic()
        self.until(lambda: self.merge_counts().get(name), "the first merge")
        merged_s = time.monotonic()
        shards = node().shards
        self.kill(name)
        lines_s = missing_bytes / (len(DONORS) * mbps * 1e6 / 8)
        return Joined(
            megabytes=total_bytes / 1e6,
            start_s=first_byte_s - began_s,
            download_s=fetched_s - first_byte_s,
            first_step_s=stepped_s - fetched_s,
            first_merge_s=merged_s - stepped_s,
            of_lines=lines_s / (fetched_s - first_byte_s),
            sources=len(fetched.weights_sources),
            text_fetched=shards.fetched_bytes / max(1, shards.fed_bytes) if shards else 0.0,
        )


def run(megabytes: int, chosen: argparse.Namespace) -> list[Joined]:
    latency_s = chosen.rtt_ms / 2e3
    line = Link(latency_s=latency_s, rate_bytes_per_s=chosen.mbps * 1e6 / 8)
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as place,
        Lab((SYNCER, JOINER, *DONORS), link=Link(latency_s=latency_s), seed=1) as lab,
        Bench(lab, Path(place), poll_s=LOOK_S) as bench,
    ):
        bench.open(megabytes, chosen.text_mb)
        for name in DONORS:
            lab.shape_one_way(name, JOINER, line)
        for number in range(chosen.times):
            one = bench.measure(number, chosen.mbps)
            found.append(one)
            print(
                f"{number} {one.megabytes:.0f} MB: {one.whole_s:.1f} s to the first merge: "
                f"{one.start_s:.1f} to the first byte, {one.download_s:.1f} of download "
                f"({one.of_lines:.2f} of the lines, {one.sources} sources), "
                f"{one.first_step_s:.1f} to the first step, {one.first_merge_s:.1f} to the merge; "
                f"{one.to_step_s:.1f} from the start to the first step; text fetched "
                f"{one.text_fetched:.2f} times",
                flush=True,
            )
    return found


def main() -> int:
    """Prints the medians of each size and writes everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(one) for one in text.split(",") if one],
        default=[10, 100, 500],
        help="megabytes",
    )
    parser.add_argument("--mbps", type=float, default=100.0, help="of each donor's line")
    parser.add_argument("--rtt-ms", type=float, default=50.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--text-mb", type=int, default=0, help="published with the project")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if (lacking := missing()) is not None:
        print(lacking)
        return 1
    rows = []
    for size in chosen.sizes:
        found = run(size, chosen)
        rows += [
            {**asdict(one), "to_step_s": one.to_step_s, "whole_s": one.whole_s} for one in found
        ]
        print(
            f"{size} MB, {len(DONORS)} donors, {chosen.mbps:g} Mbit/s and {chosen.rtt_ms:g} ms: "
            f"median {statistics.median(one.to_step_s for one in found):.1f} s to the first local "
            f"step, {statistics.median(one.whole_s for one in found):.1f} s to the first merge, "
            f"download at {statistics.median(one.of_lines for one in found):.2f} of the lines",
            flush=True,
        )
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
