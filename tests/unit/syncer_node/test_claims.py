"""How many local steps of one key count, whatever it claims and however often it comes back."""

from __future__ import annotations

from protocol import limits
from protocol.machine import PeerDown
from protocol.messages import LeaseRequest, Pull
from protocol.peers.membership import Membership
from protocol.trace import PushSettled
from syncer_node.machine.rounds import STEP_S_MIN
from tests.support.builders import FRAGMENTS, ONE, SyncerBench, facts, hello, project, rounds

SOLO = project(rounds(quorum=1))
SLACK_S = 2 * limits.CLOCK_SKEW_S_MAX


class Claimant:
    """A learner that claims as many steps as one lease allows, and then comes back."""

    def __init__(self):
        self.bench = SyncerBench(SOLO).start()
        self.sequence = 0
        self.local_step = 10**6
        self.claimed = {}
        """(incarnation, sequence) -> fragment and steps."""

    def come(self, incarnation):
        self.incarnation = incarnation
        self.bench.feed(PeerDown(ONE.key, "cable"))
        self.bench.join(ONE, incarnation=incarnation)
        self.bench.say(ONE.key, LeaseRequest(8))
        self.sequence = 0

    def train(self, seconds, steps):
        """Stand ready for so long, and answer every pull with so many steps."""
        bench = self.bench
        for _ in range(int(seconds / 0.1)):
            bench.now_s += 0.05
            asked = len(bench.all(ONE.key, Pull))
            versions = tuple(one.version for one in bench.machine.state.fragments)
            self.local_step += 10
            held = (steps,) * FRAGMENTS
            bench.beat(ONE, versions=versions, steps=held, local_step=self.local_step)
            for pull in bench.all(ONE.key, Pull)[asked:]:
                self.push(pull, steps)

    def push(self, pull, steps):
        self.sequence += 1
        self.claimed[self.incarnation, self.sequence] = pull.fragment, steps
        self.bench.push(
            ONE,
            pull,
            incarnation=self.incarnation,
            sequence=self.sequence,
            steps=steps,
            local_step=self.local_step,
            tokens=steps,
        )

    def counted(self):
        """Steps that were merged into each fragment."""
        found = [0] * FRAGMENTS
        for fact in facts(self.bench.effects, PushSettled):
            if fact.outcome in ("merged", "clipped"):
                fragment, steps = self.claimed[fact.incarnation, fact.sequence]
                found[fragment] += steps
        return found


def test_forty_sessions_of_one_key_count_no_more_steps_than_one():
    claimant = Claimant()
    began_s = claimant.bench.now_s
    for incarnation in range(1, 41):
        claimant.come(incarnation)
        claimant.train(1.0, steps=590)  # A fresh lease allows that at once, for clocks differ.
        possible = (claimant.bench.now_s - began_s + SLACK_S) / STEP_S_MIN
        assert max(claimant.counted()) <= possible
    assert claimant.bench.seat.rounds.outcomes["merged"] > 0
    assert claimant.bench.seat.rounds.outcomes["false-claim"] > 0


def test_steps_that_were_not_handed_in_cannot_be_claimed_after_the_next_ones():
    members = Membership()
    members.open(ONE.key, hello(), 0.0)
    assert members.free_s(ONE.key, 0, since_s=3.0) == 3.0
    members.worked(ONE.key, 0, since_s=3.0, asked_s=20.0, work_s=0.1)
    assert members.free_s(ONE.key, 0, since_s=3.0) == 20.0
    members.worked(ONE.key, 0, since_s=3.0, asked_s=21.0, work_s=5.0)
    assert members.free_s(ONE.key, 0, since_s=3.0) == 25.0


def test_an_honest_pace_is_never_refused():
    claimant = Claimant()
    claimant.come(1)
    claimant.bench.now_s += 1.0
    claimant.train(20.0, steps=8)
    assert set(claimant.bench.seat.rounds.outcomes) == {"merged"}


def test_the_used_time_of_keys_is_kept_only_as_long_as_it_matters():
    members = Membership()
    members.open(b"here", hello(), 0.0)
    for number in range(50):
        members.worked(b"%d" % number, 0, since_s=0.0, asked_s=float(number), work_s=1.0)
    assert len(members.claims) <= 3
    assert members.free_s(b"49", 0, since_s=0.0) == 49.0
    assert members.free_s(b"49", 1, since_s=5.0) == 5.0
    members.worked(b"49", 0, since_s=0.0, asked_s=50.0, work_s=9.0)
    assert members.free_s(b"49", 0, since_s=51.0) == 58.0
