"""What a full model sync costs at the very least on this machine: no syncer can be faster here.

    python benchmarks/floor.py [--mebi 40] [--learners 8] [--fragments 24] [--rounds 5]

Of one fragment, with nothing of ours around it, medians of processor seconds: TLS 1.3 over loopback
by both ends (M payloads up, one to each of M learners down; int4, a thread and a process for each
end), the digest of each payload by whoever gets it, and on one thread a merge of M, encoding with
error feedback, and the outer step with the digests of its results. Times the fragments. Divided by
the cores, that is the wall clock below which a sync cannot come where learners and syncer share
these cores, however little the rest costs; and for the syncer's part alone, where learners have
cores of their own. Compare with `capacity.py --sizes 1b --learners 8`, run next to it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from blake3 import blake3

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.kernels import Case, fragment_of  # noqa: E402
from benchmarks.wire_peer import Raw  # noqa: E402
from host.bulk.tls_context import Contexts  # noqa: E402
from host.files import keystore  # noqa: E402
from host.runtime.compute_pool import available  # noqa: E402
from protocol.numerics import outer, versions  # noqa: E402
from protocol.numerics.merge import merge_fragment  # noqa: E402

HOST = "127.0.0.1"
RATES = {"learning_rate": 0.7, "momentum_coefficient": 0.5}


def giver(folder: Path, blob: bytes, pipe: Connection) -> None:
    """The end that sends, a process: after each word on `pipe`, the processor seconds it took."""
    tls = Contexts(keystore.load_or_create(folder / "giver"))
    pipe.send(tls.certificate)
    tls.trust(pipe.recv())
    pipe.send(Raw(tls, HOST, memoryview(blob)).listener.getsockname()[:2])
    while pipe.recv():
        pipe.send(time.process_time())


class Line:
    """A giver, and this process as the end that receives."""

    def __init__(self, folder: Path, blob: bytes) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, far = spawn.Pipe()
        self._process = spawn.Process(target=giver, args=(folder, blob, far), daemon=True)
        self._process.start()
        tls = Contexts(keystore.load_or_create(folder / "taker"))
        tls.trust(self._pipe.recv())
        self._pipe.send(tls.certificate)
        self._place = self._pipe.recv()
        self._raw, self._size = Raw(tls, HOST, memoryview(b"")), len(blob)

    def carry(self, times: int) -> tuple[float, float]:
        """Processor seconds of the giving and of the taking end."""
        began = self._given_s(), time.process_time()
        for _ in range(times):
            self._raw.fetch(self._place, self._size, is_tls=True, connections=1)
        taken = time.process_time() - began[1]
        return self._given_s() - began[0], taken

    def close(self) -> None:
        """Ends the other process."""
        self._pipe.send(False)
        self._process.join()

    def _given_s(self) -> float:
        self._pipe.send(True)
        return float(self._pipe.recv())


def spent(call: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def costs(case: Case, line: Line) -> dict[str, tuple[float, float]]:
    """Of one fragment: what the syncer must spend, and what all its learners must."""
    many = len(case.parts)
    given, taken = line.carry(many)

    def hashes() -> None:
        for part in case.parts:
            blake3(part.payload).digest()

    def step() -> None:
        versions.next_version(case.theta, case.momentum, case.payload, codec="int4", **RATES)

    hashed = spent(hashes)
    return {
        "TLS, payloads up": (taken, given),
        "TLS, payloads down": (given, taken),
        "digests of payloads": (hashed, hashed),
        f"merge of {many}": (spent(lambda: merge_fragment(case.parts, case.fragment, 10.0)), 0.0),
        "encode with feedback": (
            spent(lambda: outer.encode_with_feedback("int4", case.values, case.residual)),
            0.0,
        ),
        "outer step with digests": (spent(step), 0.0),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("mebi", 40), ("learners", 8), ("fragments", 24), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    case = Case(fragment_of(chosen.mebi), chosen.learners)
    with tempfile.TemporaryDirectory() as folder:
        line = Line(Path(folder), bytes(case.payload))
        try:
            found = [costs(case, line) for _ in range(chosen.rounds + 1)][1:]  # One warms up.
        finally:
            line.close()
    show(found, chosen)


def show(found: list[dict[str, tuple[float, float]]], chosen: argparse.Namespace) -> None:
    """Processor seconds of a full sync, and the wall clock that they need."""
    cores = available()
    parameters = chosen.fragments * chosen.mebi * 1.048576
    print(f"{parameters:.0f} M parameters, {chosen.learners} learners, {cores} cores")
    print(f"{'CPU seconds for a full sync':30}{'syncer':>10}{'learners':>10}")
    totals = [0.0, 0.0]
    for name in found[0]:
        ends = [
            chosen.fragments * statistics.median(one[name][end] for one in found)
            for end in range(2)
        ]
        totals = [total + seconds for total, seconds in zip(totals, ends, strict=True)]
        print(f"{name:30}{ends[0]:10.2f}{ends[1]:10.2f}")
    print(f"{'all of it':30}{totals[0]:10.2f}{totals[1]:10.2f}")
    print(f"\nAt least {sum(totals) / cores:.1f} s of wall clock where they share these cores,")
    print(f"{totals[0] / cores:.1f} s where learners have others.")


if __name__ == "__main__":
    main()
