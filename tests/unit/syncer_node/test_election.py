"""One voter's rules: to whom it gives its vote, when it stands, what it remembers first."""

from __future__ import annotations

import random

import msgspec
import pytest

from protocol import wire
from protocol.effect_queue import EffectQueue
from protocol.errors import MalformedMessage, UnexpectedMessage
from protocol.limits import TERM_STEP_MAX, WIRE_VERSION
from protocol.log.records import NO_RECORD, Record, RunEnding
from protocol.machine import Disconnect, Failed, Send
from protocol.messages import AskVote, GiveVote, Refused, Replicate, Replicated, VoterHello
from protocol.project import Voter, encode
from protocol.signing import seal
from simulator.stand_ins.tiny import SimSigner, sim_verify, tiny_project
from syncer_node.daemon.voting_status import seat_status
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import HELD_MAX, RaftSetup, Role
from syncer_node.raft.jobs import Append, BallotSaved, SaveBallot
from syncer_node.raft.log import Floor, LogStart
from syncer_node.raft.raft import Raft

A, B, C = (SimSigner(name) for name in "abc")
VOTERS = (Voter(A.key, "syncer", 90), Voter(B.key, "syncer", 50), Voter(C.key, "witness", 0))
TINY = tiny_project(A.key, voters=VOTERS)
ENVELOPE = seal("charter", TINY.project, encode(TINY.charter), TINY.owner)


class Bystander:
    """An app that can lead and does nothing."""

    def can_lead(self):
        return True

    def __getattr__(self, name):
        return lambda *args: None


class Bench:
    """The voter `b`, greeted by the others."""

    def __init__(self, *, ballot: Ballot | None = None) -> None:
        setup = RaftSetup(TINY.project, TINY.owner.key, B, sim_verify, random.Random(1), 0.0, 1)
        self.raft = Raft(
            setup,
            effects=EffectQueue(),
            start=LogStart(Floor(), TINY.charter, {}, [], []),
            ballot=ballot or Ballot(B.key, 1),
            charter_envelope=ENVELOPE,
            newest_charter=TINY.charter,
            app=Bystander(),
        )
        self.raft.start(0.0)
        for other in (A, C):
            self.raft.on_up(other.key, 0.0)
            self.hear(other, self.hello(other))
        self.save()

    def hello(self, of: SimSigner, **changes) -> VoterHello:
        usual = VoterHello(WIRE_VERSION, TINY.project, of.key, 1, 1, 0, 0, ENVELOPE, ())
        return msgspec.structs.replace(usual, **changes)

    def hear(self, of: SimSigner, message, now_s: float = 0.0) -> None:
        self.raft.receive(of.key, message, now_s)

    def save(self, result=None) -> None:
        """The disk answers every write of the ballot."""
        effects = self.raft.context.effects
        while jobs := [n for n, job in effects.jobs.items() if isinstance(job, SaveBallot)]:
            job = effects.finish(jobs[0])
            self.raft.on_stored(job, result or BallotSaved(job.ballot), self.raft.context.now_s)

    def greet(self, now_s: float) -> None:
        """The others were heard again."""
        for other in (A, C):
            self.hear(other, self.hello(other), now_s)
        self.save()

    def answers(self) -> list[GiveVote]:
        out = self.raft.context.effects.drain()
        sent = [effect.message for effect in out if isinstance(effect, Send)]
        return [message for message in sent if isinstance(message, GiveVote)]


def ask(**changes) -> AskVote:
    usual = AskVote(0, 1, 0, 0, is_trial=False, is_handover=False)
    return msgspec.structs.replace(usual, **changes)


def test_voters_go_by_the_names_that_they_give():
    bench = Bench()
    bench.hear(A, bench.hello(A, name="attic"))
    rows = {row.key: row.name for row in seat_status(bench.raft, 0.0).voters}
    assert (rows[A.key.hex()], rows[C.key.hex()]) == ("attic", "")


def test_a_vote_is_on_disk_before_it_is_given():
    bench = Bench()
    bench.hear(A, ask())
    assert bench.answers() == []
    bench.save()
    (answer,) = bench.answers()
    assert answer.is_granted
    assert bench.raft.context.ballot.voted_for == A.key


def test_a_vote_that_cannot_be_written_is_not_given():
    bench = Bench()
    bench.hear(A, ask())
    bench.save(Failed("disk full"))
    assert bench.answers() == []
    bench.raft.look(1.5)
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [True]


def test_one_vote_a_term():
    bench = Bench(ballot=Ballot(B.key, 1, 1, B.key))
    bench.hear(A, ask())
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [False]
    bench.hear(A, ask(term=2))
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [True]


def test_a_witness_gets_no_vote():
    bench = Bench()
    bench.hear(C, ask())
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [False]


def test_a_trial_costs_no_term_and_no_vote():
    bench = Bench()
    bench.hear(A, ask(is_trial=True))
    assert [answer.is_granted for answer in bench.answers()] == [True]
    assert (bench.raft.context.term, bench.raft.context.ballot.voted_for) == (0, None)


def test_no_vote_while_the_leader_is_heard_unless_it_hands_over():
    bench = Bench()
    context = bench.raft.context
    context.now_s = 10.0
    bench.raft.election.heard_leader(C.key)
    bench.hear(A, ask(term=5), now_s=11.0)
    assert [answer.is_granted for answer in bench.answers()] == [False]
    assert context.term == 0
    bench.hear(A, ask(term=5, is_handover=True), now_s=11.0)
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [True]


def test_a_term_that_would_leave_none_for_later_is_believed_by_nobody():
    bench = Bench()
    context = bench.raft.context
    wild = TERM_STEP_MAX + 1
    for message in (
        ask(term=wild),
        GiveVote(0, wild, False, False, bytes(64)),
        Replicate(0, wild, 0, bytes(32), (), 0, 0),
        Replicated(0, wild, False, 0, 0, False, (), 0),
    ):
        with pytest.raises(UnexpectedMessage, match=f"term {wild} cannot have begun after term 0"):
            bench.hear(A, message)
        assert (context.term, context.leader) == (0, None)
    bench.hear(A, ask(term=TERM_STEP_MAX))
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [True]


def test_a_record_of_a_term_that_has_not_begun_is_believed_by_nobody():
    bench = Bench()
    ahead = Record(TINY.project, 0, 9, 1, NO_RECORD, 0.0, RunEnding("owner"))
    message = Replicate(0, 1, 0, NO_RECORD, (wire.encode(ahead),), 0, 0)
    with pytest.raises(MalformedMessage, match="of a term that has not begun"):
        bench.hear(A, message)
    assert bench.raft.context.log.last == 0


def test_no_vote_before_what_this_disk_lost_is_here_again():
    bench = Bench(ballot=Ballot(B.key, 1, 1, None, owed=5))
    bench.hear(A, ask(term=2, last_term=9, last_index=99))
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [False]


def test_nobody_forms_a_log_without_everybody():
    bench = Bench()
    bench.greet(6.0)
    bench.raft.look(6.0)
    assert bench.raft.context.role is Role.TRYING
    granted = GiveVote(0, 1, True, True, bytes(64))
    bench.hear(A, granted)
    assert bench.raft.context.role is Role.TRYING
    bench.hear(C, granted)
    assert bench.raft.context.role is Role.STANDING


def test_a_vote_with_a_wrong_signature_does_not_count():
    bench = Bench()
    bench.greet(6.0)
    bench.raft.look(6.0)
    for other in (A, C):
        bench.hear(other, GiveVote(0, 1, True, True, bytes(64)))
    bench.save()
    for other in (A, C):
        bench.hear(other, GiveVote(0, 1, False, True, bytes(64)))
    assert bench.raft.context.role is Role.STANDING


def test_other_disks_old_copies_and_clones_are_turned_away():
    for changes, words in (
        ({"disk": A.key}, "another disk"),
        ({"boot": 0}, "old copy"),
        ({"nonce": 2}, "two hosts"),
    ):
        bench = Bench()
        bench.hear(C, bench.hello(C, **changes))
        assert words in bench.raft.context.peers[C.key].trouble


def test_a_stream_on_which_no_hello_comes_is_given_up():
    bench = Bench()
    bench.raft.on_down(A.key, 1.0)
    bench.raft.on_up(A.key, 2.0)
    bench.raft.look(8.0)
    assert not bench.raft.context.peers[A.key].is_up


def test_a_leader_that_was_elected_is_acknowledged_by_who_wanted_another():
    bench = Bench(ballot=Ballot(B.key, 1, 1, B.key))
    bench.hear(A, Replicate(0, 1, 0, NO_RECORD, (), 0, 1))
    bench.save()
    bench.answers()
    bench.hear(A, ask(is_handover=True))
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [True]
    assert bench.raft.context.ballot.voted_for == B.key
    bench.hear(C, ask(is_handover=True))
    bench.save()
    assert [answer.is_granted for answer in bench.answers()] == [False]


def test_what_waits_for_a_ballot_that_cannot_be_written_is_bounded():
    bench = Bench()
    context = bench.raft.context
    bench.hear(A, ask())
    bench.save(Failed("disk full"))
    for _ in range(3 * HELD_MAX):
        context.say(A.key, ask())
    gone = [one for one in context.effects.drain() if isinstance(one, Disconnect)]
    assert gone
    assert gone[0].peer == A.key
    assert sum(len(held) for held in context._held_back.values()) <= HELD_MAX


def test_a_refused_disk_gives_up_its_name_and_says_nothing_before_that_is_written():
    bench = Bench()
    context = bench.raft.context
    context.effects.drain()
    stale = Refused("stale-disk", "this voter's disk is an old copy", None, nonce=1)
    bench.hear(A, msgspec.structs.replace(stale, nonce=9))
    assert context.ballot.disk == B.key, "of another start"
    bench.hear(A, stale)
    assert context.ballot.disk != B.key
    assert not bench.raft.voter_streams.context.greeted()
    bench.raft.on_up(C.key, 1.0)
    assert not [e for e in context.effects.drain() if isinstance(e, Send)]
    bench.save()
    bench.raft.on_up(C.key, 2.0)
    (hello,) = [e.message for e in context.effects.drain() if isinstance(e, Send)]
    assert hello.disk == context.ballot.disk


def test_a_readmitted_disk_draws_a_new_name():
    bench = Bench()
    voters = (VOTERS[0], msgspec.structs.replace(VOTERS[1], disk=1), VOTERS[2])
    charter = msgspec.structs.replace(TINY.charter, revision=2, voters=voters)
    sealed = seal("charter", TINY.project, encode(charter), TINY.owner)
    bench.raft.voter_streams.take_charter(sealed)
    bench.raft.look(1.0)
    assert bench.raft.context.ballot.disk != B.key
    assert bench.raft.context.ballot.generation == 1


def test_nothing_is_written_to_a_log_that_is_about_to_be_left():
    bench = Bench()
    replication, log = bench.raft.replication, bench.raft.log
    replication.is_held = True
    log.propose(RunEnding("owner"), epoch=0, term=1, at_s=0.0)
    replication.persist()
    jobs = bench.raft.context.effects.jobs.values()
    assert not [job for job in jobs if isinstance(job, Append)]
    replication.release()
    jobs = bench.raft.context.effects.jobs.values()
    assert [job.after for job in jobs if isinstance(job, Append)] == [0]
