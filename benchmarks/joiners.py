"""How soon joiners that come all at once have a large model, and what the syncer gives for it.

    python benchmarks/joiners.py [--joiners 8] [--learners 0,3] [--syncer-mbps 100,1000]
                                 [--mbps 100] [--up-mbps 100] [--gigabytes 4] [--fragments 24]

Each joiner has the daemon's planner of downloads (`node.download.planner`), in virtual time; hosts
have lines up and down on which everything waits in turn (`tests/support/joiners.py`). The model's
first weights are wanted, of a run that has not begun, so the syncer has them and `--learners` that
came before. A mebibyte is stood in for by 4 KiB, with lines as much slower. Told are the seconds
until the last joiner has everything, as a share what its line would need for as many bytes, how
many copies of the model the syncer sent, and what joiners would take if none gave anything.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from node.download import donors
from protocol import limits
from tests.support.donors import a_state
from tests.support.joiners import Crowd

SCALE = 256
"""A byte here stands for so many."""

BYTES_PER_S_OF_MBPS = 125e3 / SCALE
HANGS_S = 1e6
HEAD = (
    "| joiners | learners before | syncer, Mbit/s | the last | of its line | copies by the syncer "
    "| fetched in vain | where joiners give nothing |"
)


@dataclass(frozen=True, slots=True)
class Case:
    """Who comes, and over what lines."""

    joiners: int
    learners: int
    syncer_mbps: float
    mbps: float
    up_mbps: float


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen of one case."""

    case: Case
    last_s: float
    of_line: float
    """What a joiner's line needs for everything over what the last one took."""
    copies: float
    """Of the whole model, that the syncer sent."""
    twice: float
    """Of what a joiner's line carried, what it carried in vain."""
    alone_s: float
    """Where joiners give nothing."""


def measure(case: Case, fragments: int, chunks: int, seed: int = 0) -> Row:
    """One case. chunks: of one mebibyte in each fragment."""
    states = [a_state(at, chunks=chunks, is_fresh=True) for at in range(fragments)]
    size = sum(theta.nbytes for theta, _ in states)

    def crowd(*, gives: bool) -> tuple[float, Crowd]:
        swarm = Crowd(
            states,
            case.joiners,
            learners=case.learners,
            syncer_bytes_per_s=case.syncer_mbps * BYTES_PER_S_OF_MBPS,
            up_bytes_per_s=case.up_mbps * BYTES_PER_S_OF_MBPS,
            down_bytes_per_s=case.mbps * BYTES_PER_S_OF_MBPS,
            gives=gives,
            scale=SCALE,
            seed=seed,
        )
        return swarm.run(until_s=HANGS_S), swarm

    last_s, swarm = crowd(gives=True)
    alone_s, _ = crowd(gives=False)
    carried = sum(one.down.carried_bytes for one in swarm.joiners)
    return Row(
        case,
        last_s,
        size / (case.mbps * BYTES_PER_S_OF_MBPS) / last_s,
        swarm.syncer.up.carried_bytes / size,
        1.0 - case.joiners * size / carried,
        alone_s,
    )


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",") if one]


def main() -> int:
    """Prints a row of a Markdown table for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--joiners", type=numbers, default=[8])
    parser.add_argument("--learners", type=numbers, default=[0, 3])
    parser.add_argument("--syncer-mbps", type=numbers, default=[100, 1000])
    parser.add_argument("--mbps", type=float, default=100.0, help="down, of everybody else")
    parser.add_argument("--up-mbps", type=float, default=100.0)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of weights")
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chunks = max(1, round(given.gigabytes * 1e9 / (1 << 20) / given.fragments))
    limits.STATE_CHUNK_BYTES //= SCALE
    donors.FIRST_BYTES //= SCALE
    print(HEAD + "\n" + "|---" * (HEAD.count("|") - 1) + "|")
    rows = []
    for joiners in given.joiners:
        for learners in given.learners:
            for syncer in given.syncer_mbps:
                case = Case(int(joiners), int(learners), syncer, given.mbps, given.up_mbps)
                row = measure(case, given.fragments, chunks)
                rows.append(asdict(row))
                print(
                    f"| {case.joiners} | {case.learners} | {syncer:,.0f} | {row.last_s:,.0f} s | "
                    f"{row.of_line:.2f} | {row.copies:.1f} | {100 * row.twice:.0f} % | "
                    f"{row.alone_s:,.0f} s |",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
