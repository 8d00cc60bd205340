"""The voter's log in memory: chaining, cutting, what counts as stored, committed and certified."""

from __future__ import annotations

import msgspec
import pytest

from protocol import wire
from protocol.errors import BadSignature, CorruptState, MalformedMessage, UnexpectedMessage
from protocol.log.records import (
    Admission,
    CharterAdopted,
    RunEnding,
    SeatTaken,
    VotersAdmitted,
    certify,
    sign_record,
)
from protocol.messages import Vote
from protocol.project import Charter, Voter, encode
from protocol.signing import seal
from simulator.stand_ins.tiny import SimSigner, sim_verify, tiny_project
from syncer_node.raft.log import Entry, Floor, LogStart, RaftLog

A, B, C, D, E = (SimSigner(name) for name in "abcde")
TINY = tiny_project(A.key)


def charter(*signers: SimSigner, revision: int = 1) -> Charter:
    voters = tuple(Voter(signer.key, "syncer", 50) for signer in signers)
    return msgspec.structs.replace(TINY.charter, voters=voters, revision=revision)


def adoption(of: Charter) -> CharterAdopted:
    return CharterAdopted(seal("charter", TINY.project, encode(of), TINY.owner))


def admission(*signers: SimSigner) -> VotersAdmitted:
    return VotersAdmitted(tuple(Admission(s.key, 0, s.key) for s in signers))


def empty(of: Charter) -> RaftLog:
    log = RaftLog(TINY.project, LogStart(Floor(), of, {}, [], []))
    log.proofs_kept = 1 << 30  # The disk keeps every certificate at once.
    return log


def formed(*signers: SimSigner) -> RaftLog:
    """A log whose first three records are stored."""
    log = empty(charter(*signers))
    for body in (SeatTaken(A.key), adoption(charter(*signers)), admission(*signers)):
        propose(log, body)
    return log


def propose(log: RaftLog, body=None, *, term: int = 1) -> Entry:
    entry = log.propose(body or RunEnding("owner"), epoch=0, term=term, at_s=0.0)
    log.stored(log.last - 1, [entry.encoded])
    return entry


def sign(log: RaftLog, index: int, *signers: SimSigner) -> None:
    entry = log.entry(index)
    for signer in signers:
        log.vote(index, sign_record(entry.record, entry.digest, signer))


def proof(log: RaftLog, index: int, *signers: SimSigner):
    entry = log.entry(index)
    votes = [sign_record(entry.record, entry.digest, signer) for signer in signers]
    return certify(entry.record, entry.digest, votes)


def test_records_must_follow_each_other():
    log, other = formed(A, B, C), formed(A, B, C)
    propose(log)
    stranger = propose(other, SeatTaken(B.key))
    with pytest.raises(MalformedMessage, match="does not follow"):
        log.add(stranger)


def test_a_record_of_an_older_term_cannot_follow():
    log, other = formed(A, B, C), formed(A, B, C)
    propose(log, term=5)
    older = propose(other, term=2)
    log.cut(3)
    log.add(older)
    log.cut(3)
    propose(log, term=5)
    record = msgspec.structs.replace(older.record, index=5, previous=log.head)
    with pytest.raises(MalformedMessage, match="another log"):
        log.add(Entry.read(wire.encode(record)))


def test_what_is_committed_cannot_be_cut():
    log = formed(A, B, C)
    sign(log, 3, A, B)
    log.certify(1)
    log.cut(3)
    with pytest.raises(CorruptState):
        log.cut(2)


def test_what_was_replaced_while_it_was_written_does_not_count_as_stored():
    log = formed(A, B, C)
    old = log.propose(RunEnding("owner"), epoch=0, term=1, at_s=0.0)
    log.cut(3)
    log.propose(SeatTaken(B.key), epoch=0, term=2, at_s=0.0)
    log.stored(3, [old.encoded])
    assert log.stable == 3


def test_a_majority_for_the_newest_commits_all_and_certifies_what_is_signed():
    log = formed(A, B, C)
    sign(log, 3, A, B)
    assert log.certify(1) == []
    assert (log.committed, log.certified) == (3, 0)
    sign(log, 1, A, B)
    sign(log, 2, A, C)
    assert [entry.record.index for entry in log.certify(1)] == [1, 2, 3]


def test_a_majority_under_a_record_of_an_older_term_commits_nothing():
    log = formed(A, B, C)
    propose(log, term=2)
    sign(log, 3, A, B, C)
    log.certify(2)
    assert log.committed == 0
    sign(log, 4, A, B)
    log.certify(2)
    assert log.committed == 4


def test_records_behind_a_new_charter_need_those_who_must_sign_it_too():
    """Else two groups of voters could each go on by themselves."""
    log = formed(A, B, C)
    for index in (1, 2, 3):
        sign(log, index, A, B)
    log.certify(1)
    propose(log, adoption(charter(A, D, E, revision=2)))
    propose(log)
    for index in (4, 5):
        sign(log, index, A, D, E)
    log.certify(1)
    assert log.committed == 3
    for index in (4, 5):
        sign(log, index, B)
    log.certify(1)
    assert (log.committed, log.certified) == (5, 5)


def test_while_the_charter_changes_both_groups_elect_and_former_voters_count():
    log = formed(A, B, C)
    for index in (1, 2, 3):
        sign(log, index, A, B)
    log.certify(1)
    propose(log, adoption(charter(A, D, E, revision=2)))
    assert not all(one.has_enough({A.key, D.key}) for one in log.electorates())
    assert all(one.has_enough({A.key, B.key, D.key}) for one in log.electorates())
    assert log.is_admitted(B.key, B.key)
    sign(log, 4, A, B, D)
    log.certify(1)
    assert all(one.has_enough({A.key, D.key}) for one in log.electorates())
    assert not log.is_admitted(B.key, B.key)


def test_the_first_charter_of_a_log_held_from_its_start():
    """A voter that joins late was told another one, whose voters did not sign the beginning."""
    source = formed(A, B, C)
    joiner = empty(charter(D, E, revision=9))
    for index in (1, 2, 3):
        joiner.add(Entry.read(source.entry(index).encoded))
    joiner.take_certificate(proof(source, 1, A, B), sim_verify)
    assert joiner.committed == 1
    joiner.stable = 0
    joiner.committed = 0
    joiner.cut(0)
    assert joiner.charter.revision == 9


def test_a_log_says_who_votes_once_that_record_is_stored():
    log = empty(charter(A, B))
    log.propose(SeatTaken(A.key), epoch=0, term=1, at_s=0.0)
    log.propose(admission(A, B), epoch=0, term=1, at_s=0.0)
    assert not log.is_formed
    log.stored(0, [log.entry(1).encoded])
    assert not log.is_formed
    log.stored(1, [log.entry(2).encoded])
    assert log.is_formed


def test_a_certificate_must_be_of_a_record_that_is_here_and_by_enough_voters():
    log, other = formed(A, B, C), formed(A, B, C)
    propose(log)
    propose(other, SeatTaken(B.key))
    with pytest.raises(UnexpectedMessage):
        log.take_certificate(proof(other, 4, A, B), sim_verify)
    with pytest.raises(BadSignature):
        log.take_certificate(proof(log, 4, A), sim_verify)
    forged = certify(
        log.entry(4).record, log.entry(4).digest, [Vote(k.key, bytes(64)) for k in (A, B)]
    )
    with pytest.raises(BadSignature):
        log.take_certificate(forged, sim_verify)


def test_proven_records_are_applied_in_order_and_once_stored():
    log = formed(A, B, C)
    last = log.propose(RunEnding("owner"), epoch=0, term=1, at_s=0.0)
    for index in (2, 3, 4):
        log.take_certificate(proof(log, index, A, B), sim_verify)
    assert log.advance() == []
    log.take_certificate(proof(log, 1, B, C), sim_verify)
    assert [entry.record.index for entry in log.advance()] == [1, 2, 3]
    log.stored(3, [last.encoded])
    assert [entry.record.index for entry in log.advance()] == [4]


def test_a_log_that_begins_between_its_charter_and_its_voters_knows_its_charter():
    """Else the next charter would hold from the start, and need nobody of before to be signed."""
    log = formed(A, B, C)
    for index in (1, 2, 3):
        sign(log, index, A, B)
    log.certify(1)
    floor = Floor(2, 1, log.digest_at(2))
    late = RaftLog(TINY.project, LogStart(floor, charter(A, B, C), {}, [], [], is_adopted=True))
    late.add(Entry.read(log.entry(3).encoded))
    change = late.propose(adoption(charter(A, D, E, revision=2)), epoch=0, term=1, at_s=0.0)
    assert late.charter_before(change.record.index).revision == 1
    assert not late.electorate(change.record.index).has_enough({A.key, D.key})
