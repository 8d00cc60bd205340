from __future__ import annotations

from protocol.commit import CommitTracker
from protocol.project import Voter
from protocol.records import NO_RECORD, RunEnding, SeatTaken, open_record, sign_record
from simulator.tiny import SimSigner, sim_verify
from tests.builders import STRANGER, SYNCER, project

VOTERS = [SYNCER, SimSigner("second"), SimSigner("third")]


def tracker(count):
    voters = tuple(Voter(signer.key, "syncer", 1) for signer in VOTERS[:count])
    return CommitTracker(project().project, 0, 1, voters, 0, NO_RECORD)


def vote(log, proposal, signer):
    signed = sign_record(proposal.record, proposal.digest, signer)
    return [done.record.index for done, _ in log.vote(proposal.record.index, signed)]


def test_proposals_form_a_chain():
    log = tracker(1)
    first = log.propose(SeatTaken(SYNCER.key), 1.0)
    second = log.propose(RunEnding("owner"), 2.0)
    assert (first.record.index, first.record.previous) == (1, NO_RECORD)
    assert (second.record.index, second.record.previous) == (2, first.digest)
    assert (log.index, log.head) == (2, second.digest)


def test_one_voter_commits_alone_and_its_certificate_opens():
    log = tracker(1)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    signed = sign_record(proposal.record, proposal.digest, SYNCER)
    ((_, entry),) = log.vote(1, signed)
    assert open_record(entry, project().project, log.voters, sim_verify) == proposal.record
    assert not log.tail


def test_records_commit_in_log_order_whatever_the_order_of_votes():
    log = tracker(1)
    one, two, three = (log.propose(SeatTaken(SYNCER.key), 1.0) for _ in range(3))
    assert vote(log, two, SYNCER) == []
    assert vote(log, three, SYNCER) == []
    assert vote(log, one, SYNCER) == [1, 2, 3]


def test_two_voters_must_both_sign():
    log = tracker(2)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    assert vote(log, proposal, VOTERS[0]) == []
    assert vote(log, proposal, VOTERS[1]) == [1]


def test_two_of_three_voters_are_enough_and_the_third_changes_nothing():
    log = tracker(3)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    assert vote(log, proposal, VOTERS[2]) == []
    assert vote(log, proposal, VOTERS[0]) == [1]
    assert vote(log, proposal, VOTERS[1]) == []


def test_the_same_vote_twice_counts_once():
    log = tracker(3)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    assert vote(log, proposal, SYNCER) == []
    assert vote(log, proposal, SYNCER) == []
    assert log.tail[0] is proposal


def test_unknown_voters_change_nothing():
    log = tracker(1)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    assert vote(log, proposal, STRANGER) == []
    assert proposal.votes == {}


def test_a_vote_for_a_record_that_is_not_proposed_changes_nothing():
    log = tracker(1)
    proposal = log.propose(SeatTaken(SYNCER.key), 1.0)
    signed = sign_record(proposal.record, proposal.digest, SYNCER)
    assert log.vote(2, signed) == []
    assert log.vote(0, signed) == []
    assert len(log.tail) == 1
