"""How many learners can one syncer serve: a real syncer process under synthetic learners.

    python benchmarks/capacity.py [--sizes 10m,100m] [--learners 1,4,16] [--json FILE]

The syncer is `shoal syncer run` as users start it, with its tape, its disk and one voter; the
learners are those of `benchmarks/synthetic.py`, in a few processes. A quorum of all learners makes
each merge one of all of them; with `--participants` it is one of so many, in turn. Everything runs
on this machine and shares its cores; what each side took of them is told, and nothing is
subtracted. Prints a line for each case.

`--cache` keeps the first weights and the payloads of each size for the next time. Nobody but the
syncer itself makes the weights: the first case of a size starts it once more for that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.peers.arena import Member
from benchmarks.peers.shoal_project import model_of
from host.control import client
from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.fragments import build_layout
from protocol.numerics import codecs
from protocol.status import SyncerStatus
from shoal.local_swarm.swarm import LocalSwarm
from shoal.project.template import Value

STOP_S = 60.0
QUIET_S = 1800.0
"""For making weights of any size."""

LEARNERS_PER_PROCESS = 64
VARIANTS = 8
"""Payloads of each fragment; of a larger model fewer, `VARIANTS_BYTES` in all at most."""

VARIANTS_BYTES = 1 << 30
SIZES = {"10m": (256, 10), "100m": (768, 11), "1b": (2048, 15)}
"""Width and depth of Llama models of about so many parameters, over a vocabulary of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured; the options say what each is."""

    parameters: str
    learners: int
    participants: int
    fragments: int
    overlap: int
    downloads: bool
    is_light: bool
    step_s: float
    syncs: int
    warm: int
    seconds: float
    profile: Path | None
    on_disk: bool

    @property
    def in_merge(self) -> int:
        """Learners in a merge."""
        return min(self.participants or self.learners, self.learners)


@dataclass(slots=True, kw_only=True)
class Row:
    """What was found. CPU is user and system time in seconds of one core, per full model sync."""

    case: dict[str, Any]
    parameters: int
    window_s: float
    merges: int
    syncs: float
    """Merges in the window by the number of fragments."""
    participants: float
    """Learners in a merge, mean."""
    sync_s: float
    merges_per_s: float
    syncer_cpu_s: float
    syncer_system_s: float
    """Of that in the kernel: sockets, files, and memory that is handed out anew."""
    syncer_faults: float
    """Pages of memory handed out to the syncer, per full model sync."""
    engine_cpu_s: float
    """Of the syncer's network engine."""
    learners_cpu_s: float
    """Of all learners and their engines."""
    learners_engines_cpu_s: float
    """Of that the engines'."""
    cores_busy: float
    """Of the machine, mean, by whoever; little more than the three above, if it is quiet."""
    cores_ours: float
    """The three above."""
    cores: int
    rss_before_gb: float
    """Of the syncer process, before the first learner came."""
    rss_peak_gb: float
    """In the window."""
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    bytes_in: float
    """Received by the syncer, per parameter, learner and model sync."""
    bytes_out: float
    outcomes: dict[str, int] = field(default_factory=dict)
    start_s: float = 0.0
    """Until all learners could train."""

    def line(self) -> str:
        """For a table on a terminal; `heading()` stands above it."""
        cells = (f"{value(self):{width}.{digits}f}" for _, width, digits, value in COLUMNS)
        return " ".join(cells)


COLUMNS: tuple[tuple[str, int, int, Callable[[Row], float]], ...] = (
    ("Mparam", 6, 0, lambda row: row.parameters / 1e6),
    ("M", 4, 0, lambda row: row.case["learners"]),
    ("s/sync", 7, 2, lambda row: row.sync_s),
    ("merge/s", 7, 2, lambda row: row.merges_per_s),
    ("learn/m", 7, 1, lambda row: row.participants),
    ("syncer", 7, 2, lambda row: row.syncer_cpu_s),
    ("system", 6, 2, lambda row: row.syncer_system_s),
    ("engine", 7, 2, lambda row: row.engine_cpu_s),
    ("learner", 7, 2, lambda row: row.learners_cpu_s),
    ("engines", 7, 2, lambda row: row.learners_engines_cpu_s),
    ("ours", 5, 2, lambda row: row.cores_ours),
    ("busy", 5, 2, lambda row: row.cores_busy),
    ("GB", 6, 2, lambda row: row.rss_before_gb),
    ("peak", 6, 2, lambda row: row.rss_peak_gb),
    ("lag50", 6, 1, lambda row: row.lag_p50_ms),
    ("lag99", 6, 1, lambda row: row.lag_p99_ms),
    ("lagmax", 6, 1, lambda row: row.lag_max_ms),
    ("B in", 6, 3, lambda row: row.bytes_in),
    ("B out", 6, 3, lambda row: row.bytes_out),
)


def heading() -> str:
    """Names of the columns of `Row.line`."""
    return " ".join(f"{name:>{width}}" for name, width, _, _ in COLUMNS)


def settings(case: Case, *, quorum: int) -> dict[str, Value]:
    """Of the project file: this size and an eager pace."""
    return {
        **model_of(*SIZES[case.parameters], case.fragments),
        "data.block_sequences": 256,
        "rounds.local_steps": 1,
        "rounds.overlap_steps": case.overlap,
        "rounds.quorum": quorum,
        "rounds.participants_max": case.participants,
        "rounds.patience_s": 600.0,
        "rounds.pull_timeout_s": 600.0,
        "limits.learners": 1024,
    }


class Prepared:
    """Keys, first weights and payloads of one size, made once."""

    def __init__(self, case: Case, cache: Path) -> None:
        self.case = case
        self.root = cache / f"{case.parameters}-{case.fragments}"
        self.payloads = self.root / "payloads"

    def make(self) -> None:
        """Whatever is not there yet; minutes for a thousand million parameters."""
        if (self.root / "done").exists():
            return
        shutil.rmtree(self.root, ignore_errors=True)
        self.payloads.mkdir(parents=True)
        with Syncer(self.root) as syncer:
            syncer.prepare(self.case, quorum=1)
            self._make_payloads(syncer.signed)
            syncer.begin()
            syncer.tell("syncer", "stop")
            syncer.ended("syncer")
        (self.root / "done").touch()

    def _make_payloads(self, signed: Path) -> None:
        """Int4 displacements of noise, each with the length of its fragment.

        Half of the noise is common to the variants of a fragment, and half is each one's own.
        """
        genesis = read_signed(signed).genesis
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        rng = np.random.default_rng(1)
        longest = max(fragment.numel for fragment in layout.fragments)
        common, own = rng.standard_normal((2, longest), dtype=np.float32) * np.float32(1e-3)
        whole = sum(fragment.numel for fragment in layout.fragments)
        variants = max(2, min(VARIANTS, 2 * VARIANTS_BYTES // whole))
        for at, fragment in enumerate(layout.fragments):
            for variant in range(variants):
                values = np.roll(common, -at * 128) + np.roll(own, -(at + 31 * variant) * 128)
                payload = codecs.encode("int4", values[: fragment.numel].copy())
                (self.payloads / f"{at}-{variant}.bin").write_bytes(payload)

    @contextlib.contextmanager
    def syncer(self, folder: Path) -> Iterator[Syncer]:
        """With the keys and first weights, and the project signed for the case's quorum."""
        template = Home(self.root / "home")
        with Syncer(folder) as syncer:
            syncer.home.identity("owner")
            for key in (template.root / "keys").iterdir():
                shutil.copy2(key, syncer.home.root / "keys" / key.name)
            syncer.prepare(self.case, quorum=self.case.in_merge)
            held = template.syncer_store(syncer.project_id) / "checkpoints" / "0"
            if not held.is_dir():
                raise RuntimeError(f"{self.root} holds another project's weights: remove it")
            place = syncer.store("syncer") / "checkpoints" / "0"
            place.mkdir(parents=True, mode=0o700)
            for file in held.iterdir():
                os.link(file, place / file.name)  # Never written to: replaced as a whole.
            syncer.begin(*(["--weights-on-disk"] if self.case.on_disk else []))
            yield syncer


class Syncer(LocalSwarm):
    """A syncer process, and what is looked at from outside."""

    def prepare(self, case: Case, *, quorum: int) -> None:
        """The signed project."""
        self.write_project(f"capacity-{case.parameters}", settings(case, quorum=quorum))
        self.sign()

    def begin(self, *options: str) -> None:
        """Starts it; it has a join link and weights then."""
        self.start_first(*options)
        self.until(lambda: "learners" in self.status().sentence, "weights", limit_s=QUIET_S)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.running["syncer"].pid)

    def status(self) -> SyncerStatus:
        """What it says of itself."""
        return self.until(self.syncer, "a status")

    def lag(self, over_s: float) -> dict[str, float]:
        """How late its event loop was."""
        place = self.daemon("syncer").socket
        told = client.call(place, "loop_lag", over_s=min(60.0, over_s))
        return {name: float(told[name]) for name in ("p50_s", "p99_s", "max_s")}

    def memory(self, name: str) -> int:
        """Bytes, of a field of /proc/PID/status such as VmHWM."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024

    def faults(self) -> int:
        """Pages that were handed out to it."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[7])

    def forget_peak(self) -> None:
        """VmHWM counts from now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


def end(process: subprocess.Popen[Any]) -> None:
    """Waits for a process that was asked to end, not for ever."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Learners:
    """The processes of the synthetic learners, and what they tell."""

    def __init__(self, case: Case, syncer: Syncer, payloads: Path) -> None:
        self.fragments = case.fragments
        self.merges = 0
        """As the first learner hears of them."""
        self.participants = 0
        """Learners in the newest of them."""
        self.heard_s = 0.0
        """When the newest line was said, monotonic."""
        self.up = 0
        self.members: list[Member] = []
        lines = queue.Queue[str | None]()
        folder = syncer.folder / "learners"
        processes = math.ceil(case.learners / LEARNERS_PER_PROCESS)
        share = math.ceil(case.learners / processes)
        for first in range(0, case.learners, share):
            count = min(share, case.learners - first)
            words = ["--link", syncer.link, "--home", str(folder), "--payloads", str(payloads)]
            words += ["--count", str(count), "--first", str(first), "--step-s", str(case.step_s)]
            words += ["--download"] if case.downloads else []
            words += ["--observe"] if first == 0 else []
            words += ["--light"] if case.is_light else []
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.synthetic", *words],
                env=syncer.processes.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.members.append(Member(process, "learners", lines))

    def hear(self) -> None:
        """The next line of any learner."""
        told = self.members[0].hear(time.monotonic() + QUIET_S)
        self.heard_s = told["at_s"]
        match told["kind"]:
            case "up":
                self.up += 1
            case "merge":
                self.merges += 1
                self.participants = told["participants"]
            case "end":
                raise RuntimeError("learners ended before the measurement did")

    def until_up(self, count: int) -> None:
        begun_s, told = time.monotonic(), 0
        while self.up < count:
            self.hear()
            if self.up % 16 == 0 and self.up > told:
                told = self.up
                seconds = time.monotonic() - begun_s
                print(f"{told} of {count} learners after {seconds:.0f} s", file=sys.stderr)

    def begin(self) -> None:
        """Their local steps; until then they have the machine to start on."""
        for member in self.members:
            assert member.popen.stdin is not None
            member.popen.stdin.write("begin\n")
            member.popen.stdin.flush()

    def until_whole(self, syncs: int, participants: int) -> None:
        """So many full model syncs, each merge with so many learners."""
        done = 0
        while done < syncs * self.fragments:
            former = self.merges
            self.hear()
            if self.merges > former:
                done = done + 1 if self.participants >= participants else 0

    def until_merge(self, after_s: float, participants: int) -> float:
        """When, monotonic, the first merge after that time had so many learners in it."""
        while True:
            former = self.merges
            self.hear()
            is_whole = self.merges > former and self.participants >= participants
            if is_whole and self.heard_s > after_s:
                return self.heard_s

    def close(self) -> None:
        """Ends all of them, in order."""
        for member in self.members:
            assert member.popen.stdin is not None
            member.popen.stdin.close()
        for member in self.members:
            end(member.popen)


def cpu_s(process: psutil.Process) -> float:
    """User and system time of one process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


@dataclass(slots=True)
class Moment:
    """Everything that is counted, at one time."""

    at_s: float
    syncer_s: float
    syncer_system_s: float
    syncer_faults: int
    engine_s: float
    learners_s: float
    learners_engines_s: float
    busy_s: float
    bytes_in: int
    bytes_out: int
    outcomes: Counter[str]

    def since(self, former: Moment) -> Moment:
        """What was added from one moment to another."""
        grown: dict[str, Any] = {
            name: getattr(self, name) - getattr(former, name)
            for name in self.__slots__
            if name != "outcomes"
        }
        outcomes = Counter(self.outcomes)
        outcomes.subtract(former.outcomes)
        return Moment(**grown, outcomes=outcomes)


def look(syncer: Syncer, learners: Learners) -> Moment:
    """Now. Asking costs the syncer a status, which is part of what is measured."""
    engines = syncer.process.children(recursive=True)
    wholes = [psutil.Process(one.popen.pid) for one in learners.members]
    their_engines = [one for whole in wholes for one in whole.children(recursive=True)]
    times = psutil.cpu_times()
    now = syncer.status()
    return Moment(
        at_s=time.monotonic(),
        syncer_s=cpu_s(syncer.process),
        syncer_system_s=syncer.process.cpu_times().system,
        syncer_faults=syncer.faults(),
        engine_s=sum(map(cpu_s, engines)),
        learners_s=sum(map(cpu_s, [*wholes, *their_engines])),
        learners_engines_s=sum(map(cpu_s, their_engines)),
        busy_s=times.user + times.nice + times.system + times.irq + times.softirq,
        bytes_in=now.network.bytes_down,
        bytes_out=now.network.bytes_up,
        outcomes=Counter(now.outcomes),
    )


def measure(case: Case, cache: Path) -> Row:
    """Starts everything, waits until all learners take part, and measures."""
    prepared = Prepared(case, cache)
    prepared.make()
    with (
        tempfile.TemporaryDirectory(prefix="case-", dir=cache) as folder,
        prepared.syncer(Path(folder)) as syncer,
    ):
        before = syncer.memory("VmRSS")
        begun_s = time.monotonic()
        learners = Learners(case, syncer, prepared.payloads)
        try:
            learners.until_up(case.learners)
            start_s = time.monotonic() - begun_s
            learners.begin()
            learners.until_whole(case.warm, case.in_merge)
            row = _window(case, syncer, learners)
        finally:
            learners.close()
        row.rss_before_gb, row.start_s = before / 1e9, start_s
        return row


def _window(case: Case, syncer: Syncer, learners: Learners) -> Row:
    """The measurement itself."""
    syncer.forget_peak()
    with profiled(case, syncer, learners):
        spent, merges, participants = _load(case, syncer, learners)
    lag, now = syncer.lag(spent.at_s), syncer.status()
    syncs = merges / case.fragments
    ours_s = spent.syncer_s + spent.engine_s + spent.learners_s
    each = now.project.parameters * syncs * case.learners
    return Row(
        case={**asdict(case), "profile": case.profile is not None},
        parameters=now.project.parameters,
        window_s=spent.at_s,
        merges=merges,
        syncs=syncs,
        participants=participants / merges,
        sync_s=spent.at_s / syncs,
        merges_per_s=merges / spent.at_s,
        syncer_cpu_s=spent.syncer_s / syncs,
        syncer_system_s=spent.syncer_system_s / syncs,
        syncer_faults=spent.syncer_faults / syncs,
        engine_cpu_s=spent.engine_s / syncs,
        learners_cpu_s=spent.learners_s / syncs,
        learners_engines_cpu_s=spent.learners_engines_s / syncs,
        cores_ours=ours_s / spent.at_s,
        cores_busy=spent.busy_s / spent.at_s,
        cores=len(os.sched_getaffinity(0)),
        rss_before_gb=0.0,
        rss_peak_gb=syncer.memory("VmHWM") / 1e9,
        lag_p50_ms=1e3 * lag["p50_s"],
        lag_p99_ms=1e3 * lag["p99_s"],
        lag_max_ms=1e3 * lag["max_s"],
        bytes_in=spent.bytes_in / each,
        bytes_out=spent.bytes_out / each,
        outcomes=dict(spent.outcomes),
    )


def _load(case: Case, syncer: Syncer, learners: Learners) -> tuple[Moment, int, int]:
    """What so many merges took; how many they were, and with how many learners."""
    first, merges, participants = look(syncer, learners), 0, 0
    former = learners.merges
    while merges < case.syncs * case.fragments and time.monotonic() - first.at_s < case.seconds:
        learners.hear()
        if learners.merges > former:
            former, merges = learners.merges, merges + 1
            participants += learners.participants
    return look(syncer, learners).since(first), merges, participants


@contextlib.contextmanager
def profiled(case: Case, syncer: Syncer, learners: Learners) -> Iterator[None]:
    """Where the syncer and the first process of learners spend their time meanwhile.

    As folded stacks of their threads.
    """
    if case.profile is None:
        yield
        return
    who = {"syncer": syncer.process.pid, "learners": learners.members[0].popen.pid}
    recorders = []
    for name, pid in who.items():
        place = case.profile / f"{case.parameters}-{case.learners}-{name}.txt"
        words = ["--pid", str(pid), "--output", str(place), "--format", "raw"]
        words += ["--threads", "--rate", "100", "--duration", "unlimited"]
        # What it has to say of a folder that it cannot write to, or a process, people should see.
        recorders.append(subprocess.Popen(["py-spy", "record", *words], stdout=subprocess.DEVNULL))
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.send_signal(signal.SIGINT)
        for recorder in recorders:
            end(recorder)


def main() -> int:
    """Prints the table and writes everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10m", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--learners", default="4", help="how many; several with commas")
    parser.add_argument(
        "--participants", type=int, default=0, help="learners that a round asks at most; 0: all"
    )
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--overlap", type=int, default=4, help="rounds in flight at most")
    parser.add_argument("--step-s", type=float, default=0.25, help="of a learner's local step")
    parser.add_argument("--syncs", type=int, default=3, help="full model syncs that are measured")
    parser.add_argument("--warm", type=int, default=1, help="syncs before, with all learners")
    parser.add_argument("--seconds", type=float, default=120.0, help="end after so long at most")
    parser.add_argument("--no-download", dest="downloads", action="store_false")
    parser.add_argument(
        "--light", dest="is_light", action="store_true", help="learners know the syncer alone"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "shoal-capacity"
    )
    parser.add_argument("--on-disk", action="store_true", help="the syncer's weights in files")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="a folder for py-spy's stacks")
    chosen = parser.parse_args()
    for folder in (chosen.cache, chosen.profile):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    print(heading(), flush=True)
    known = {name: value for name, value in vars(chosen).items() if name in Case.__slots__}
    rows = []
    for size in chosen.sizes.split(","):
        for learners in map(int, chosen.learners.split(",")):
            case = Case(**{**known, "parameters": size, "learners": learners})
            row = measure(case, chosen.cache)
            rows.append(asdict(row))
            print(row.line(), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
