"""What being in a swarm costs the inner loop on the device.

The same trainer trains alone, in a swarm of real daemons with a syncer on this machine, and alone
again. In the swarm every fragment is captured, sent, merged and delivered all the while; held-out
loss is measured by nobody. Local steps are counted between two moments at which one ended.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import Workplace, live_trainer, workplace
from benchmarks.small_swarm import SmallSwarm, small_swarm
from host.files.signed_project import read_signed
from node.trainer.link import messages
from protocol.project import Genesis
from protocol.status import NodeStatus
from shoal.project.template import Value

NAME = "swarm"
OVERHEAD_MAX = 0.02
MERGES_FIRST = 2
"""Before counting begins, so that the first captures and deliveries have had their turn."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a window saw."""

    steps_per_s: float
    merged: int = 0


def check(device: str, sizes: Sizes) -> list[Row]:
    """Local steps per second alone and in the swarm, and what is lost, with its bar."""
    with (
        workplace(sizes) as place,
        small_swarm(local_steps=sizes.local_steps, changes=_settings(place)) as swarm,
    ):
        genesis = read_signed(swarm.signed).genesis
        before = asyncio.run(_alone(place, genesis, device))
        within = _in_swarm(swarm, device, sizes)
        swarm.close()
        after = asyncio.run(_alone(place, genesis, device))
    alone = (before.steps_per_s + after.steps_per_s) / 2
    what = f"{sizes.swarm_model.name}, {sizes.batch_sequences} x {sizes.sequence_tokens}"
    trouble = "" if within.merged else "nothing was merged in the window"
    return [
        Row(NAME, f"alone: {what}", alone, "local steps/s"),
        Row(NAME, "in a swarm", within.steps_per_s, "local steps/s"),
        Row(NAME, "merges meanwhile", within.merged, error=trouble),
        Row(
            NAME,
            "lost by being in the swarm",
            1.0 - within.steps_per_s / alone,
            "of the speed",
            at_most=OVERHEAD_MAX,
        ),
    ]


def _settings(place: Workplace) -> dict[str, Value]:
    """The project file, beside what a small swarm has anyway."""
    sizes = place.sizes
    model: dict[str, Value] = {
        f"model.config.{key}": value
        for key, value in sizes.swarm_model.config.items()
        if isinstance(value, int | float | str | bool)
    }
    return {
        **model,
        "model.architecture": sizes.swarm_model.architecture,
        "model.fragments": sizes.fragments,
        "data.sequence_tokens": sizes.sequence_tokens,
        "training.batch_sequences": sizes.batch_sequences,
        "limits.evaluate_every": 100_000,
        "outer.probes_frac": 0.0,
    }


async def _alone(place: Workplace, genesis: Genesis, device: str) -> Counted:
    """The speed of a trainer that nobody disturbs."""
    async with live_trainer(place, genesis, device) as (one, _):
        await one.begin(genesis)
        for _ in range(place.sizes.warm_steps):
            await one.next(messages.Stepped)
        began_s, steps = time.monotonic(), 0
        while time.monotonic() - began_s < place.sizes.window_s:
            await one.next(messages.Stepped)
            steps += 1
        return Counted(steps / (time.monotonic() - began_s))


def _in_swarm(swarm: SmallSwarm, device: str, sizes: Sizes) -> Counted:
    """The speed of a learner whose fragments are merged."""
    swarm.processes.environment["SHOAL_LIMITS_NICE"] = "0"  # As the trainer alone.
    swarm.start_first()
    words = ("join", swarm.link, "--name", "learner", "--listen", "127.0.0.1", "--log-text")
    limits = ("--threads", str(sizes.cores), "--micro-batch", str(sizes.micro_batch))
    swarm.start("learner", "learner", *words, "--device", device, *limits, "--no-evaluate")
    first = swarm.await_learner(lambda now: now.merged >= MERGES_FIRST)
    began, began_s = _edge(swarm, first.local_step)
    swarm.await_learner(lambda now: time.monotonic() - began_s >= sizes.window_s)
    last = swarm.await_learner(lambda now: True)
    ended, ended_s = _edge(swarm, last.local_step)
    rate = (ended.local_step - began.local_step) / (ended_s - began_s)
    return Counted(rate, ended.merged - began.merged)


def _edge(swarm: SmallSwarm, step: int) -> tuple[NodeStatus, float]:
    """What the learner says just after the end of a local step, and when."""
    now = swarm.await_learner(lambda now: now.local_step > step)
    return now, time.monotonic()
