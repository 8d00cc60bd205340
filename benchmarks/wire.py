"""Bulk data between two hosts: streams and the direct channel against the raw transport below them.

    python benchmarks/wire.py [--on loopback,line] [--only rates,cost,fairness,control,ceilings]
                              [--rounds 9] [--congestion cubic] [--json FILE]

Two processes, each with two hosts: one with direct channels and one without. `line` is a link of
100 Mbit/s, 50 ms there and back and 0.5 % loss each way between two networks (tests/netlab; needs
root); `--congestion` sets what TCP uses in both.

- rates: in each round the same bytes go, in an order that changes, over plain TCP (sendall,
  recv_into in threads), over raw TLS 1.3 with the same certificates, each with one connection and
  with four, over the engine's streams and over the channel. All connections stand, all receive
  into new memory of the same kind; ours check the blake3 digest, of the raw ones only
  `tls 1, checked`, in another thread as ours do. Shares are taken within each round, of the raw TLS
  (unchecked) whose median is the better one. Then who spent the processor's time, per GB.
- cost: bytes per parameter of an int4 payload, each way, as the kernel counts them at the sockets
  (with TLS and frames) and, on the line, as IP packets.
- fairness: four transfers of different blobs that begin together, Jain's index and the slowest
  against the fastest.
- control: how long a control message takes there and back, idle and while bulk data runs.
- ceilings: what leaves a host whose owner allows 50 Mbit/s, in all and in the fullest second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.arena import Member
from benchmarks.wire_peer import PARAMETERS, PAYLOAD, WAYS
from tests.netlab import Lab, Link, missing

LINE = Link(latency_s=0.025, loss_frac=0.005, rate_bytes_per_s=100e6 / 8)
SIZES = {"loopback": 256 << 20, "line": 24 << 20}
RAW = ("tcp 1", "tcp 4", "tls 1", "tls 4", "tls 1, checked")
AT_ONCE = 4
PINGS = {"loopback": 300, "line": 120}
CEILING_BYTES_PER_S = 50_000_000 // 8
PACED_BYTES = 16 << 20
WINDOW_S = 1.0
IDLE_S = 5.0
ANSWER_S = 200.0
PARTS = ("rates", "cost", "fairness", "control", "ceilings")


class Process(Member):
    """A `wire_peer` in a process of its own."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        super().__init__(started, "wire_peer")
        self.told = self.hear(time.monotonic() + ANSWER_S)

    def ask(self, verb: str, **question: Any) -> dict[str, Any]:
        self.say({"verb": verb, **question})
        found = self.hear(time.monotonic() + ANSWER_S)
        if "error" in found:
            raise RuntimeError(f"{verb} {question}: {found['error']}")
        return found


@dataclass
class Pair:
    """Both processes, and what lies between them."""

    kind: str
    one: Process
    """Serves."""
    two: Process
    """Fetches."""
    lab: Lab | None
    rounds: int

    @property
    def size(self) -> int:
        return SIZES[self.kind]


PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@contextlib.contextmanager
def emulated(congestion: str) -> Iterator[Lab]:
    """Two networks with the line between them."""
    with Lab(["a", "b"], link=LINE, seed=1) as lab:
        if congestion:
            setting = Path("/proc/sys/net/ipv4/tcp_congestion_control")
            for node in lab.nodes:
                lab.inside(node, lambda: setting.write_text(congestion))
        yield lab


# Parts.


def rates(pair: Pair) -> dict[str, Any]:
    """Every case once in each round; MB/s, shares of raw, processor seconds per GB."""
    cases = [*RAW, *WAYS]
    took: dict[str, list[float]] = {case: [] for case in cases}
    spent: dict[str, dict[str, float]] = {case: {} for case in cases}
    for case in cases:
        pair.two.ask("timed", what=case, size=pair.size)
    for number in range(pair.rounds):
        for case in random.Random(number).sample(cases, len(cases)):
            before = _spent(pair)
            took[case].append(pair.two.ask("timed", what=case, size=pair.size)["seconds"])
            for who, seconds in _spent(pair).items():
                spent[case][who] = spent[case].get(who, 0.0) + seconds - before[who]
    speed = {case: [pair.size / 1e6 / s for s in seconds] for case, seconds in took.items()}
    raw = max(("tls 1", "tls 4"), key=lambda case: statistics.median(speed[case]))
    shares = {
        case: [own / of for own, of in zip(speed[case], speed[raw], strict=True)] for case in cases
    }
    gigabytes = pair.rounds * pair.size / 1e9
    return {
        "raw": raw,
        "mb_per_s": {case: quartiles(found) for case, found in speed.items()},
        "share": {case: quartiles(found) for case, found in shares.items()},
        "cpu_s_per_gb": {
            case: {who: seconds / gigabytes for who, seconds in found.items()}
            for case, found in spent.items()
        },
        "seconds": took,
    }


def _spent(pair: Pair) -> dict[str, float]:
    ends = {"sender": pair.one.ask("spent"), "receiver": pair.two.ask("spent")}
    engines = sum(end["engines"] for end in ends.values())
    return {**{who: end["host"] for who, end in ends.items()}, "engines": engines}


def cost(pair: Pair) -> dict[str, Any]:
    """Bytes per parameter of one int4 payload, each way."""
    ends = {"a to b": (pair.one, pair.two), "b to a": (pair.two, pair.one)}
    found: dict[str, Any] = {}
    for way in WAYS:
        for direction, (sender, receiver) in ends.items():
            lab, nodes = pair.lab, direction.split(" to ")
            receiver.ask("timed", what=way, size=PAYLOAD)
            before = sender.ask("moved")["up"]
            packets = lab.counts(*nodes).forwarded_bytes if lab else 0
            receiver.ask("timed", what=way, size=PAYLOAD)
            time.sleep(0.5)  # What was received is still to be acknowledged.
            found[f"{way}, {direction}"] = {
                "sockets": (sender.ask("moved")["up"] - before) / PARAMETERS,
                "packets": (lab.counts(*nodes).forwarded_bytes - packets) / PARAMETERS
                if lab
                else None,
            }
    return found


def fairness(pair: Pair) -> dict[str, Any]:
    """Several transfers that begin together; the rate of each is its size by its time."""
    found = {}
    for way in WAYS:
        runs = [
            pair.two.ask("share", way=way, size=pair.size // AT_ONCE, count=AT_ONCE)["seconds"]
            for _ in range(pair.rounds)
        ]
        found[way] = {
            "jain": quartiles([jain([1 / s for s in run]) for run in runs]),
            "slowest_of_fastest": quartiles([min(run) / max(run) for run in runs]),
        }
    return found


def control(pair: Pair) -> dict[str, Any]:
    """Round trips of control messages, idle and under load."""
    found = {}
    for way in WAYS:
        for load in (0, pair.size):
            told = pair.two.ask("ping", way=way, size=load, times=PINGS[pair.kind])
            cuts = statistics.quantiles(told["trips"], n=100)
            found[f"{way}, {'under load' if load else 'idle'}"] = {
                "median_ms": 1e3 * cuts[49],
                "p90_ms": 1e3 * cuts[89],
                "p99_ms": 1e3 * cuts[98],
                "mb_per_s": told["mb_per_s"],
            }
    return found


def ceilings(pair: Pair) -> dict[str, Any]:
    """What came from a host that may send so much, as a share of that."""
    found = {}
    for side, limited in (("upload", pair.one), ("download", pair.two)):
        up, down = ((CEILING_BYTES_PER_S, None), (None, CEILING_BYTES_PER_S))[side == "download"]
        limited.ask("limit", up=up, down=down)
        for way in WAYS:
            for count in (1, AT_ONCE):
                before, began_s = pair.one.ask("moved")["up"], time.monotonic()
                size = PACED_BYTES // count
                samples = pair.two.ask("sampled", way=way, size=size, count=count)["samples"]
                seconds = samples[-1][0]
                sockets = pair.one.ask("moved")["up"] - before
                assert time.monotonic() - began_s >= seconds
                found[f"{side}, {way}, {count}"] = {
                    "mean": samples[-1][1] / seconds / CEILING_BYTES_PER_S,
                    "sockets": sockets / seconds / CEILING_BYTES_PER_S,
                    "fullest_second": fullest(samples) / CEILING_BYTES_PER_S,
                }
        limited.ask("limit", up=None, down=None)
    return found


def fullest(samples: list[list[float]]) -> float:
    """The most that came within a second, bytes per second."""
    best, first = 0.0, 0
    for at_s, count in samples:
        while samples[first][0] < at_s - WINDOW_S:
            first += 1
        best = max(best, (count - samples[first][1]) / WINDOW_S)
    return best


def quartiles(found: list[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else 3 * found


def jain(had: list[float]) -> float:
    """Jain's fairness index: 1 where all have the same, 1/n where one has everything."""
    return float(sum(had) ** 2 / (len(had) * sum(one * one for one in had)))


def measure(kind: str, parts: list[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The wanted parts on one kind of link."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(emulated(given.congestion)) if kind == "line" else None

        def start(node: str, other: dict[str, Any]) -> Process:
            address = lab.address(node) if lab else "127.0.0.1"
            words = [str(folder), node, address, json.dumps(other)]
            command = [sys.executable, "-m", "benchmarks.wire_peer", *words]
            spawn = partial(lab.run, node) if lab else subprocess.Popen
            process = Process(spawn(command, **PIPES))
            stack.callback(process.kill)
            return process

        one = start("a", {})
        two = start("b", one.told)
        one.ask("meet", told=two.told)
        pair = Pair(kind, one, two, lab, given.rounds)
        wanted = [pair.size, PACED_BYTES, PAYLOAD]
        wanted += [size // AT_ONCE + at for size in wanted[:2] for at in range(AT_ONCE)]
        for process in (one, two):
            process.ask("hold", sizes=wanted)
        found: dict[str, Any] = {
            "size": pair.size,
            "connections": two.ask("warm", size=pair.size // AT_ONCE)["connections"],
        }
        for part in parts:
            time.sleep(IDLE_S if lab else 0.0)
            found[part] = globals()[part](pair)
    return found


# Tables.


def show(kind: str, found: dict[str, Any]) -> None:
    """What one kind of link gave."""
    print(f"\n{kind}: {found['size'] >> 20} MiB, {found['connections']} direct connections")
    if "rates" in found:
        _show_rates(found["rates"])
    for case, told in found.get("cost", {}).items():
        packets = "" if told["packets"] is None else f", {told['packets']:.4f} as packets"
        print(f"  int4 over {case}: {told['sockets']:.4f} byte per parameter{packets}")
    for way, told in found.get("fairness", {}).items():
        low, middle, high = told["jain"]
        print(
            f"  {AT_ONCE} transfers at once over {way}: Jain's index {middle:.3f} "
            f"({low:.3f} to {high:.3f}), slowest {told['slowest_of_fastest'][1]:.2f} of the fastest"
        )
    for case, told in found.get("control", {}).items():
        print(
            f"  control message, {case}: median {told['median_ms']:.1f} ms, 90 % within "
            f"{told['p90_ms']:.1f}, 99 % {told['p99_ms']:.1f}; bulk {told['mb_per_s']:.1f} MB/s"
        )
    for case, told in found.get("ceilings", {}).items():
        print(
            f"  ceiling of {case} at once: {told['mean']:.3f} of it, {told['sockets']:.3f} at the "
            f"sockets, {told['fullest_second']:.3f} in the fullest second"
        )


def _show_rates(found: dict[str, Any]) -> None:
    print(f"  {'':16}{'MB/s':>8} {'quartiles':>17}{'of ' + found['raw']:>11} {'quartiles':>13}")
    for case, (low, middle, high) in found["mb_per_s"].items():
        less, share, more = found["share"][case]
        print(
            f"  {case:16}{middle:8.1f} {f'{low:.1f} to {high:.1f}':>17}"
            f"{share:11.2f} {f'{less:.2f} to {more:.2f}':>13}"
        )
    print("  processor seconds per GB: sender, receiver, engines")
    for case, spent in found["cpu_s_per_gb"].items():
        shown = ", ".join(f"{spent[who]:.2f}" for who in ("sender", "receiver", "engines"))
        print(f"  {case:16}{shown}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="loopback,line")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--congestion", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts = [part for part in PARTS if part in given.only.split(",")]
    found = {}
    for kind in given.on.split(","):
        if kind == "line" and (lacking := missing()) is not None:
            print(lacking)
            continue
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            found[kind] = measure(kind, parts, given, Path(folder))
        show(kind, found[kind])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
