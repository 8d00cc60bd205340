"""`shoal invite`: the link alone, at once or once there is a syncer."""

from __future__ import annotations

import msgspec
import pytest

from host import qr_code
from host.files.home import Home
from protocol.status import SyncerStatus
from shoal.__main__ import main
from shoal.common import daemons
from tests.support.daemon_double import LINK, STATUS, FakeDaemon

SYNCER = SyncerStatus(
    key="s",
    name="syncer default",
    pid=7,
    version="0.1.0",
    uptime_s=1.0,
    phase="training",
    sentence="All is well.",
    join_link=LINK,
    project=STATUS.project,
    swarm=STATUS.swarm,
    network=STATUS.network,
)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return Home()


def test_the_link_is_printed_alone(home, capsys):
    daemon = FakeDaemon(home.socket("syncer"), SYNCER)
    assert main(["project", "invite"]) == 0
    daemon.close()
    assert capsys.readouterr().out == LINK + "\n"


def test_on_a_terminal_a_code_of_the_link_stands_below_it(home, capsys, monkeypatch):
    daemon = FakeDaemon(home.socket("syncer"), SYNCER)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["project", "invite"]) == 0
    daemon.close()
    first, empty, *code = capsys.readouterr().out.split("\n")
    assert (first, empty) == (LINK, "")
    assert code[: len(qr_code.terminal_lines(LINK, 80))] == qr_code.terminal_lines(LINK, 80)


def test_nobody_there_is_said_at_once_and_with_the_remedy(home, capsys):
    assert main(["project", "invite"]) == 3
    assert "shoal syncer run" in capsys.readouterr().err


def test_a_syncer_that_is_still_starting_is_waited_for(home, capsys, monkeypatch):
    said = [msgspec.structs.replace(SYNCER, join_link=""), SYNCER]
    daemon = FakeDaemon(home.socket("syncer"), said[0])

    def again(timeout_s: float):
        assert timeout_s == 300.0
        yield
        daemon.said = SYNCER
        yield

    monkeypatch.setattr(daemons, "again", again)
    assert main(["project", "invite", "--wait", "5m"]) == 0
    daemon.close()
    assert capsys.readouterr().out == LINK + "\n"


def test_a_length_of_time_that_is_none_is_refused(home, capsys):
    assert main(["project", "invite", "--wait", "soon"]) == 2
    assert "is not a duration" in capsys.readouterr().err
