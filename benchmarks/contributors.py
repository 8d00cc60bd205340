"""What those who left long ago still cost a syncer: its state with more and more contributors.

    python benchmarks/contributors.py [--contributors 1000,10000,100000] [--times 5]

Of a state with so many accounts: the summary of a checkpoint, what a status says of all
contributors, a merge of eight, and a record that notes refusals of 64 strangers. Each is done on
the event loop. Told are the least milliseconds of some tries, and the memory of the accounts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import psutil

from protocol.log.accounts import Account, Refusal
from protocol.log.state import SwarmState
from syncer_node.storage.ledger import leading_rows

HEAD = (
    "| contributors | memory, MB | summary, ms | status, ms | merge of 8, ms | 64 strangers, ms |"
)
NAMED = 3
"""Of so many contributors one had pushes that did not count."""


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def state_of(contributors: int) -> SwarmState:
    """A state in which so many gave something."""
    state = SwarmState(4)
    for number in range(contributors):
        refused = {"stale": 3} if number % NAMED == 0 else {}
        account = Account(
            merges=5 + number % 50,
            tokens=1000 * number,
            name=f"volunteer {number}",
            refused=refused,
            merged_at_s=1.7e9 + number,
        )
        state.accounts.put(key(number), account)
    return state


def least_ms(do: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began_s = time.perf_counter()
        do()
        took.append(time.perf_counter() - began_s)
    return 1e3 * min(took)


def row(contributors: int, times: int) -> str:
    before = psutil.Process().memory_info().rss
    state = state_of(contributors)
    memory = psutil.Process().memory_info().rss - before
    accounts, strangers = state.accounts, iter(range(contributors, sys.maxsize))

    def status() -> None:
        assert accounts.merges
        assert accounts.tokens
        assert accounts.fates()
        leading_rows(state, set())

    def merge() -> None:
        for number in range(8):
            accounts.merged(key(number), 10, is_clipped=False, at_s=1.8e9)

    def note() -> None:
        accounts.note((), [Refusal(key(next(strangers)), "stale", 1) for _ in range(64)])

    found = [least_ms(do, times) for do in (state.summary, status, merge, note)]
    figures = " | ".join(f"{one:.2f}" for one in found)
    return f"| {contributors:,} | {memory / 1e6:.0f} | {figures} |"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contributors", default="1000,10000,100000")
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    print(HEAD)
    print("|---|---|---|---|---|---|")
    for contributors in map(int, chosen.contributors.split(",")):
        print(row(contributors, chosen.times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
