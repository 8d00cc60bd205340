"""Decoders are built in one place, where threads cannot meet in a half-built one."""

from __future__ import annotations

import ast

import pytest

from tests.support.sources import trees_of

ROOMS = ("protocol", "host", "node", "syncer_node", "simulator", "tui", "shoal")
BUILDER = "protocol/decoders.py"


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
        f"{name}:{node.lineno}"
        for name, tree in trees_of(room).items()
        if name != BUILDER
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and builds(node)
    ]
    assert found == []
