"""What recording costs the syncer's machine, and what a tape takes.

python benchmarks/taping.py [--learners 8] [--until 120] [--times 5]

A simulated swarm runs once with a tape, in virtual time. Its inputs are then fed to fresh machines
as fast as they take them, by turns bare and recorded to a real disk through the daemon's own
recorder. Told is the ratio of the recorded machine's time on its own thread to that of the bare
one, as the median over pairs; the tape's thread is not in it, but told beside. Then the share of
a core that recording takes in the swarm's own time, and the bytes of a tape for each event.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import random  # noqa: E402

from host.tape.tape_file import TapeLabel, TapeRecorder, TapeWriter, find_tapes  # noqa: E402
from protocol.machine import Event  # noqa: E402
from protocol.project import Genesis  # noqa: E402
from protocol.tape import Began, Input  # noqa: E402
from simulator.stand_ins.tiny import SimSigner, sim_verify  # noqa: E402
from simulator.swarm.swarm import build_swarm  # noqa: E402
from syncer_node.machine.syncer import SyncerMachine  # noqa: E402
from syncer_node.storage.tape_recorder import (  # noqa: E402
    RecordedMachine,
    built_from,
    read_event,
    read_seeds,
)
from tests.support.taping import Direct  # noqa: E402


def recorded(folder: Path, learners: int, until_s: float) -> tuple[Began, list[Input]]:
    """The inputs of a simulated syncer."""
    made: list[Direct] = []

    def tape(host):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        label = TapeLabel(host.tiny.project, "syncer", host.key, host.name, "simulated")
        made.append(Direct(TapeWriter(folder, label, b"12345678", mib_max=512, wall_s=1.0)))
        return made[-1]

    steps_s = tuple(0.3 + 0.02 * number for number in range(learners))
    build_swarm(1, steps_s=steps_s, tape=tape).world.run(until_s)
    made[0].writer.close()
    (life,) = find_tapes(folder)
    frames = [frame for _, frame in life.frames("events")]
    began = frames[0]
    assert isinstance(began, Began)
    return began, [one for one in frames if isinstance(one, Input)]


def bare_s(began: Began, inputs: list[tuple[Event, float]]) -> float:
    """Seconds of this thread for all inputs, unrecorded."""
    setup, recovered = parts(began)
    machine = SyncerMachine(setup, recovered)
    started_s = time.thread_time()
    for event, at_s in inputs:
        machine.handle(event, at_s)
    return time.thread_time() - started_s


def taped_s(
    began: Began, inputs: list[tuple[Event, float]], folder: Path
) -> tuple[float, float, int]:
    """Seconds of this thread, of all threads, and bytes on disk."""
    setup, recovered = parts(began)
    label = TapeLabel(setup.project, "syncer", setup.signer.key, "one", "simulated")
    writer = TapeWriter(folder, label, b"abcdefgh", mib_max=512, wall_s=2.0)
    recorder = TapeRecorder(writer, on_stop=sys.exit)
    seed = read_seeds(began.setup).rng_seed
    machine = RecordedMachine(setup, recovered, seed, recorder, "benchmark")
    started_s, all_s = time.thread_time(), time.process_time()
    for event, at_s in inputs:
        machine.handle(event, at_s)
    own_s = time.thread_time() - started_s
    recorder.close()
    return own_s, time.process_time() - all_s, sum(one.stat().st_size for one in folder.iterdir())


def parts(began: Began):  # type: ignore[no-untyped-def]  # noqa: ANN201
    import msgspec

    seeds = read_seeds(began.setup)
    genesis = msgspec.msgpack.decode(began.genesis, type=Genesis)
    signer = SimSigner("syncer")
    assert signer.key == seeds.key
    setup, recovered = built_from(seeds, genesis, signer, sim_verify)
    return replace(setup, rng=random.Random(seeds.rng_seed)), recovered


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--until", type=float, default=120.0)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began, frames = recorded(Path(folder), chosen.learners, chosen.until)
    inputs = [(read_event(one.kind, one.content), one.at_s) for one in frames]
    ratios, extra, sizes, both = [], [], [], []
    for _ in range(chosen.times):
        bare = bare_s(began, inputs)
        with tempfile.TemporaryDirectory() as folder:
            own, every, size = taped_s(began, inputs, Path(folder))
        ratios.append(own / bare)
        extra.append(own - bare)
        both.append(every - bare)
        sizes.append(size)
    span_s = inputs[-1][1] - inputs[0][1]
    print(f"{len(inputs):,} events in {span_s:.0f} s of a swarm of {chosen.learners} learners")
    print(f"recorded / bare, the machine's own thread: {statistics.median(ratios):.2f}")
    print(f"share of a core for recording, own thread: {statistics.median(extra) / span_s:.5f}")
    print(f"share of a core, the tape's thread too:    {statistics.median(both) / span_s:.5f}")
    print(f"bytes for each event: {statistics.median(sizes) / len(inputs):.0f}")
    print(f"MiB in a day: {statistics.median(sizes) / span_s * 86400 / 2**20:.0f}")


if __name__ == "__main__":
    main()
