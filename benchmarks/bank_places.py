"""A learner's copies of the weights in memory and in files: resident memory, and time for a round.

.venv/bin/python benchmarks/bank_places.py [--parameters 100e6] [--fragments 24] [--passes 3]

The bank of a learner daemon holds value and momentum of a whole model. In each of its rounds it
takes a push from a local value, settles it, and takes the outer step that a merge certifies. Each
place is measured in a process of its own, in turn; what counts is the median of the passes. Memory
is what is resident behind the last round, beyond that of an empty bank.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from host.bulk.blob_store import BlobStore
from host.files.mapped_arrays import MappedArrays, in_memory
from node.trainer_client.fragment_bank import FragmentBank
from protocol.fragments import build_layout
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import encode
from protocol.numerics.outer import digest
from protocol.numerics.versions import next_version, state_manifests
from protocol.project import TensorSpec
from simulator.stand_ins.tiny import tiny_project

ROUNDS = 2
WIDTH = 4096
PLACES = ("memory", "files")


def _merged(bank: FragmentBank, fragment: int, payload: bytes) -> FragmentMerged:
    """The record of a merge that the bank can follow."""
    held = bank.standing()[fragment].base
    _, _, manifests = next_version(
        held.theta,
        held.momentum,
        payload,
        codec="int4",
        learning_rate=0.4,
        momentum_coefficient=0.7,
    )
    return FragmentMerged(
        round=1,
        global_step=held.version + 1,
        fragment=fragment,
        version=held.version + 1,
        payload=digest(payload),
        payload_bytes=len(payload),
        codec="int4",
        learning_rate=0.4,
        momentum=0.7,
        nesterov=True,
        state=manifests.digests,
        contributions=(),
    )


def measure(place: str, parameters: int, fragments: int) -> dict[str, float]:
    """Megabytes resident, and seconds of a round of all fragments."""
    rows = max(fragments, parameters // WIDTH)
    tensors = [TensorSpec("table", (rows, WIDTH), "rda")]
    layout = build_layout(tensors, "rows", fragments)
    process, draw = psutil.Process(), np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        arrays = MappedArrays(Path(folder))
        bank = FragmentBank(layout, BlobStore(), arrays.keep if place == "files" else in_memory)
        bank.charter = tiny_project(bytes(32)).charter
        before = process.memory_info().rss
        for fragment in layout.fragments:
            theta = draw.normal(0.0, 0.02, fragment.numel).astype(np.float32)
            momentum = np.zeros_like(theta)
            digests = state_manifests(theta, momentum).digests
            bank.install(fragment.index, 0, digests, theta, momentum)
            bank.deliver(fragment.index, is_assign=True, merged_sequence=None)
        del theta, momentum
        took_s = 0.0
        for number in range(ROUNDS):
            for fragment in layout.fragments:
                local = bank.theta(fragment.index) - np.float32(1e-3)
                payload = encode("int4", draw.normal(0.0, 1e-3, local.size).astype(np.float32))
                merged = _merged(bank, fragment.index, bytes(payload))
                began_s = time.perf_counter()
                bank.push(fragment.index, number, local)
                bank.settle(fragment.index, number, is_merged=True)
                bank.advance(merged, payload)
                bank.deliver(fragment.index, is_assign=True, merged_sequence=number)
                arrays.relax()
                took_s += time.perf_counter() - began_s
        del local, payload, merged
        resident = process.memory_info().rss - before
    return {"resident_mb": resident / 1e6, "round_s": took_s / ROUNDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--place", choices=PLACES, help="measure this one, in this process")
    given = parser.parse_args()
    size = (round(given.parameters), given.fragments)
    if given.place:
        print(json.dumps(measure(given.place, *size)))
        return
    found: dict[str, list[dict[str, float]]] = {place: [] for place in PLACES}
    again = [sys.executable, __file__, *sys.argv[1:]]
    for _ in range(given.passes):
        for place in PLACES:
            out = subprocess.run([*again, "--place", place], capture_output=True, check=True)
            found[place].append(json.loads(out.stdout))
    medians = {
        place: {key: median(one[key] for one in runs) for key in runs[0]}
        for place, runs in found.items()
    }
    for place, one in medians.items():
        each = one["resident_mb"] * 1e6 / size[0]
        print(
            f"{place:8} {one['resident_mb']:9,.0f} MB resident, {each:5.2f} bytes per parameter,"
            f" {one['round_s']:7.2f} s a round"
        )
    ratio = medians["files"]["round_s"] / medians["memory"]["round_s"]
    print(f"a round in files takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
