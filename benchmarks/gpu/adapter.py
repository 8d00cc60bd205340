"""An adapter beside a model of 8 thousand million parameters, in the memory of a card of 24 GB.

The base has random values in bf16, as large and as fast as the published ones
(`node.trainer.adapters.network.stand_in`), and the trial is the one that `shoal doctor` makes.
"""

from __future__ import annotations

import importlib.util

import msgspec
import psutil
import torch

from benchmarks.gpu.device import PeakMemory, facts_of
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Model, Sizes
from node.trainer.model import describe_model
from node.trainer.tools.trial import try_out
from node.trainer.tools.trial_facts import TrialWish
from protocol.project import AdapterSpec

NAME = "adapter"
RANK = 16
HOST_SPARE = 1.2
"""The base is made in the memory of the machine, once and a little."""


def check(device: str, sizes: Sizes) -> list[Row]:
    """Memory with its bar, speed, and the same with the base in 4 bits where that is installed."""
    model = sizes.adapter_model
    shapes = [one.shape for one in describe_model(model.architecture, model.config).tensors]
    parameters = sum(int(torch.Size(shape).numel()) for shape in shapes)
    free = psutil.virtual_memory().available
    if free < 2 * parameters * HOST_SPARE:
        why = f"the machine has {free / 2**30:.0f} GiB free for a base of {parameters:,} parameters"
        return [Row(NAME, f"LoRA beside {model.name}", why_not=why)]
    rows = _tried(device, sizes, model, in_4_bits=False)
    if importlib.util.find_spec("bitsandbytes") is None or not facts_of(device).is_accelerator:
        why = "it needs bitsandbytes, and an accelerator"
        return [*rows, Row(NAME, "with the base in 4 bits", why_not=why)]
    return rows + _tried(device, sizes, model, in_4_bits=True)


def _tried(device: str, sizes: Sizes, model: Model, *, in_4_bits: bool) -> list[Row]:
    PeakMemory(torch.device(device)).begin()  # What the trial before took is not this one's.
    answer = try_out(
        TrialWish(
            architecture=model.architecture,
            config=dict(model.config),
            inner=msgspec.structs.replace(sizes.inner, batch_sequences=1),
            sequence_tokens=sizes.sequence_tokens,
            adapter=AdapterSpec(RANK, 2.0 * RANK, 0.0, ("all-linear",), "both", "bf16"),
            base_in_4_bits=in_4_bits,
            device=device,
            threads=sizes.cores,
        )
    )
    base = "4 bits" if in_4_bits else "bf16"
    what = f"LoRA of rank {RANK} beside {model.name} in {base}, 1 x {sizes.sequence_tokens}"
    if answer.trouble:
        if answer.is_out_of_memory:
            return [Row(NAME, what, why_not=f"too little memory ({answer.trouble})")]
        return [Row(NAME, what, error=answer.trouble)]
    return [
        Row(NAME, f"parameters trained: {what}", answer.parameters),
        Row(NAME, "memory", answer.memory_bytes / 1e9, "GB", at_most=sizes.adapter_bytes_max / 1e9),
        Row(NAME, "speed", answer.tokens_per_s, "tokens/s"),
    ]
