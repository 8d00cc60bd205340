"""When a daemon that stopped over a bug starts again, and when it does not."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from host.files.home import Home
from protocol.errors import RoleFailed, TransientError
from shoal.common import failures, restart


class Executed(Exception):
    """What `os.execv` would have become."""


@pytest.fixture
def run_again(tmp_path, monkeypatch):
    """Every process that was begun, and the pauses before them."""
    begun, pauses = [], []

    def execute(program, words):
        begun.append((program, words, os.environ[restart.PAST_VARIABLE]))
        raise Executed

    monkeypatch.setattr(os, "execv", execute)
    monkeypatch.setattr(restart.time, "sleep", pauses.append)
    monkeypatch.setenv(restart.PAST_VARIABLE, "")
    monkeypatch.setattr(failures, "_home", Home(tmp_path))
    return begun, pauses


def failed(cause):
    error = RoleFailed("learner")
    error.__cause__ = cause
    return error


def test_a_bug_starts_the_same_command_again_with_growing_pauses(run_again, capsys):
    begun, pauses = run_again
    for _ in range(restart.RESTARTS_MAX):
        with pytest.raises(Executed):
            restart.after(failed(KeyError("x")))
    assert restart.after(failed(KeyError("x"))) == 70
    assert pauses == list(restart.RESTART.steps_s)
    assert {(program, tuple(words)) for program, words, _ in begun} == {
        (sys.executable, (sys.executable, *sys.orig_argv[1:]))
    }
    lines = capsys.readouterr().err.splitlines()
    assert "error: The learner stopped. KeyError: 'x'. This is a bug in Shoal." in lines[0]
    assert lines[0].endswith("It starts again from its disk in 1 s.")
    assert lines[-1].endswith("It failed 6 times in 10 minutes and stays down.")


def test_only_late_restarts_count():
    assert restart.lately("100,5000,5599,x,", 5600.0) == [5000.0, 5599.0]
    assert restart.lately("7000", 5600.0) == [], "of another boot"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (failed(OSError(errno.ENOSPC, "No space left")), 1),
        (TransientError("nobody answers"), 3),
        (KeyError("of a verb that is no daemon"), 70),
    ],
)
def test_what_is_no_bug_of_a_daemon_starts_nothing(error, code, run_again):
    assert restart.after(error) == code
    assert run_again == ([], [])


def test_ctrl_c_ends_the_wait(run_again, monkeypatch):
    def interrupt(pause_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(restart.time, "sleep", interrupt)
    assert restart.after(failed(KeyError("x"))) == 130
    assert run_again[0] == []
