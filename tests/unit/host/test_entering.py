"""What a daemon answers while it is not in its swarm yet, and what commands make of it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest

from host.control import client
from host.control.entering import Entering
from host.files import memberships
from host.files.home import DEFAULT_INSTANCE, Home
from host.join_link import JoinLink, format_link
from host.runtime.lifecycle import Stopper
from protocol.errors import TransientError
from shoal.__main__ import main
from tests.support.daemon_double import PEER

PROJECT = bytes([7]) * 32
OTHER = bytes([8]) * 32


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@contextmanager
def entering(path):
    """A daemon that is on its way until somebody stops it, in a thread of its own."""
    begun = threading.Event()

    async def live():
        async def wait():
            stopper = Stopper(asyncio.current_task())
            daemon = Entering(path, PROJECT, stopper)
            async with daemon.answering():
                daemon.tell("nobody answers")
                begun.set()
                await asyncio.Event().wait()

        await asyncio.gather(asyncio.ensure_future(wait()), return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    assert begun.wait(30.0)
    yield thread
    if path.exists():
        client.call(path, "stop")
    thread.join(30.0)
    assert not thread.is_alive()
    assert not path.exists()


def joined(home, project):
    link = JoinLink(project, 100, "tiny", (f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER}",))
    memberships.remember(home, memberships.now_joined(format_link(link), DEFAULT_INSTANCE, {}))


@pytest.mark.parametrize("verb", ["status", "pause", "resume", "swarm", "charter"])
def test_whatever_needs_the_swarm_is_refused_with_what_keeps_it(home, verb):
    with (
        entering(home.socket("learner")),
        pytest.raises(TransientError, match="not in its swarm yet: nobody answers"),
    ):
        client.call(home.socket("learner"), verb)


def test_status_says_what_keeps_it(home, capsys):
    with entering(home.socket("learner")):
        assert main(["status"]) == 3
    assert "learner default: not in its swarm yet: nobody answers" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stop", "finish"])
def test_it_ends_when_it_is_asked_to(home, command):
    with entering(home.socket("learner")) as thread:
        assert main([command]) == 0
        thread.join(30.0)
        assert not thread.is_alive()


def test_one_may_leave_a_project_whose_swarm_is_away(home, capsys):
    joined(home, PROJECT)
    with entering(home.socket("learner")):
        assert main(["leave"]) == 0
    assert "has left tiny" in capsys.readouterr().out
    assert memberships.memberships(home) == []


def test_leaving_another_project_does_not_end_it(home):
    joined(home, OTHER)
    with entering(home.socket("learner")):
        assert main(["leave"]) == 0
        assert client.call(home.socket("learner"), client.ENTERING) == {"project": PROJECT.hex()}
