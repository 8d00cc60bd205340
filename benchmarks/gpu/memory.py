"""Real peak memory beside what is foretold, local steps that run out of it, and the micro-batch
that is found and remembered."""

from __future__ import annotations

import math

import torch

from benchmarks.gpu.device import PeakMemory, Unbounded, return_what_is_freed, squeezed
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import Workplace, builtin_of, release, workplace
from protocol.project import Genesis
from shoal.doctor.requirements import TRAINING_BYTES

NAME = "memory"
ROOM_FRACS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of what a whole batch takes beside the weights."""

SAME_LOSS = 0.01
"""Relative: a batch in smaller pieces is the same batch."""


def check(device: str, sizes: Sizes) -> list[Row]:
    """Halving, peak, cache."""
    kind = torch.device(device)
    return_what_is_freed(kind)
    with workplace(sizes) as place:
        genesis = place.genesis(sizes.memory_model)
        rows = _halving(place, genesis, device)
        release(kind)
        rows += _peak(place, genesis, device)
        release(kind)
        return rows + _found(place, genesis, device)


def _peak(place: Workplace, genesis: Genesis, device: str) -> list[Row]:
    """Of local steps with a micro-batch of one sequence, and with the whole batch."""
    rows, sizes = [], place.sizes
    name = sizes.memory_model.name
    for micro_batch in (1, sizes.batch_sequences):
        kind = torch.device(device)
        peak = PeakMemory(kind)
        peak.begin()
        setup = place.setup(genesis, device, micro_batch=micro_batch)
        for _ in range(2):  # Moments come with the first.
            setup.loop.step()
        took, least = peak.bytes(), TRAINING_BYTES * setup.layout.parameters
        what = f"peak with a micro-batch of {micro_batch} x {sizes.sequence_tokens}, {name}"
        rows.append(Row(NAME, what, took / 2**30, "GiB"))
        if micro_batch == 1:
            what = f"peak over {TRAINING_BYTES} bytes per parameter, which `shoal doctor` counts"
            rows.append(Row(NAME, what, took / least))
        del setup
        release(kind)
    return rows


def _halving(place: Workplace, genesis: Genesis, device: str) -> list[Row]:
    """A local step that runs out of memory is done again in smaller pieces, and nothing is lost.

    Each local step gets less room than the one before, until one does not fit.
    """
    kind = torch.device(device)
    expected, activations = _with_room(place, genesis, device)
    release(kind)
    setup = place.setup(genesis, device, micro_batch=place.sizes.batch_sequences)
    trainer = builtin_of(setup)
    before, loss = trainer.micro_batch, setup.loop.step().loss
    for frac in ROOM_FRACS:
        if trainer.micro_batch < before:
            break
        try:
            with squeezed(kind, int(frac * activations)):
                loss = setup.loop.step().loss
        except Unbounded as error:
            return [Row(NAME, "halving", why_not=str(error))]
    wanted = expected[setup.loop.local_step - 1]
    after, off = trainer.micro_batch, abs(loss - wanted) / wanted
    trouble = ""
    if not after < before or not any("memory ran out" in one for one in setup.loop.adjustments):
        trouble = f"the micro-batch went from {before} to {after}: {setup.loop.adjustments}"
    elif not math.isfinite(loss) or off > SAME_LOSS:
        trouble = f"its loss is {loss}, and {wanted} where there is memory"
    return [
        Row(NAME, f"micro-batch, {before} before memory ran out", after, error=trouble),
        Row(NAME, "loss of that step, off that with enough memory by", off, "of it"),
    ]


def _with_room(place: Workplace, genesis: Genesis, device: str) -> tuple[list[float], int]:
    """Losses of the same local steps with enough memory, and what such a step takes beside what
    stays, in bytes."""
    setup = place.setup(genesis, device, micro_batch=place.sizes.batch_sequences)
    peak = PeakMemory(torch.device(device))
    losses = [setup.loop.step().loss]
    peak.begin()
    held = peak.held()
    losses += [setup.loop.step().loss for _ in ROOM_FRACS]
    return losses, peak.bytes() - held


def _found(place: Workplace, genesis: Genesis, device: str) -> list[Row]:
    """The micro-batch that a trainer finds, and how long that takes at its first and second start.

    On a processor nothing is remembered, so that both take as long.
    """
    took_s, found = [], 0
    for _ in range(2):
        setup = place.setup(genesis, device, micro_batch=None)
        took_s.append(setup.startup_s["dry step"])
        found = setup.micro_batch
        del setup
        release(torch.device(device))
    batch = place.sizes.batch_sequences
    return [
        Row(NAME, f"micro-batch found, of a batch of {batch}", found, "sequences"),
        Row(NAME, "finding it at the first start", took_s[0], "s"),
        Row(NAME, "and at the second, by the cache", took_s[1], "s"),
    ]
