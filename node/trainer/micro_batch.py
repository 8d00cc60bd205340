"""How many sequences fit on the device at once, found by trying and remembered.

A dry step is the worst that training asks for: sequences of full length, gradients kept from the
pass before, and room for the optimizer's moments, which a fresh trainer does not have yet. An
accelerator says when its memory is full, so there the largest pieces are tried first. A processor's
system does not say, it ends the process; there one sequence is measured and the rest computed. So
it is where ranks hold the model together, for none of them may fail alone.

What an accelerator took is remembered in the home's cache, by model, device, precision, and the
versions of driver and torch. A processor's memory is others' too, and is looked at each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import torch
from blake3 import blake3
from msgspec import Struct
from torch import Tensor

from host.runtime.process_status import Line, status_bytes
from node.trainer.builtin import BuiltinTrainer
from node.trainer.failures import is_out_of_memory
from node.trainer.files import write_atomically
from protocol import decoders
from protocol.errors import UserError
from protocol.project import Genesis

FILE: Final = "micro-batches.json"
KEPT_MAX: Final = 256
"""Combinations of model and machine; the oldest go."""

ROOM_FRAC: Final = 0.8
"""Of free memory on a processor; the rest is for others, and for what was not seen."""

CLEAR_REFS: Final = Path("/proc/self/clear_refs")
RESET_PEAK: Final = "5"
"""From the kernel's proc(5): the peak of resident memory begins anew."""


class Fit(Struct, frozen=True):
    """What was found."""

    sequences: int
    facts: dict[str, str]
    """What it was found for, for people who look into the file."""


def fit(
    trainer: BuiltinTrainer, genesis: Genesis, *, folder: Path, room_bytes: int | None, ranks: int
) -> int:
    """The largest micro-batch that fits, in 1 .. `trainer.micro_batch`.

    folder: the home's cache. room_bytes: memory of the machine that this process may come to hold;
    None for its part of what is free, as one of so many ranks.
    Weights, moments and the random stream stay as they are. Raises what the device raises if one
    sequence is too much.
    """
    wanted = trainer.micro_batch

    dry = trainer.rehearse
    try:
        if trainer.device.type == "cpu":
            return _computed(trainer, dry, wanted, room_bytes, ranks)
        if trainer.is_sharded:
            return _computed_there(trainer, dry, wanted)
        facts = {**_facts(trainer, genesis), "sequences": str(wanted)}
        known = recall(folder, facts)
        if known is not None and 1 <= known <= wanted:
            return known
        found = _tried(trainer, dry, wanted)
        remember(folder, Fit(found, facts))
        return found
    finally:
        trainer.forget_gradients()


def even(micro_batch: int, sequences: int) -> int:
    """The smallest micro-batch that needs no more passes for so many sequences."""
    passes = -(-sequences // micro_batch)
    return -(-sequences // passes)


def _tried(trainer: BuiltinTrainer, dry: Callable[[int], None], wanted: int) -> int:
    """From the largest down, with the moments' room taken."""
    while True:
        try:
            moments: Tensor | None = _moments_room(trainer)
            dry(wanted)
            dry(wanted)  # With gradients there, as in every pass but a step's first.
            del moments
            return wanted
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if wanted == 1 and not trainer.checkpoint_activations():
                raise
        moments = None
        wanted = (wanted + 1) // 2
        trainer.forget_gradients()


def _moments_room(trainer: BuiltinTrainer) -> Tensor:
    return torch.zeros(trainer.moments_bytes(), dtype=torch.uint8, device=trainer.device)


def _computed(
    trainer: BuiltinTrainer,
    dry: Callable[[int], None],
    wanted: int,
    room_bytes: int | None,
    ranks: int,
) -> int:
    """From what one sequence takes, gradients and libraries already there."""
    dry(1)
    before = _reset_peak()
    dry(1)
    each = max(0, _kib("VmHWM") - before)
    free = ROOM_FRAC * float(psutil.virtual_memory().available) / ranks
    if room_bytes is not None:
        free = min(free, room_bytes - before)
    free -= trainer.moments_bytes()  # To come.
    is_enough = trainer.least(int(each <= free))
    if not is_enough and trainer.checkpoint_activations():
        return _computed(trainer, dry, wanted, room_bytes, ranks)
    return trainer.least(_of(free, each, wanted))


def _computed_there(trainer: BuiltinTrainer, dry: Callable[[int], None], wanted: int) -> int:
    """The same on an accelerator: a rank that ran out of memory would leave others waiting for it
    in the middle of a pass. Not run on a real device."""
    device = trainer.device
    library: Any = torch.cuda if device.type == "cuda" else torch.xpu
    dry(1)
    library.empty_cache()
    library.reset_peak_memory_stats(device)
    before = library.memory_allocated(device)
    dry(1)
    each = library.max_memory_allocated(device) - before
    room, total = library.mem_get_info(device)
    # The owner's ceiling, as `memory_limits` set it.
    ceiling = total * library.get_per_process_memory_fraction(device) - before
    free = ROOM_FRAC * (min(room, ceiling) - trainer.moments_bytes())
    is_enough = trainer.least(int(each <= free))
    if not is_enough and trainer.checkpoint_activations():
        return _computed_there(trainer, dry, wanted)
    return trainer.least(_of(free, each, wanted))


def _of(free: float, each: int, wanted: int) -> int:
    """How many sequences of so many bytes each, 1 at least."""
    return wanted if not each else max(1, min(wanted, int(free // each)))


def _reset_peak() -> int:
    """Resident bytes now; the peak is counted from here where the system can do that."""
    if not CLEAR_REFS.exists():
        return _kib("VmRSS")
    # Where it may not, the old peak stands: then a sequence seems to take more than it does.
    with suppress(OSError):
        CLEAR_REFS.write_text(RESET_PEAK)
    return _kib("VmRSS")


def _kib(name: Line) -> int:
    """A line of the kernel's account of this process, in bytes; 0 where it keeps none."""
    return status_bytes(name) or 0


def _facts(trainer: BuiltinTrainer, genesis: Genesis) -> dict[str, str]:
    """All that decides what fits."""
    described: list[object] = [genesis.model.architecture, genesis.model.config]
    if genesis.adapter is not None:
        described.append(msgspec.structs.replace(genesis.adapter, frozen=(), pieces=()))
    model = msgspec.msgpack.encode(described)
    facts = {
        "model": blake3(model).hexdigest(16),
        "sequence_tokens": str(genesis.data.sequence_tokens),
        "optimizer": f"{trainer.inner.optimizer}, {trainer.moments_bytes()} bytes",
        "device": trainer.device.type,
        "precision": trainer.accelerator.mixed_precision,
        "torch": str(torch.__version__),
        "compiled": str(trainer.is_compiled),
        "checkpointed": str(trainer.is_checkpointed),
    }
    if trainer.device.type == "cuda":
        properties = torch.cuda.get_device_properties(trainer.device)
        facts["device"] = f"{properties.name}, {properties.total_memory} bytes"
        facts["driver"] = f"{torch.version.cuda or torch.version.hip} {_driver()}"
        facts["share"] = f"{torch.cuda.get_per_process_memory_fraction(trainer.device):.3f}"
    elif trainer.device.type == "xpu":
        facts["device"] = str(torch.xpu.get_device_properties(trainer.device))
    return facts


def _driver() -> str:
    """Of NVIDIA's driver; empty where it does not say."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    return "" if ask is None else str(ask())


def recall(folder: Path, facts: dict[str, str]) -> int | None:
    """What was found for these facts; None if nothing was."""
    found = _read(folder).get(_key(facts))
    return None if found is None else found.sequences


def remember(folder: Path, found: Fit) -> None:
    """Keeps it for the next start. A cache that cannot be written is said, and done without."""
    known = _read(folder)
    known.pop(_key(found.facts), None)
    known[_key(found.facts)] = found
    newest = dict(list(known.items())[-KEPT_MAX:])
    try:
        write_atomically(folder / FILE, msgspec.json.format(msgspec.json.encode(newest)))
    except UserError as error:
        print(f"the micro-batch cannot be remembered: {error}", file=sys.stderr, flush=True)


def _read(folder: Path) -> dict[str, Fit]:
    try:
        return decoders.json_decoder(dict[str, Fit]).decode((folder / FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        print(f"{folder / FILE} is begun anew: {error}", file=sys.stderr, flush=True)
        return {}


def _key(facts: dict[str, str]) -> str:
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest(16)
