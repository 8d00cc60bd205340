"""A voter's ballot, log and certificates on a real disk."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from host.runtime.atomic_files import DiskFull
from protocol.errors import CorruptState, TransientError
from protocol.log.records import SeatTaken
from syncer_node.raft.log import Floor
from syncer_node.storage import voter_files
from syncer_node.storage.voter_files import VoterFiles, kept_addresses
from tests.support.builders import SYNCER, TWO, Log, merged, sealed_charter, weights


def a_log():
    return Log(SeatTaken(SYNCER.key), weights(), merged(), merged(fragment=1, global_step=2))


@pytest.fixture
def files(tmp_path):
    made = VoterFiles(tmp_path / "voter")
    yield made
    made.close()


def again(files):
    """The same disk after a restart."""
    files.close()
    return VoterFiles(files.root)


def filled(files, *, certificates=4):
    """The ballot of a first start and the records of a short log."""
    files.boot()
    log = a_log()
    files.append(0, log.encoded)
    for entry in log.entries[:certificates]:
        files.keep_certificate(entry.certificate)
    return log


def fail(error):
    def failing(*_, **__):
        raise OSError(error, os.strerror(error))

    return failing


# The ballot


def test_a_new_disk_draws_a_name_of_its_own(tmp_path):
    one, other = (VoterFiles(tmp_path / name).boot() for name in ("one", "other"))
    assert len(one.disk) == 32
    assert one.disk != other.disk
    assert (one.boot, one.term, one.voted_for, one.owed) == (1, 0, None, 0)


def test_a_ballot_survives_and_each_start_counts_one_more(files):
    first = files.boot()
    files.save_ballot(first.in_term(7, TWO.key))
    second = again(files).boot()
    assert (second.disk, second.boot) == (first.disk, 2)
    assert (second.term, second.voted_for) == (7, TWO.key)
    assert again(files).boot().boot == 3


def test_a_start_is_counted_on_disk_before_anything_is_said(files):
    files.boot()
    assert again(files).boot().boot == 2


def test_a_ballot_that_could_not_be_written_leaves_the_former_one(files, monkeypatch):
    ballot = files.boot()
    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    with pytest.raises(DiskFull):
        files.save_ballot(ballot.in_term(9, None))
    monkeypatch.undo()
    assert again(files).boot().term == 0


def test_a_missing_ballot_beside_a_log_is_refused_in_words(files):
    filled(files)
    (files.root / "ballot").unlink()
    with pytest.raises(CorruptState, match="may have voted before") as caught:
        again(files).boot()
    assert str(files.root) in str(caught.value)
    assert "owner can readmit" in str(caught.value)


@pytest.mark.parametrize("noise", [b"", b"\xc1\xc1", b"\x90"])
def test_a_damaged_ballot_is_refused_in_words(files, noise):
    filled(files)
    (files.root / "ballot").write_bytes(noise)
    with pytest.raises(CorruptState, match="cannot be read"):
        again(files).boot()


def test_no_flipped_bit_of_a_ballot_makes_another_vote(files):
    filled(files)
    files.save_ballot(files.boot().in_term(7, TWO.key))
    held = (files.root / "ballot").read_bytes()
    for at in range(len(held)):
        (files.root / "ballot").write_bytes(held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :])
        with pytest.raises(CorruptState, match="cannot be read"):
            files.boot()


def test_a_ballot_from_before_there_were_checksums_is_one(files):
    ballot = files.boot().in_term(7, TWO.key)
    (files.root / "ballot").write_bytes(msgspec.msgpack.encode(ballot))
    assert again(files).boot().term == 7


def test_the_ballot_is_closed_to_other_users(files):
    files.boot()
    assert files.root.stat().st_mode & 0o077 == 0


# Charter and addresses


def test_the_newest_charter_survives(files):
    envelope = sealed_charter(a_log().tiny.charter)
    assert files.charter() is None
    files.keep_charter(envelope)
    assert again(files).charter() == envelope


def test_a_damaged_charter_is_as_good_as_none(files):
    (files.root / "charter").write_bytes(b"\xc1")
    assert files.charter() is None


def test_addresses_of_the_other_voters_are_only_hints(files):
    assert kept_addresses(files.root) == ()
    files.keep_addresses(("/ip4/127.0.0.1/tcp/1",))
    assert kept_addresses(files.root) == ("/ip4/127.0.0.1/tcp/1",)
    (files.root / "voters").write_bytes(b"\xc1")
    assert kept_addresses(files.root) == ()


# The log


def test_records_and_their_certificates_survive(files):
    log = filled(files)
    files = again(files)
    assert (files.last, files.certified) == (4, 4)
    assert list(files.records(0)) == log.encoded
    assert list(files.records(2)) == log.encoded[2:]
    assert [files.certificate(index) for index in range(1, 5)] == [
        entry.certificate for entry in log.entries
    ]


def test_records_of_another_leader_replace_those_behind_the_cut(files):
    log = filled(files, certificates=2)
    files.append(2, [b"other"])
    assert list(files.records(0)) == [*log.encoded[:2], b"other"]
    files = again(files)
    assert list(files.records(0)) == [*log.encoded[:2], b"other"]


def test_certificates_of_replaced_records_go_with_them(files):
    filled(files)
    files.append(1, [b"other"])
    assert files.certified == 1
    assert files.certificate(2) is None
    assert again(files).certified == 1


@pytest.mark.parametrize("after", [-1, 5, 99])
def test_a_gap_in_the_log_is_refused(files, after):
    log = filled(files)
    with pytest.raises(TransientError, match="waits for record"):
        files.append(after, log.encoded)
    assert list(files.records(0)) == log.encoded


def test_a_certificate_of_another_record_is_not_taken_for_this_ones(files):
    log = filled(files, certificates=0)
    files.append(0, [b"other", *log.encoded[1:]])
    files.keep_certificate(log.entries[0].certificate)
    assert files.certificate(1) is None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_after_a_failed_append_none_of_the_batch_is_there(files, monkeypatch, error):
    files.boot()
    log = a_log()
    files.append(0, log.encoded[:1])
    monkeypatch.setattr(os, "fsync", fail(error))
    with pytest.raises(TransientError):
        files.append(1, log.encoded[1:])
    monkeypatch.undo()
    assert list(files.records(0)) == log.encoded[:1]
    assert list(again(files).records(0)) == log.encoded[:1]
    files.append(1, log.encoded[1:])
    assert list(again(files).records(0)) == log.encoded


def test_after_a_failure_in_the_middle_of_a_batch_none_of_it_is_there(files, monkeypatch):
    files.boot()
    log = a_log()
    files.append(0, log.encoded[:1])
    honest, written = type(files.log).append, []

    def full_after_two(self, content, *, durable):
        if len(written) == 2:
            raise DiskFull("the disk is full")
        written.append(content)
        honest(self, content, durable=durable)

    monkeypatch.setattr(type(files.log), "append", full_after_two)
    with pytest.raises(DiskFull):
        files.append(1, log.encoded[1:])
    monkeypatch.undo()
    assert len(written) == 2
    assert list(again(files).records(0)) == log.encoded[:1]


def test_a_cut_that_cannot_be_written_through_does_not_leave_a_log_that_contradicts_itself(
    files, monkeypatch
):
    log = filled(files)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(TransientError):
        files.append(1, [b"other"])
    monkeypatch.undo()
    assert list(files.records(0)) == log.encoded[:1]
    files.append(1, [b"other", b"another"])
    assert list(again(files).records(0)) == [log.encoded[0], b"other", b"another"]


# What a damaged disk owes


def test_a_log_that_lost_its_certified_end_owes_it_and_gives_no_vote_before(files):
    filled(files)
    spoilt = bytearray(files.log.path.read_bytes())
    spoilt[-1] ^= 1
    files.close()
    files.log.path.write_bytes(spoilt)
    files = again(files)
    ballot = files.settle(files.boot())
    assert (files.last, files.certified, ballot.owed) == (3, 3, 4)
    later = again(files)
    assert later.settle(later.boot()).owed == 4
    assert later.certificate(3) is not None


def test_a_sound_log_owes_nothing(files):
    filled(files, certificates=2)
    files = again(files)
    assert files.settle(files.boot()).owed == 0
    assert (files.last, files.certified) == (4, 2)


def test_what_is_owed_never_shrinks_by_itself(files):
    filled(files)
    ballot = files.boot()
    files.log.cut(1)
    assert files.settle(ballot).owed == 4
    files.append(1, [b"other"])
    assert again(files).boot().owed == 4


# Beginning behind a state


def test_a_log_behind_an_offered_state_begins_empty_and_the_former_is_set_aside(files):
    former = filled(files)
    log = a_log()
    for _ in range(3):
        log.add(SeatTaken(SYNCER.key))
    head, origins = log.entries[-1], log.origins()
    files.begin_behind(head, log.state.summary(), origins)
    assert (files.last, files.certified, len(files.log)) == (7, 7, 0)
    assert (files.root / "log.former").is_file()
    following = log.add(merged(fragment=2, global_step=3))
    files.append(7, [following.record])
    files.keep_certificate(following.certificate)
    files = again(files)
    floor, summary = files.floor_state()
    assert floor == Floor(7, 1, head.certificate.record)
    assert summary.index == 7
    assert files.floor.origins == origins
    assert list(files.records(7)) == [following.record]
    assert files.record(8) == following.record
    assert files.certificate(8) == following.certificate
    assert (files.root / "log.former").read_bytes().count(former.encoded[0]) == 1


def test_records_beyond_the_offered_state_are_owed(files):
    filled(files)
    short = Log(SeatTaken(SYNCER.key), weights())
    files.begin_behind(short.entries[-1], short.state.summary(), short.origins())
    assert files.last == 2
    assert again(files).boot().owed == 4


def test_a_state_that_is_taken_twice_does_not_lose_the_ballot(files):
    ballot = files.boot().in_term(5, TWO.key)
    files.save_ballot(ballot)
    log = a_log()
    for _ in range(2):
        files.begin_behind(log.entries[-1], log.state.summary(), log.origins())
    kept = again(files).boot()
    assert (kept.disk, kept.term, kept.voted_for) == (ballot.disk, 5, TWO.key)


def test_a_crash_before_the_floor_is_written_leaves_the_former_log(files, monkeypatch):
    log = filled(files)
    monkeypatch.setattr("syncer_node.storage.voter_files.StoredFloor", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        files.begin_behind(log.entries[-1], log.state.summary(), log.origins())
    monkeypatch.undo()
    assert list(again(files).records(0)) == log.encoded


def test_a_damaged_floor_is_told(files):
    files.boot()
    (files.root / "floor").write_bytes(b"\xc1")
    with pytest.raises(CorruptState, match="floor is damaged"):
        again(files)


# Epochs


def test_what_a_new_epoch_voids_is_cut_and_a_copy_is_kept(files):
    log = filled(files)
    files.cut_for_epoch(2, 1)
    assert list(again(files).records(0)) == log.encoded[:2]
    assert files.certified == 2
    kept = files.root / "log.before-epoch-1"
    assert all(encoded in kept.read_bytes() for encoded in log.encoded)


def test_a_log_of_no_use_to_the_epoch_is_left_and_kept(files):
    log = filled(files)
    ballot = files.boot()
    files.leave_log(3)
    assert (files.last, files.certified) == (0, 0)
    assert (files.root / "log.before-epoch-3").is_file()
    files.append(0, log.encoded[:1])
    files = again(files)
    assert list(files.records(0)) == log.encoded[:1]
    assert files.boot().disk == ballot.disk


def test_leaving_a_log_that_began_behind_a_state_forgets_the_state_too(files):
    log = filled(files)
    files.begin_behind(log.entries[-1], log.state.summary(), log.origins())
    files.leave_log(1)
    assert files.floor_state() == (Floor(), None)
    assert again(files).floor_state() == (Floor(), None)


def test_a_debt_is_not_forgotten_by_a_ballot_that_was_read_before_it(files):
    filled(files)
    before = files.boot()
    short = Log(SeatTaken(SYNCER.key), weights())
    files.begin_behind(short.entries[-1], short.state.summary(), short.origins())
    files.save_ballot(before.in_term(9, None))
    kept = again(files).boot()
    assert (kept.term, kept.owed) == (9, 4)


def test_proofs_are_kept_with_all_before_them(files, monkeypatch):
    log = filled(files, certificates=1)
    proofs = tuple(entry.certificate for entry in log.entries)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(TransientError):
        files.keep_proofs(proofs)
    monkeypatch.undo()
    assert files.certified == 0
    files.keep_proofs(proofs)
    assert again(files).certified == 4


def test_a_proof_that_could_not_be_written_comes_with_the_next(files, monkeypatch):
    log = filled(files, certificates=1)
    second, third, fourth = (entry.certificate for entry in log.entries[1:])
    monkeypatch.setattr(files.certificates, "_open", fail(errno.ENOSPC))
    for certificate in (second, third):
        with pytest.raises(TransientError):
            files.keep_certificate(certificate)
    monkeypatch.undo()
    assert files.certified == 1
    files.keep_certificate(fourth)
    assert again(files).certified == 4


def test_a_proof_of_a_record_that_was_replaced_does_not_come_with_the_next(files, monkeypatch):
    log = filled(files, certificates=1)
    monkeypatch.setattr(files.certificates, "_open", fail(errno.ENOSPC))
    with pytest.raises(TransientError):
        files.keep_certificate(log.entries[1].certificate)
    monkeypatch.undo()
    files.append(1, log.encoded[1:])
    files.keep_certificate(log.entries[2].certificate)
    assert files.certified == 1


def test_a_power_failure_takes_few_proofs(files, monkeypatch):
    monkeypatch.setattr(voter_files, "PROOFS_UNSYNCED_MAX", 3)
    log = filled(files, certificates=2)
    assert files.certificates.synced == 0
    files.keep_certificate(log.entries[2].certificate)
    assert files.certificates.synced == 3


def test_proofs_that_a_failed_sync_took_are_written_again(files, monkeypatch):
    monkeypatch.setattr(voter_files, "PROOFS_UNSYNCED_MAX", 3)
    log = filled(files, certificates=2)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(TransientError):
        files.keep_certificate(log.entries[2].certificate)
    monkeypatch.undo()
    assert files.certified == 0
    files.keep_certificate(log.entries[3].certificate)
    assert again(files).certified == 4
