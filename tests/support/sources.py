"""The project's own sources, as trees: tests that look at all of them share these."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def trees_of(folder: str) -> dict[str, ast.Module]:
    """The tree of every Python file in a folder of the project, by its path from the root."""
    # A million nodes and no circle among them: looking for some takes four times as long as this.
    gc.disable()
    try:
        found = sorted((ROOT / folder).rglob("*.py"))
        return {str(one.relative_to(ROOT)): ast.parse(one.read_text()) for one in found}
    finally:
        gc.freeze()
        gc.enable()
