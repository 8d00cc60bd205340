"""Local steps per second of a learner in a swarm, over those of the bare loop.

.venv/bin/python benchmarks/inner_loop.py [--hidden 128] [--pairs 12] [--window-s 4] [--out FILE]

A syncer and one learner of real processes train a small Llama on the processor. A bare loop, plain
torch on the same model, text, batch and number of threads, runs beside it. Trainer and bare loop
have one core to themselves and take turns on it, stopped and continued by signals; daemon, syncer
and their network engines have the other cores. Told are the ratios of local steps per second of
neighbouring turns, in changing order: median and quartiles; and the same per second that each had
the core, which leaves out whoever else ran.

Then, in a trainer without a swarm: how long it takes to copy a fragment out of the model and to put
one in, over the length of a local step, and what that comes to for each local step of a cycle in
which every fragment is captured and delivered once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import platform
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from benchmarks.small_swarm import SmallSwarm, small_swarm
from host.files.home import Home
from host.files.signed_project import read_signed
from node.trainer.link import messages
from node.trainer_client.process import TrainerProcess
from protocol.project import Charter, Genesis, encode

SETTLE_S = 0.15
"""After a change of turns, so that what was under way has been told."""

COUNTER_BYTES = 8
CAPTURES = 12
EVENT_S = 60.0
E = TypeVar("E", bound=messages.Event)


def bare(genesis: Genesis, charter: Charter, cache: Path, counter: Path) -> None:
    """Local steps for ever, as anybody would write them; their number stands in a file."""
    import torch

    from node.trainer.model import build_model
    from node.trainer.text.corpus import open_corpus

    torch.set_num_threads(1)
    inner = charter.inner
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=cache)
    model = build_model(genesis.model, seed=genesis.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
        weight_decay=inner.weight_decay,
        fused=True,
    )
    with counter.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), COUNTER_BYTES)
    steps, position = 0, 0
    while True:
        block = torch.from_numpy(corpus.sequences(position))
        position += 1
        for batch in block.split(inner.batch_sequences):
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.float().view(-1, logits.shape[-1]), batch[:, 1:].reshape(-1)
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), inner.grad_norm_max)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            float(loss.detach())
            steps += 1
            shared[:] = struct.pack("<q", steps)


class Turns:
    """Trainer and bare loop, of which one runs at a time."""

    def __init__(self, swarm: SmallSwarm, trainer: int, bare_loop: int, counter: Path) -> None:
        self.swarm, self.pids = swarm, {True: trainer, False: bare_loop}
        self.counter = counter

    def count(self, is_swarm: bool) -> int:
        if is_swarm:
            return self.swarm.await_learner(lambda now: True).local_step
        return int(struct.unpack("<q", self.counter.read_bytes())[0])

    def rate(self, is_swarm: bool, window_s: float) -> tuple[float, float]:
        """Local steps in one turn, per second and per second that it had the core."""
        process = psutil.Process(self.pids[is_swarm])
        before, cpu_s = self.count(is_swarm), sum(process.cpu_times()[:2])
        os.kill(self.pids[is_swarm], signal.SIGCONT)
        started = time.monotonic()
        time.sleep(window_s)
        os.kill(self.pids[is_swarm], signal.SIGSTOP)
        took = time.monotonic() - started
        time.sleep(SETTLE_S)
        steps, cpu_s = self.count(is_swarm) - before, sum(process.cpu_times()[:2]) - cpu_s
        return steps / took, steps / cpu_s


def measure_ratios(chosen: argparse.Namespace, swarm: SmallSwarm) -> dict[str, object]:
    core = max(os.sched_getaffinity(0))
    others = sorted(os.sched_getaffinity(0) - {core})
    if not others:
        sys.exit("It takes two cores: one for the loops, one for everything else.")
    os.sched_setaffinity(0, others)
    swarm.processes.environment["SHOAL_LIMITS_NICE"] = (
        "0"  # The bare loop has no priority to give up either.
    )
    counter = swarm.home.root / "counter"
    counter.write_bytes(bytes(COUNTER_BYTES))
    swarm.start_first()
    swarm.start_learner()
    now = swarm.await_learner(lambda now: now.state == "training" and now.merged > 0)
    trainer = psutil.Process(now.trainer_pid)
    arguments = ["--bare", str(swarm.signed), "--home", str(swarm.home.root)]
    alone = subprocess.Popen(
        [sys.executable, __file__, *arguments, "--counter", str(counter)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    try:
        turns = Turns(swarm, trainer.pid, alone.pid, counter)
        while turns.count(False) == 0:
            time.sleep(0.1)
        for process in (trainer, psutil.Process(alone.pid)):
            process.suspend()
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {core})
        before, pairs = swarm.await_learner(lambda now: True), []
        for number in range(chosen.pairs + 1):
            order = (True, False) if number % 2 else (False, True)
            rates = {is_swarm: turns.rate(is_swarm, chosen.window_s) for is_swarm in order}
            if number:  # The first pair warms everything up.
                pairs.append((rates[True], rates[False]))
                print(json.dumps(rates), flush=True)
        after = swarm.await_learner(lambda now: True)
    finally:
        trainer.resume()
        alone.kill()
        alone.wait()
    return {
        "ratio": quartiles([one[0] / other[0] for one, other in pairs]),
        "ratio_on_cpu": quartiles([one[1] / other[1] for one, other in pairs]),
        "swarm_steps_per_s": quartiles([one[0] for one, _ in pairs]),
        "bare_steps_per_s": quartiles([other[0] for _, other in pairs]),
        "parameters": now.project.parameters,
        "fragments": now.project.fragments,
        "merged_meanwhile": after.merged - before.merged,
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """25th, 50th and 75th percentile."""
    return [round(one, 5) for one in statistics.quantiles(values, n=4, method="inclusive")]


class Trainer:
    """A trainer without a swarm."""

    def __init__(self, log: Path) -> None:
        self.events: asyncio.Queue[messages.Event] = asyncio.Queue()
        self.process = TrainerProcess(
            log_path=log, on_event=self.events.put_nowait, on_exit=lambda reason: None
        )

    async def next(self, kind: type[E]) -> E:
        """The next event of this kind."""
        async with asyncio.timeout(EVENT_S):
            while not isinstance(event := await self.events.get(), kind):
                assert not isinstance(event, messages.Failed), event
        return event


async def measure_copies(path: Path, home: Home) -> dict[str, object]:
    """A fragment's way out of and into the model, in seconds, beside a local step's."""
    signed = read_signed(path)
    genesis, charter = signed.genesis, signed.charter
    from node.trainer.model import layout_of

    one = Trainer(home.root / "copies.log")
    await one.process.start(
        messages.Configure(
            genesis=encode(genesis),
            inner=msgspec.msgpack.encode(charter.inner),
            data_cache=str(home.data_cache()),
            threads=1,
            device="cpu",
        )
    )
    await one.next(messages.Ready)
    sizes = [fragment.numel for fragment in layout_of(genesis).fragments]
    numel = max(sizes)
    slots = {size: one.process.slot(size) for size in sizes}
    for fragment, size in enumerate(sizes):
        one.process.send(messages.Assign(fragment, fragment, slots[size].identity, size))
        await one.next(messages.Done)
    one.process.send(messages.Blocks(((0, 100_000),)))
    one.process.send(messages.Begin())
    out, into, steps = [], [], []
    largest, slot = sizes.index(numel), slots[numel]
    for number in range(CAPTURES):
        steps += [(await one.next(messages.Stepped)).work_s for _ in range(4)]
        one.process.send(messages.Snapshot(number, largest, slot.identity, numel))
        out.append((await one.next(messages.Done)).seconds)
        one.process.send(messages.Assign(number, largest, slot.identity, numel))
        into.append((await one.next(messages.Done)).seconds)
    await one.process.stop(2.0)
    step_s, copies = statistics.median(steps), [statistics.median(out), statistics.median(into)]
    return {
        "fragment_mib": 4 * numel / 2**20,
        "step_s": step_s,
        "capture_of_a_step": copies[0] / step_s,
        "delivery_of_a_step": copies[1] / step_s,
        "amortised": sum(copies) * len(sizes) / charter.rounds.local_steps / step_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--window-s", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--counter", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare is not None:
        signed = read_signed(chosen.bare)
        return bare(signed.genesis, signed.charter, Home(chosen.home).data_cache(), chosen.counter)
    found = {"hidden": chosen.hidden, "processor": platform.processor() or platform.machine()}
    with small_swarm(hidden=chosen.hidden) as swarm:
        found |= measure_ratios(chosen, swarm)
        swarm.close()
        found |= asyncio.run(measure_copies(swarm.signed, swarm.home))
    text = json.dumps(found, indent=2)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
