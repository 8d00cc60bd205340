"""Shoal against what else could merge displacements: same work, same machine, same run.

    make bench                                      # everything, with the environment it needs
    python benchmarks/peers/run.py [--only NAME,...] [--model 4m|16m|40m] [--workers M] [--rounds K]

Every contender runs as a user would run it, in processes of its own. They take turns: each is
started, warmed up, timed for a few rounds and ended, and all that again. docs/benchmarks.md says
what is measured and what each does differently. Prints a table and writes benchmarks/peers.json
and docs/peers.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import report, shoal_project
from benchmarks.peers.arena import ANSWER_S, Contestant, Late
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.networks import Loopback, Network
from benchmarks.peers.work import write_displacements

ROOT = Path(__file__).parents[2]
Networks = Callable[[Contender], Network]
DIES_AFTER = 0.5
"""Of a round: when a worker is killed in it."""

GIVES_UP_S = 20.0


def one_round(contestant: Contestant) -> dict[str, Any]:
    """What one synchronisation took; nothing is running meanwhile but idle contenders."""
    loaded = contestant.all(do="load")
    cpu_s, wire = contestant.cpu_s(), contestant.wire_bytes()
    answers = contestant.all(do="sync")
    timed = [
        answer
        for member, answer in zip(contestant.members, answers, strict=True)
        if member.role == "worker"
    ]
    wall_s = max(one["ended_s"] for one in timed) - min(one["began_s"] for one in timed)
    wired = contestant.wire_bytes()
    found = {
        "wall_s": wall_s,
        "cpu_s": contestant.cpu_s() - cpu_s,
        "wire_bytes": None if wired is None or wire is None else wired - wire,
    }
    waits = [one["matchmaking_s"] for one in loaded if "matchmaking_s" in one]
    return {**found, "matchmaking_s": max(waits)} if waits else found


def judged(contestant: Contestant, asked: list[int], means: list[list[int]]) -> dict[str, Any]:
    """The largest error of the workers asked, and whether all of them hold the same bits."""
    for rank in asked:
        contestant.workers[rank].say({"do": "check", "means": means})
    until_s = contestant.heard_until_s
    found = [contestant.workers[rank].hear(until_s) for rank in asked]
    errors = ("error", "error_over_rounds")
    worst = {name: max(one[name] for one in found) for name in errors if name in found[0]}
    return {**worst, "is_same": len({one["digest"] for one in found}) == 1}


def death(contestant: Contestant, wall_s: float) -> dict[str, Any]:
    """One worker is killed in the middle of a round: what the others have, and when after it."""
    contestant.all(do="load")
    for member in contestant.members:
        member.say({"do": "sync"})
    time.sleep(DIES_AFTER * wall_s)
    victim, others = contestant.workers[-1], contestant.workers[:-1]
    victim.kill()
    killed_s = time.monotonic()
    told: list[dict[str, Any]] = []
    for member in others:
        try:
            told.append(member.hear(killed_s + GIVES_UP_S))
        except Late as error:
            told.append({"late": str(error)})
    failures = [one["failed"] for one in told if "failed" in one]
    late = sum("late" in one for one in told)
    if late:
        return {"outcome": "hangs", "after_s": GIVES_UP_S, "late": late, "errors": failures}
    after_s = max(one["ended_s"] for one in told) - killed_s
    if failures:
        return {"outcome": "fails", "after_s": after_s, "errors": failures}
    everybody = list(range(len(contestant.workers)))
    means = [everybody, everybody[:-1]]
    return {"outcome": "result", "after_s": after_s, **judged(contestant, means[1], means)}


def common(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all are told; everybody's fragments are as large as those of Shoal's model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = shoal_project.signed(folder, given.model, given.fragments, given.workers, "int4")
    sizes = shoal_project.sizes(path)
    write_displacements(folder / "data", sizes, given.workers)
    return {"workers": given.workers, "sizes": sizes, "data": str(folder / "data")}


def entering(
    one: Contender, given: argparse.Namespace, told: dict[str, Any], place: Path, made: Networks
) -> Contestant:
    """A contender with nothing left of former passes."""
    place.mkdir(parents=True, exist_ok=True)
    codec = one.variant if one.package == "shoal" else "int4"
    size = given.model, given.fragments, given.workers
    path = shoal_project.signed(place, *size, codec, patience_s=given.patience_s)
    told = {**told, "project": str(path)}
    return Contestant(one, told, place, made(one), given.answer_s)


def measure(
    chosen: list[Contender],
    given: argparse.Namespace,
    told: dict[str, Any],
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    made: Networks = lambda _: Loopback(),
) -> None:
    """Everybody's turn, as often as `passes` says; `keep` gets the rows after each.

    made: the network of each turn.
    """
    rows: dict[str, Any] = {one.name: {"rounds": []} for one in chosen}
    for number in range(given.passes):
        for one in chosen:
            row = rows[one.name]
            if "absent" in row:
                continue
            contestant = entering(one, given, told, folder / f"{one.name}-{number + 1}", made)
            is_last = number == given.passes - 1
            began_s = time.monotonic()
            try:
                with contestant:
                    turn(contestant, row, given, is_deadly=is_last and given.death and one.dies)
            except (Late, RuntimeError, OSError) as error:
                row["absent"], row["log"] = str(error), last_words(contestant)
                print(f"{one.name}: {error}\n{row['log']}", file=sys.stderr)
            took_s = time.monotonic() - began_s
            print(f"{one.name}: pass {number + 1} took {took_s:.0f} s", file=sys.stderr)
            keep(rows)


def turn(
    contestant: Contestant, row: dict[str, Any], given: argparse.Namespace, *, is_deadly: bool
) -> None:
    """Start, warm up, the rounds that count, what came of them, and perhaps a death."""
    contestant.start()
    for _ in range(given.warm):
        one_round(contestant)
    contestant.forget_peaks()
    for _ in range(given.rounds):
        row["rounds"].append(one_round(contestant))
    for name, peak in contestant.peaks().items():
        row[name] = max(peak, row.get(name, 0.0))
    whole = list(range(given.workers))
    row.update(judged(contestant, whole, [whole]))
    if is_deadly:
        row["death"] = death(contestant, statistics.median(one["wall_s"] for one in row["rounds"]))
        print(f"{contestant.contender.name}: {row['death']}", file=sys.stderr)


def last_words(contestant: Contestant) -> str:
    """The end of its logs, for who has to find out why it did not run."""
    found = []
    for log in sorted(contestant.folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-12:]
        found += [f"{log.name}: {line}" for line in lines]
    return "\n".join(found[-30:])


def machine() -> dict[str, Any]:
    """Where and of what this was measured."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "processor": names[0] if names else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
    }


def versions(chosen: list[Contender]) -> dict[str, str]:
    """Of the packages behind the rows, as their own environments tell."""
    found = {}
    for one in chosen:
        code = f"import importlib.metadata as m; print(m.version({one.package!r}))"
        asked = subprocess.run(
            [one.python, "-c", code], capture_output=True, text=True, check=False
        )
        found[one.package] = asked.stdout.strip() or "not installed"
    return found


def new_folder(text: str) -> Path:
    """Where nothing lies yet: a contender would go on with the project that an earlier run made."""
    folder = Path(text)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} holds something; name a new folder")
    return folder


def some(text: str) -> int:
    """A number of rounds before those that count: one, or Shoal has no result to look at."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("one at least, for in the first one everybody starts up")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [one.name for one in CONTENDERS]
    parser.add_argument("--only", default=",".join(names), help=", ".join(names))
    parser.add_argument("--model", default="16m", choices=shoal_project.MODELS, help="its size")
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--passes", type=int, default=2, help="turns of each contender")
    parser.add_argument("--rounds", type=int, default=3, help="in each turn")
    parser.add_argument("--warm", type=some, default=1, help="rounds before those that count")
    parser.add_argument("--no-death", dest="death", action="store_false")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/peers.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/peers.svg")
    parser.add_argument(
        "--logs", type=new_folder, help="keep what the processes said in this folder"
    )
    parser.set_defaults(answer_s=ANSWER_S, patience_s=shoal_project.PATIENCE_S)
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [one for one in CONTENDERS if one.name in wanted]
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(chosen),
        "workers": given.workers,
        "fragments": given.fragments,
        "titles": {one.name: one.title for one in chosen},
    }

    def keep(rows: dict[str, Any]) -> None:
        given.json.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")

    # What was started ends with us, also when we are told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as temporary:
        folder = given.logs or Path(temporary)
        told = common(given, folder)
        found["parameters"] = sum(told["sizes"])
        measure(chosen, given, told, folder, keep)
    kept = json.loads(given.json.read_text())
    print(report.table(kept))
    report.plot(kept, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
