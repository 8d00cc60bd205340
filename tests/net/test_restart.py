"""A daemon whose machine fails starts again from its disk, and stays down if that does not help."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host.addresses import steady_port
from shoal.common import restart
from shoal.common.exit_codes import ExitCode
from tests.net.swarms import TinySwarm, shoal

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("faulty_shoal.py")


class FaultySwarm(TinySwarm):
    """One in which bugs are planted."""

    def check_reports(self):
        pass


@pytest.fixture
def swarm(tmp_path):
    """A tiny project, signed; its syncer is started by the test."""
    with FaultySwarm(tmp_path) as made:
        made.prepare()
        yield made


@pytest.fixture
def start(swarm, tmp_path):
    """Starts a syncer whose first lives have these faults; it is gone at the end."""
    started = []

    def begin(*faults):
        (tmp_path / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        process = subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), str(tmp_path / "faults")),
                *("--home", str(swarm.home.root), "syncer", "run", str(swarm.project)),
                *("--port", str(steady_port("127.0.0.1")), "--listen", "127.0.0.1"),
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


def trains_after(faults, swarm, process, tmp_path):
    """Its status; an early life may train before the event comes over which it fails."""
    assert process.poll() is None, "it ended"
    seen = swarm.syncer()
    is_training = seen is not None and seen.phase == "training"
    return seen if is_training and len(errors(tmp_path)) >= faults else None


def test_a_syncer_whose_machine_fails_goes_on_from_its_disk(swarm, start, tmp_path):
    process = start("Woke", "JobDone")
    told = swarm.until(
        lambda: trains_after(2, swarm, process, tmp_path), "a syncer that trains after two faults"
    )
    assert told.pid == process.pid, "whoever supervises it sees one process"
    first, second = errors(tmp_path)
    for line, event in ((first, "Woke"), (second, "the result")):
        assert "The syncer stopped. ZeroDivisionError over " in line
        assert event in line
        assert "This is a bug in Shoal. The report is in " in line
    assert first.endswith("It starts again from its disk in 1 s.")
    assert second.endswith("It starts again from its disk in 2 s.")
    reports = [path.read_text() for path in swarm.home.logs().glob("crash-*.txt")]
    assert len(reports) == 2
    assert all('raise ZeroDivisionError("planted")' in report for report in reports)
    assert "Traceback" not in (tmp_path / "err").read_text(), "one clear message each"
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    said = shoal(swarm.home, "logs", "--role", "syncer").stdout
    assert "the daemon stops because of a bug" in said
    assert "did not exit cleanly" not in said, "the former run said itself how it ended"


def test_a_syncer_that_fails_at_every_start_stays_down_with_70(start, tmp_path, monkeypatch):
    lately = str(int(time.monotonic()))
    monkeypatch.setenv(restart.PAST_VARIABLE, ",".join([lately] * restart.RESTARTS_MAX))
    process = start("Started", "nothing")
    assert process.wait(600) == ExitCode.BUG
    (line,) = errors(tmp_path)
    assert line.endswith(
        f"It failed {restart.RESTARTS_MAX + 1} times in 10 minutes and stays down."
    )
