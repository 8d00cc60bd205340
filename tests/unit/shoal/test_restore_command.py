"""`shoal project restore-snapshot`: which snapshot is taken, and what is said of the others."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest

from host.files import keystore
from host.files import snapshot_files as files
from host.files.home import Home
from host.files.signed_project import read_signed, seal_project, write_signed
from protocol.log.state import SwarmState
from protocol.messages import Certificate, CertifiedRecord
from protocol.project import encode, project_id
from protocol.snapshots.manifest import Manifest, Skipped, stamp
from protocol.snapshots.vector_clock import VectorClock
from shoal.__main__ import main
from simulator.stand_ins.tiny import tiny_project
from syncer_node.machine.jobs import KeepSnapshot
from syncer_node.storage.snapshot_store import SnapshotStore
from syncer_node.storage.store import Checkpoint

OLD, NEW = 1_700_000_000, 1_700_000_060


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def target(home, tmp_path):
    """A signed project whose syncer here has two snapshots."""
    owner = keystore.load_or_create(home.identity("owner"))
    here = keystore.load_or_create(home.identity("syncer"))
    tiny = tiny_project(here.key)
    genesis = msgspec.structs.replace(tiny.genesis, owner=owner.key)
    project = project_id(encode(genesis))
    charter = msgspec.structs.replace(tiny.charter, project=project)
    path = tmp_path / "tiny.shoal"
    write_signed(path, seal_project(genesis, charter, owner))
    write_signed(home.project_file(project), seal_project(genesis, charter, owner))
    store = SnapshotStore(home.syncer_store(project))
    for number, snapshot in enumerate((OLD, NEW), 1):
        keep(store, project, snapshot, index=10 * number)
    return path


def keep(store, project, snapshot, *, index):
    values = [np.full(128, index, np.float32)]
    summary = SwarmState(4).summary()
    store.cut(snapshot, Checkpoint(index, values, values, [3], summary))
    store.write(snapshot)
    entry = CertifiedRecord(b"record", Certificate(0, 1, index, bytes(32), ()))
    manifest = Manifest(
        snapshot=snapshot,
        project=project,
        epoch=0,
        index=index,
        head=bytes([index]) * 32,
        clock=VectorClock(index, (3,)),
        global_step=3,
        tokens=96,
        parts=(),
        skipped=(Skipped(b"c" * 32, "cid", "connection lost"),),
        seconds=1.0,
    )
    store.keep(KeepSnapshot(manifest, entry, (), (OLD, NEW)))


def place(home, snapshot):
    (found,) = home.root.glob(f"projects/*/syncer-default/snapshots/{stamp(snapshot)}")
    return found


def origin(target):
    return read_signed(target).charter.origin


def test_it_is_only_explained_without_a_confirmation(target, capsys):
    assert main(["project", "restore-snapshot", str(target)]) == 0
    out, err = capsys.readouterr()
    assert f"snapshot {stamp(NEW)}: record 20" in out
    assert "Nothing was changed" in out
    assert err == ""
    assert origin(target) is None


def test_the_newest_is_the_origin_of_the_next_epoch(target, capsys):
    before = os.stat(target).st_size
    assert main(["project", "restore-snapshot", str(target), "--yes"]) == 0
    assert "no syncer runs here" in capsys.readouterr().out
    charter = read_signed(target).charter
    assert (charter.epoch, charter.revision) == (1, 2)
    assert (charter.origin.index, charter.origin.snapshot) == (20, NEW)
    assert os.stat(target).st_size > before


def test_an_older_one_by_its_name(target):
    assert main(["project", "restore-snapshot", str(target), stamp(OLD), "--yes"]) == 0
    assert origin(target).snapshot == OLD


def test_a_name_that_is_not_there_is_refused_with_those_that_are(target, capsys):
    assert main(["project", "restore-snapshot", str(target), "20200101-000000"]) == 2
    assert f"Here are: {stamp(NEW)}, {stamp(OLD)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda at: (at / files.ARRAYS).unlink(), "arrays.safetensors cannot be read"),
        (lambda at: (at / files.META).unlink(), "meta cannot be read"),
        (lambda at: os.truncate(at / files.ARRAYS, 100), "ends at byte 100 of"),
        (lambda at: os.truncate(at / files.META, 30), "ends at byte 30 of"),
        (lambda at: (at / files.META).write_bytes(b"?" * 90), "wrong header at byte 0"),
        (
            lambda at: (at / files.ARRAYS).write_bytes(
                (at / files.ARRAYS).read_bytes()[:-1] + b"?"
            ),
            "was altered between byte 0 and",
        ),
    ],
)
def test_a_damaged_one_is_named_and_the_good_one_before_it_is_used(
    home, target, capsys, damage, words
):
    damage(place(home, NEW))
    assert main(["project", "restore-snapshot", str(target), stamp(NEW), "--yes"]) == 0
    out = capsys.readouterr().out
    assert words in out
    assert str(place(home, NEW)) in out
    assert f"snapshot {stamp(OLD)} is used, the good one before it" in out
    assert origin(target).snapshot == OLD
    assert main(["syncer", "snapshot", "--list"]) == 0
    listed = capsys.readouterr().out
    assert f"{stamp(NEW)}  CANNOT BE USED: " in listed
    assert "not in: cid" in listed


def test_without_a_good_one_nothing_is_done(home, target, capsys):
    for snapshot in (OLD, NEW):
        (place(home, snapshot) / files.META).unlink()
    assert main(["project", "restore-snapshot", str(target), "--yes"]) == 2
    assert "There is no good snapshot before it" in capsys.readouterr().err
    assert origin(target) is None


def test_a_host_without_snapshots_says_where_to_go(home, target, capsys):
    for snapshot in (OLD, NEW):
        place(home, snapshot).rename(place(home, snapshot).with_name(f"moved-{snapshot}"))
    assert main(["project", "restore-snapshot", str(target)]) == 2
    assert "has no snapshot of tiny" in capsys.readouterr().err


def test_the_snapshot_becomes_the_checkpoint_to_recover_from(home, target):
    project = read_signed(target).id
    store = SnapshotStore(home.syncer_store(project))
    (home.syncer_store(project) / "checkpoints").mkdir()
    main(["project", "restore-snapshot", str(target), "--yes"])
    meta = store.place_checkpoint(origin(target))
    assert meta.manifest.snapshot == NEW
    found = home.syncer_store(project) / "checkpoints" / "20"
    assert sorted(path.name for path in found.iterdir()) == ["meta", "state.safetensors"]
    assert store.place_checkpoint(origin(target)) == meta
