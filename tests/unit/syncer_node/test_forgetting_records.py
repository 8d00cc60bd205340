"""What a voter keeps on disk; how a witness lets go of old records."""

from __future__ import annotations

import pytest

from protocol.log.records import Admission, RunEnding, record_hash
from syncer_node.storage import voter_files
from syncer_node.storage.recovery import log_start, scan
from syncer_node.storage.voter_files import VoterFiles
from tests.support.builders import DISK, STRANGER, SYNCER, founded, project

RECORDS = 40


@pytest.fixture
def log():
    """Founding records, then many."""
    made = founded()
    while len(made.entries) < RECORDS:
        made.add(RunEnding("owner"))
    return made


@pytest.fixture
def files(tmp_path, log):
    made = VoterFiles(tmp_path / "store")
    made.boot()
    made.append(0, log.encoded)
    for entry in log.entries:
        made.keep_certificate(entry.certificate)
    yield made
    made.close()


def held(files):
    """All that a start would read of the log."""
    return files.records(files.floor.index), files.certified


def test_old_records_go_and_the_rest_is_as_it_was(files, log):
    assert files.forget_old(10)
    assert files.floor.index == RECORDS - 10
    assert files.floor.head == record_hash(log.encoded[RECORDS - 11])
    assert files.floor.entry == log.entries[RECORDS - 11]
    assert held(files) == (log.encoded[-10:], RECORDS)
    assert files.certificate(RECORDS).record == record_hash(log.encoded[-1])
    again = VoterFiles(files.root)
    assert held(again) == held(files)
    assert sorted(path.name for path in files.root.iterdir()) == [
        "ballot",
        "floor",
        "log-30",
        "log-30.certificates",
    ]


def test_what_governs_is_known_at_the_new_floor(files, log):
    newest = project().charter
    before = scan(files, newest, STRANGER)
    assert files.forget_old(10)
    assert files.forget_old(4)
    view = scan(files, newest, STRANGER)
    assert (view.charter, view.certified) == (before.charter, before.certified)
    assert view.start_admissions == {SYNCER.key: Admission(SYNCER.key, 0, DISK)}
    assert view.start.index == RECORDS - 4
    assert log_start(files, view).records == log.encoded[-4:]


def test_the_log_goes_on_behind_a_new_floor(files, log):
    assert files.forget_old(10)
    entry = log.add(RunEnding("owner"))
    files.append(RECORDS, [entry.record])
    files.keep_certificate(entry.certificate)
    assert held(VoterFiles(files.root)) == (log.encoded[-11:], RECORDS + 1)


def test_nothing_is_forgotten_that_is_not_certified_or_is_still_wanted(files, log):
    assert not files.forget_old(RECORDS)
    assert not files.forget_old(0)
    files.certificates.cut(5)
    assert not files.forget_old(10)
    assert files.floor.index == 0
    assert files.forget_old(2)
    assert held(files) == (log.encoded[3:], 5)


def test_a_crash_before_the_floor_is_written_leaves_the_old_log(files, log, monkeypatch):
    def crash(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr(voter_files, "write_checked", crash)
    with pytest.raises(KeyboardInterrupt):
        files.forget_old(10)
    monkeypatch.undo()
    again = VoterFiles(files.root)
    assert held(again) == (log.encoded, RECORDS)
    assert again.forget_old(10), "what the former try left behind is no hindrance"
    assert held(again) == (log.encoded[-10:], RECORDS)
