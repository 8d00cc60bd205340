"""Tokens per second of the inner loop, over those of a plain torch loop of the same configuration.

Both take turns on the device, each alone in its memory; told are medians of the turns.
"""

from __future__ import annotations

import statistics

import torch

from benchmarks.gpu.plain import PlainLoop
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import Workplace, builtin_of, median_step_s, release, workplace
from protocol.project import Genesis

NAME = "speed"
RATIO_MIN = 0.95


def check(device: str, sizes: Sizes) -> list[Row]:
    """Both speeds, and their ratio with its bar."""
    kind = torch.device(device)
    ours, plain = [], []
    with workplace(sizes) as place:
        genesis = place.genesis(sizes.model)
        micro_batch, is_bf16 = sizes.micro_batch, False
        for _ in range(sizes.turns):
            took_s, micro_batch, is_bf16 = _ours(place, genesis, device)
            ours.append(took_s)
            release(kind)
            plain.append(_plain(place, genesis, kind, micro_batch, is_bf16))
            release(kind)
    tokens = sizes.batch_sequences * sizes.sequence_tokens
    mine, theirs = (tokens / statistics.median(one) for one in (ours, plain))
    precision = "bf16" if is_bf16 else "f32"
    what = f"{sizes.model.name}, {precision}, micro-batch {micro_batch} x {sizes.sequence_tokens}"
    return [
        Row(NAME, f"inner loop: {what}", mine, "tokens/s"),
        Row(NAME, "plain torch loop: the same", theirs, "tokens/s"),
        Row(NAME, "inner loop over plain torch loop", mine / theirs, at_least=RATIO_MIN),
    ]


def _ours(place: Workplace, genesis: Genesis, device: str) -> tuple[float, int, bool]:
    """Seconds of a local step, the micro-batch that was left, and whether it is bf16."""
    setup = place.setup(genesis, device)
    took_s = median_step_s(setup.loop.step, place.sizes)
    trainer = builtin_of(setup)
    return took_s, trainer.micro_batch, trainer.accelerator.mixed_precision == "bf16"


def _plain(
    place: Workplace, genesis: Genesis, device: torch.device, micro_batch: int, is_bf16: bool
) -> float:
    loop = PlainLoop(place, genesis, device, micro_batch=micro_batch, is_bf16=is_bf16)
    return median_step_s(loop.step, place.sizes)
