"""Election and replication under faults: promises that the checkers guard, and telling scenes."""

from __future__ import annotations

import copy

import msgspec
import pytest

from protocol import limits, wire
from protocol.log.records import (
    Record,
    RunEnding,
    VotersAdmitted,
    certify,
    record_hash,
    sign_record,
)
from protocol.messages import RecordVote
from protocol.project import Voter
from simulator.checkers.ledger import Violation
from simulator.council.council import Council
from simulator.council.faults import check_calm, check_recovery, run_seed
from simulator.hosts.voter_disk import VoterDisk
from syncer_node.raft.context import Context
from syncer_node.raft.election import Election
from syncer_node.raft.jobs import BallotSaved, SaveBallot
from syncer_node.raft.log import RaftLog
from syncer_node.raft.replication import Replication
from syncer_node.raft.voter_streams import VoterStreams
from tests.support.choices import first, spread
from tests.support.councils import RECOVERY_S, council, finds, isolate, refusals, standbys, wipe

SEEDS = 60


@pytest.mark.parametrize("start", first(1, range(0, SEEDS, 5)))
def test_every_promise_holds_under_faults_and_order_returns_after_them(start):
    for seed in range(start, start + 5):
        run_seed(seed)


# Elections.


def test_a_sole_voter_leads_at_once():
    alone = Council(1, syncers=1)
    alone.boot()
    alone.run(0.2)
    assert alone.leader().raft.log.certified >= 3


def test_the_voter_with_the_highest_priority_leads_first():
    assert council(syncers=5).leader().name == "syncer-0"


@pytest.mark.parametrize("seed", first(2, range(10)))
def test_a_split_vote_resolves(seed):
    split = council(seed, syncers=5)
    split.leader().crash()
    for host in standbys(split):
        if host.is_up:
            host.raft.election.deadline_s = split.world.now_s + 3.2
    split.run(20.0)
    assert len(split.leaders()) == 1


def test_a_leader_that_is_cut_off_gives_up_and_certifies_nothing():
    cut = council()
    old = cut.leader()
    before = old.raft.log.certified
    isolate(cut, old, 30.0)
    cut.run(4.0)
    cut.run(8.0)
    assert not old.is_leading
    assert old.raft.log.certified <= before + 1
    assert cut.leader() is not old
    check_recovery(cut, RECOVERY_S)


def test_a_paused_leader_learns_of_the_new_term_and_loses_what_it_wrote_too_late():
    paused = council()
    old = paused.leader()
    isolate(paused, old, 2.0)
    paused.run(1.5)
    tail = [entry.digest for entry in old.raft.log.entries][-1]
    old.pause()
    paused.run(20.0)
    assert paused.leaders()[-1] is not old
    old.resume()
    paused.run(5.0)
    assert not old.is_leading
    assert tail not in [entry.digest for entry in old.raft.log.entries]
    check_recovery(paused, RECOVERY_S)


def test_without_a_majority_nobody_leads_and_nothing_is_certified():
    alone = council()
    for host in standbys(alone):
        host.crash()
    alone.run(10.0)
    records = len(alone.checker.records)
    alone.run(60.0)
    assert alone.leaders() == []
    assert len(alone.checker.records) == records


def test_a_handover_takes_no_timeout():
    handed = council()
    old = handed.leader()
    old.is_draining = True
    handed.run(1.5)
    assert handed.leader() is not old
    terms = [term for _, term, _ in handed.checker.elections]
    assert terms == [1, 2]


def test_a_drained_voter_does_not_lead_when_the_next_leader_hands_over():
    drained = council()
    first = drained.leader()
    first.is_draining = True
    drained.run(5.0)
    second = drained.leader()
    assert second is not first
    first.is_draining = False  # It is told once; what it gave its word on stays.
    second.is_draining = True
    drained.run(20.0)
    assert drained.leader() not in (first, None)


def test_a_drained_voter_does_not_stand_again():
    drained = council()
    old = drained.leader()
    old.is_draining = True
    drained.run(5.0)
    drained.leader().crash()
    drained.run(20.0)
    assert drained.leader() is not old


def test_a_returning_voter_with_a_higher_priority_does_not_take_the_seat_back():
    returning = council()
    best = returning.leader()
    assert best.name == "syncer-0"
    best.crash()
    returning.run(15.0)
    second = returning.leader()
    best.boot()
    returning.run(60.0)
    assert returning.leader() is second


def test_a_witness_never_leads():
    witnessed = council(syncers=1, witnesses=2)
    witnessed.leader().crash()
    witnessed.run(60.0)
    assert witnessed.leaders() == []


def test_wall_clocks_do_not_matter():
    skewed = council()
    leader = skewed.leader()
    for at, host in enumerate(standbys(skewed)):
        host.wall_offset_s = 1e9 * at
        host.crash()
        skewed.run(3.0)
        host.boot()
        skewed.run(3.0)
    assert skewed.leader() is leader
    check_calm(skewed)


# Logs.


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_restarts_in_every_order_lose_nothing(order):
    restarted = council()
    hosts = list(restarted.voters.values())
    records = len(restarted.checker.records)
    for at in order:
        hosts[at].crash()
        restarted.run(2.0)
    for at in order:
        hosts[at].boot()
        restarted.run(2.0)
    check_recovery(restarted, RECOVERY_S)
    assert len(restarted.checker.records) > records


@pytest.mark.parametrize("after_s", spread(6, [0.001 * step for step in range(0, 200, 7)]))
def test_the_swarm_forms_whenever_its_first_leader_dies(after_s):
    forming = Council(3)
    forming.boot()
    forming.run(30.0, stop=lambda: bool(forming.leaders()))
    forming.run(after_s)
    first = forming.leader()
    first.crash()
    forming.run(10.0)
    first.boot()
    check_recovery(forming, RECOVERY_S)


def test_a_long_uncommitted_tail_of_an_old_term_is_cut_back():
    tailed = council()
    old = tailed.leader()
    old.propose_every_s = 0.01
    isolate(tailed, old, 25.0)
    tailed.run(3.0)
    log = old.raft.log
    digests = {log.digest_at(index) for index in range(log.committed + 1, log.last + 1)}
    assert len(digests) >= 3
    tailed.run(20.0)
    check_recovery(tailed, RECOVERY_S)
    assert digests.isdisjoint(tailed.checker.history.values())


def test_a_follower_that_comes_late_gets_all_records_and_their_proofs():
    late = council(syncers=3)
    host = standbys(late)[0]
    host.crash()
    late.run(60.0)
    host.boot()
    check_recovery(late, RECOVERY_S)


def test_a_leader_that_lost_its_certificates_gets_them_from_the_others():
    forgetful = council()
    for host in forgetful.voters.values():
        host.crash()
    best = forgetful.named("syncer-0")
    best.disk.proofs = []
    for host in forgetful.voters.values():
        host.boot()
    forgetful.run(15.0)
    assert forgetful.leader() is best
    check_recovery(forgetful, RECOVERY_S)


@pytest.mark.parametrize("seed", first(2, range(12)))
def test_a_live_standby_can_always_follow_a_leader_that_dies_however_often(seed):
    """With a witness: it never holds a record whose payload only the dead leader had."""
    fragile = Council(seed, syncers=2, witnesses=1)
    for host in fragile.voters.values():
        host.fetch_s, host.propose_every_s = 0.7, 0.2
    fragile.boot()
    fragile.run(15.0)
    for _ in range(4):
        fragile.run(2.0 + seed * 0.13)
        old = fragile.leader()
        old.crash()
        fragile.checker.disturb()
        fragile.run(12.0)
        assert fragile.leaders(), "the standby cannot be elected"
        old.boot()
        fragile.checker.disturb()
        fragile.run(20.0)


@pytest.mark.slow
def test_witnesses_never_hold_what_the_only_syncer_forgot():
    lonely = council(syncers=1, witnesses=2)
    leader = lonely.leader()
    leader.fsync_s, leader.propose_every_s = 0.1, 0.05
    for _ in range(10):
        lonely.run(2.03)
        leader.unwritten()
        leader.crash()
        lonely.run(3.0)
        leader.boot()
        lonely.run(15.0)
        assert lonely.leaders() == [leader]


# Disks.


def test_a_wiped_disk_is_refused_until_the_owner_readmits_it():
    wiped = council()
    host = standbys(wiped)[0]
    wipe(wiped, host)
    wiped.run(60.0)
    assert host.raft.log.certified == 0
    assert any("readmit" in words for words in refusals(host))
    wiped.revise(
        *(Voter(v.key, v.role, v.priority, int(v.key == host.key)) for v in wiped.charter.voters)
    )
    check_recovery(wiped, RECOVERY_S)
    admitted = [r.body for r in wiped.checker.records if isinstance(r.body, VotersAdmitted)]
    assert admitted[-1].voters[0].disk == host.disk.ballot.disk


def test_an_old_copy_of_a_disk_is_refused():
    restored = council()
    host = standbys(restored)[0]
    copied = copy.deepcopy(host.disk)
    for _ in range(2):
        host.crash()
        restored.run(3.0)
        host.boot()
        restored.run(3.0)
    host.crash()
    host.disk = copied
    host.boot()
    restored.run(20.0)
    assert any("old copy" in words for words in refusals(host))
    assert host.raft.leader is None


def test_a_clone_is_refused():
    doubled = council()
    host = standbys(doubled)[0]
    twin = host.clone()
    host.crash()
    host.boot()
    doubled.run(15.0)
    twin.boot()  # The same number of starts, another nonce.
    doubled.run(10.0)
    assert any("two hosts" in words for words in refusals(twin))


# The owner changes the voters.


def test_voters_are_added_and_removed_under_load():
    changed = council(spares=1)
    spare = changed.named("spare-0")
    changed.revise(*changed.charter.voters, Voter(spare.key, "syncer", 10))
    check_recovery(changed, RECOVERY_S)
    changed.revise(*changed.charter.voters[1:])
    check_recovery(changed, RECOVERY_S)
    assert changed.leader().name != "syncer-0"


def test_of_two_voters_one_may_remain():
    shrinking = council(syncers=2)
    shrinking.revise(shrinking.charter.voters[1])
    check_recovery(shrinking, RECOVERY_S)
    assert shrinking.leader().name == "syncer-1"


def replace_all_but_one() -> Council:
    """One of the former voters stays: hosts that are all new would begin a log of their own."""
    replaced = council(syncers=3, spares=3)
    spares = [host for host in replaced.voters.values() if host.name.startswith("spare")]
    added = (Voter(host.key, "syncer", 50 - at) for at, host in enumerate(spares))
    replaced.revise(replaced.charter.voters[2], *added)
    return replaced


def test_nearly_all_voters_may_change_at_once():
    replaced = replace_all_but_one()
    check_recovery(replaced, RECOVERY_S)
    assert replaced.leader().name not in ("syncer-0", "syncer-1")
    replaced.named("syncer-0").crash()
    replaced.named("syncer-1").crash()
    check_recovery(replaced, RECOVERY_S)


@pytest.mark.parametrize("after_s", spread(5, [0.01 * step for step in range(0, 60, 3)]))
def test_a_change_of_most_voters_survives_the_death_of_its_leader(after_s):
    replaced = replace_all_but_one()
    old = replaced.named("syncer-0")
    replaced.run(after_s)
    old.crash()
    replaced.run(15.0)
    old.boot()
    check_recovery(replaced, 2 * RECOVERY_S)


def figure_8() -> None:
    """Figure 8 of the Raft paper: a record of term 2 reaches a majority in term 4, and is replaced.

    `a` spreads it and dies before its own record of term 4 is stored by enough others; then `e` is
    elected, whose log ends with a record of term 3.
    """
    scene = council(7, syncers=5)
    a, b, c, _, e = hosts = [scene.named(f"syncer-{at}") for at in range(5)]
    for host in hosts:
        host.propose_every_s = 1e9
    scene.run(5.0)
    for host in hosts:
        host.crash()
        host.disk.ballot = msgspec.structs.replace(host.disk.ballot, term=3, voted_for=None)
    for host, term in ((a, 2), (b, 2), (e, 3)):
        index, head = host.disk.last, record_hash(host.disk.log[-1])
        project = scene.tiny.project
        record = Record(project, 0, term, index + 1, head, 0.0, RunEnding("owner"))
        host.disk.log.append(wire.encode(record))
    for host in (a, b, c):
        host.boot()
    scene.run(30.0, stop=lambda: a.is_leading)
    b.fsync_s, c.fsync_s = 5.0, 0.2
    scene.run(0.4)
    assert c.disk.last == e.disk.last
    for host in (a, b, c):
        host.unwritten()
        host.crash()
    for host in hosts[2:]:
        host.fsync_s = 0.005
        host.boot()
    scene.run(20.0)
    assert scene.leader() is e


# The checkers must bite: plant a fault, and see it found.


def test_a_ballot_that_is_not_persisted_is_found(monkeypatch):
    honest = VoterDisk.write

    def forget(self, job):
        return BallotSaved(job.ballot) if isinstance(job, SaveBallot) else honest(self, job)

    monkeypatch.setattr(VoterDisk, "write", forget)
    assert finds("is not on its disk")


def test_a_vote_for_a_candidate_that_lacks_records_is_found(monkeypatch):
    monkeypatch.setattr(Election, "_is_up_to_date", lambda self, ask: True)
    assert finds("leads without the certified record")


def test_a_record_applied_before_its_certificate_is_found(monkeypatch):
    def hasty(self):
        entries = []
        while self.certified < self.stable:
            self.certified += 1
            entry = self.entry(self.certified)
            entry.certificate = entry.certificate or certify(entry.record, entry.digest, ())
            entries.append(entry)
        self.committed = max(self.committed, self.certified)
        return entries

    monkeypatch.setattr(RaftLog, "advance", hasty)
    assert finds("unproven")


def test_the_vote_of_a_wiped_disk_is_found(monkeypatch):
    """Every disk is let in and counted: what a majority held may be forgotten."""
    monkeypatch.setattr(VoterStreams, "_other_disk", lambda self, key, hello: "")
    monkeypatch.setattr(VoterStreams, "_stale_disk", lambda self, key, hello: "")
    monkeypatch.setattr(Context, "counts", lambda self, peer: True)
    monkeypatch.setattr(RaftLog, "is_admitted", lambda self, key, disk: True)
    assert finds("certified record", lose_two_copies)


def lose_two_copies(seed: int) -> Council:
    """A record is on two of three disks; one of them is wiped, the other one is away."""
    lost = council(seed)
    first, second = standbys(lost)
    second.crash()
    lost.run(5.0)
    lost.leader().crash()
    second.boot()
    wipe(lost, first)
    lost.run(60.0)
    return lost


def test_without_the_fault_that_schedule_elects_nobody():
    assert lose_two_copies(1).leaders() == []


def test_a_log_that_a_majority_forms_is_found(monkeypatch):
    """Formation without unanimity: those who start a log may not be all who have one."""
    honest = Context.is_majority

    def hasty(self, keys):
        if self.is_forming:
            return all(e.has_enough(keys) for e in self.log.electorates())
        return honest(self, keys)

    monkeypatch.setattr(Context, "is_majority", hasty)
    assert finds("too few votes", form_in_parts)


def form_in_parts(seed: int) -> None:
    forming = Council(seed)
    for host in list(forming.voters.values())[:2]:
        host.boot()
    forming.run(20.0)


def test_old_records_signed_before_they_are_known_to_be_committed_are_found(monkeypatch):
    monkeypatch.setattr(limits, "RECORDS_PER_MESSAGE_MAX", 1)
    figure_8()

    def hasty(self):
        context, log = self.context, self.context.log
        agreed = log.last if context.is_leading else self._agreed
        votes = []
        for index in range(log.certified + 1, min(agreed, log.stable) + 1):
            entry = log.entry(index)
            if index not in self._signed:
                self._signed.add(index)
                vote = sign_record(entry.record, entry.digest, context.setup.signer)
                votes.append(RecordVote(index, vote.signature))
        return votes

    def certify_any(self, term):
        for index in range(self.stable, self.committed, -1):
            if self._has_enough(index):
                self.committed = index
                break
        return honest(self, term)

    honest = RaftLog.certify
    monkeypatch.setattr(Replication, "_sign", hasty)
    monkeypatch.setattr(RaftLog, "certify", certify_any)
    with pytest.raises(Violation, match="leads without the certified record"):
        figure_8()
