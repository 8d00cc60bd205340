"""A learner that is asked to measure somebody's push: when it declines, and what it answers."""

from __future__ import annotations

import dataclasses

import pytest

from node.machine import jobs
from node.machine.jobs import (
    Deliver,
    Delivered,
    Evaluate,
    EvaluatedLoss,
    FetchState,
    FinishAsked,
    ForgetProbe,
    Governed,
    NotProbed,
    PauseAsked,
    ProbePush,
    PushProbed,
    StartTrainer,
    StateFetched,
    Stepped,
    SuspendTrainer,
    TrainerLost,
    TrainerReady,
    TrainerSuspended,
)
from node.machine.syncer_link import Link
from protocol import limits
from protocol.log.records import CheckpointMarked, SeatTaken
from protocol.machine import Failed, Note, PeerDown, PeerUp
from protocol.messages import Cursor, Gain, Probe, Probed, ProbeDeclined, SequencePlace, Welcome
from protocol.snapshots.manifest import Marker
from protocol.snapshots.vector_clock import VectorClock
from protocol.trace import ProbeRefused, PushMeasured
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    STRANGER,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    actions,
    digest_of,
    facts,
    merged,
    weights,
)

OWN, OTHER = Gain(3.0, 0.02, 0.05, 2), Gain(3.1, 0.01, 0.04, 1)
DONE = PushProbed(OWN, OTHER, 1.5)
BLOCK_SEQUENCES = 4


def probe(number=1, **changes):
    usual = {
        "probe": number,
        "fragment": 1,
        "version": 0,
        "codec": "int4",
        "payload": digest_of("push"),
        "payload_bytes": 100,
        "own": (SequencePlace(3, 0), SequencePlace(9, 3)),
        "other": (SequencePlace(700, 1),),
    }
    return Probe(**{**usual, **changes})


class ProberBench(LearnerBench):
    """A learner that trains."""

    def __init__(self, **changes):
        super().__init__()
        context = self.machine.context
        context.setup = dataclasses.replace(context.setup, **changes)
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.follow(self.log)

    def train(self):
        self.done(StartTrainer, TrainerReady("cpu", 8))
        self.fetch()
        while given := self.jobs(Deliver):
            self.done(Deliver, Delivered(given[0].version, 0, 0))
        self.feed(Note(Stepped(20, 640, 1.0, 0.3, 6.0, 7.0, Cursor(0, 0))))
        return self

    def fetch(self):
        while self.jobs(FetchState):
            self.done(FetchState, StateFetched(((SYNCER.key, 1),)))

    def ask(self, number=1, **changes):
        return self.say(SYNCER.key, probe(number, **changes))

    @property
    def declined(self):
        """Probes and reasons."""
        return [(one.probe, one.reason) for one in self.all(SYNCER.key, ProbeDeclined)]

    @property
    def tally(self):
        tally = self.machine.context.tally
        return tally.probes, tally.probes_declined

    def come_back(self):
        """The session ended, and another began."""
        effects = self.feed(PeerDown(SYNCER.key, "cable"))
        self.wait(2.0)
        self.feed(PeerUp(SYNCER.key))
        self.say(SYNCER.key, Welcome(self.charter, 0, 1, None))
        assert self.machine.link is Link.FOLLOWING
        return effects


@pytest.fixture
def bench():
    return ProberBench().train()


def test_a_probe_becomes_a_job_and_its_result_an_answer(bench):
    effects = bench.ask(7)
    asked = probe(7)
    assert bench.jobs(ProbePush) == [
        ProbePush(SYNCER.key, 1, "int4", asked.payload, 100, asked.own, asked.other)
    ]
    effects = bench.done(ProbePush, DONE)
    assert bench.all(SYNCER.key, Probed) == [Probed(7, OWN, OTHER, 1.5)]
    (fact,) = facts(effects, PushMeasured)
    assert fact.text == (
        "measured what another learner's push of fragment 1 does to the loss: -0.0200 on its own "
        "text, -0.0100 on other text (probe 7, 1.5 s)"
    )
    assert (bench.tally, bench.declined) == ((1, 0), [])


def test_one_at_a_time(bench):
    bench.ask(1)
    effects = bench.ask(2)
    assert bench.declined == [(2, "busy")]
    assert "did not measure another learner's push" in facts(effects, ProbeRefused)[0].text
    bench.done(ProbePush, DONE)
    bench.ask(3)
    bench.done(ProbePush, DONE)
    assert [one.probe for one in bench.all(SYNCER.key, Probed)] == [1, 3]
    assert bench.tally == (2, 1)


def test_only_the_leader_is_heard(bench):
    bench.feed(PeerUp(STRANGER.key))
    for peer in (STRANGER.key, TWO.key):
        bench.say(peer, probe())
    assert bench.jobs(ProbePush) == []
    assert STRANGER.key not in bench.sent
    assert bench.tally == (0, 0)


def test_a_host_that_does_not_evaluate_does_not_probe():
    bench = ProberBench(evaluates=False).train()
    bench.ask()
    assert (bench.declined, bench.jobs(ProbePush)) == ([(1, "off")], [])


def test_who_does_not_train_declines():
    bench = ProberBench()
    bench.ask(1)
    bench.done(StartTrainer, TrainerReady("cpu", 8))
    bench.ask(2)
    bench.fetch()
    bench.ask(3)
    assert bench.declined == [(1, "not training"), (2, "not training"), (3, "not training")]


def test_a_lost_trainer_declines_and_ends_the_probe_under_way(bench):
    bench.ask(1)
    bench.feed(Note(TrainerLost(False, "killed")))
    bench.done(ProbePush, NotProbed("failed", "the trainer ended"))
    bench.ask(2)
    assert bench.declined == [(1, "failed"), (2, "not training")]


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (PauseAsked(None), "paused"),
        (Governed("it runs on battery"), "paused"),
        (FinishAsked(), "finishing"),
    ],
)
def test_what_its_owner_wants_comes_first(bench, note, reason):
    bench.feed(Note(note))
    bench.ask(1)
    assert bench.declined == [(1, reason)]
    if bench.jobs(SuspendTrainer):
        bench.done(SuspendTrainer, TrainerSuspended())
        bench.ask(2)
        assert bench.declined == [(1, reason), (2, reason)]


def test_a_version_that_is_too_far_away_is_declined(bench):
    for version in range(1, limits.PUSH_LAG_MAX + 2):
        bench.commit(bench.log.add(merged(fragment=1, version=version, round=version)))
        bench.done(jobs.Advance, jobs.Advanced())
    far = limits.PUSH_LAG_MAX + 1
    bench.ask(1, version=0)
    bench.ask(2, version=2 * far)
    assert bench.declined == [(1, "another version"), (2, "another version")]
    bench.ask(3, version=far + limits.PUSH_LAG_MAX)
    bench.done(ProbePush, DONE)
    bench.ask(4, version=far - limits.PUSH_LAG_MAX)
    assert len(bench.jobs(ProbePush)) == 1
    assert len(bench.declined) == 2


def test_a_checkpoint_that_is_evaluated_comes_first(bench):
    bench.commit(bench.log.add(CheckpointMarked(0, ONE.key)))
    assert bench.jobs(Evaluate)
    bench.ask(1)
    assert bench.declined == [(1, "evaluating")]
    bench.done(Evaluate, EvaluatedLoss(3.0, 128, 1.0))
    bench.ask(2)
    assert bench.jobs(ProbePush)


def test_a_snapshot_comes_first(bench):
    bench.say(SYNCER.key, Marker(5, VectorClock(bench.log.state.index, (0,) * FRAGMENTS)))
    bench.ask(1)
    assert (bench.declined, bench.jobs(ProbePush)) == ([], [])  # Held back until the cut.
    bench.done(jobs.CutPart, jobs.PartCut(20, 640))
    assert bench.declined == [(1, "snapshot")]
    bench.done(jobs.WritePart, jobs.PartWritten(digest_of("part"), 100))
    bench.ask(2)
    assert bench.jobs(ProbePush)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (NotProbed("no payload", "/home/me: it did not come"), "no payload"),
        (NotProbed("other text", "/home/me/text is not what was signed"), "other text"),
        (NotProbed("no memory", ""), "no memory"),
        (NotProbed("paused", ""), "paused"),
        (Failed("KeyError: /home/me"), "failed"),
    ],
)
def test_what_went_wrong_is_told_in_a_word_and_the_rest_to_its_owner(bench, result, reason):
    bench.ask()
    effects = bench.done(ProbePush, result)
    assert bench.declined == [(1, reason)]
    (fact,) = facts(effects, ProbeRefused)
    assert fact.detail == (result.reason if isinstance(result, Failed) else result.detail)
    assert (bench.tally, bench.jobs(ProbePush)) == ((0, 1), [])
    bench.ask(2)
    assert bench.jobs(ProbePush)


def test_a_probe_dies_with_its_session(bench):
    bench.ask(1)
    effects = bench.come_back()
    assert actions(effects, ForgetProbe) == [ForgetProbe()]
    bench.ask(2)  # By another count, perhaps: what is under way is none of this session.
    assert bench.declined == [(2, "busy")]
    bench.done(ProbePush, DONE)
    assert bench.all(SYNCER.key, Probed) == []
    bench.ask(3)
    bench.done(ProbePush, DONE)
    assert [one.probe for one in bench.all(SYNCER.key, Probed)] == [3]


def test_a_session_that_ends_without_a_probe_forgets_none(bench):
    bench.ask(1)
    bench.done(ProbePush, DONE)
    assert actions(bench.come_back(), ForgetProbe) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"fragment": FRAGMENTS},
        {"own": (SequencePlace(3, BLOCK_SEQUENCES),)},
        {"other": (SequencePlace(3, 0), SequencePlace(1, 2**40))},
    ],
)
def test_what_the_project_does_not_have_is_not_asked_for(bench, changes):
    bench.ask(1, **changes)
    assert bench.machine.context.tally.faults == {"limit-exceeded": 1}
    assert bench.machine.link is Link.WAITING
    assert bench.jobs(ProbePush) == []
