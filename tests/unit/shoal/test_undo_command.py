"""`shoal project undo`: which snapshot is from before a time, and what would be lost."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest

from host.files import snapshot_files as files
from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.errors import UserError
from protocol.log.state import SwarmState
from protocol.messages import Certificate, CertifiedRecord
from protocol.project import Origin
from protocol.snapshots.manifest import Manifest, stamp
from protocol.snapshots.vector_clock import VectorClock
from protocol.status import SwarmStatus, SyncerStatus
from shoal.__main__ import main
from shoal.project import charter_commands, file_commands
from shoal.project.undo_command import moment
from syncer_node.machine.jobs import KeepSnapshot
from syncer_node.storage.snapshot_store import SnapshotStore
from syncer_node.storage.store import Checkpoint
from tests.support.daemon_double import STATUS, FakeDaemon
from tests.support.owned_project import owned_project

HOUR_S = 3600
AGES_H = (1, 3, 5)
"""Hours ago at which the snapshots were taken."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def taken(home, tmp_path):
    """The snapshots of the project here, by their age in hours."""
    path = owned_project(home, tmp_path)
    file_commands.keep_copy(path, home)
    project = read_signed(path).id
    now_s = int(time.time())
    found = {age: now_s - age * HOUR_S for age in AGES_H}
    store = SnapshotStore(home.syncer_store(project))
    for age in reversed(AGES_H):
        keep(store, project, found[age], index=100 - 10 * age, all_of=tuple(found.values()))
    return found


def keep(store, project, snapshot, *, index, all_of):
    values = [np.full(128, index, np.float32)]
    store.cut(snapshot, Checkpoint(index, values, values, [3], SwarmState(4).summary()))
    store.write(snapshot)
    entry = CertifiedRecord(b"record", Certificate(0, 1, index, bytes(32), ()))
    manifest = Manifest(
        snapshot=snapshot,
        project=project,
        epoch=0,
        index=index,
        head=bytes([index]) * 32,
        clock=VectorClock(index, (3,)),
        global_step=index,
        tokens=1000 * index,
        parts=(),
        skipped=(),
        seconds=1.0,
    )
    store.keep(KeepSnapshot(manifest, entry, (), all_of))


def undo(*words: str) -> int:
    return main(["project", "undo", "tiny.shoal", *words])


def origin():
    return read_signed(
        file_commands.signed_beside(Home().root.parent / "tiny.shoal")
    ).charter.origin


@pytest.mark.parametrize(("since", "age"), [("30m", 1), ("2h", 3), ("4h", 5)])
def test_the_newest_from_before_the_time_is_taken(taken, since, age, capsys):
    assert undo("--since", since, "--yes") == 0
    assert origin().snapshot == taken[age]
    assert f"newest snapshot from before: {stamp(taken[age])}" in capsys.readouterr().out


def test_a_time_of_the_clock_is_as_good(taken):
    at = datetime.fromtimestamp(taken[3], UTC)
    assert undo("--since", at.isoformat(), "--yes") == 0
    assert origin().snapshot == taken[3], "one taken at that very second is from before"


def test_it_is_only_explained_without_a_confirmation(home, taken, capsys):
    status = SyncerStatus(
        key="s",
        name="syncer default",
        pid=7,
        version="0.1.0",
        uptime_s=1.0,
        phase="training",
        sentence="All is well.",
        join_link="",
        project=msgspec.structs.replace(STATUS.project, id=read_signed_id()),
        swarm=SwarmStatus(global_step=1112, tokens=1_070_000),
        network=STATUS.network,
    )
    daemon = FakeDaemon(home.socket("syncer"), status)
    assert undo("--since", "2h") == 0
    daemon.close()
    out, _ = capsys.readouterr()
    assert "lost: 1,042 global steps and 1,000,000 tokens, merged in the 3 h since" in out
    assert "This begins epoch 1 of tiny" in out
    assert "Nothing was changed. To do it, repeat the command with --yes." in out
    assert origin() is None


def read_signed_id() -> str:
    return read_signed(Home().root.parent / "tiny.shoal").id.hex()


def test_where_nothing_tells_how_far_it_came_that_is_said(taken, capsys):
    assert undo("--since", "2h") == 0
    assert "lost: whatever was merged in the 3 h since" in capsys.readouterr().out


def test_without_one_that_is_old_enough_it_says_so_and_what_there_is(taken, capsys):
    assert undo("--since", "6h", "--yes") == 2
    said = capsys.readouterr().err
    assert "No snapshot of tiny is from before" in said
    assert f"the oldest here is {stamp(taken[5])}" in said
    assert f"restore-snapshot tiny.shoal {stamp(taken[5])}" in said
    assert origin() is None


def test_without_any_it_says_how_to_have_some(home, tmp_path, capsys):
    owned_project(home, tmp_path)
    assert undo("--since", "6h", "--yes") == 2
    said = capsys.readouterr().err
    assert "has no snapshot of tiny to go back to" in said
    assert "limits.snapshot_every_s" in said


def test_a_damaged_one_gives_way_to_the_one_before_it(home, taken, capsys):
    (damaged,) = home.root.glob(f"projects/*/syncer-default/snapshots/{stamp(taken[1])}")
    (damaged / files.META).unlink()
    assert undo("--since", "30m", "--yes") == 0
    assert origin().snapshot == taken[3]
    assert f"snapshot {stamp(taken[1])} cannot be used" in capsys.readouterr().out


def test_what_was_taken_back_before_is_not_brought_back(home, taken):
    case = charter_commands.open_case(Home().root.parent / "tiny.shoal", home)
    behind = msgspec.structs.replace(
        case.project.charter, epoch=1, origin=Origin(50, bytes([50]) * 32, taken[5])
    )
    charter_commands.revise(case, behind)
    assert undo("--since", "30m", "--yes") == 0
    assert origin().snapshot == taken[5], "the newer ones are of the history that was left"


@pytest.mark.parametrize("text", ["yesterday", "2h30", "", "2026-13-01", "12:30"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UserError, match="neither a time nor a duration"):
        moment(text, 1_800_000_000.0)


def test_times_are_read_with_and_without_a_zone():
    now_s = 1_800_000_000.0
    assert moment("15m", now_s) == now_s - 900
    assert moment("2026-11-22T14:30+01:00", now_s) == 1_795_354_200
    assert moment("2026-11-22T13:30Z", now_s) == 1_795_354_200
    local = datetime(2026, 11, 22, 14, 30).astimezone().timestamp()
    assert moment("2026-11-22 14:30", now_s) == local
    with pytest.raises(UserError, match="still to come"):
        moment("2030-01-01T00:00Z", now_s)
