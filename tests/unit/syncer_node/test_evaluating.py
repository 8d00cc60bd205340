"""Who measures the held-out loss of a checkpoint."""

from __future__ import annotations

from collections import Counter

from blake3 import blake3

from protocol.log.records import Body, CheckpointMarked
from protocol.log.state import FragmentState, SwarmState
from protocol.peers.membership import Membership
from syncer_node.machine.evaluating import Evaluating
from tests.support.builders import ONE, THREE, TWO, heartbeat, session, state_digests

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
