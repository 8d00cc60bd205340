"""Everything that only a device can say, with one command: `make gpu`.

.venv/bin/python -m benchmarks.gpu.run [--device cuda:0] [--sizes small] [--only CHECK ...]
                                       [--json FILE]

On an accelerator each check runs in a process of its own, so that one that runs out of memory or
breaks its driver leaves the others alone. Without an accelerator the same checks run on the
processor, with tiny models, in seconds; they say that the code runs, and nothing about speed. The
rows go to a JSON file and, as a table in Markdown, to another beside it and to the terminal.

Exit code: 0; 1 if a check failed, or if a bar was missed on an accelerator.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.gpu import (
    adapter,
    checkpointing,
    compiling,
    loss_curve,
    memory,
    smoke,
    speed,
    stalls,
    swarm_overhead,
)
from benchmarks.gpu.device import ROOT, Facts, facts_of, numbered
from benchmarks.gpu.report import Report, table
from benchmarks.gpu.rows import Row, is_bad
from benchmarks.gpu.sizes import ALL, Sizes
from host.runtime import fork_server
from node.trainer.failures import TrainerFailure, is_out_of_memory
from node.trainer.loop import best_kind
from node.trainer_client.process import child_environment
from protocol.errors import ShoalError

CHECK_S: Final = 1800.0
"""A check that takes longer hangs."""

STDERR: Final = 2
"""Of this process, for what its checks print."""

OUT: Final = ROOT / "benchmarks" / "gpu" / "report.json"


class Check(NamedTuple):
    """One entry of the list."""

    run: Callable[[str, Sizes], list[Row]]
    is_apart: bool = False
    """Always in a process of its own: it bounds that process's memory."""


CHECKS: Final[dict[str, Check]] = {
    smoke.NAME: Check(smoke.check),
    loss_curve.NAME: Check(loss_curve.check),
    speed.NAME: Check(speed.check),
    compiling.NAME: Check(compiling.check),
    stalls.NAME: Check(stalls.check),
    memory.NAME: Check(memory.check, is_apart=True),
    checkpointing.NAME: Check(checkpointing.check),
    adapter.NAME: Check(adapter.check),
    swarm_overhead.NAME: Check(swarm_overhead.check),
}


def run_here(name: str, device: str, sizes: Sizes) -> list[Row]:
    """The rows of a check; what it raises becomes a row, so that it fails alone."""
    try:
        return CHECKS[name].run(device, sizes)
    except (ShoalError, RuntimeError, MemoryError, OSError, AssertionError, ValueError) as error:
        is_short = is_out_of_memory(error)
        is_short |= isinstance(error, TrainerFailure) and error.kind in ("oom", "memory")
        words = " ".join(str(error).split())[:300] or type(error).__name__
        if is_short:
            return [Row(name, "all of it", why_not=f"too little memory ({words})")]
        traceback.print_exc()
        return [Row(name, "all of it", error=f"{type(error).__name__}: {words}")]


def run_apart(name: str, device: str, sizes: Sizes) -> list[Row]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-gpu-") as folder:
        out = Path(folder) / "rows.json"
        words = ("--rows", str(out), "--only", name, "--device", device, "--sizes", sizes.name)
        process = fork_server.start(
            "benchmarks.gpu.run",
            words,
            environment=child_environment(),
            output=STDERR,
            errors=STDERR,
            folder=ROOT,
        )
        try:
            code = process.wait(CHECK_S)
        except subprocess.TimeoutExpired:
            return [Row(name, "all of it", error=f"it still ran after {CHECK_S:g} s")]
        finally:
            process.kill()  # Nothing happens to one that has ended.
            process.wait()
        if not out.exists():
            return [Row(name, "all of it", error=f"its process ended with exit code {code}")]
        return msgspec.json.decode(out.read_bytes(), type=list[Row])


def run(names: Sequence[str], facts: Facts, sizes: Sizes) -> Report:
    """All of these checks, one after the other."""
    rows: list[Row] = []
    for name in names:
        is_apart, began_s = facts.is_accelerator or CHECKS[name].is_apart, time.monotonic()
        rows += (run_apart if is_apart else run_here)(name, facts.device, sizes)
        print(f"{name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Report(facts=facts, date=when, sizes=sizes.name, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="as torch calls it; by default the best there is")
    parser.add_argument("--sizes", choices=list(ALL), help="by default full on an accelerator")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--json", type=Path, default=OUT, help="the report; the table beside it")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    device = numbered(given.device or best_kind())
    sizes = ALL[given.sizes or ("small" if device == "cpu" else "full")]
    if given.rows is not None:
        rows = [row for name in given.only for row in run_here(name, device, sizes)]
        given.rows.write_bytes(msgspec.json.encode(rows))
        return 0
    report = run(given.only, facts_of(device), sizes)
    report.write(given.json)
    print(table(report))
    print(f"written to {given.json} and {given.json.with_suffix('.md')}", file=sys.stderr)
    return int(is_bad(report.rows, is_accelerator=report.facts.is_accelerator))


if __name__ == "__main__":
    sys.exit(main())
