"""How long copies of fragments keep the inner loop waiting, beside a local step.

A trainer process trains, and gets a capture or a delivery at some boundaries, as from a daemon. A
stall is what the local steps behind such a boundary take longer than the others.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable

from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Model, Sizes
from benchmarks.gpu.workplace import LiveTrainer, Workplace, live_trainer, numel_of, workplace
from node.trainer.failures import TrainerFailure
from node.trainer.link import messages
from protocol.project import Genesis

NAME = "stalls"
APART = 3
"""Local steps of which the middle ones are undisturbed."""

Command = Callable[[int, int, int, int], messages.Command]


def check(device: str, sizes: Sizes) -> list[Row]:
    """For each model: a step, both stalls, and what they come to for a step of a whole cycle."""
    rows: list[Row] = []
    with workplace(sizes) as place:
        for model in sizes.stall_models:
            try:
                rows += asyncio.run(_measure(place, device, model))
            except TrainerFailure as error:
                if error.kind not in ("oom", "memory"):
                    raise
                why = f"too little memory ({error})"
                rows.append(Row(NAME, f"stalls of {model.name}", why_not=why))
    return rows


async def _measure(place: Workplace, device: str, model: Model) -> list[Row]:
    sizes, genesis = place.sizes, place.genesis(model)
    async with live_trainer(place, genesis, device) as (one, _):
        await one.begin(genesis)
        for _ in range(sizes.warm_steps + 1):
            await one.next(messages.Stepped)
        plain_s, capture_s, delivery_s = await _stepped(one, genesis, sizes)
    stalls = [one - plain_s for one in (capture_s, delivery_s)]
    each = sum(stalls) * sizes.fragments / sizes.local_steps
    mib = 4 * max(numel_of(genesis)) / 2**20
    name = f"{model.name}, fragments of {mib:.3g} MiB"
    return [
        Row(NAME, f"a local step of {name}", plain_s, "s"),
        Row(NAME, f"a capture of {model.name}", stalls[0] / plain_s, "of a step"),
        Row(NAME, f"a delivery of {model.name}", stalls[1] / plain_s, "of a step"),
        Row(
            NAME,
            f"both, each fragment once in {sizes.local_steps} local steps, {model.name}",
            each / plain_s,
            "of a step",
        ),
    ]


async def _stepped(one: LiveTrainer, genesis: Genesis, sizes: Sizes) -> tuple[float, float, float]:
    """Medians of a local step: undisturbed, with a capture, and with a delivery before it."""
    sizes_of = numel_of(genesis)
    numel = max(sizes_of)
    fragment, slot = sizes_of.index(numel), one.process.slot(numel)
    kinds: dict[str, Command | None] = {
        "plain": None,
        "capture": messages.Snapshot,
        "delivery": messages.Assign,
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for job in range(sizes.captures):
        for name, command in kinds.items():
            if command is not None:
                one.process.send(command(job, fragment, slot.identity, numel))
                await one.next(messages.Done)
            steps = [(await one.next(messages.Stepped)).step_s for _ in range(APART)]
            # A copy beside the step delays that step or the one behind it: both are counted.
            found[name].append(steps[0] + steps[1])
    one.process.release(slot)
    pair_s = {name: statistics.median(pairs) for name, pairs in found.items()}
    plain_s = pair_s["plain"] / 2
    return plain_s, pair_s["capture"] - plain_s, pair_s["delivery"] - plain_s
