"""What the syncer's and the learner's arithmetic costs, as shares of copying the same fragment.

Everything is timed in turn, in one process, on one thread, several times; medians. `copy` is a copy
of the float32 fragment into a warm buffer, `scale` an in-place multiplication (read and write).

    python benchmarks/kernels.py [--mebi 40] [--learners 8] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from protocol.fragments import Fragment, TensorSpan
from protocol.numerics import codecs, merge, outer
from protocol.numerics.merge import Contribution, merge_fragment

SPANS = 10
"""Tensors in the fragment."""


class Case:
    """One fragment and what is done with it."""

    def __init__(self, numel: int, learners: int) -> None:
        rng = np.random.default_rng(7)
        draw = rng.standard_normal
        self.values = draw(numel, dtype=np.float32) * np.float32(1e-3)
        self.residual = draw(numel, dtype=np.float32) * np.float32(1e-4)
        self.theta, self.momentum = draw(numel, dtype=np.float32), self.values * np.float32(0.3)
        self.target = np.empty_like(self.values)
        self.payload = codecs.encode("int4", self.values)
        each = numel // SPANS
        self.fragment = Fragment(
            0,
            tuple(TensorSpan(f"t{i}", (each,), each, "rda", i * each) for i in range(SPANS)),
            numel,
        )
        self.parts = [
            Contribution(
                key=(bytes(32), 0, number),
                payload=codecs.encode("int4", draw(numel, dtype=np.float32)),
                codec="int4",
                weight=1.0 + number,
            )
            for number in range(learners)
        ]

    def naive(self) -> None:
        """The same merge as people write it in torch: decode all, stack, average."""
        stacked = torch.stack(
            [torch.from_numpy(codecs.decode("int4", p.payload, p_numel)) for p in self.parts
             if (p_numel := self.fragment.numel)]
        )  # fmt: skip
        weights = torch.tensor([part.weight for part in self.parts])
        weights /= weights.sum()
        for span in self.fragment.spans:
            here = stacked[:, span.offset : span.offset + span.padded]
            norms = here.norm(dim=1, keepdim=True)
            mean = ((here / norms) * weights[:, None]).sum(0)
            mean *= (norms[:, 0] * weights).sum() / mean.norm()


def cases(case: Case) -> dict[str, tuple[Callable[[], object], int]]:
    """By name: what to run, and over how many fragments its time is to be divided."""
    numel, many = case.fragment.numel, len(case.parts)

    def step() -> None:
        theta, momentum = case.theta, case.momentum
        outer.outer_step_by(
            theta,
            momentum,
            case.payload,
            codec="int4",
            learning_rate=0.7,
            momentum_coefficient=0.5,
        )

    return {
        "copy": (lambda: np.copyto(case.target, case.values), 1),
        "scale": (lambda: np.multiply(case.target, np.float32(1.0), out=case.target), 1),
        "encode int4": (lambda: codecs.encode("int4", case.values), 1),
        "decode int4": (lambda: codecs.decode("int4", case.payload, numel), 1),
        "displacement, feedback, encode": (
            lambda: outer.encode_with_feedback(
                "int4", case.theta, case.residual, minus=case.values
            ),
            1,
        ),
        "norm": (lambda: merge.norm(case.values), 1),
        "merge, one of 1": (lambda: merge_fragment(case.parts[:1], case.fragment, 10.0), 1),
        f"merge, one of {many}": (lambda: merge_fragment(case.parts, case.fragment, 10.0), many),
        "decode, outer step": (step, 1),
        f"torch, naive merge, one of {many}": (case.naive, many),
    }


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turn."""
    runs = cases(case)
    for run, _ in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, share) in runs.items():
            began_s = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - began_s) * 1e3 / share)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mebi", type=int, default=40, help="2^20 parameters in the fragment")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    numel = given.mebi * (1 << 20) // (128 * SPANS) * 128 * SPANS
    found = measure(Case(numel, given.learners), given.rounds)
    print(f"{'':36}{'ms':>9}{'copies':>9}")
    for name, took_ms in found.items():
        print(f"{name:36}{took_ms:9.1f}{took_ms / found['copy']:9.2f}")
    if given.json is not None:
        given.json.write_text(json.dumps({"numel": numel, "ms": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
