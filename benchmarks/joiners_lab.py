"""How soon joiners that come all at once have the first weights, as real processes. Needs root.

    python benchmarks/joiners_lab.py [--joiners 8] [--megabytes 100] [--mbps 50] [--syncer-mbps 50]
                                     [--rtt-ms 50] [--without-trainers] [--kill-one]

A syncer that has just made its weights, and learners that all start together, each in a network of
its own (tests/netlab) behind a line that all of its traffic shares, as fast up as down. Nobody has
the weights but the syncer. The processes share this machine's cores. Told are, for each joiner, the
seconds from its first verified byte until it has every fragment, what its line needs for as many
bytes over that, and from whom they came. `benchmarks/joiners.py` is the same in virtual time.

Eight trainers of a large model take more memory than a machine has. `--without-trainers` has owners
who allow no training now (`when.mode = never`) and keep weights in files; all else is the same.
`--kill-one` ends one joiner's machine when it has half of all, and starts it again at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.joining_lab import SETTINGS, VOCABULARY
from benchmarks.peers.networks import BYTES_PER_S_OF_MBPS, PACKET_BYTES, QUEUE_S
from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link, missing

SYNCER = "syncer"
LOOK_S = 0.1
DUTY = "0.1"
BEGIN_S = 120.0
PATIENCE = 2
"""The weights are half of the bytes, so four times what the line needs for them."""

BYTES_PER_PARAMETER = 8
"""Weights and momentum: all zeros still, but here a fragment has hardly more than a chunk."""


HALF_FRAC = 0.75
"""Of all bytes: the half that is momentum consists of zeros, and need not come."""

MAKING_S = 1200.0
"""For the first weights of any size."""

WITHOUT_TRAINERS = {"SHOAL_WHEN_MODE": "never", "SHOAL_LEARNER_WEIGHTS_ON_DISK": "true"}


@dataclass(frozen=True, slots=True)
class Joined:
    """One joiner; seconds since its first byte."""

    name: str
    took_s: float
    megabytes: float
    """What came since its daemon was started."""
    of_line: float
    of_syncer: float
    """Share of its bytes that the syncer sent."""
    sources: int


def line(mbps: float, rtt_ms: float) -> Link:
    """One way of a line; two lie between any two hosts."""
    rate = mbps * BYTES_PER_S_OF_MBPS
    queue = max(65536, int(QUEUE_S * rate))
    return Link(latency_s=rtt_ms / 4000, rate_bytes_per_s=rate, queue_bytes=queue)


def model_of(megabytes: float, hidden: int) -> dict[str, Any]:
    """Settings of a Llama whose weights and momentum are about so many megabytes."""
    middle = 11 * hidden // 4
    layer = 4 * hidden**2 + 3 * hidden * middle
    parameters = megabytes * 1e6 / BYTES_PER_PARAMETER
    return {
        "model__config__hidden_size": hidden,
        "model__config__intermediate_size": middle,
        "model__config__num_hidden_layers": max(
            1, round((parameters - VOCABULARY * hidden) / layer)
        ),
    }


def watch(
    swarm: LabSwarm, names: list[str], rate: float, limit_s: float, restart: Callable[[], None]
) -> list[Joined]:
    """All joiners, from the first byte of each until it has everything.

    restart: called once, when the first of them has half of all.
    """
    is_restarted = False
    began: dict[str, float] = {}
    found: dict[str, Joined] = {}
    leader = swarm.syncer()
    assert leader is not None, "it has begun"
    syncer, whole = leader.key, 4 * leader.project.parameters

    def look() -> bool:
        nonlocal is_restarted
        for name in names:
            status = None if name in found else swarm.learner(name)
            if status is None:
                continue
            now_s = time.monotonic()
            has_some = status.download is not None and status.download.done_bytes > 0
            if has_some or status.weights_held:
                began.setdefault(name, now_s)
            download = status.download
            if name == names[0] and not is_restarted and download is not None:
                is_restarted = download.done_bytes > HALF_FRAC * download.total_bytes
                if is_restarted:
                    restart()
            if status.weights_held == len(status.versions) > 0:
                sent = status.weights_sources
                size, took_s = sum(sent.values()), now_s - began[name]
                found[name] = Joined(
                    name,
                    took_s,
                    size / 1e6,
                    whole / rate / took_s,
                    sent.get(syncer, 0) / size,
                    len(sent),
                )
                print(f"{name}: {found[name]}", flush=True)
        return len(found) == len(names)

    swarm.within(limit_s, look, "everybody with all weights")
    return list(found.values())


def run(chosen: argparse.Namespace) -> list[Joined]:
    names = [f"joiner{at}" for at in range(chosen.joiners)]
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as place,
        Lab((SYNCER, *names), mtu_bytes=PACKET_BYTES, seed=1) as lab,
        LabSwarm(lab, Path(place), poll_s=LOOK_S) as swarm,
    ):
        settings = {**SETTINGS, "model__fragments": chosen.fragments, "rounds__local_steps": 1000}
        swarm.prepare(**settings, **model_of(chosen.megabytes, chosen.hidden))
        swarm.start_first(*(["--weights-on-disk"] if chosen.without_trainers else []))
        swarm.within(
            MAKING_S, lambda: (now := swarm.syncer()) and now.phase == "training", "weights"
        )
        for name in (SYNCER, *names):
            mbps = chosen.syncer_mbps if name == SYNCER else chosen.mbps
            one = line(mbps, chosen.rtt_ms)
            lab.put_on_line(name, up=one, down=one)
        if chosen.without_trainers:
            swarm.processes.environment |= WITHOUT_TRAINERS
        own = ["--anyway"] if chosen.without_trainers else []
        own += ["--no-evaluate", "--duty", DUTY, "--donate-mbps", f"{10 * chosen.mbps:g}"]
        for name in names:
            swarm.start_learner(name, *own)

        def restart() -> None:
            if chosen.kill_one:
                swarm.kill(names[0])
                swarm.start_learner(names[0], *own)
                print(f"{names[0]} was killed, and is started again", flush=True)

        rate = chosen.mbps * BYTES_PER_S_OF_MBPS
        limit_s = BEGIN_S + PATIENCE * chosen.megabytes * 1e6 / rate
        return watch(swarm, names, rate, limit_s, restart)


def main() -> int:
    """Prints the figures of each joiner, then of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--joiners", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=100.0, help="weights and momentum")
    parser.add_argument("--hidden", type=int, default=512, help="the model's width")
    parser.add_argument("--without-trainers", action="store_true")
    parser.add_argument("--kill-one", action="store_true")
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--mbps", type=float, default=50.0, help="of each joiner's line")
    parser.add_argument("--syncer-mbps", type=float, default=50.0)
    parser.add_argument("--rtt-ms", type=float, default=50.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if (lacking := missing()) is not None:
        print(lacking)
        return 1
    found = run(chosen)
    size = max(one.megabytes for one in found)
    copies = sum(one.of_syncer for one in found)
    print(
        f"{len(found)} joiners, {size:.0f} MB each, lines of {chosen.mbps:g} Mbit/s, the syncer's "
        f"{chosen.syncer_mbps:g}: the last after {max(one.took_s for one in found):.1f} s, "
        f"{min(one.of_line for one in found):.2f} of its line "
        f"(mean {statistics.mean(one.of_line for one in found):.2f}); the syncer sent "
        f"{copies:.1f} copies"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
