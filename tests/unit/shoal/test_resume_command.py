"""`shoal project resume`: the owner's word to go on lifts one pause of the guard, and no other."""

from __future__ import annotations

import time

import msgspec
import pytest

from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.status import PauseStatus, SwarmStatus, SyncerStatus
from shoal.__main__ import main
from shoal.project import file_commands
from tests.support.daemon_double import STATUS, FakeDaemon
from tests.support.owned_project import owned_project

RECORD = b"\x07" * 32
WORDS = "Merging is paused since 2026-11-22 14:02 UTC: the held-out loss is 9.70"
PAUSE = PauseStatus(
    at_s=1.0,
    global_step=30,
    loss=9.7,
    best_loss=2.0,
    best_global_step=20,
    best_checkpoint=60,
    words=WORDS,
    record=RECORD.hex(),
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = Home()
    file_commands.keep_copy(owned_project(made, tmp_path, guard="pause"), made)
    return made


def charter():
    return read_signed(file_commands.signed_beside(Home().root.parent / "tiny.shoal")).charter


def resume(home: Home, swarm: SwarmStatus, role: str = "syncer") -> int:
    project = read_signed(home.root.parent / "tiny.shoal").id.hex()
    about = msgspec.structs.replace(STATUS.project, id=project)
    if role == "learner":
        status = msgspec.structs.replace(STATUS, project=about, swarm=swarm)
    else:
        status = SyncerStatus(
            key="s",
            name="default",
            pid=7,
            version="0.1.0",
            uptime_s=1.0,
            phase="training",
            sentence=WORDS,
            join_link="",
            project=about,
            swarm=swarm,
            network=STATUS.network,
        )
    daemon = FakeDaemon(home.socket(role), status)
    try:
        return main(["project", "resume", "tiny.shoal"])
    finally:
        daemon.close()


@pytest.mark.parametrize("role", ["syncer", "learner"])
def test_the_next_revision_names_the_record_with_which_it_began(home, role, capsys):
    assert resume(home, SwarmStatus(log_index=90, pause=PAUSE), role) == 0
    assert (charter().resumed, charter().revision) == (RECORD, 2)
    said = capsys.readouterr().out
    assert f"{WORDS}." in said
    assert "merging goes on from the pause of the guard" in said


def test_where_nothing_is_paused_nothing_is_signed(home, capsys):
    assert resume(home, SwarmStatus(log_index=90)) == 2
    assert "Neither its owner nor the guard pauses tiny" in capsys.readouterr().err
    assert charter().revision == 1


def test_what_was_said_is_not_said_again(home, capsys):
    swarm = SwarmStatus(log_index=90, pause=PAUSE)
    assert resume(home, swarm) == 0
    assert resume(home, swarm) == 2
    assert "Revision 2 says so already" in capsys.readouterr().err


def test_where_nobody_knows_it_says_where_to_run_it(home, capsys):
    assert main(["project", "resume", "tiny.shoal"]) != 0
    assert "Run this where its syncer runs" in capsys.readouterr().err
    assert charter().revision == 1


# The owner's own pause.


def test_a_run_is_paused_and_goes_on_by_the_next_revisions(home, capsys):
    began_s = time.time()
    assert main(["project", "pause", "tiny.shoal"]) == 0
    assert charter().revision == 2
    assert began_s <= charter().paused_at_s <= time.time()
    said = capsys.readouterr().out
    assert "the run is paused" in said
    assert "shoal project resume tiny.shoal" in said
    assert main(["project", "pause", "tiny.shoal"]) == 0
    assert "Paused by the project's owner since" in capsys.readouterr().out
    assert charter().revision == 2, "nothing new was signed"
    assert main(["project", "resume", "tiny.shoal"]) == 0
    assert (charter().revision, charter().paused_at_s) == (3, None)
    assert "the run goes on" in capsys.readouterr().out


def test_another_change_of_the_project_leaves_it_paused(home):
    assert main(["project", "pause", "tiny.shoal"]) == 0
    paused_at_s = charter().paused_at_s
    assert main(["project", "set", "tiny.shoal", "rounds.quorum=1"]) in (0, 2)
    assert main(["project", "ban", "ab" * 32, "tiny.shoal"]) == 0
    assert charter().paused_at_s == paused_at_s
