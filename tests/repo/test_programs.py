"""What `python -m` runs, a fork server runs by calling `main` of the same module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shoal.__main__ import PACKAGES

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_has_a_main_that_needs_nothing(path):
    tree = ast.parse(path.read_text())
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "main"]
    assert len(found) == 1
    given = found[0].args
    assert len(given.args) - len(given.defaults) == 0
    assert all(default is not None for default in given.kw_defaults)


def test_there_are_programs():
    assert len(PROGRAMS) > 10
