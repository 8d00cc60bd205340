"""Who measures the held-out loss of a checkpoint."""

from __future__ import annotations

from collections import Counter

import pytest
from blake3 import blake3

from protocol.log.records import Body, CheckpointEvaluated, CheckpointMarked, SeatTaken
from protocol.log.state import FragmentState, SwarmState
from protocol.messages import Evaluation
from protocol.peers.membership import Membership
from syncer_node.machine.evaluating import (
    ANSWER_TIMEOUT_S,
    FINAL_TRIES,
    PASSED_OVER_MARKS,
    Evaluating,
)
from tests.support.builders import (
    LEARNERS,
    ONE,
    SYNCER,
    THREE,
    TWO,
    Log,
    heartbeat,
    session,
    state_digests,
    weights,
)

FOUR = LEARNERS[3]
MARKS = 300


def evaluators(*sessions) -> Counter:
    """How often each of them is asked, over many marks."""
    state, members, marks = SwarmState(1), Membership(), []
    state.fragments = [FragmentState(0, state_digests(0), 1)]
    members.sessions.update({one.peer: one for one in sessions})

    def propose(body: Body) -> None:
        assert isinstance(body, CheckpointMarked)
        marks.append(body.evaluator)

    for at in range(MARKS):
        state.head = blake3(at.to_bytes(4, "big")).digest()
        evaluating = Evaluating(state, members, every=1, checkpoint_every=1, propose=propose)
        evaluating.look(0.0)
    return Counter(marks)


def willing(signer, *, merges: int, step_s: float = 1.0):
    one = session(signer, beat=heartbeat(step_s=step_s))
    one.evaluates, one.merges = True, merges
    return one


def test_a_claim_to_be_fast_makes_nobody_the_evaluator():
    asked = evaluators(
        willing(ONE, merges=3),
        willing(TWO, merges=3, step_s=1e-9),
        willing(THREE, merges=3, step_s=50.0),
    )
    assert set(asked) == {ONE.key, TWO.key, THREE.key}
    assert min(asked.values()) > MARKS / 5


def test_who_has_handed_in_nothing_is_not_asked_while_others_have():
    asked = evaluators(willing(ONE, merges=1), willing(TWO, merges=0, step_s=1e-9))
    assert asked == {ONE.key: MARKS}


def test_before_the_first_merge_anybody_is_asked():
    assert set(evaluators(willing(ONE, merges=0), willing(TWO, merges=0))) == {ONE.key, TWO.key}


# Two that measure


class Marking:
    """A run's evaluations: what is proposed is committed at once."""

    def __init__(self, *sessions) -> None:
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.members = Membership()
        self.members.sessions.update({one.peer: one for one in sessions})
        self.now_s = 0.0
        self.evaluating = Evaluating(
            self.log.state, self.members, every=1, checkpoint_every=10**6, propose=self.commit
        )

    def commit(self, body: Body) -> None:
        self.log.add(body)
        match body:
            case CheckpointMarked():
                index = self.log.state.index
                self.evaluating.on_marked(index, body.evaluator, self.now_s)
            case CheckpointEvaluated():
                self.evaluating.on_scored(body.checkpoint, self.now_s)

    def mark(self) -> CheckpointMarked:
        """The next mark, a global step further on."""
        self.log.state.global_step += 1
        self.evaluating.look(self.now_s)
        body = self.log.records[-1].body
        assert isinstance(body, CheckpointMarked)
        return body

    def say(self, peer: bytes, loss: float) -> bool:
        index = self.log.state.checkpoint
        return self.evaluating.on_evaluation(peer, Evaluation(index, loss, 1, 1.0))

    @property
    def best(self) -> float | None:
        best = self.log.state.best
        return None if best is None else best.loss


@pytest.fixture
def four():
    """Three honest learners and one that always says 0.0."""
    return Marking(*(willing(one, merges=3) for one in (ONE, TWO, THREE, FOUR)))


def test_a_mark_names_two_different_learners(four):
    marks = [four.mark()]
    while len(marks) < 20:
        four.say(marks[-1].evaluator, 5.0)
        four.say(marks[-1].second, 5.0)
        marks.append(four.mark())
    pairs = {frozenset((one.evaluator, one.second)) for one in marks}
    assert all(len(pair) == 2 for pair in pairs)
    assert len(pairs) > 2, "drawn anew each time"


def test_the_second_is_asked_only_where_it_matters(four):
    mark = four.mark()
    assert not four.say(mark.second, 0.0), "it is not its turn"
    assert four.say(mark.evaluator, 2.0)
    assert four.evaluating.evaluator == mark.second
    assert not four.say(mark.evaluator, 2.0), "it cannot confirm itself"
    assert four.say(mark.second, 2.0)
    assert four.best == 2.0
    mark = four.mark()
    four.say(mark.evaluator, 2.1)
    assert four.evaluating.evaluator is None


def test_a_liar_of_four_never_moves_the_best(four):
    loss = 5.0
    for _ in range(60):
        loss *= 0.97
        mark = four.mark()
        for peer in (mark.evaluator, mark.second):
            four.say(peer, 0.0 if peer == FOUR.key else loss)
    points = four.log.state.curve
    assert any(one.is_disputed for one in points), "the liar was drawn"
    assert all(one.is_agreed for one in points if FOUR.key not in (one.evaluator, one.second))
    assert loss <= four.best < 1.2 * loss, "the others go on finding better ones"


def test_alone_one_learner_measures():
    alone = Marking(willing(ONE, merges=3), willing(TWO, merges=0))
    mark = alone.mark()
    assert (mark.evaluator, mark.second) == (ONE.key, None)
    alone.say(ONE.key, 2.0)
    assert alone.best == 2.0


def test_a_second_that_does_not_answer_is_not_asked_again_for_a_while():
    two = Marking(willing(ONE, merges=3), willing(TWO, merges=3))
    mark = two.mark()
    two.say(mark.evaluator, 2.0)
    assert two.best is None
    two.now_s += ANSWER_TIMEOUT_S
    for _ in range(PASSED_OVER_MARKS):
        again = two.mark()
        assert (again.evaluator, again.second) == (mark.evaluator, None)
        assert two.say(again.evaluator, 2.0)
        assert two.best == 2.0, "its word has to do meanwhile"
    assert two.mark().second is not None


def test_a_last_state_on_which_two_differ_is_measured_again():
    run = Marking(*(willing(one, merges=3) for one in (ONE, TWO, THREE)))
    assert not run.evaluating.finish(0.0)
    for tries in range(1, FINAL_TRIES + 1):
        assert run.evaluating.final_tries == tries
        mark = run.log.records[-1].body
        run.say(mark.evaluator, 0.0)
        run.say(mark.second, 4.0)
        is_over = run.evaluating.finish(0.0)
    assert is_over
    assert run.best is None
