"""Rules of the house that a reader would otherwise have to enforce."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shoal.__main__ import PACKAGES

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

CATCHES_EVERYTHING = {
    "node/host/bulk_loop.py": 1,
    "node/host/control.py": 1,
    "node/host/driver.py": 1,
    "node/host/last_run.py": 1,
    "node/host/life.py": 1,
    "node/host/reception.py": 2,
    "node/host/transport.py": 1,
    "node/trainer/follower.py": 1,
    "node/trainer/main.py": 1,
    "node/trainer/vocabulary.py": 1,
    "shoal/__main__.py": 1,
}
"""Files that may say `except Exception`, and how often: roots of tasks and processes, and
libraries that raise nothing narrower. A reason stands beside each."""

SLEEPS = {
    "shoal/daemons.py",
    "shoal/demo_children.py",
    "shoal/reading_logs.py",
    "shoal/watching.py",
}
"""Files that may block on the clock: a command that waits for a daemon, or looks again."""


def sources(*folders: str) -> Iterator[tuple[str, ast.Module, int]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            yield str(path.relative_to(ROOT)), ast.parse(text), len(text.splitlines())


def test_no_file_is_too_long():
    long = {name: lines for name, _, lines in sources(*PACKAGES) if lines > FILE_LINES_MAX}
    assert long == {}


def test_no_function_is_too_long():
    long = {
        f"{name}:{function.name}": lines
        for name, tree, _ in sources(*PACKAGES)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def catches_everything(handler: ast.AST) -> bool:
    """Whether this is a bare `except`, `except Exception`, or a BaseException that is kept."""
    if not isinstance(handler, ast.ExceptHandler):
        return False
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {one.id for one in caught if isinstance(one, ast.Name)}
    is_passed_on = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return "Exception" in names or ("BaseException" in names and not is_passed_on)


def test_everything_is_caught_only_where_it_is_allowed():
    found = {}
    for name, tree, _ in sources(*PACKAGES):
        times = sum(catches_everything(node) for node in ast.walk(tree))
        if times:
            found[name] = times
    surplus = {
        name: times for name, times in found.items() if times > CATCHES_EVERYTHING.get(name, 0)
    }
    assert surplus == {}
    assert set(CATCHES_EVERYTHING) <= set(found), "the list names a file that needs it no more"


def sleeps(tree: ast.Module) -> bool:
    """Whether `time.sleep` is used, however it was imported."""
    called = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return "time.sleep" in called | imported


def test_nobody_sleeps_but_where_it_is_allowed():
    found = {name for name, tree, _ in sources(*PACKAGES, "tests") if sleeps(tree)}
    assert {name for name in found if not name.startswith("tests/net/")} <= SLEEPS


ASKING = {"input", "getpass.getpass", "Prompt.ask", "Confirm.ask", "IntPrompt.ask"}
"""Calls that wait for somebody at a keyboard. The full screen reads keys, and is asked for."""


def test_nobody_asks_questions():
    found = {
        f"{name}: {ast.unparse(node.func)}"
        for name, tree, _ in sources(*PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING
    }
    assert found == set()
