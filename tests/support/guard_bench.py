"""A bench on which a leader's model is measured, and can be wrecked."""

from __future__ import annotations

import msgspec

from protocol.log.records import read_record
from protocol.messages import CharterOffer, Committed, Evaluation, Pull, Settled
from protocol.project import LimitSpec
from syncer_node.daemon.status import sentence
from tests.support.builders import (
    ONE,
    STRANGER,
    THREE,
    TWO,
    SyncerBench,
    project,
    rounds,
    sealed_charter,
)

ALL = (ONE, TWO, THREE)
BY_KEY = {one.key: one for one in ALL}
TINY = project(rounds(quorum=3, overlap_steps=1), LimitSpec(10**9, 8, 1, 64, 120.0, 64))


class GuardBench(SyncerBench):
    """Three learners that measure; every merge is measured."""

    def __init__(self, rule="pause"):
        charter = msgspec.structs.replace(TINY.charter, guard=rule)
        super().__init__(TINY, charter=charter)
        self.start()
        for learner in ALL:
            self.join(learner, evaluates=True)
        self.pushes = self.step = 0
        self.pulls = self.go_on()

    @property
    def state(self):
        return self.machine.state

    @property
    def said(self):
        return sentence(self.machine, self.now_s)

    def hand_in(self, *learners):
        self.pushes += 1
        for learner in learners or ALL:
            self.push(
                learner,
                self.pulls[learner.key],
                project=self.tiny.project,
                sequence=self.pushes,
            )

    def measure(self, loss):
        """Whoever is asked says this, until nobody is."""
        evaluating = self.seat.evaluating
        while evaluating.pending and self.state.pause is None:
            said = Evaluation(evaluating.pending, loss, 100, 1.0)
            self.say(evaluating.evaluator, said)

    def go_on(self):
        """They train until all are asked, or for a minute; who was asked for what then."""
        before = {one.key: len(self.all(one.key, Pull)) for one in ALL}
        self.lease(*ALL)
        versions = tuple(one.version for one in self.state.fragments)
        for _ in range(60):
            self.step += 8
            for learner in ALL:
                self.beat(learner, local_step=self.step, tokens=32 * self.step, versions=versions)
            told = {key: self.all(key, Pull)[count:] for key, count in before.items()}
            if all(told.values()):
                break
            self.wait(1.0)
        return {key: pulls[-1] for key, pulls in told.items() if pulls}

    def merge(self):
        self.hand_in()
        self.pulls |= self.go_on()

    def fate(self, learner):
        settled = self.last(learner.key, Settled)
        return (settled.outcome, settled.reason) if settled else None

    def offer(self, revision, **changes):
        charter = msgspec.structs.replace(self.machine.setup.charter, revision=revision, **changes)
        self.now_s += 0.1
        return self.say(STRANGER.key, CharterOffer(sealed_charter(charter, self.tiny)))

    def records(self, kind):
        entries = [entry for told in self.all(ONE.key, Committed) for entry in told.entries]
        found = [read_record(entry.record).body for entry in entries]
        return [body for body in found if isinstance(body, kind)]

    @classmethod
    def sound(cls, rule="pause"):
        """The loss fell from 5 to 2, and the next round is open."""
        made = cls(rule)
        for loss in (5.0, 3.0, 2.0):
            made.measure(loss)
            made.merge()
        assert made.state.best.loss == 2.0
        assert made.state.pause is None
        return made
