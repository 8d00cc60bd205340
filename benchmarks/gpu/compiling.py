"""What torch.compile gains, and what it costs at the start."""

from __future__ import annotations

import torch

from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.workplace import builtin_of, median_step_s, release, workplace

NAME = "compile"


def check(device: str, sizes: Sizes) -> list[Row]:
    """Speed with over without, and the seconds; why not, where the compiler fails."""
    kind = torch.device(device)
    with workplace(sizes) as place:
        genesis = place.genesis(sizes.model)
        setup = place.setup(genesis, device)
        before_s = median_step_s(setup.loop.step, sizes)
        del setup
        release(kind)
        setup = place.setup(genesis, device, compiles=True)
        after_s = median_step_s(setup.loop.step, sizes)
        if not builtin_of(setup).is_compiled:
            why = "; ".join(setup.loop.take_adjustments()) or "the compiler was left out"
            return [Row(NAME, "speed with over without", why_not=why)]
    return [
        Row(NAME, f"speed with over without: {sizes.model.name}", before_s / after_s),
        Row(NAME, "compiling at the start", setup.startup_s["compile"], "s"),
    ]
