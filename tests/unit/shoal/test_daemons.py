"""Asking all daemons of a machine at once."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from host.files.home import Daemon
from protocol.errors import MalformedMessage, TransientError
from protocol.status import SwarmSeen
from shoal.common import daemons
from tests.support import recordings
from tests.support.daemon_double import STATUS, FakeDaemon

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


LED = recordings.syncer(5, [recordings.peer(number, 5) for number in range(3)])


def swarm_answer():
    seen = SwarmSeen(number=1, age_s=1.0, period_s=2.0, status=LED)
    return {"swarm": msgspec.to_builtins(seen)}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run"


def test_a_learner_without_a_syncer_is_asked_for_the_swarm(place):
    path = place / "learner.sock"
    with contextlib.closing(FakeDaemon(path, answers=swarm_answer())):
        asked = [Daemon("learner", "default", path)]
        (status,), _ = daemons.ask_all(asked, swarm_wait_s=0.0)
        assert status.swarm_seen.status == LED
        assert daemons.ask_all(asked)[0][0].swarm_seen is None


def test_a_daemon_that_knows_no_swarm_is_shown_without(place):
    path = place / "learner.sock"
    with contextlib.closing(FakeDaemon(path)):
        (status,), silent = daemons.ask_all([Daemon("learner", "default", path)], swarm_wait_s=0.0)
    assert (status.swarm_seen, silent) == (None, [])


def test_beside_the_syncer_that_leads_nobody_is_asked_for_the_swarm(place):
    mine = msgspec.structs.replace(STATUS, project=recordings.PROJECT)
    with (
        contextlib.closing(FakeDaemon(place / "learner.sock", mine, answers=swarm_answer())),
        contextlib.closing(FakeDaemon(place / "syncer.sock", LED)),
    ):
        found = [Daemon(role, "default", place / f"{role}.sock") for role in ("learner", "syncer")]
        statuses, _ = daemons.ask_all(found, swarm_wait_s=0.0)
    assert statuses == [mine, LED]
