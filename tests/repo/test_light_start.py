"""`shoal --help` and `shoal status` start at once, which means: without the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from host.files.home import Home
from tests.support.daemon_double import SENTENCE, FakeDaemon

TRAINING = ("torch", "transformers", "datasets", "accelerate", "pydantic", "hivemind.averaging")
HEAVY = (*TRAINING, "hivemind", "numpy", "asyncio")

PROGRAM = """
import sys
from shoal.__main__ import main
code = main(sys.argv[2:])
print("loaded:", *[name for name in sys.argv[1].split(",") if name in sys.modules])
sys.exit(code)
"""


OURS = ("shoal", "host", "node", "syncer_node", "protocol", "simulator", "tui")
STATUS_OURS = {
    "host": "options",
    "host.control": "client",
    "host.files": "home local_settings",
    "host.runtime": "kernel_cache log_lines short_paths software stand_ins",
    "protocol": "decoders errors limits standing status",
    "protocol.peers": "code_words project_code",
    "shoal": "__main__",
    "shoal.cli": "app",
    "shoal.common": "choices daemons exit_codes extras failures plain_terminal verdicts versions "
    "writing",
    "shoal.machine": "status_command",
    "tui.frames": "frame history scene traffic verdict",
    "tui.text": "election fmt node_view owner_limits paint snapshots standstill status_rows "
    "status_view syncer_view witness_view",
    "node": "", "simulator": "", "syncer_node": "", "tui": "",
}  # fmt: skip
"""All of ours that `shoal status` may load. Whoever adds to it adds to what people wait for."""
STATUS_OTHERS = {"attr", "attrs", "cyclopts", "msgspec", "rich", "typing_extensions"}
STATUS_BARRED = {"asyncio", "concurrent", "email", "http", "logging", "multiprocessing", "ssl"}
"""Of the standard library: each takes longer to load than the answer takes to come."""


def rooms_of(modules: set[str]) -> set[str]:
    """The packages that these modules lie in."""
    parts = [name.split(".") for name in modules]
    return {".".join(one[:depth]) for one in parts for depth in range(1, len(one))}


LOADED = """
import json, sys
at_rest = set(sys.modules)
from shoal.__main__ import main
code = main(sys.argv[1:])
print(json.dumps(sorted(set(sys.modules) - at_rest)))
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
    loaded = "print([name for name in sys.argv[1:] if name in sys.modules])"
    program = f"import tui.text.status_view, sys; {loaded}"
    done = subprocess.run(
        [sys.executable, "-c", program, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("daemon", "barred"),
    [
        ("node.daemon.learner_daemon", TRAINING),
        ("syncer_node.daemon.syncer_daemon", TRAINING),
        ("syncer_node.daemon.witness_daemon", (*TRAINING, "numpy", "numba")),
        ("node.daemon.observer", (*TRAINING, "numpy", "numba")),
    ],
)
def test_no_daemon_loads_what_only_trainers_need(daemon, barred):
    """They stay for months beside other programs: torch alone would be 200 MB in each."""
    program = f"import {daemon}, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program, *barred], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_status_that_is_answered_loads_no_more_than_it_needs(tmp_path):
    daemon = FakeDaemon(Home(tmp_path).socket("learner"))
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOADED, "--home", str(tmp_path), "status"],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        daemon.close()
    assert SENTENCE in done.stdout
    loaded = json.loads(done.stdout.splitlines()[-1])
    ours = {name for name in loaded if name.partition(".")[0] in OURS}
    allowed = {f"{room}.{name}" for room, names in STATUS_OURS.items() for name in names.split()}
    assert ours <= allowed | rooms_of(allowed) | set(OURS)
    roots = {name.partition(".")[0] for name in loaded} - set(OURS)
    assert roots - set(sys.stdlib_module_names) <= STATUS_OTHERS
    assert roots & STATUS_BARRED == set()
