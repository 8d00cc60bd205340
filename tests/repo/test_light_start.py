"""`shoal --help` and `shoal status` start at once, which means: without the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINING = ("torch", "transformers", "datasets", "accelerate", "pydantic", "hivemind.averaging")
HEAVY = (*TRAINING, "hivemind", "numpy", "asyncio")

PROGRAM = """
import sys
from shoal.__main__ import main
code = main(sys.argv[2:])
print("loaded:", *[name for name in sys.argv[1].split(",") if name in sys.modules])
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["sim", "--help"], 0),
        (["join", "--help"], 0),
        (["status"], 3),
        (["stop"], 3),
        (["version"], 0),
    ],
)
def test_nothing_heavy_is_imported(arguments, code, tmp_path):
    command = [sys.executable, "-c", PROGRAM, ",".join(HEAVY), "--home", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_views_import_nothing_heavy():
    program = (
        "import tui.status_view, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("daemon", "barred"),
    [
        ("node.daemon", TRAINING),
        ("syncer_node.daemon", TRAINING),
        ("syncer_node.witness_daemon", (*TRAINING, "numpy", "numba")),
        ("node.observer", (*TRAINING, "numpy", "numba")),
    ],
)
def test_no_daemon_loads_what_only_trainers_need(daemon, barred):
    """They stay for months beside other programs: torch alone would be 200 MB in each."""
    program = (
        f"import {daemon}, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *barred], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
