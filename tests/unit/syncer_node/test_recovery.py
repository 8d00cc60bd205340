from __future__ import annotations

import msgspec
import pytest

from protocol.errors import CorruptState
from protocol.log.records import Admission, CharterAdopted, SeatTaken, open_record
from protocol.log.state import SwarmState
from protocol.project import Origin, Voter
from simulator.stand_ins.tiny import SimSigner, sim_verify
from simulator.swarm.syncers import SimDisk
from syncer_node.machine.jobs import InstallState
from syncer_node.raft.log import Floor
from syncer_node.storage import recovery
from syncer_node.storage.recovery import enter_epoch, log_start, recertify, refold, scan
from tests.support.builders import (
    DISK,
    STRANGER,
    SYNCER,
    Log,
    founded,
    merged,
    project,
    sealed_charter,
    weights,
)

SOLE = project().charter.voters


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), weights(), merged(), merged(fragment=1, global_step=2))


def folded(records):
    state, seen = SwarmState(project().genesis.data.block_sequences), []
    refold(state, records, seen.append)
    return state, seen


def test_the_sole_voter_makes_the_identical_certificate_again(log):
    for entry in log.entries:
        assert recertify(entry.record, None, SYNCER, SOLE) == entry


def test_a_kept_certificate_is_taken_as_it_is(log):
    entry = log.entries[0]
    assert recertify(entry.record, entry.certificate, STRANGER, SOLE) == entry


def test_who_is_no_voter_cannot_make_one(log):
    assert recertify(log.encoded[0], None, STRANGER, SOLE) is None


def test_one_of_several_voters_cannot_make_one_alone(log):
    voters = (*SOLE, *(Voter(SimSigner(f"v{n}").key, "witness", 1) for n in range(2)))
    assert recertify(log.encoded[0], None, SYNCER, voters) is None


def test_what_was_made_again_opens_like_any_other(log):
    entry = recertify(log.encoded[2], None, SYNCER, SOLE)
    assert open_record(entry, project().project, project().charter, sim_verify) == log.records[2]


def test_stored_records_fold_to_the_state_and_name_each_merge(log):
    state, seen = folded(log.encoded)
    assert state == log.state
    assert seen == [log.records[2].body, log.records[3].body]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda records: records[1:], id="start missing"),
        pytest.param(lambda records: records[:1] + records[2:], id="one missing"),
        pytest.param(lambda records: [records[0], *records], id="one twice"),
        pytest.param(lambda records: [records[0], records[2], records[1]], id="swapped"),
    ],
)
def test_a_broken_chain_is_refused(log, broken):
    with pytest.raises(CorruptState, match="the stored log breaks at record"):
        folded(broken(log.encoded))


def test_a_record_of_another_history_is_refused(log):
    other = Log(SeatTaken(STRANGER.key), weights())
    with pytest.raises(CorruptState):
        folded([log.encoded[0], other.encoded[1]])


# Certificates that only one host can give


OTHERS = tuple(Voter(SimSigner(f"v{number}").key, "syncer", 1) for number in range(2))


def charter(*voters, revision=2, **changes):
    return msgspec.structs.replace(
        project().charter, voters=voters or SOLE, revision=revision, **changes
    )


def adopted(of):
    return CharterAdopted(sealed_charter(of))


def on_disk(log, certificates):
    """This log stored, with so many of its certificates."""
    disk = SimDisk.fresh(DISK)
    disk.log = list(log.encoded)
    disk.proofs = [entry.certificate for entry in log.entries[:certificates]]
    return disk


def place(log, index):
    record = log.records[index - 1]
    return Floor(index, record.term, log.entries[index - 1].certificate.record)


@pytest.mark.parametrize("certificates", [0, 2, 5])
def test_what_the_sole_voter_stored_is_certified(certificates):
    log = founded(weights(), merged())
    view = scan(on_disk(log, certificates), project().charter, SYNCER)
    assert (view.certified, view.charter) == (5, project().charter)


def test_a_standby_believes_only_certificates():
    log = founded(weights(), merged())
    assert scan(on_disk(log, 3), project().charter, STRANGER).certified == 3


def test_one_of_several_voters_believes_only_certificates():
    several = charter(*SOLE, *OTHERS, revision=1)
    log = Log(SeatTaken(SYNCER.key), adopted(several), weights(), merged())
    assert scan(on_disk(log, 1), several, SYNCER).certified == 1


def test_a_change_that_would_make_it_the_sole_voter_is_not_its_own_to_certify():
    several = charter(*SOLE, *OTHERS, revision=1)
    log = Log(SeatTaken(SYNCER.key), adopted(several), weights(), adopted(charter()), merged())
    view = scan(on_disk(log, 3), charter(), SYNCER)
    assert (view.certified, view.charter) == (3, several)
    proven = scan(on_disk(log, 4), charter(), SYNCER)
    assert (proven.certified, proven.charter) == (5, charter())


def test_the_sole_voter_certifies_up_to_the_change_that_needs_others():
    log = founded(weights(), adopted(charter(*SOLE, *OTHERS)), merged())
    view = scan(on_disk(log, 0), project().charter, SYNCER)
    assert (view.certified, view.charter) == (4, project().charter)


def test_the_first_charter_of_a_log_counts_from_its_start_whatever_is_newest():
    log = founded(weights(), merged())
    assert scan(on_disk(log, 0), charter(*SOLE, *OTHERS), SYNCER).certified == 5


# Where memory begins


def test_a_short_log_is_in_memory_from_its_start():
    log = founded(weights(), merged())
    disk = on_disk(log, 5)
    start = log_start(disk, scan(disk, project().charter, SYNCER))
    assert (start.floor, start.admissions) == (Floor(), {})
    assert list(start.records) == log.encoded
    assert [one.index for one in start.certificates] == [1, 2, 3, 4, 5]


def test_a_long_log_is_in_memory_from_where_others_may_still_ask(monkeypatch):
    monkeypatch.setattr(recovery, "ENTRIES_KEPT", 2)
    changed = charter(banned=(STRANGER.key,))
    log = founded(weights(), adopted(changed), merged(), merged(fragment=1, global_step=2))
    disk = on_disk(log, 6)
    disk.log = log.encoded
    start = log_start(disk, scan(disk, changed, STRANGER))
    assert start.floor == place(log, 4)
    assert start.charter == project().charter
    assert start.admissions == {SYNCER.key: Admission(SYNCER.key, 0, DISK)}
    assert list(start.records) == log.encoded[4:]
    assert [one.index for one in start.certificates] == [5, 6]


def test_a_log_that_begins_behind_a_state_takes_charter_and_admissions_from_it():
    log = founded(weights(), adopted(charter()))
    disk = SimDisk.fresh(DISK)
    disk.begin_behind(InstallState(log.entries[-1], log.state.summary(), log.origins()))
    following = log.add(merged())
    disk.append(5, (following.record,))
    disk.keep(following.certificate)
    view = scan(disk, charter(revision=3), SYNCER)
    assert (view.charter, view.certified) == (charter(), 6)
    start = log_start(disk, view)
    assert (start.floor, start.charter) == (place(log, 5), charter())
    assert start.admissions == {SYNCER.key: Admission(SYNCER.key, 0, DISK)}
    assert list(start.records) == [following.record]


def test_a_certificate_that_does_not_fit_is_told_as_damage(monkeypatch):
    log = founded(weights(), merged())
    disk = on_disk(log, 5)
    view = scan(disk, project().charter, SYNCER)
    monkeypatch.setattr(SimDisk, "certificate", lambda self, index: None)
    with pytest.raises(CorruptState, match="certificate of record 1"):
        log_start(disk, view)


# Epochs


def next_epoch(log, index, *voters, head=None):
    head = head or log.entries[index - 1].certificate.record
    return charter(*(voters or OTHERS), epoch=1, origin=Origin(index, head))


def test_in_the_first_epoch_nothing_is_cut():
    disk = on_disk(founded(weights(), merged()), 5)
    enter_epoch(disk, project().charter)
    assert disk.last == 5


def test_a_new_epoch_cuts_what_lies_behind_its_origin_and_all_before_it_counts():
    log = founded(weights(), merged(), merged(fragment=1, global_step=2))
    disk = on_disk(log, 5)
    newest = next_epoch(log, 4)
    enter_epoch(disk, newest)
    assert (disk.log, disk.certified) == (log.encoded[:4], 4)
    view = scan(disk, newest, STRANGER)
    assert (view.certified, view.charter) == (4, newest)
    start = log_start(disk, view)
    assert (start.floor, start.charter, start.admissions) == (place(log, 4), newest, {})


def test_a_log_that_cannot_prove_the_origin_is_left():
    """Who leads from there must be able to bring others there."""
    log = founded(weights(), merged())
    disk = on_disk(log, 3)
    enter_epoch(disk, next_epoch(log, 4))
    assert (disk.last, disk.log) == (0, [])


def test_a_log_that_forks_before_the_origin_is_left():
    log = founded(weights(), merged())
    disk = on_disk(log, 5)
    enter_epoch(disk, next_epoch(log, 4, head=bytes(32)))
    assert (disk.last, disk.log) == (0, [])


def test_a_log_that_ends_before_the_origin_is_left():
    log = founded(weights(), merged())
    disk = on_disk(log, 3)
    disk.log = log.encoded[:3]
    enter_epoch(disk, next_epoch(log, 5))
    assert disk.last == 0


def test_an_epoch_is_entered_once():
    log = founded(weights())
    newest = next_epoch(log, 4, *SOLE)
    record = msgspec.structs.replace(
        log.records[-1], epoch=1, index=5, previous=log.state.head, body=SeatTaken(SYNCER.key)
    )
    disk = on_disk(log, 4)
    disk.append(4, (msgspec.msgpack.encode(record),))
    enter_epoch(disk, newest)
    assert disk.last == 5
    assert scan(disk, newest, SYNCER).certified == 5


def test_an_empty_disk_enters_any_epoch():
    disk = SimDisk.fresh(DISK)
    newest = next_epoch(founded(weights()), 4)
    enter_epoch(disk, newest)
    view = scan(disk, newest, SYNCER)
    assert (view.certified, view.start, view.charter) == (0, Floor(), newest)
