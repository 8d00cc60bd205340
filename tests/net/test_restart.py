"""A daemon whose machine fails starts again from its disk, and stays down if that does not help."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tiny_project import write_text

from host.files.home import Home
from shoal.common import restart
from shoal.common.exit_codes import ExitCode
from shoal.project import file_commands
from shoal.project.template import create_text
from tests.net.processes import free_port, shoal, status, until
from tests.net.test_swarm_processes import CHANGES

pytestmark = [pytest.mark.net, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("faulty_shoal.py")


@pytest.fixture
def home(tmp_path) -> Home:
    write_text(tmp_path / "text.txt")
    changes = {**CHANGES, "data.location": str(tmp_path / "text.txt")}
    (tmp_path / "tiny.toml").write_text(create_text("tiny", changes=changes))
    home = Home(tmp_path / "home")
    file_commands.sign(tmp_path / "tiny.toml", home, instance="default")
    return home


@pytest.fixture
def start(home, tmp_path):
    """Starts a syncer whose first lives have these faults; it is gone at the end."""
    started = []

    def begin(*faults):
        (tmp_path / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        process = subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), str(tmp_path / "faults")),
                *("--home", str(home.root), "syncer", "run", str(tmp_path / "tiny.toml")),
                *("--port", str(free_port()), "--listen", "127.0.0.1"),
            ],
            cwd=tmp_path,
            stdout=(tmp_path / "out").open("wb"),
            stderr=(tmp_path / "err").open("wb"),
            stdin=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait(10)


def errors(tmp_path):
    lines = (tmp_path / "err").read_text().splitlines()
    return [line for line in lines if line.startswith("error: ")]


def training_or_ended(home, process):
    assert process.poll() is None, "it ended"
    seen = status(home, "syncer")
    return seen if seen is not None and seen.phase == "training" else None


def test_a_syncer_whose_machine_fails_goes_on_from_its_disk(home, start, tmp_path):
    process = start("Woke", "JobDone")
    told = until(
        lambda: training_or_ended(home, process),
        timeout_s=200,
        what="a syncer that trains after two faults",
    )
    assert told.pid == process.pid, "whoever supervises it sees one process"
    first, second = errors(tmp_path)
    for line, event in ((first, "Woke"), (second, "the result")):
        assert "The syncer stopped. ZeroDivisionError over " in line
        assert event in line
        assert "This is a bug in Shoal. The report is in " in line
    assert first.endswith("It starts again from its disk in 1 s.")
    assert second.endswith("It starts again from its disk in 2 s.")
    reports = [path.read_text() for path in home.logs().glob("crash-*.txt")]
    assert len(reports) == 2
    assert all('raise ZeroDivisionError("planted")' in report for report in reports)
    assert "Traceback" not in (tmp_path / "err").read_text(), "one clear message each"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    said = shoal(home, "logs", "--role", "syncer").stdout
    assert "the daemon ends over a bug" in said
    assert "did not end by itself" not in said, "the former run said itself how it ended"


def test_a_syncer_that_fails_at_every_start_stays_down_with_70(start, tmp_path, monkeypatch):
    lately = str(int(time.monotonic()))
    monkeypatch.setenv(restart.PAST_VARIABLE, ",".join([lately] * restart.RESTARTS_MAX))
    process = start("Started", "nothing")
    assert process.wait(200) == ExitCode.BUG
    (line,) = errors(tmp_path)
    assert line.endswith(
        f"It failed {restart.RESTARTS_MAX + 1} times in 10 minutes and stays down."
    )
