"""What the syncer's and the learner's arithmetic costs, against copying and reading the fragment.

Everything is timed in turn, in one process, several times, by one thread and by several (`Cores`,
as a syncer uses them); medians. Yardsticks of the same run and the same number of threads: `copy`
of the float32 fragment into a warm buffer, `read` (the sum of its bits), `scale`, an in-place
multiplication that reads and writes it. `share of scale` is memory moved each second (what a call
must read and write at least) against what `scale` moves.

`--memory` says instead how much memory a merge takes beyond its payloads, for 2 to 64 learners,
each case in a process of its own.

    python benchmarks/kernels.py [--mebi 40] [--learners 8] [--rounds 7] [--threads 2] [--json FILE]
    python benchmarks/kernels.py --memory
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import psutil
import torch

from node.host.cores import Cores, available
from protocol.fragments import Fragment, TensorSpan
from protocol.numerics import codecs, outer, version
from protocol.numerics.merge import Contribution, merge_fragment, norm
from protocol.numerics.workers import Workers, pieces

SPANS = 10
"""Tensors in the fragment."""
INT4 = codecs.payload_bytes("int4", 128) / 128
"""Bytes of a payload for each parameter."""
MEMORY_LEARNERS = (2, 8, 16, 32, 64)


def fragment_of(mebi: int) -> Fragment:
    each = mebi * (1 << 20) // (128 * SPANS) * 128
    spans = tuple(TensorSpan(f"t{i}", (each,), each, "rda", i * each) for i in range(SPANS))
    return Fragment(0, spans, each * SPANS)


def contribution(number: int, payload: codecs.Payload) -> Contribution:
    return Contribution((bytes(32), 0, number), payload, "int4", 1.0 + number)


class Case:
    """One fragment and what is done with it."""

    def __init__(self, fragment: Fragment, learners: int) -> None:
        rng = np.random.default_rng(7)
        draw, numel = rng.standard_normal, fragment.numel
        self.fragment = fragment
        self.values = draw(numel, dtype=np.float32) * np.float32(1e-3)
        self.residual = draw(numel, dtype=np.float32) * np.float32(1e-4)
        self.theta, self.momentum = draw(numel, dtype=np.float32), self.values * np.float32(0.3)
        self.target = np.zeros_like(self.values)
        self.payload = codecs.encode("int4", self.values)
        self.parts = [
            contribution(number, codecs.encode("int4", draw(numel, dtype=np.float32)))
            for number in range(learners)
        ]

    def naive(self) -> None:
        """The same merge as people write it in torch: decode all, stack, average."""
        numel = self.fragment.numel
        decoded = [codecs.decode("int4", part.payload, numel) for part in self.parts]
        stacked = torch.stack([torch.from_numpy(one) for one in decoded])
        weights = torch.tensor([part.weight for part in self.parts])
        weights /= weights.sum()
        for span in self.fragment.spans:
            here = stacked[:, span.offset : span.offset + span.padded]
            norms = here.norm(dim=1, keepdim=True)
            mean = ((here / norms) * weights[:, None]).sum(0)
            mean *= (norms[:, 0] * weights).sum() / mean.norm()


@numba.njit(nogil=True)
def total(bits: np.ndarray) -> int:
    found = np.int32(0)
    for i in range(bits.size):
        found += bits[i]
    return found


@dataclass(frozen=True)
class Run:
    """One thing to time."""

    call: Callable[[], object]
    share: int = 1
    """Fragments that one call works on."""
    moves: float | None = None
    """Bytes for each parameter that it must at least read and write."""


def runs(case: Case, workers: Workers) -> dict[str, Run]:
    numel, many = case.fragment.numel, len(case.parts)
    parts, bits = pieces(numel), case.values.view(np.int32)
    rates = {"learning_rate": 0.7, "momentum_coefficient": 0.5}

    def each(work: Callable[[slice], object]) -> Callable[[], object]:
        return lambda: workers.map(lambda part: work(slice(*part)), parts)

    def merge(contributions: list[Contribution]) -> Callable[[], object]:
        return lambda: merge_fragment(contributions, case.fragment, 10.0, workers=workers)

    one = np.float32(1.0)
    return {
        "copy": Run(each(lambda at: np.copyto(case.target[at], case.values[at])), 1, 8),
        "read": Run(each(lambda at: total(bits[at])), 1, 4),
        "scale": Run(each(lambda at: np.multiply(case.target[at], one, out=case.target[at])), 1, 8),
        "encode int4": Run(
            lambda: codecs.encode("int4", case.values, workers=workers), 1, 4 + INT4
        ),
        "decode int4": Run(
            lambda: codecs.decode("int4", case.payload, numel, workers=workers), 1, 4 + INT4
        ),
        "displacement, feedback, encode": Run(
            lambda: outer.encode_with_feedback(
                "int4", case.theta, case.residual, minus=case.values, workers=workers
            ),
            1,
            16 + INT4,
        ),
        "norm": Run(lambda: norm(case.values, workers=workers), 1, 4),
        "merge, one of 1": Run(merge(case.parts[:1]), 1),
        f"merge, one of {many}": Run(merge(case.parts), many),
        "decode, outer step, digests": Run(
            lambda: outer.outer_step_by(
                case.theta, case.momentum, case.payload, codec="int4", workers=workers, **rates
            ),
            1,
            16 + INT4,
        ),
        "content digests": Run(
            lambda: version.state_manifests(case.theta, case.momentum, workers=workers), 1, 8
        ),
    }


def measure(case: Case, rounds: int, counts: list[int]) -> dict[int, dict[str, float]]:
    """Median milliseconds for each fragment, by number of threads, taken in turn."""
    crews = {count: Cores(count) for count in counts}
    every = {count: runs(case, crew) for count, crew in crews.items()}
    times: dict[int, dict[str, list[float]]] = {
        count: {name: [] for name in listed} for count, listed in every.items()
    }
    for at in range(-1, rounds):
        for count, listed in every.items():
            torch.set_num_threads(count)
            named = {**listed, f"torch, naive merge, one of {len(case.parts)}": naive_run(case)}
            for name, run in named.items():
                began_s = time.perf_counter()
                run.call()
                took_ms = (time.perf_counter() - began_s) * 1e3 / run.share
                if at >= 0:  # The first time warms up.
                    times[count].setdefault(name, []).append(took_ms)
    for crew in crews.values():
        crew.close()
    return {
        count: {name: statistics.median(found) for name, found in listed.items()}
        for count, listed in times.items()
    }


def naive_run(case: Case) -> Run:
    return Run(case.naive, len(case.parts))


def show(case: Case, found: dict[int, dict[str, float]]) -> None:
    moves = {name: run.moves for name, run in runs(case, Cores(1)).items()}
    for count, took in found.items():
        print(f"\n{count} {'thread' if count == 1 else 'threads'}")
        print(f"{'':36}{'ms':>8}{'copies':>9}{'reads':>8}{'share of scale':>17}")
        scale_rate = 8 / took["scale"]
        for name, took_ms in took.items():
            moved = moves.get(name)
            share = f"{moved / took_ms / scale_rate:.2f}" if moved else ""
            copies, reads = took_ms / took["copy"], took_ms / took["read"]
            print(f"{name:36}{took_ms:8.1f}{copies:9.2f}{reads:8.2f}{share:>17}")


def memory_of(learners: int, mebi: int) -> None:
    """Prints what the merge took at most beyond what was there before it."""
    fragment, me = fragment_of(mebi), psutil.Process()
    rng = np.random.default_rng(3)
    few = [
        codecs.encode("int4", rng.standard_normal(fragment.numel, dtype=np.float32))
        for _ in range(2)
    ]
    small = fragment_of(1)
    warm = codecs.encode("int4", np.ones(small.numel, np.float32))
    merge_fragment([contribution(0, warm), contribution(1, warm)], small, 10.0)
    parts = [contribution(number, bytes(few[number % 2])) for number in range(learners)]
    before = me.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # Begin the peak anew.
    workers = Cores()
    merge_fragment(parts, fragment, 10.0, workers=workers)
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    workers.close()
    beyond = (peak - before) / (4 * fragment.numel)
    print(
        f"{learners:4} learners: {(peak - before) / 1e6:6.0f} MB, {beyond:.2f} fragments of float32"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mebi", type=int, default=40, help="2^20 parameters in the fragment")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=available(), help="beside one thread")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.memory:
        for learners in MEMORY_LEARNERS:
            run = multiprocessing.get_context("spawn").Process(
                target=memory_of, args=(learners, given.mebi)
            )
            run.start()
            run.join()
            if run.exitcode:
                raise SystemExit(f"{learners} learners: exit code {run.exitcode}")
        return
    case = Case(fragment_of(given.mebi), given.learners)
    found = measure(case, given.rounds, sorted({1, given.threads}))
    print(f"{case.fragment.numel / 1e6:.1f} M parameters, {os.cpu_count()} cores")
    show(case, found)
    if given.json is not None:
        result = {"numel": case.fragment.numel, "ms_by_threads": found}
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
