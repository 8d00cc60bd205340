"""Any cut under any schedule is consistent, and the token books balance."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node.machine.snapshot_part import TokenAccountsState
from node.machine.token_accounts import TokenAccounts
from simulator.swarm.swarm import afflict
from simulator.virtual.network import NetworkModel
from tests.support.snapshot_swarms import go_back, take_at, watched

networks = st.builds(
    NetworkModel,
    latency_s=st.sampled_from([0.001, 0.03, 0.3]),
    jitter_s=st.sampled_from([0.0, 0.01, 0.4]),
    bytes_per_s=st.sampled_from([20_000.0, 2e6]),
    loss=st.sampled_from([0.0, 0.01]),
)


def cut_and_go_back(seed, apply, network, times_s, is_troubled, steps_s):
    """The judges see every message and every local step: each push is before or after each cut,
    none is counted twice or lost, and tokens add up, at the cut and after going back to it."""
    swarm = watched(seed, apply=apply, network=network, steps_s=steps_s)
    take_at(swarm, *times_s)
    if is_troubled:
        afflict(swarm, seed, until_s=55.0, every_s=6.0)
    swarm.world.run(70.0)
    swarm.check()
    here = swarm.syncer.disk.snapshots
    for manifest in swarm.cuts.kept:
        assert all(part.books.is_balanced for part in manifest.parts)
    known = [one for one in swarm.cuts.kept if one.snapshot in here]
    if known:
        go_back(swarm, known[seed % len(known)])


def test_cuts_in_a_troubled_swarm_are_consistent_and_can_be_gone_back_to():
    network = NetworkModel(0.3, 0.4)
    cut_and_go_back(3, "rebase", network, [20.0, 21.0, 33.3], True, (0.2, 0.9, 2.5))


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    apply=st.sampled_from(["overwrite", "rebase"]),
    network=networks,
    times_s=st.lists(st.floats(12.0, 55.0), min_size=1, max_size=6),
    is_troubled=st.booleans(),
    steps_s=st.lists(st.sampled_from([0.3, 0.5, 0.9, 2.5]), min_size=1, max_size=4).map(tuple),
)
def test_any_cut_is_consistent_and_can_be_gone_back_to(**swarm):
    cut_and_go_back(**swarm)


class BooksMachine(RuleBasedStateMachine):
    """Token books in any order of events that a learner can see."""

    def __init__(self):
        super().__init__()
        self.books = TokenAccounts()
        self.tokens = 0
        self.sequence = 0
        self.told = 0
        """Tokens of pushes that the log says are merged."""
        self.amounts = {}

    @rule(steps=st.integers(1, 5))
    def train(self, steps):
        self.tokens += 16 * steps

    @precondition(lambda self: not any(not one.gone for one in self.books.open.values()))
    @rule()
    def hand_in(self):
        if self.books.pending(self.tokens) > 0:
            self.sequence += 1
            self.books.handed(self.sequence, self.tokens)
            self.amounts[self.sequence] = self.books.open[self.sequence].tokens

    @precondition(lambda self: self.books.open)
    @rule(data=st.data(), is_merged=st.booleans())
    def hear(self, data, is_merged):
        sequence = data.draw(st.sampled_from(sorted(self.books.open)))
        self.books.settled(sequence, self.amounts[sequence], is_merged=is_merged)
        self.told += self.amounts[sequence] * is_merged

    @rule()
    def overwrite(self):
        self.books.assigned(self.tokens)

    @rule()
    def lose_trainer(self):
        self.books.trainer_lost(self.tokens)
        self.tokens = 0

    @rule()
    def give_up(self):
        self.books.give_up()

    @precondition(lambda self: self.books.given_up)
    @rule(data=st.data())
    def hear_late(self, data):
        """The log says after all that a push was merged whose fate nobody expected any more."""
        sequence = data.draw(st.sampled_from(sorted(self.books.given_up)))
        self.books.settled(sequence, self.amounts[sequence], is_merged=True)
        self.told += self.amounts[sequence]

    @rule()
    def go_back(self):
        """A part is cut here and gone on from at once."""
        self.books = TokenAccountsState.of(self.books).accounts()

    @invariant()
    def balance(self):
        books = self.books
        spent = books.merged + books.in_flight() + books.discarded + books.lost
        assert spent + books.pending(self.tokens) == books.dead + self.tokens
        assert books.merged == self.told
        assert books.pending(self.tokens) >= 0
        assert books.discarded >= 0
        assert books.lost >= 0


TestBooks = BooksMachine.TestCase
