"""How many learners can one syncer serve: a real syncer process under synthetic learners.

    python benchmarks/capacity.py [--sizes 10m,100m] [--learners 1,4,16] [--json FILE]

Prints a line for each case (`benchmarks/capacity_harness.py` says what is measured, and
`benchmarks/synthetic.py` what a synthetic learner is). Learners and syncer share this machine's
cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.capacity_harness import measure  # noqa: E402
from benchmarks.capacity_rows import SIZES, Case, heading  # noqa: E402


def main() -> int:
    """Prints the table and writes everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10m", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--learners", default="4")
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--overlap", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.25)
    parser.add_argument("--syncs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--no-download", action="store_true")
    parser.add_argument("--light", action="store_true", help="learners know the syncer alone")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "shoal-capacity"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="a folder for py-spy's stacks")
    chosen = parser.parse_args()
    for folder in (chosen.cache, chosen.profile):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    print(heading(), flush=True)
    rows = []
    for size in chosen.sizes.split(","):
        for learners in map(int, chosen.learners.split(",")):
            case = Case(
                parameters=size,
                learners=learners,
                fragments=chosen.fragments,
                overlap=chosen.overlap,
                downloads=not chosen.no_download,
                is_light=chosen.light,
                step_s=chosen.step_s,
                syncs=chosen.syncs,
                warm=chosen.warm,
                seconds=chosen.seconds,
                profile=chosen.profile,
            )
            row = measure(case, chosen.cache)
            rows.append(row.as_json())
            print(row.line(), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
