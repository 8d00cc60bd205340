"""Shoal against what else could merge displacements, where each of them has a line as at home.

    make bench-lines                              # everything, with the environment it needs
    python -m benchmarks.peers.over_lines [--only NAME,...] [--cases NAME,...]

The work and the contenders are those of `run.py`, and then all train a model to a held-out loss
(`to_loss.py`); here every process has a network of its own, and a line on which all that it sends
or gets has to wait. Servers stand in a data centre: Shoal's syncer, Flower's server, torchft's
lighthouse; in one row Shoal's syncer is at home as well. Needs Linux and root. Prints two tables
and writes benchmarks/lines.json, docs/lines.svg and docs/lines-loss.svg. What that JSON already has
of other cases and contenders stays in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import lines_report, run, to_loss
from benchmarks.peers.arena import Late, node_of
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.networks import PACKET_BYTES, Line, Lines
from tests.netlab import namespaces

HOME: Final = Line(down_mbps=100.0, up_mbps=20.0, rtt_ms=50.0)
CAMPUS: Final = Line(down_mbps=1000.0, up_mbps=1000.0, rtt_ms=10.0)
DATA_CENTRE_MBPS: Final = 1000.0
SLOWER: Final = 10.0

ANSWER_S: Final = 300.0
"""At a tenth of a line some need minutes."""

PATIENCE_S: Final = 0.5
"""How long a merge of Shoal waits before it settles for those that are left."""

CAMPUS_PACKET_BYTES: Final = 60_000
"""The lab's relay, in Python, carries some ten thousand packets a second."""


@dataclass(frozen=True, slots=True)
class Case:
    """What workers and lines there are."""

    about: str
    workers: int = 4
    line: Line = HOME
    packet_bytes: int = PACKET_BYTES
    slower: float = 1.0
    """How many times as slow the last worker's line is."""
    dies: bool = False
    """Whether a worker is killed in the end."""
    model: str = "4m"
    """The size of what is merged; more than the model that is trained has is noise."""


CASES: Final[Mapping[str, Case]] = {
    "alike": Case("four on lines of 100/20 Mbit/s, 50 ms", dies=True),
    "slow": Case("one line of the four a tenth of that", slower=SLOWER),
    "eight": Case("eight on lines of 100/20 Mbit/s, 50 ms", workers=8, dies=True),
    "campus": Case(
        "four on lines of 1 Gbit/s, 10 ms",
        line=CAMPUS,
        packet_bytes=CAMPUS_PACKET_BYTES,
        dies=True,
    ),
    "large": Case("40 million at 100/20 Mbit/s, 50 ms", dies=True, model="40m"),
    "large-eight": Case(
        "eight with 40 million at 100/20 Mbit/s, 50 ms", workers=8, dies=True, model="40m"
    ),
    "large-campus": Case(
        "40 million at 1 Gbit/s, 10 ms",
        line=CAMPUS,
        packet_bytes=CAMPUS_PACKET_BYTES,
        dies=True,
        model="40m",
    ),
}

AT_HOME: Final = "shoal-home"

ENTRANTS: Final = (
    *(one for one in CONTENDERS if one.name != "shoal-bf16"),
    dataclasses.replace(
        CONTENDERS[0], name=AT_HOME, title="Shoal, 4 bit, its syncer at home too", dies=False
    ),
)


def network(case: Case, entrant: Contender) -> Lines:
    """A line for each of its processes."""
    centre = dataclasses.replace(case.line, down_mbps=DATA_CENTRE_MBPS, up_mbps=DATA_CENTRE_MBPS)
    nodes = {}
    for role, rank in entrant.roles(case.workers):
        at_home = role == "worker" or entrant.name == AT_HOME
        line = case.line if at_home else centre
        is_slow = role == "worker" and rank == case.workers - 1
        nodes[node_of(role, rank)] = line.slower(case.slower) if is_slow else line
    return Lines(nodes, packet_bytes=case.packet_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, cases = [one.name for one in ENTRANTS], list(CASES)
    parser.add_argument("--only", default=",".join(names), help=", ".join(names))
    parser.add_argument("--cases", default=",".join(cases), help=", ".join(cases))
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--passes", type=int, default=2, help="turns of each contender")
    parser.add_argument("--rounds", type=int, default=3, help="in each turn")
    parser.add_argument("--warm", type=run.some, default=1, help="rounds before those that count")
    parser.add_argument("--target", type=float, default=2.6, help="held-out loss, nats per byte")
    parser.add_argument(
        "--limit-s", type=float, default=600.0, help="for that at most; 0: nothing is trained"
    )
    parser.add_argument("--json", type=Path, default=run.ROOT / "benchmarks/lines.json")
    parser.add_argument("--plot", type=Path, default=run.ROOT / "docs/lines.svg")
    parser.add_argument(
        "--logs", type=run.new_folder, help="keep what the processes said in this folder"
    )
    parser.set_defaults(answer_s=ANSWER_S)
    given = parser.parse_args()
    if why := namespaces.missing():
        parser.error(why)
    for wanted, known in ((given.only, names), (given.cases, cases)):
        if unknown := set(wanted.split(",")) - set(known):
            parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as temporary:
        measure(given, given.logs or Path(temporary))
    kept = json.loads(given.json.read_text())
    lines_report.show(kept, given.plot)
    return 0


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Case by case; what was found is written after each turn."""
    chosen = [one for one in ENTRANTS if one.name in given.only.split(",")]
    found: dict[str, Any] = {"titles": {}, "cases": {}}
    if given.json.exists():
        found = json.loads(given.json.read_text())
    known = found["titles"] | {one.name: one.title for one in chosen}
    found["titles"] = {one.name: known[one.name] for one in ENTRANTS if one.name in known}
    told_by = {"machine": run.machine(), "versions": run.versions(chosen)}

    def write() -> None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")

    for name in given.cases.split(","):
        case = CASES[name]
        given.workers, given.model = case.workers, case.model
        # Who dies is told by the case here.
        given.death = case.dies
        # Where nobody dies a merge waits for the slowest, as all others do.
        given.patience_s = PATIENCE_S if case.dies else ANSWER_S
        told = run.common(given, folder / name)
        kept = found["cases"].setdefault(name, {"rows": {}, "losses": {}, "told_by": {}})
        found["cases"] = {one: found["cases"][one] for one in CASES if one in found["cases"]}
        kept |= {"about": case.about, "workers": case.workers, "parameters": sum(told["sizes"])}
        kept["told_by"] |= {one.name: told_by for one in chosen}

        def keep(rows: dict[str, Any], kept: dict[str, Any] = kept) -> None:
            kept["rows"] |= rows
            write()

        def lines(one: Contender, case: Case = case) -> Lines:
            return network(case, one)

        run.measure(chosen, given, told, folder / name, keep, lines)
        if given.limit_s > 0:
            for one in chosen:
                kept["losses"][one.name] = _to_loss(one, given, told, folder / name / "loss", lines)
                write()


def _to_loss(
    one: Contender, given: argparse.Namespace, told: dict[str, Any], folder: Path, lines: Any
) -> dict[str, Any]:
    place = folder / one.name
    contestant = run.entering(one, given, to_loss.begins(told, place), place, lines)
    try:
        with contestant:
            return to_loss.turn(contestant, target=given.target, limit_s=given.limit_s)
    except (Late, RuntimeError, OSError) as error:
        words = run.last_words(contestant)
        print(f"{one.name}: {error}\n{words}", file=sys.stderr)
        return {"absent": str(error), "log": words}


if __name__ == "__main__":
    sys.exit(main())
