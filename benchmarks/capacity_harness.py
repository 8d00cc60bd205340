"""One syncer process under the load of synthetic learners: start both, measure, end both.

    from benchmarks.capacity_harness import measure
    from benchmarks.capacity_rows import Case

    row = measure(Case(parameters="10m", learners=4), cache=Path("/tmp/shoal-capacity"))
    row.sync_s              # wall clock of a full model sync: every fragment merged once
    print(row.line())       # what benchmarks/capacity.py prints

The syncer is `shoal syncer run` as users start it, with its tape, its disk and one voter; the
learners are those of `benchmarks/synthetic.py`, in a few processes. A quorum of all learners makes
each merge one of all of them. Everything runs on this machine and shares its cores; what each side
took of them is told, and nothing is subtracted.

`cache` keeps the first weights and the payloads of each size for the next time. Nobody but the
syncer itself makes the weights: the first case of a size starts it once more for that.
"""

from __future__ import annotations

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
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.capacity_rows import SIZES, Case, Row  # noqa: E402
from host.control import client  # noqa: E402
from host.files.home import Home  # noqa: E402
from host.files.signed_project import read_signed  # noqa: E402
from protocol.fragments import build_layout  # noqa: E402
from protocol.numerics import codecs  # noqa: E402
from protocol.status import SyncerStatus  # noqa: E402
from shoal.local_swarm.swarm import LocalSwarm  # noqa: E402
from shoal.project.template import Value  # noqa: E402

MLP_TIMES = 4
STOP_S = 60.0
QUIET_S = 1800.0
"""For making weights of any size."""


def settings(case: Case, *, quorum: int) -> dict[str, Value]:
    """Of the project file: this size and an eager pace."""
    hidden, layers = SIZES[case.parameters]
    return {
        "model.fragments": case.fragments,
        "model.config.hidden_size": hidden,
        "model.config.intermediate_size": MLP_TIMES * hidden,
        "model.config.num_hidden_layers": layers,
        "model.config.num_attention_heads": hidden // 64,
        "model.config.num_key_value_heads": hidden // 64,
        "data.block_sequences": 256,
        "training.batch_sequences": 1,
        "rounds.local_steps": 1,
        "rounds.overlap_steps": case.overlap,
        "rounds.quorum": quorum,
        "rounds.patience_s": 600.0,
        "rounds.pull_timeout_s": 600.0,
        "rounds.eligible": "step",
        "limits.tokens": 1 << 40,
        "limits.learners": 1024,
        "limits.evaluate_every": 1_000_000,
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
        """Int4 displacements of noise, each with the length of its fragment."""
        genesis = read_signed(signed).genesis
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        rng = np.random.default_rng(1)
        longest = max(fragment.numel for fragment in layout.fragments)
        noise = rng.standard_normal(longest, dtype=np.float32) * np.float32(1e-3)
        for at, fragment in enumerate(layout.fragments):
            values = np.roll(noise, -at * 128)[: fragment.numel]
            (self.payloads / f"{at}.bin").write_bytes(codecs.encode("int4", values.copy()))

    @contextlib.contextmanager
    def syncer(self, folder: Path) -> Iterator[Syncer]:
        """With the keys and first weights, and the project signed for the case's quorum."""
        template = Home(self.root / "home")
        with Syncer(folder) as syncer:
            syncer.home.identity("owner")
            for key in (template.root / "keys").iterdir():
                shutil.copy2(key, syncer.home.root / "keys" / key.name)
            syncer.prepare(self.case, quorum=self.case.learners)
            held = template.syncer_store(syncer.project_id) / "checkpoints" / "0"
            if not held.is_dir():
                raise RuntimeError(f"{self.root} holds another project's weights: remove it")
            place = syncer.store("syncer") / "checkpoints" / "0"
            place.mkdir(parents=True, mode=0o700)
            for file in held.iterdir():
                os.link(file, place / file.name)  # Never written to: replaced as a whole.
            syncer.begin()
            yield syncer


class Syncer(LocalSwarm):
    """A syncer process, and what is looked at from outside."""

    def prepare(self, case: Case, *, quorum: int) -> None:
        """The signed project."""
        self.write_project(f"capacity-{case.parameters}", settings(case, quorum=quorum))
        self.sign()

    def begin(self) -> None:
        """Starts it; it has a join link and weights then."""
        self.start_first()
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
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []
        folder = syncer.folder / "learners"
        share = math.ceil(case.learners / case.children)
        for first in range(0, case.learners, share):
            count = min(share, case.learners - first)
            words = ["--link", syncer.link, "--home", str(folder), "--payloads", str(payloads)]
            words += ["--count", str(count), "--first", str(first), "--step-s", str(case.step_s)]
            words += ["--download"] if case.downloads else []
            words += ["--observe"] if first == 0 else []
            words += ["--light"] if case.is_light else []
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "benchmarks" / "synthetic.py"), *words],
                env=syncer.processes.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            self.processes.append(process)
            thread = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self.told.put(json.loads(line))

    def hear(self, timeout_s: float = QUIET_S) -> dict[str, Any]:
        """The next thing that any of them tells."""
        try:
            return self.told.get(timeout=timeout_s)
        except queue.Empty:
            raise RuntimeError(f"learners told nothing for {timeout_s:.0f} s") from None

    def close(self) -> None:
        """Ends all of them, in order."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            end(process)


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
    outcomes: dict[str, int]


def look(syncer: Syncer, learners: Learners) -> Moment:
    """Now. Asking costs the syncer a status, which is part of what is measured."""
    engines = syncer.process.children(recursive=True)
    wholes = [psutil.Process(one.pid) for one in learners.processes]
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
        outcomes=dict(now.outcomes),
    )


class Progress:
    """Which merges there were, as the first learner hears of them."""

    def __init__(self, learners: Learners, fragments: int) -> None:
        self.learners = learners
        self.versions = [0] * fragments
        self.merges = 0
        self.participants = 0
        self.up = 0

    def hear(self) -> None:
        """The next line of any learner."""
        told = self.learners.hear()
        match told["kind"]:
            case "up":
                self.up += 1
            case "merge":
                self.versions[told["fragment"]] = told["version"]
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

    def until_whole(self, syncs: int, participants: int) -> None:
        """So many full model syncs, each merge with so many learners."""
        done = 0
        while done < syncs * len(self.versions):
            former = self.merges
            self.hear()
            if self.merges > former:
                done = done + 1 if self.participants >= participants else 0


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
            progress = Progress(learners, case.fragments)
            progress.until_up(case.learners)
            start_s = time.monotonic() - begun_s
            progress.until_whole(case.warm, case.learners)
            row = _window(case, syncer, learners, progress)
        finally:
            learners.close()
        row.rss_before_gb, row.start_s = before / 1e9, start_s
        return row


def _window(case: Case, syncer: Syncer, learners: Learners, progress: Progress) -> Row:
    """The measurement itself."""
    syncer.forget_peak()
    with profiled(case, syncer, learners):
        first, last, merges, participants = _load(case, syncer, learners, progress)
    window_s = last.at_s - first.at_s
    lag, now = syncer.lag(window_s), syncer.status()
    syncs = merges / case.fragments
    ours = [
        (last.syncer_s - first.syncer_s),
        (last.engine_s - first.engine_s),
        (last.learners_s - first.learners_s),
    ]
    each = now.project.parameters * syncs * case.learners
    return Row(
        case={**asdict(case), "profile": case.profile is not None},
        parameters=now.project.parameters,
        window_s=window_s,
        merges=merges,
        syncs=syncs,
        participants=participants / merges,
        sync_s=window_s / syncs,
        merges_per_s=merges / window_s,
        syncer_cpu_s=ours[0] / syncs,
        syncer_system_s=(last.syncer_system_s - first.syncer_system_s) / syncs,
        syncer_faults=(last.syncer_faults - first.syncer_faults) / syncs,
        engine_cpu_s=ours[1] / syncs,
        learners_cpu_s=ours[2] / syncs,
        learners_engines_cpu_s=(last.learners_engines_s - first.learners_engines_s) / syncs,
        cores_ours=sum(ours) / window_s,
        cores_busy=(last.busy_s - first.busy_s) / window_s,
        cores=len(os.sched_getaffinity(0)),
        rss_before_gb=0.0,
        rss_peak_gb=syncer.memory("VmHWM") / 1e9,
        lag_p50_ms=1e3 * lag["p50_s"],
        lag_p99_ms=1e3 * lag["p99_s"],
        lag_max_ms=1e3 * lag["max_s"],
        bytes_in=(last.bytes_in - first.bytes_in) / each,
        bytes_out=(last.bytes_out - first.bytes_out) / each,
        outcomes={
            name: count - first.outcomes.get(name, 0) for name, count in last.outcomes.items()
        },
    )


def _load(
    case: Case, syncer: Syncer, learners: Learners, progress: Progress
) -> tuple[Moment, Moment, int, int]:
    """What was counted before and after so many merges; how many, and with how many learners."""
    first, merges, participants = look(syncer, learners), 0, 0
    former = progress.merges
    while merges < case.syncs * case.fragments and time.monotonic() - first.at_s < case.seconds:
        progress.hear()
        if progress.merges > former:
            former, merges = progress.merges, merges + 1
            participants += progress.participants
    return first, look(syncer, learners), merges, participants


@contextlib.contextmanager
def profiled(case: Case, syncer: Syncer, learners: Learners) -> Iterator[None]:
    """Where the syncer and the first process of learners spend their time meanwhile.

    As folded stacks of their threads.
    """
    if case.profile is None:
        yield
        return
    who = {"syncer": syncer.process.pid, "learners": learners.processes[0].pid}
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
