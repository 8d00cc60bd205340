"""What the processor of this machine is, as far as Linux tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CPU_INFO: Final = Path("/proc/cpuinfo")
BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Of processors that torch's kernels use. ARM's were not measured."""


def model_name() -> str:
    """As its maker calls it; empty where nobody tells."""
    return _first("model name")


def has_bf16() -> bool:
    """Whether it has instructions that multiply bf16; False where nobody tells."""
    return not BF16_FLAGS.isdisjoint(_first("flags").split())


def _first(wanted: str) -> str:
    """What is said of the first core under this name."""
    try:
        lines = CPU_INFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""  # Not Linux.
    told = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in told if name.strip() == wanted), "")
