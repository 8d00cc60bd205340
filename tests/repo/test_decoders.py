"""Decoders are built in one place, where threads cannot meet in a half-built one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "host", "node", "syncer_node", "simulator", "tui", "shoal")
BUILDER = ROOT / "protocol" / "decoders.py"


def builds(call: ast.Call) -> bool:
    """Whether msgspec learns a type with this call."""
    words = ast.unparse(call.func).split(".")
    if words[0] != "msgspec":
        return False
    is_typed = any(keyword.arg == "type" for keyword in call.keywords)
    return words[-1] in ("Decoder", "convert") or (words[-1] == "decode" and is_typed)


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_else_builds_a_decoder(room):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if path != BUILDER
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and builds(node)
    ]
    assert found == []
