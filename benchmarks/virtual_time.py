"""How fast virtual time passes: CPU seconds for an hour of 64 learners, and where they go.

    python benchmarks/virtual_time.py --until 600 --json virtual_time.json

CPU time of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import msgspec

from simulator.scenarios import runs, scenarios


def measure(learners: int, until_s: float) -> dict[str, float]:
    """One run of the scenario `hour` with so many learners."""
    scenario = scenarios.BUILT_IN["hour"]
    hosts = msgspec.structs.replace(scenario.hosts, learners=learners)
    scenario = msgspec.structs.replace(scenario, hosts=hosts, until_s=until_s)
    began_s = time.process_time()
    outcome = runs.run(scenario, 1, line=lambda text, is_routine: None)
    cpu_s = time.process_time() - began_s
    if outcome.violation:
        raise SystemExit(outcome.violation)
    return {
        "learners": learners,
        "virtual_s": outcome.virtual_s,
        "events": outcome.swarm.world.events,
        "cpu_s": cpu_s,
        "virtual_s_per_cpu_s": outcome.virtual_s / cpu_s,
        "cpu_us_per_event": 1e6 * cpu_s / outcome.swarm.world.events,
    }


def main() -> None:
    """Print one line for each number of learners."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--until", type=float, default=600.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(learners, options.until) for learners in options.learners]
    for row in rows:
        print(
            f"{row['learners']:4.0f} learners: {row['virtual_s']:.0f} virtual s in "
            f"{row['cpu_s']:.1f} CPU s, {row['virtual_s_per_cpu_s']:.0f} times real time, "
            f"{row['cpu_us_per_event']:.0f} us an event"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
