"""A day of pausing, resuming and killing in virtual time, and whether anything grows.

.venv/bin/python benchmarks/soak.py [--hours 24] [--seed 1] [--out FILE]

The machines of a syncer and two learners, as the daemons run them, under owners who cannot decide
(`simulator/scenarios/soak.py`). Prints what can be reached from each daemon at the end of
every hour, and at the end the types of which there are more and more; none is what is wanted. Exit
code 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import psutil

from simulator.scenarios.soak import Hour, Soak, grown


def told(hour: Hour, seconds: float) -> str:
    held = "; ".join(
        f"{host} {one.objects:,} objects, {one.total_bytes / 1e3:,.0f} kB"
        for host, one in hour.held.items()
    )
    return f"hour {hour.number}: {hour.merges:,} merges; {held}; {seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    soak, resident = Soak(chosen.seed), []
    for _ in range(chosen.hours):
        began_s = time.process_time()
        hour = soak.run_hour()
        resident.append(psutil.Process().memory_info().rss)
        print(told(hour, time.process_time() - began_s), flush=True)
    soak.swarm.check()
    growth = {host: grown(soak.hours, host) for host in soak.hours[-1].held}
    done = sum((owner.counts for owner in soak.owners), start=type(soak.owners[0].counts)())
    tallies = {host.name: host.learner.context.tally for host in soak.swarm.learners}
    result = {
        "hours": chosen.hours,
        "merges": soak.swarm.merges,
        "done": dict(done),
        "starts": soak.hours[-1].life,
        "trainer_restarts": {name: one.trainer_restarts for name, one in tallies.items()},
        "held": {
            host: [(hour.held[host].objects, hour.held[host].total_bytes) for hour in soak.hours]
            for host in growth
        },
        "growth_per_hour": growth,
        "resident_mb": [one / 1e6 for one in resident],
    }
    print(json.dumps({key: value for key, value in result.items() if key != "held"}))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1))
    return 1 if any(growth.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
