"""Asking all daemons of a machine at once."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from host.files.home import Daemon
from protocol.errors import MalformedMessage, TransientError
from shoal.common import daemons
from tests.support.daemon_double import STATUS

LONG_S = 60.0


def three(monkeypatch, ask):
    """The daemons a, b and c; `ask` answers for one of them, or raises."""
    monkeypatch.setattr(daemons, "ask_status", lambda daemon: ask(daemon.instance))
    return [Daemon("learner", name, Path(name)) for name in "abc"]


def called(name):
    return msgspec.structs.replace(STATUS, name=name)


def test_all_are_asked_before_anybody_has_answered(monkeypatch):
    everybody = threading.Barrier(3, timeout=LONG_S)

    def ask(name):
        everybody.wait()
        return called(name)

    statuses, silent = daemons.ask_all(three(monkeypatch, ask))
    assert [one.name for one in statuses] == ["a", "b", "c"]
    assert silent == []


def test_one_that_hangs_keeps_its_place_and_delays_nobody(monkeypatch):
    others = threading.Semaphore(0)

    def ask(name):
        if name != "a":
            others.release()
            return called(name)
        assert all(others.acquire(timeout=LONG_S) for _ in range(2))
        raise TransientError("did not answer")

    statuses, silent = daemons.ask_all(three(monkeypatch, ask))
    assert [one.name for one in statuses] == ["b", "c"]
    assert silent == ["learner a: did not answer"]


def test_what_is_no_daemon_of_ours_is_an_error(monkeypatch):
    def ask(name):
        if name == "b":
            raise MalformedMessage("of another version")
        return called(name)

    with pytest.raises(MalformedMessage, match="of another version"):
        daemons.ask_all(three(monkeypatch, ask))


def test_nobody_to_ask():
    assert daemons.ask_all([]) == ([], [])
