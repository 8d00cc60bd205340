"""The project files in `examples/`, with other values where a test needs them."""

from __future__ import annotations

from pathlib import Path

import tomlkit

EXAMPLES = Path(__file__).parents[2] / "examples"


def example_text(place, **changes):
    """The file at `place` in the examples; keys of `changes` have `__` for a dot."""
    read = tomlkit.parse((EXAMPLES / place).read_text())
    for key, value in changes.items():
        *sections, last = key.split("__")
        table = read
        for section in sections:
            table = table[section]
        table[last] = value
    return tomlkit.dumps(read)
