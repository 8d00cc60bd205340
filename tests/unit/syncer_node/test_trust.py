"""Whose pushes make a quorum, and what a merge is told of those who handed them in."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec import structs

from protocol import novelty
from protocol.ids import short
from protocol.log.accounts import Account
from protocol.log.state import KnownNorm
from protocol.novelty import UNHEARD, Novelty
from protocol.peers.membership import Membership
from protocol.project import OuterSpec
from protocol.standing import ESTABLISHED_MIN, JUDGED_MIN, NOBODY, Standing
from syncer_node.daemon.status import sentence
from syncer_node.machine.jobs import Merge
from syncer_node.machine.trust.judge import Judge
from tests.support.builders import (
    ONE,
    STRANGER,
    THREE,
    TWO,
    SyncerBench,
    hello,
    project,
    rounds,
)

EARNED = OuterSpec(0.7, 0.5, 3.0, trust="earned")
ALL = (ONE, TWO, THREE, STRANGER)
LIAR = STRANGER


class Swarm(SyncerBench):
    """Learners that were all judged: three point forwards, the last one backwards."""

    def __init__(self, outer=EARNED, *, is_known=True, quorum=1):
        super().__init__(project(rounds(quorum=quorum), outer=outer))
        self.merges, self.usual, self.answer = [], self.answer, self.answered
        self.start(*ALL)
        state = self.machine.state
        for learner in ALL:
            direction = -0.9 if learner is LIAR else 0.9
            standing = Standing(direction, JUDGED_MIN)
            state.accounts.put(learner.key, Account(standing=standing))
        if is_known:
            for known in state.norms:
                known.update({one.key: KnownNorm(one.key, 1.0, 8, b"\x01") for one in ALL})
        self.pulls = self.train(*ALL)

    def answered(self, job):
        answer = self.usual(job)
        if isinstance(job, Merge):
            self.merges.append(job)
            trusts = tuple(0.0 if part.learner == LIAR.key else 1.0 for part in job.parts)
            answer = dataclasses.replace(answer, trusts=trusts)
        return answer

    def hand_in(self, *learners):
        for learner in learners:
            self.push(learner, self.pulls[learner.key])

    def merged(self):
        """What is merged once nobody is waited for any more."""
        self.wait(1.0)
        (job,) = self.merges
        return job


def test_a_push_that_would_not_count_makes_no_quorum():
    swarm = Swarm()
    swarm.hand_in(LIAR)
    swarm.wait(1.0)
    assert swarm.merges == []
    swarm.hand_in(ONE)
    assert {part.learner for part in swarm.merged().parts} == {ONE.key, LIAR.key}


def test_a_quorum_of_all_is_one_of_all_that_count():
    """Else every round would wait for its patience."""
    swarm = Swarm(quorum=4)
    swarm.hand_in(ONE, TWO)
    swarm.wait(1.0)
    assert swarm.merges == []
    swarm.hand_in(THREE)
    assert len(swarm.merged().parts) == 3


def test_a_merge_is_told_directions_and_norms():
    swarm = Swarm()
    swarm.hand_in(ONE)
    job = swarm.merged()
    assert job.parts[0].standing == Standing(0.9, JUDGED_MIN)
    assert job.against.typical == 0.9
    assert job.against.norms == (1.0,) * 3
    assert (job.against.steps, job.against.tensors) == ((8,) * 3, (b"\x01",) * 3)
    assert not job.against.is_established


def test_where_everybody_counts_nothing_is_compared():
    swarm = Swarm(OuterSpec(0.7, 0.5, 3.0))
    swarm.hand_in(LIAR)
    job = swarm.merged()
    assert job.against is None


@pytest.mark.parametrize("outer", [EARNED, OuterSpec(0.7, 0.5, 3.0)])
def test_the_first_merges_of_four_learners_need_three_where_trust_is_earned(outer):
    swarm = Swarm(outer, is_known=False)
    swarm.hand_in(ONE, TWO)
    swarm.wait(1.0)
    assert len(swarm.merges) == (outer.trust == "all")
    swarm.hand_in(THREE)
    swarm.wait(1.0)
    assert len(swarm.merges) == 1


@pytest.mark.parametrize(
    ("here", "participants_max", "needed"),
    [(1, 0, 0), (2, 0, 3), (4, 0, 3), (9, 0, 4), (16, 0, 8), (500, 0, 8), (500, 6, 6)],
)
def test_the_very_first_merge_needs_half_of_who_is_here(here, participants_max, needed):
    """Else two liars of sixteen could be most of the first three."""
    judge = beginning(here)
    assert judge.quorum_to_begin(0, participants_max) == needed
    judge.outer = OuterSpec(0.7, 0.5, 3.0)
    assert judge.quorum_to_begin(0, participants_max) == 0


@pytest.mark.parametrize(("known", "needed"), [(0, 3), (2, 3), (3, 0), (8, 0)])
def test_after_it_strangers_that_never_hand_in_hold_up_nothing(known, needed):
    judge = beginning(500)
    first = judge.state.fragments[0]
    judge.state.fragments[0] = structs.replace(first, version=1)
    for number in range(known):
        peer = number.to_bytes(2, "big")
        judge.state.norms[0][peer] = KnownNorm(peer, 1.0, 8, b"\x01")
    assert judge.quorum_to_begin(0) == needed


def beginning(here):
    """The judge of a swarm with so many learners and two that are gone, before any merge."""
    members = Membership()
    for number in range(here + 2):
        members.open(number.to_bytes(2, "big"), hello(), 0.0)
    for gone in range(here, here + 2):
        members.close(gone.to_bytes(2, "big"), "gone", has_left=True)
    return Judge(Swarm(is_known=False).machine.state, members, EARNED, (64,))


def test_a_new_learner_makes_no_quorum_beside_three_established_ones():
    swarm = Swarm()
    for learner in ALL:
        swarm.judge(learner, standing=Standing(0.9, 20, ESTABLISHED_MIN))
    swarm.judge(STRANGER, standing=NOBODY)
    swarm.hand_in(STRANGER)
    swarm.wait(1.0)
    assert swarm.merges == []
    swarm.hand_in(ONE)
    job = swarm.merged()
    assert {part.learner for part in job.parts} == {ONE.key, STRANGER.key}
    assert job.against.is_established


def test_who_is_established_while_its_push_is_awaited_holds_up_no_quorum():
    """Else a round for which it was asked as a new one would wait for its patience."""
    swarm = Swarm(quorum=4)
    for learner in (ONE, TWO, THREE):
        swarm.judge(learner, standing=Standing(0.9, 20, ESTABLISHED_MIN))
    swarm.judge(STRANGER, standing=NOBODY)
    swarm.wait(0.1)
    swarm.judge(STRANGER, standing=Standing(0.9, 20, ESTABLISHED_MIN))
    swarm.hand_in(ONE, TWO, THREE, STRANGER)
    assert len(swarm.merged().parts) >= 3


def test_what_did_not_count_proves_no_speed():
    swarm = Swarm()
    swarm.hand_in(LIAR, ONE)
    swarm.merged()
    sessions = swarm.seat.members.sessions
    assert sessions[ONE.key].merges == 1
    assert sessions[LIAR.key].merges == 0


def test_who_does_not_count_is_named_with_the_key():
    swarm = Swarm()
    said = sentence(swarm.machine, swarm.now_s)
    assert said == (
        f"Not counted, because their pushes point elsewhere: somebody ({short(LIAR.key)}). "
        "4 learners training."
    )


def test_who_always_adds_the_same_is_named():
    swarm = Swarm()
    for learner, repeats in zip(ALL, (0.05, 0.1, 0.08, 0.9), strict=True):
        its = Standing(0.9, JUDGED_MIN, repeats=repeats, compared=JUDGED_MIN)
        swarm.judge(learner, standing=its)
    assert swarm.seat.rounds.judge.doubts() == {LIAR.key: "repeats"}
    said = sentence(swarm.machine, swarm.now_s)
    assert said == (
        "Not counted, because their pushes always add the same to what others hand in: "
        f"somebody ({short(LIAR.key)}). 4 learners training."
    )


def test_who_only_repeats_what_was_merged_makes_no_quorum_and_is_named():
    swarm = Swarm()
    swarm.judge(LIAR, standing=Standing(0.9, JUDGED_MIN))
    for learner, mean in zip(ALL, (0.9, 0.85, 0.95, 0.01), strict=True):
        swarm.judge(learner, novelty=Novelty(mean, JUDGED_MIN))
    said = sentence(swarm.machine, swarm.now_s)
    assert said == (
        "Not counted, because their pushes only repeat what was merged: "
        f"somebody ({short(LIAR.key)}). 4 learners training."
    )
    swarm.hand_in(LIAR)
    swarm.wait(1.0)
    assert swarm.merges == []
    swarm.hand_in(ONE)
    job = swarm.merged()
    assert job.against.typical_novelty == pytest.approx(0.875)
    assert {part.learner: part.novelty.mean for part in job.parts} == {
        ONE.key: 0.9,
        LIAR.key: 0.01,
    }


def test_whose_pushes_undo_what_others_add_is_not_said_to_repeat_anything():
    swarm = Swarm()
    for learner, mean in zip(ALL, (0.9, 0.85, 0.95, -0.4), strict=True):
        swarm.judge(learner, standing=Standing())  # No direction is typical yet.
        swarm.judge(learner, novelty=Novelty(mean, JUDGED_MIN))
    assert swarm.seat.rounds.judge.typical() == 0.0
    assert swarm.seat.rounds.judge.doubts() == {LIAR.key: "direction"}
    swarm.judge(LIAR, novelty=Novelty(-0.4, JUDGED_MIN, echoes=1))
    assert swarm.seat.rounds.judge.doubts() == {LIAR.key: "echoes"}


def test_after_an_echo_nothing_counts_until_something_else_is_handed_in():
    swarm = Swarm()
    heard = novelty.after(UNHEARD, 1.0, None)
    swarm.judge(ONE, novelty=heard)
    assert swarm.seat.rounds.judge.trusts()[ONE.key] == 0.0
    assert swarm.seat.rounds.judge.doubts() == {LIAR.key: "direction", ONE.key: "echoes"}
    swarm.judge(ONE, novelty=novelty.after(heard, 0.5, None))
    assert swarm.seat.rounds.judge.trusts()[ONE.key] == 1.0
    assert ONE.key not in swarm.seat.rounds.judge.doubts()


def test_where_all_count_all_is_well():
    swarm = Swarm(OuterSpec(0.7, 0.5, 3.0))
    assert sentence(swarm.machine, swarm.now_s) == "All is well. 4 learners training."
