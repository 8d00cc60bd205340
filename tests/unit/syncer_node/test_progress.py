"""Tokens of learners whose pushes do not count are taken back, and given back when they do."""

from __future__ import annotations

import pytest

from node.machine.jobs import SetProgress, StartTrainer, TrainerReady
from protocol import wire
from protocol.log.records import SeatTaken, TokensGivenBack, TokensTakenBack
from protocol.log.state import TAKEN_BACK_MAX, SwarmState, SwarmSummary
from protocol.merge_rules import DOUBTS_IN_ROW
from simulator.checkers.credit import taken_back
from simulator.checkers.ledger import Violation
from syncer_node.machine.trust.progress import revisions, taking_back
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    contribution,
    merged,
    weights,
)

TOKENS = 400


class Run:
    """A log in which a learner's pushes count or do not, beside one that always counts."""

    def __init__(self):
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.sequence = 0

    @property
    def state(self):
        return self.log.state

    def merge(self, trust, **changes):
        """One merge more, and what the leader says to it."""
        self.sequence += 1
        common = {"sequence": self.sequence, "tokens": TOKENS, "cosine": 0.5}
        common["base_version"] = self.sequence - 1
        body = merged(
            version=self.sequence,
            global_step=self.sequence,
            contributions=(
                contribution(trust=trust, **{**common, **changes}),
                contribution(learner=TWO.key, **common),
            ),
        )
        self.log.add(body)
        return revisions(self.state, body)

    def revise(self, trust):
        for _ in range(DOUBTS_IN_ROW):
            found = self.merge(trust)
        (body,) = found
        self.log.add(body)
        return body


@pytest.fixture
def run():
    return Run()


def test_what_counted_is_taken_back_after_some_pushes_in_a_row_that_did_not(run):
    run.merge(1.0)
    for _ in range(DOUBTS_IN_ROW - 1):
        assert run.merge(0.125) == []
    assert run.merge(0.125) == [TokensTakenBack(ONE.key, TOKENS + DOUBTS_IN_ROW * TOKENS // 8)]


def test_a_push_that_counts_or_was_not_compared_breaks_no_row_of_the_other_kind(run):
    for _ in range(DOUBTS_IN_ROW - 1):
        run.merge(0.0)
    run.merge(1.0)
    assert run.merge(0.0) == []
    assert run.state.accounts[ONE.key].in_row == -1
    run.merge(0.0, cosine=0.0)
    assert run.state.accounts[ONE.key].in_row == -1


def test_who_counts_less_than_half_is_not_false_for_that(run):
    """An honest learner that is much faster than others counts a little less than half at times."""
    for _ in range(3 * DOUBTS_IN_ROW):
        assert run.merge(0.4) == []
    assert run.state.accounts[ONE.key].in_row == 0


def test_progress_is_then_what_the_others_did(run):
    run.merge(1.0)
    run.revise(0.125)
    others = run.sequence * TOKENS
    assert run.state.tokens == others // FRAGMENTS
    assert run.state.tokens_merged > run.state.tokens
    run.merge(1.0)
    assert run.state.tokens == (others + TOKENS) // FRAGMENTS


def test_as_many_pushes_that_count_give_it_back(run):
    run.revise(0.125)
    assert run.revise(1.0) == TokensGivenBack(ONE.key)
    assert run.state.tokens == run.state.tokens_merged
    assert run.merge(1.0) == []


def test_what_is_taken_back_is_taken_once(run):
    body = run.revise(0.125)
    before = run.state.summary()
    assert run.merge(0.0) == []
    run.log.add(body)
    assert run.state.taken_back[ONE.key] == before.taken_back[0].tokens
    assert taking_back(run.state, ONE.key) is None


def test_of_whom_nothing_counts_nothing_is_taken(run):
    assert taking_back(run.state, ONE.key) is None
    for _ in range(DOUBTS_IN_ROW):
        assert run.merge(0.0) == []


def test_credit_stays_what_it_was(run):
    """A receipt never says less than one before it, and nobody could call an old one back."""
    run.merge(1.0)
    before = run.state.accounts[ONE.key].counts
    run.log.add(TokensTakenBack(ONE.key, TOKENS))
    assert run.state.accounts[ONE.key].counts == before


def test_progress_is_never_negative_and_learners_in_it_are_bounded(run):
    run.merge(1.0)
    for at in range(TAKEN_BACK_MAX + 3):
        run.log.add(TokensTakenBack(at.to_bytes(32, "big"), 10 * TOKENS))
    assert run.state.tokens == 0
    assert len(run.state.taken_back) == TAKEN_BACK_MAX
    assert taking_back(run.state, ONE.key) is None


def test_a_joiner_without_accounts_counts_the_same(run):
    run.merge(1.0)
    joined = SwarmState.restore(run.state.summary(with_accounts=False), 4)
    first = len(run.log.records)
    run.revise(0.125)
    run.merge(1.0)
    for record, entry in zip(run.log.records[first:], run.log.entries[first:], strict=True):
        joined.apply(record, entry.certificate.record)
    assert joined.tokens == run.state.tokens
    stored = wire.decode(wire.encode(run.state.summary()), SwarmSummary)
    assert SwarmState.restore(stored, run.state.block_sequences) == run.state


def test_the_checker_counts_for_itself_and_finds_what_was_never_counted(run):
    run.merge(1.0)
    run.revise(0.0)
    assert taken_back(run.log.records) == run.state.taken_back
    run.log.add(TokensTakenBack(TWO.key, 10**6))
    with pytest.raises(Violation, match="1000000 tokens are taken back"):
        taken_back(run.log.records)


# The learning rate.


class Following(LearnerBench):
    """A learner with a trainer, that follows the run."""

    def __init__(self, run):
        super().__init__()
        self.follow(run.log)
        self.done(StartTrainer, TrainerReady("cpu", 8))


def test_the_schedule_goes_back_by_what_is_taken_back_and_by_nothing_else(run):
    bench = Following(run)
    budget = bench.tiny.charter.limits.tokens

    def told(*entries):
        made = [effect for effect in bench.commit(*entries) if hasattr(effect, "action")]
        progress = [one.action for one in made if isinstance(one.action, SetProgress)]
        return progress[-1].fraction if progress else None

    run.merge(1.0, tokens=budget)
    before = told(run.log.entries[-1])
    assert before == pytest.approx(run.state.tokens / budget)
    after = told(run.log.add(TokensTakenBack(ONE.key, budget)))
    assert after == pytest.approx(run.state.tokens / budget)
    assert after < before
    assert told(run.log.add(TokensGivenBack(ONE.key))) == pytest.approx(before)
