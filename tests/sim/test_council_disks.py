"""Disks that were put back or renamed, proofs that must be durable, epochs: telling scenes."""

from __future__ import annotations

import copy

import pytest

from protocol.project import Origin, Voter
from simulator.checkers.ledger import Violation
from simulator.council.swarm import check_recovery
from syncer_node.raft.context import Context
from syncer_node.raft.election import Election
from syncer_node.raft.log import RaftLog
from syncer_node.raft.raft import Raft
from tests.support.councils import RECOVERY_S, council, finds, refusals, standbys, wipe

# Disks that were put back, and disks in two places.


def test_an_old_copy_stays_refused_however_often_it_is_started():
    restored = council()
    host = standbys(restored)[0]
    copied = copy.deepcopy(host.disk)
    for _ in range(3):
        host.crash()
        restored.run(3.0)
        host.boot()
        restored.run(3.0)
    host.crash()
    host.disk = copied
    restored.checker.forget_disk(host)
    for _ in range(6):
        host.boot()
        restored.run(12.0)
        assert not host.raft_machine.raft.log.is_admitted(host.key, host.disk.ballot.disk)
        host.crash()
    host.boot()
    restored.revise(
        *(Voter(v.key, v.role, v.priority, int(v.key == host.key)) for v in restored.charter.voters)
    )
    check_recovery(restored, RECOVERY_S)


def test_a_copy_from_the_same_start_is_refused_by_a_leader_that_knows_it_had_more():
    restored = council()
    host = standbys(restored)[0]
    copied = copy.deepcopy(host.disk)
    restored.run(20.0)
    host.crash()
    host.disk = copied
    restored.checker.forget_disk(host)
    host.boot()
    restored.run(10.0)
    assert not host.raft_machine.raft.log.is_admitted(host.key, host.disk.ballot.disk)
    assert any("another disk" in words for words in refusals(host))


def test_a_sole_voter_that_is_left_can_prove_that_it_is_after_a_power_loss():
    shrinking = council(syncers=2)
    leader = shrinking.named("syncer-0")
    shrinking.revise(shrinking.charter.voters[0])
    shrinking.run(
        20.0,
        stop=lambda: (
            leader.raft_machine.raft.log.certified > 0
            and shrinking.checker.charter.revision == shrinking.charter.revision
        ),
    )
    leader.disk.lose_power(1000)
    leader.crash()
    shrinking.named("syncer-1").crash()
    leader.boot()
    shrinking.run(20.0)
    assert shrinking.leaders() == [leader]


def test_an_epoch_does_not_begin_without_its_origin():
    """Nobody whom the owner names has the log: it stays away, instead of a second history."""
    lost = council(syncers=3, spares=2)
    spares = [host for host in lost.voters.values() if host.name.startswith("spare")]
    leader = lost.leader()
    index = leader.disk.certified
    digest = leader.disk.digest_at(index)
    assert digest is not None
    lost.begin_epoch(Origin(index, digest), *(Voter(s.key, "syncer", 10) for s in spares))
    lost.run(60.0)
    assert lost.leaders() == []


def test_a_host_without_the_log_is_brought_into_an_epoch_that_needs_its_vote():
    kept = council(syncers=3)
    behind = standbys(kept)[0]
    behind.crash()
    kept.run(10.0)
    leader = kept.leader()
    leader.disk.proofs_synced = len(leader.disk.proofs)
    digest = leader.disk.digest_at(leader.disk.certified)
    assert digest is not None
    voters = [v for v in kept.charter.voters if v.key in (behind.key, leader.key)]
    kept.begin_epoch(Origin(leader.disk.certified, digest), *voters)
    behind.boot()
    check_recovery(kept, RECOVERY_S)


def test_a_removal_that_cannot_finish_is_taken_on_by_readmitting_first():
    three = council(syncers=3)
    wiped, leaving = standbys(three)
    wipe(three, wiped)
    three.revise(*(v for v in three.charter.voters if v.key != leaving.key))
    three.run(30.0)
    assert three.checker.charter.revision == 1
    three.revise(
        *(Voter(v.key, v.role, v.priority, int(v.key == wiped.key)) for v in three.charter.voters)
    )
    check_recovery(three, RECOVERY_S)


def test_a_charter_whose_proof_is_not_durable_is_found(monkeypatch):
    monkeypatch.setattr(RaftLog, "_waits_for_proof", lambda self, index: False)
    assert finds("whose proof is not on its disk")


def test_an_epoch_that_begins_from_nothing_is_found(monkeypatch):
    monkeypatch.setattr(Context, "has_origin", property(lambda self: True))
    monkeypatch.setattr(Election, "_has_origin", lambda self, ask: True)
    with pytest.raises(Violation, match="certified record"):
        test_an_epoch_does_not_begin_without_its_origin()


def test_a_void_disk_that_keeps_its_name_is_found(monkeypatch):
    """A void disk that keeps its name passes after enough starts: that is what renaming is for."""
    monkeypatch.setattr(Raft, "_give_up_disk", lambda self, words: None)
    with pytest.raises(AssertionError):
        test_an_old_copy_stays_refused_however_often_it_is_started()
