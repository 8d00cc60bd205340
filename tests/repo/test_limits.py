"""Rules of the house that a reader would otherwise have to enforce."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shoal.__main__ import PACKAGES
from tests.support.sources import ROOT, trees_of

FOLDER_FILES_MAX = 25
FUNCTION_LINES_MAX = 60

CATCHES_EVERYTHING = {
    "host/bulk/bulk_loop.py": 1,
    "host/control/server.py": 1,
    "host/driver.py": 3,
    "host/files/crash_marker.py": 1,
    "host/runtime/fork_server.py": 1,
    "host/runtime/lifecycle.py": 1,
    "host/stream_server.py": 2,
    "host/transport.py": 1,
    "node/trainer/ranks/follower.py": 1,
    "node/trainer/main.py": 1,
    "node/trainer/text/tokenizer.py": 1,
    "shoal/__main__.py": 1,
}
"""Files that may say `except Exception`, and how often: roots of tasks and processes, and
libraries that raise nothing narrower. A reason stands beside each."""

SLEEPS = {
    "shoal/common/daemons.py",
    "shoal/common/restart.py",
    "shoal/local_swarm/processes.py",
    "shoal/machine/logs_command.py",
    "shoal/machine/status_command.py",
    "shoal/machine/track_command.py",
}
"""Files that may block on the clock: a command that waits for a daemon, or looks again."""


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        yield from trees_of(folder).items()


def folders() -> Iterator[Path]:
    """Every folder of the packages that holds Python files."""
    for package in PACKAGES:
        for folder in [ROOT / package, *(ROOT / package).rglob("*/")]:
            if any(folder.glob("*.py")):
                yield folder


def test_no_folder_is_crowded():
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in folders()
        if (count := len(list(folder.glob("*.py")))) > FOLDER_FILES_MAX
    }
    assert crowded == {}


def test_every_folder_says_what_lives_there():
    silent = []
    for folder in folders():
        start = folder / "__init__.py"
        text = ast.get_docstring(ast.parse(start.read_text())) if start.exists() else None
        if text is None or len(text.splitlines()) < 2:
            silent.append(str(folder.relative_to(ROOT)))
    assert silent == [], "two lines each: what lives here, and what does not"


def test_no_function_is_too_long():
    long = {
        f"{name}:{function.name}": lines
        for name, tree in sources(*PACKAGES)
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
    for name, tree in sources(*PACKAGES):
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
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "sleep":
            named = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if "time.sleep" in named:
            return True
    return False


def test_nobody_sleeps_but_where_it_is_allowed():
    found = {name for name, tree in sources(*PACKAGES, "tests") if sleeps(tree)}
    assert {name for name in found if not name.startswith("tests/net/")} <= SLEEPS


ASKING = {"input", "getpass.getpass", "Prompt.ask", "Confirm.ask", "IntPrompt.ask"}
"""Calls that wait for somebody at a keyboard. The full screen reads keys, and is asked for."""


def test_nobody_asks_questions():
    found = {
        f"{name}: {ast.unparse(node.func)}"
        for name, tree in sources(*PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and ast.unparse(node.func) in ASKING
    }
    # A conversation is what `shoal try` is for; `shoal join --nearby` asks at a terminal alone,
    # whether the project found is the one that is meant.
    assert found == {"shoal/model/try_command.py: input", "shoal/machine/nearby.py: input"}
