"""A trainer process on the device trains, captures, delivers, measures and ends."""

from __future__ import annotations

import asyncio
import math

import numpy as np

from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import LiveTrainer, Workplace, live_trainer, numel_of, workplace
from node.trainer.link import messages
from node.trainer.model import Floats, initial_weights
from protocol.project import Genesis

NAME = "smoke"
HELDOUT = 8
"""Sequences."""


def check(device: str, sizes: Sizes) -> list[Row]:
    """One row for each thing that must work; those that did not are errors."""
    with workplace(sizes) as place:
        return asyncio.run(_live(place, device))


async def _live(place: Workplace, device: str) -> list[Row]:
    genesis = place.genesis(place.sizes.model)
    first = initial_weights(genesis)
    async with live_trainer(place, genesis, device) as (one, ready):
        rows = [_ready(ready, device), *await _delivers(one, first)]
        one.process.send(messages.Blocks(((0, 1000),)))
        one.process.send(messages.Begin())
        steps = [await one.next(messages.Stepped) for _ in range(place.sizes.loss_steps)]
        rows.append(_trains([step.loss for step in steps]))
        one.process.send(messages.Pause())
        rows.append(_captures(first, await _captured(one, genesis)))
        rows.append(await _measures(one, first))
        ended = await one.process.stop(30.0)
        code = ended.code if ended is not None else None
        trouble = "" if code == messages.EXIT_OK else f"it ended with {code}"
        rows.append(Row(NAME, "ends when told", 0.0, "exit code", error=trouble))
    return rows


def _ready(ready: messages.Ready, device: str) -> Row:
    startup_s = sum(ready.startup_s.values())
    kind = device.partition(":")[0]
    trouble = "" if ready.device.startswith(kind) else f"it is on {ready.device}"
    return Row(NAME, "ready on the device after", startup_s, "s", error=trouble)


async def _delivers(one: LiveTrainer, first: list[Floats]) -> list[Row]:
    """Every fragment is put in, added to, and read again, to the bit."""
    worst = 0.0
    for fragment, values in enumerate(first):
        half = (values / 2).astype(np.float32)
        await one.put(messages.Assign, fragment, half)
        await one.put(messages.Add, fragment, half)
        seen = await _snapshot(one, fragment, values.size)
        worst = max(worst, float(np.abs(seen - (half + half)).max(initial=0.0)))
        await one.put(messages.Assign, fragment, values)
    trouble = "" if worst == 0.0 else "fragments come back otherwise than they went in"
    return [Row(NAME, "fragments come back as delivered, to within", worst, error=trouble)]


def _trains(losses: list[float]) -> Row:
    fell = losses[0] - losses[-1]
    trouble = "" if all(map(math.isfinite, losses)) and fell > 0.0 else f"losses: {losses}"
    return Row(NAME, f"loss fell in {len(losses)} local steps by", fell, "nats", error=trouble)


def _captures(first: list[Floats], seen: list[Floats]) -> Row:
    moved = [float(np.abs(now - then).max()) for now, then in zip(seen, first, strict=True)]
    is_sound = all(math.isfinite(one) and one > 0.0 for one in moved)
    trouble = "" if is_sound else f"displacements of the fragments: {moved}"
    return Row(NAME, "largest displacement captured", max(moved), error=trouble)


async def _measures(one: LiveTrainer, first: list[Floats]) -> Row:
    """Held-out loss of other weights, which leaves those in training alone."""
    values = np.concatenate(first)
    slot = one.process.slot(values.size)
    slot.values[:] = values
    one.process.send(messages.Evaluate(1, slot.identity, slot.numel, HELDOUT))
    found = await one.next(messages.Evaluated)
    one.process.release(slot)
    trouble = "" if math.isfinite(found.loss) else "it is not finite"
    return Row(NAME, "held-out loss of the first weights", found.loss, "nats", error=trouble)


async def _snapshot(one: LiveTrainer, fragment: int, numel: int) -> Floats:
    slot = one.process.slot(numel)
    one.process.send(messages.Snapshot(fragment, fragment, slot.identity, numel))
    await one.next(messages.Done)
    found = slot.values.copy()
    one.process.release(slot)
    return found


async def _captured(one: LiveTrainer, genesis: Genesis) -> list[Floats]:
    return [await _snapshot(one, at, numel) for at, numel in enumerate(numel_of(genesis))]
