"""Whatever happens between a pull and a merge, every push has one fate, and merging goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.log.records import FragmentMerged, read_record
from protocol.machine import Failed
from protocol.messages import Committed, Decline, Pull, Settled
from protocol.trace import FragmentCommitted
from syncer_node.machine.jobs import FetchPush, Merge, PushFetched, PushRefused
from tests.support.builders import ONE, THREE, TWO, SyncerBench, facts, heartbeat, project, rounds

ALL = (ONE, TWO, THREE)
FRAGMENTS = 4

FETCHED = (PushFetched(), Failed("unreachable"), PushRefused("malformed-payload", "not finite"))


@dataclass
class Learner:
    """Answers pulls as a learner does: of each fragment only one push at a time has no fate."""

    signer: Any
    heard: int = 0
    pulls: list[Pull] = field(default_factory=list)
    sequence: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    """Fragment -> sequence of the push whose fate is not known."""
    fates: dict[int, list[str]] = field(default_factory=dict)
    local_step: int = 0

    def listen(self, bench):
        said = bench.sent.get(self.signer.key, [])
        for message in said[self.heard :]:
            match message:
                case Pull():
                    self.pulls.append(message)
                case Settled(_, sequence, outcome):
                    self.learn(sequence, outcome)
                case Committed(entries):
                    for entry in entries:
                        body = read_record(entry.record).body
                        if isinstance(body, FragmentMerged):
                            for part in body.contributions:
                                if part.learner == self.signer.key:
                                    self.learn(part.sequence, "merged")
        self.heard = len(said)

    def learn(self, sequence, outcome):
        self.fates[sequence].append(outcome)
        for fragment in [at for at, one in self.waiting.items() if one == sequence]:
            del self.waiting[fragment]

    def beat(self, bench):
        self.local_step += 16
        versions = tuple(one.version for one in bench.machine.state.fragments)
        steps = (8,) * FRAGMENTS
        bench.say(
            self.signer.key, heartbeat(steps=steps, versions=versions, local_step=self.local_step)
        )

    def answer(self, bench, *, willing=True):
        """The oldest pull that was not answered."""
        self.listen(bench)
        if not self.pulls:
            return
        pull = self.pulls.pop(0)
        if not willing or pull.fragment in self.waiting:
            bench.say(self.signer.key, Decline(pull.round, pull.fragment, "unresolved"))
            return
        self.sequence += 1
        self.waiting[pull.fragment] = self.sequence
        self.fates[self.sequence] = []
        bench.push(self.signer, pull, sequence=self.sequence, local_step=self.local_step + 1000)
        self.listen(bench)


class Swarm:
    """Three learners and a syncer whose fetches and merges end when and how the test says."""

    def __init__(self, quorum):
        tiny = project(rounds(quorum=quorum, pull_timeout_s=5.0, patience_s=3.0))
        self.bench = SyncerBench(tiny).start(*ALL)
        self.learners = [Learner(one) for one in ALL]
        self.bench.lease(*ALL)
        self.bench.hold = {FetchPush, Merge}
        self.go_on(0.1)

    def go_on(self, seconds):
        self.bench.wait(seconds)
        for one in self.learners:
            one.beat(self.bench)

    def fetched(self, how):
        if self.bench.jobs(FetchPush):
            self.bench.done(FetchPush, how)

    def merged(self, *, well):
        if jobs := self.bench.jobs(Merge):
            self.bench.done(Merge, self.bench.answer(jobs[0]) if well else Failed("full disk"))

    def settle(self):
        """Everything works from now on; until nothing has to be told any more."""
        former = [dict(one.waiting) for one in self.learners]
        self.bench.hold = set()
        for kind in (FetchPush, Merge):
            for job in self.bench.jobs(kind):
                self.bench.done(kind, self.bench.answer(job))
        for _ in range(200):
            self.go_on(0.5)
            for one in self.learners:
                one.answer(self.bench)
            if not any(
                one.waiting.get(at) == sequence
                for one, before in zip(self.learners, former, strict=True)
                for at, sequence in before.items()
            ):
                return True
        return False


WHO = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("answer"), WHO, st.sampled_from((True, True, True, False))),
    st.tuples(st.just("fetched"), st.sampled_from(FETCHED)),
    st.tuples(st.just("merged"), st.sampled_from((True, True, False))),
    st.tuples(st.just("wait"), st.sampled_from((0.1, 0.5, 2.0, 4.0, 6.0))),
)


@settings(max_examples=60)
@given(st.integers(1, 3), st.lists(STEPS, max_size=40))
def test_every_push_has_one_fate_and_merging_goes_on(quorum, steps):
    swarm = Swarm(quorum)
    for kind, *given_ in steps:
        match kind:
            case "answer":
                swarm.learners[given_[0]].answer(swarm.bench, willing=given_[1])
            case "fetched":
                swarm.fetched(given_[0])
            case "merged":
                swarm.merged(well=given_[0])
            case "wait":
                swarm.go_on(given_[0])
    assert swarm.settle(), [one.waiting for one in swarm.learners]
    merges = len(facts(swarm.bench.effects, FragmentCommitted))
    for _ in range(20):
        swarm.go_on(0.5)
        for one in swarm.learners:
            one.answer(swarm.bench)
    assert len(facts(swarm.bench.effects, FragmentCommitted)) > merges
    for one in swarm.learners:
        told = {at: fates for at, fates in one.fates.items() if at not in one.waiting.values()}
        assert all(len(fates) == 1 for fates in told.values()), told
