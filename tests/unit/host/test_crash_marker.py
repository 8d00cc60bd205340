"""A daemon that was killed is explained by its successor; one that ended is not."""

from __future__ import annotations

import signal
import subprocess
import sys

import msgspec
import pytest

from host.files import crash_marker
from host.files.crash_marker import Note, words_of_end
from host.files.home import Home

NOTE = Note(pid=7, at_s=0.0, boot_id="a", memory_killings=3)

PROGRAM = """
import logging, os, signal, sys
from pathlib import Path
from host.files import crash_marker
from host.files.home import Home
logging.basicConfig(stream=sys.stdout, format="%(message)s")
with crash_marker.life(Home(Path(sys.argv[1])), "learner", "default", remedy=""):
    print("alive", flush=True)
    exec(sys.argv[2])
"""


def live(home: Home, end: str) -> subprocess.CompletedProcess[str]:
    """A daemon's life in a process of its own, which ends as `end` says."""
    command = [sys.executable, "-c", PROGRAM, str(home.root), end]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize("end", ["pass", "raise ValueError('boom')", "raise SystemExit(3)"])
def test_an_end_that_was_told_is_not_told_again(home, end):
    live(home, end)
    assert live(home, "pass").stdout == "alive\n"


def test_a_bug_is_in_the_log_with_its_trace(home):
    said = live(home, "raise ValueError('boom')").stdout
    assert "the daemon stops because of a bug: ValueError('boom')" in said
    assert "Traceback" in said


def test_a_killing_is_told_by_the_next(home):
    done = live(home, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    said = live(home, "pass").stdout
    assert "did not exit cleanly: somebody killed it" in said
    assert live(home, "pass").stdout == "alive\n"


def test_a_crash_of_a_library_is_told_with_where_it_was(home):
    done = live(home, "import ctypes; ctypes.string_at(0)")
    assert done.returncode == -signal.SIGSEGV
    said = live(home, "pass").stdout
    assert "it crashed with Segmentation fault" in said
    (kept,) = home.logs().glob("crash-*.txt")
    assert str(kept) in said
    assert "string_at" in kept.read_text()


def test_a_second_daemon_does_not_take_the_note_of_the_first(home):
    with crash_marker.life(home, "learner", "default", remedy="x"):
        assert live(home, "pass").returncode == 1
        assert home.log("learner").with_suffix(".running").exists()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (NOTE, "somebody killed it"),
        (msgspec.structs.replace(NOTE, memory_killings=5), "kernel killed 2 of this machine's"),
        (msgspec.structs.replace(NOTE, boot_id="b", memory_killings=0), "machine went down"),
    ],
)
def test_the_cause_comes_from_what_changed(now, words):
    assert words in words_of_end(NOTE, now)


def test_a_restart_explains_more_than_a_fatal_signal():
    other = msgspec.structs.replace(NOTE, boot_id="b")
    assert "machine went down" in words_of_end(NOTE, other, "Aborted")


def test_a_damaged_note_says_nothing(home):
    home.log("learner").with_suffix(".running").write_bytes(b"{")
    assert live(home, "pass").stdout == "alive\n"


def test_this_system_has_the_numbers():
    assert crash_marker._boot_id()
    assert crash_marker.KILLINGS.read_text().count("\noom_kill ") == 1
