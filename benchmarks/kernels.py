"""What the syncer's and the learner's arithmetic costs, against copying and reading the fragment.

Everything is timed in turn, in one process, several times, by one thread and by several (`Cores`,
as a syncer uses them); medians. Yardsticks of the same run and the same number of threads: `copy`
of the float32 fragment into a warm buffer, `read` (the sum of its bits), `scale`, an in-place
multiplication that reads and writes it. `share of scale` is memory moved each second (what a call
must read and write at least) against what `scale` moves. `copy` goes in pieces of 1 MiB, which stay
in a cache; `copy, one call` gives each thread its part at once, which the C library copies past
the caches, and is faster. Both are told. At the end: what is wanted, and what was found.

What earned trust costs is measured by itself, after the rest: a merge with it and the same merge
without, in pairs whose order changes, five pairs for each round; the median of the pairs' ratios.
These are of processor seconds: of one thread they are the time of a quiet machine, and other work
on the machine adds less to them.

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
from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
import psutil
import torch

from host.runtime.compute_pool import Cores, available
from protocol.fragments import Fragment, TensorSpan
from protocol.merge_rules import MERGES_COMPARED
from protocol.numerics import buffers, codecs, outer, versions
from protocol.numerics.compiled.sum_kernels import LIMBS, TOGETHER
from protocol.numerics.lengths import Length
from protocol.numerics.merge import Contribution, Reference, merge_fragment, norm
from protocol.numerics.payload_sizes import payload_bytes
from protocol.numerics.summing import Source, add_together
from protocol.numerics.workers import Workers, pieces
from protocol.project import CodecName
from protocol.standing import Standing

SPANS = 10
"""Tensors in the fragment."""
INT4 = payload_bytes("int4", 128) / 128
"""Bytes of a payload for each parameter."""
FRAGMENTS = 40
"""Arrays of that size that are in use besides; nobody ever writes to them."""
ONE_CALL = "copy, one call"
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
        lately = [
            codecs.encode("int4", draw(numel, dtype=np.float32)) for _ in range(MERGES_COMPARED)
        ]
        self.lately: tuple[tuple[CodecName, codecs.Payload], ...] = tuple(
            ("int4", payload) for payload in lately
        )

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
def total(bits: np.ndarray) -> np.int32:
    found = np.int32(0)
    for i in range(bits.size):
        found += bits[i]
    return found


STEP_BYTES = 28.5
"""For each parameter: what merged, residual, weights and momentum read and write, and the codes."""


@dataclass(frozen=True)
class Target:
    """What is wanted of one thing that is timed."""

    name: str
    limit: float
    is_share: bool = False
    """Of `scale`, and then at least; otherwise copies, and at most."""


def targets(learners: int) -> list[Target]:
    return [
        Target("encode int4", 0.75),
        Target("decode int4", 1.0),
        Target("displacement, feedback, encode", 2.1),
        Target("merge, one of 1", 0.9),
        Target(f"merge, one of {learners}", 0.5),
        Target("accumulate, one more", 0.65, True),
        Target(f"accumulate, one of {learners}", 0.65, True),
        Target("encode, outer step", 0.65, True),
    ]


EARNED = "trust earned"
EARNED_TIMES = 1.25
"""How much longer a merge may take where trust is earned."""
PAIRS = 5
"""For each round: a merge of a few milliseconds is easily disturbed."""

NAIVE_TIMES = 20
"""How much faster than a naive merge in torch ours is to be."""


@dataclass(frozen=True)
class Run:
    """One thing to time."""

    call: Callable[[], object]
    share: int = 1
    """Fragments that one call works on."""
    moves: float | None = None
    """Bytes for each parameter that it must at least read and write."""


def runs(case: Case, workers: Cores) -> dict[str, Run]:
    return {**yardsticks(case, workers), **codings(case, workers), **merges(case, workers)} | steps(
        case, workers
    )


def each(workers: Workers, parts: list[tuple[int, int]], work: Callable[[slice], object]) -> Run:
    """Of so many pieces, by those workers."""
    return Run(lambda: workers.map(lambda part: work(slice(*part)), parts))


def yardsticks(case: Case, workers: Cores) -> dict[str, Run]:
    numel, one, bits = case.fragment.numel, np.float32(1.0), case.values.view(np.int32)
    parts, halves = pieces(numel), pieces(numel, 0, -(-numel // (workers.count * 128)) * 128)

    def copy(at: slice) -> None:
        np.copyto(case.target[at], case.values[at])

    def scale(at: slice) -> None:
        np.multiply(case.target[at], one, out=case.target[at])

    return {
        "copy": replace(each(workers, parts, copy), moves=8),
        ONE_CALL: replace(each(workers, halves, copy), moves=8),
        "read": replace(each(workers, parts, lambda at: total(bits[at])), moves=4),
        "scale": replace(each(workers, parts, scale), moves=8),
    }


def codings(case: Case, workers: Cores) -> dict[str, Run]:
    numel = case.fragment.numel
    return {
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
    }


def merges(case: Case, workers: Cores) -> dict[str, Run]:
    many, numel = len(case.parts), case.fragment.numel
    sources = [(Source(p.codec, p.payload, numel, p.key), p.weight) for p in case.parts]
    limbs, places = np.zeros(LIMBS, np.int64), pieces(numel)

    def merge(parts: list[Contribution], told: Reference | None = None) -> Callable[[], object]:
        return lambda: merge_fragment(parts, case.fragment, 10.0, told, workers=workers)

    # Nobody is doubted: directions of random pushes are chance.
    earned = Reference(
        case.momentum, 0.0, (Length(1e3),) * 8, is_established=True, seed=9, lately=case.lately
    )
    known = [replace(part, standing=Standing(0.5, 20, 20)) for part in case.parts]

    def accumulate(begin: int, end: int, is_new: bool) -> None:
        for first in range(0, many if is_new else 1, TOGETHER):
            few = sources[first : first + TOGETHER] if is_new else sources[:1]
            add_together(
                "int4", few, begin, case.target[begin:end], is_new and not first, False, limbs
            )

    groups = -(-many // TOGETHER)
    return {
        "accumulate, one more": replace(
            each(workers, places, lambda at: accumulate(at.start, at.stop, False)),
            moves=8 + INT4,
        ),
        f"accumulate, one of {many}": replace(
            each(workers, places, lambda at: accumulate(at.start, at.stop, True)),
            share=many,
            moves=8 * groups / many + INT4,
        ),
        "merge, one of 1": Run(merge(case.parts[:1]), 1),
        f"merge, one of {many}": Run(merge(case.parts), many),
        f"merge, one of 1, {EARNED}": Run(merge(known[:1], earned), 1),
        f"merge, one of {many}, {EARNED}": Run(merge(known, earned), many),
    }


def steps(case: Case, workers: Cores) -> dict[str, Run]:
    def step(payload: codecs.Payload, is_hashed: bool) -> object:
        return outer.outer_step_by(
            case.theta,
            case.momentum,
            payload,
            codec="int4",
            is_hashed=is_hashed,
            workers=workers,
            learning_rate=0.7,
            momentum_coefficient=0.5,
        )

    def both(is_hashed: bool) -> Callable[[], object]:
        def call() -> object:
            merged, carried = case.values, case.residual
            payload, left = outer.encode_with_feedback("int4", merged, carried, workers=workers)
            return left, step(payload, is_hashed)

        return call

    return {
        "encode, outer step": Run(both(False), 1, STEP_BYTES),
        "encode, outer step, digests": Run(both(True), 1, STEP_BYTES),
        "decode, outer step": Run(lambda: step(case.payload, False), 1, 16 + INT4),
        "decode, outer step, digests": Run(lambda: step(case.payload, True), 1, 16 + INT4),
        "content digests": Run(
            lambda: versions.state_manifests(case.theta, case.momentum, workers=workers), 1, 8
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
            named = {**listed, naive_name(case): Run(case.naive, len(case.parts))}
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


def trust_costs(case: Case, rounds: int, counts: list[int]) -> dict[int, dict[int, float]]:
    """How many times the processor seconds of a merge it takes where trust is earned, by threads
    and pushes."""
    found: dict[int, dict[int, float]] = {}
    for count in counts:
        crew = Cores(count)
        listed, found[count] = merges(case, crew), {}
        for many in (1, len(case.parts)):
            pair = [listed[f"merge, one of {many}{end}"].call for end in ("", f", {EARNED}")]
            ratios = []
            for at in range(-1, rounds * PAIRS):
                took = [0.0, 0.0]
                for which in (at % 2, 1 - at % 2):
                    began_s = time.process_time()
                    pair[which]()
                    took[which] = time.process_time() - began_s
                if at >= 0:  # The first time warms up.
                    ratios.append(took[1] / took[0])
            found[count][many] = statistics.median(ratios)
        crew.close()
    return found


def naive_name(case: Case) -> str:
    return f"torch, naive merge, one of {len(case.parts)}"


def show(
    case: Case, found: dict[int, dict[str, float]], costs: dict[int, dict[int, float]]
) -> None:
    moves = {name: run.moves for name, run in runs(case, Cores(1)).items()}
    for count, took in found.items():
        print(f"\n{count} {'thread' if count == 1 else 'threads'}")
        print(
            f"{'':36}{'ms':>8}{'copies':>9}{'copies, one call':>18}{'reads':>8}"
            f"{'share of scale':>17}"
        )
        for name, took_ms in took.items():
            moved = moves.get(name)
            share = f"{share_of_scale(moved, took_ms, took):.2f}" if moved else ""
            copies, reads = took_ms / took["copy"], took_ms / took["read"]
            fast = took_ms / took[ONE_CALL]
            print(f"{name:36}{took_ms:8.1f}{copies:9.2f}{fast:18.2f}{reads:8.2f}{share:>17}")
    show_targets(case, found, moves)
    show_trust(found, costs)


def share_of_scale(moved: float, took_ms: float, took: dict[str, float]) -> float:
    return moved / took_ms / (8 / took["scale"])


def show_targets(
    case: Case, found: dict[int, dict[str, float]], moves: dict[str, float | None]
) -> None:
    """What is wanted, what was found, by threads, and whether each is met."""
    heads = [
        f"{count} thr.{'' if yard == 'copy' else ', one call'}" for count, yard in columns(found)
    ]
    print(f"\n{'':36}{'wanted':>14}" + "".join(f"{head:>19}" for head in heads))
    for target in targets(len(case.parts)):
        sign = ">=" if target.is_share else "<="
        unit = "of scale" if target.is_share else "copies"
        cells = []
        for count, yard in columns(found):
            took = found[count]
            value = took[target.name] / took[yard]
            if target.is_share:
                value = share_of_scale(moves[target.name] or 0.0, took[target.name], took)
            is_met = value >= target.limit if target.is_share else value <= target.limit
            is_twice = target.is_share and yard == ONE_CALL
            cells.append("" if is_twice else f"{value:.2f} {'met' if is_met else 'not met'}")
        wanted = f"{sign} {target.limit} {unit}"
        print(f"{target.name:33}{wanted:>17}" + "".join(f"{cell:>19}" for cell in cells))
    ours = f"merge, one of {len(case.parts)}"
    cells = []
    for count, yard in columns(found):
        times = found[count][naive_name(case)] / found[count][ours]
        word = "met" if times >= NAIVE_TIMES else "not met"
        cells.append("" if yard == ONE_CALL else f"{times:.1f} {word}")
    print(
        f"{'naive merge in torch over ours':33}{f'>= {NAIVE_TIMES} times':>17}"
        + "".join(f"{cell:>19}" for cell in cells)
    )


def show_trust(found: dict[int, dict[str, float]], costs: dict[int, dict[int, float]]) -> None:
    """What earned trust costs, in the columns of the targets."""
    for many in next(iter(costs.values())):
        cells = []
        for count, yard in columns(found):
            times = costs[count][many]
            word = "met" if times <= EARNED_TIMES else "not met"
            cells.append("" if yard == ONE_CALL else f"{times:.2f} {word}")
        print(
            f"{f'{EARNED} over all, merge of {many}':33}{f'<= {EARNED_TIMES} times':>17}"
            + "".join(f"{cell:>19}" for cell in cells)
        )


def columns(found: dict[int, dict[str, float]]) -> list[tuple[int, str]]:
    return [(count, yard) for count in found for yard in ("copy", ONE_CALL)]


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
    # A syncer of many fragments: so much of what was used is kept for the next result.
    _held = [buffers.empty(case.fragment.numel) for _ in range(FRAGMENTS)]
    counts = sorted({1, given.threads})
    found = measure(case, given.rounds, counts)
    costs = trust_costs(case, given.rounds, counts)
    print(f"{case.fragment.numel / 1e6:.1f} M parameters, {os.cpu_count()} cores")
    show(case, found, costs)
    if given.json is not None:
        result = {"numel": case.fragment.numel, "ms_by_threads": found, "trust_times": costs}
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
