"""The guard: which measurements say that the model is wrecked, and what the log makes of them."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits, wire
from protocol.errors import MalformedMessage
from protocol.log.accounts import Account
from protocol.log.guard import IN_A_ROW_MAX, found_far, is_doubtful, loss_words, pause_words
from protocol.log.heldout import CurvePoint, is_far
from protocol.log.records import (
    Body,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    RunEnding,
    SeatTaken,
)
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import Evaluation
from tests.support.builders import ONE, SYNCER, THREE, TWO, Log, project, sealed_charter, weights


def charter(rule: str, revision: int = 2, resumed: bytes | None = None) -> CharterAdopted:
    tiny = project()
    return CharterAdopted(
        sealed_charter(
            msgspec.structs.replace(tiny.charter, revision=revision, guard=rule, resumed=resumed)
        )
    )


@pytest.fixture
def log():
    """A run whose loss fell from 5 to 2, by two who agree."""
    made = Log(SeatTaken(SYNCER.key), charter("pause"), weights())
    for loss in (5.0, 3.0, 2.0):
        measure(made, loss, loss)
    return made


def measure(log, *losses, first=ONE, second=TWO) -> int:
    """A mark and what the first and the second said of it; its log index."""
    log.state.global_step += 10
    at = log.state.global_step
    log.add(CheckpointMarked(at, first.key, second.key if second else None))
    index = log.state.index
    for who, loss in zip((first, second), losses, strict=False):
        log.add(CheckpointEvaluated(index, at, 0, who.key, loss))
    return index


def again(log) -> SwarmState:
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    return SwarmState.restore(summary, log.state.block_sequences)


@pytest.mark.parametrize(
    ("loss", "best", "is_so"),
    [
        (2.41, 2.0, True),
        (2.40, 2.0, False),
        (0.15, 0.1, False),
        (0.21, 0.1, True),
        (1.9, 2.0, False),
        (limits.LOSS_MAX, 5.5, True),
    ],
)
def test_far_is_a_fifth_and_a_tenth_of_a_nat(loss, best, is_so):
    assert is_far(loss, best) is is_so


# Two that measure


def test_a_loss_far_above_the_best_is_measured_by_a_second_and_then_pauses(log):
    wrecked = measure(log, 9.7)
    assert log.state.awaits(wrecked, TWO.key), "one learner's word pauses nothing"
    assert log.state.pause is None
    log.add(CheckpointEvaluated(wrecked, 0, 0, TWO.key, 9.6))
    pause = log.state.pause
    assert (pause.measured.loss, pause.measured.global_step) == (9.7, 40)
    assert (pause.best.loss, pause.best.global_step) == (2.0, 30)
    assert pause.record == log.state.head
    assert pause.at_s == log.records[-1].at_s


def test_both_must_find_it_far_and_need_not_agree_on_how_far(log):
    measure(log, 9.7, 2.1)
    assert log.state.pause is None
    measure(log, 9.7, 2.3)
    assert log.state.pause is None
    measure(log, 9.7, 5.5)
    assert log.state.pause is not None


def test_a_loss_beyond_the_bound_is_told_as_the_bound(log):
    measure(log, limits.LOSS_MAX, limits.LOSS_MAX)
    assert log.state.pause is not None
    assert "the held-out loss is beyond measure" in pause_words(log.state.pause, {})
    assert loss_words(2.5) == "2.50"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1.1e6, -1.0])
def test_what_is_no_loss_is_refused_by_the_message(loss):
    with pytest.raises(MalformedMessage):
        wire.decode_message(wire.encode(Evaluation(1, loss, 1, 1.0)))


def test_in_its_first_steps_a_run_may_go_anywhere():
    log = Log(SeatTaken(SYNCER.key), charter("pause"), weights())
    measure(log, 5.0, 5.0)
    measure(log, 97.0, 97.0)
    assert log.state.pause is None
    measure(log, 97.0, 97.0)
    assert log.state.pause is not None, "compared with the first"


def test_one_learners_word_from_before_is_no_measure_for_two():
    log = Log(SeatTaken(SYNCER.key), charter("pause"), weights())
    for loss in (3.0, 0.0, 2.0):
        measure(log, loss, second=None)
    measure(log, 2.5, 2.5)
    assert log.state.pause is None, "a false zero of one that was alone"
    measure(log, 9.0, 9.0)
    assert log.state.pause.best.loss == 2.5


# One that is alone


def test_alone_two_measurements_in_a_row_say_so():
    log = Log(SeatTaken(SYNCER.key), charter("pause"), weights())
    for loss in (3.0, 2.0, 9.0, 2.1, 9.0):
        measure(log, loss, second=None)
        assert log.state.pause is None, loss
    assert log.state.is_doubtful
    measure(log, 8.0, second=None)
    assert log.state.pause.best.loss == 2.0


def test_a_second_that_does_not_answer_leaves_it_to_the_next(log):
    measure(log, 9.7)
    assert log.state.is_doubtful
    measure(log, 9.7, first=THREE, second=None)
    assert log.state.pause is not None


def test_doubt_is_asked_about_at_once_and_not_for_ever(log):
    for _ in range(IN_A_ROW_MAX):
        measure(log, 9.7, 2.0)
        assert log.state.is_doubtful
    measure(log, 9.7, 2.0)
    assert not log.state.is_doubtful, "a liar among those who measure does not keep them busy"
    measure(log, 2.0, 2.0)
    measure(log, 9.7, 2.0)
    assert log.state.is_doubtful


# What the owner says


def wreck(log) -> bytes:
    measure(log, 9.7, 9.7)
    return log.state.pause.record


@pytest.mark.parametrize("rule", ["off", None])
def test_without_a_guard_nothing_pauses(rule):
    bodies: list[Body] = [charter(rule)] if rule else []
    log = Log(SeatTaken(SYNCER.key), *bodies, weights())
    for loss in (5.0, 3.0, 2.0, 9.7):
        measure(log, loss, loss)
    assert log.state.pause is None
    assert not log.state.is_doubtful


def test_to_go_on_lifts_this_very_pause_and_the_guard_begins_anew(log):
    record = wreck(log)
    log.add(charter("pause", 3, bytes(32)))
    assert log.state.pause is not None, "the word was about another one"
    log.add(charter("pause", 4, record))
    assert log.state.pause is None
    for loss in (9.7, 9.0):
        measure(log, loss, loss)
    assert log.state.pause is None, "the owner knows"
    measure(log, 97.0, 97.0)
    assert log.state.pause.best.loss == 9.0
    log.add(charter("pause", 5, record))
    assert log.state.pause is not None, "a later pause needs another word"


def test_after_going_on_two_agree_on_what_is_compared_also_where_it_is_no_new_best(log):
    record = wreck(log)
    log.add(charter("pause", 3, record))
    for loss in (2.2, 2.25):
        assert log.state.awaits(measure(log, loss), TWO.key) is (loss == 2.2)
        log.add(CheckpointEvaluated(log.state.checkpoint, 0, 0, TWO.key, loss))
    wreck(log)
    assert log.state.pause.best.loss == 2.2


def test_to_take_the_guard_away_lifts_a_pause_too(log):
    wreck(log)
    log.add(charter("off", 3))
    assert log.state.pause is None


def test_a_run_that_ends_pauses_no_more(log):
    log.add(RunEnding("token-budget"))
    measure(log, 9.7, 9.7)
    assert log.state.pause is None


# What everybody knows


def test_a_pause_outlives_a_restart_and_reaches_a_joiner(log):
    wreck(log)
    assert again(log).pause == log.state.pause
    log.add(charter("pause", 3, log.state.pause.record))
    assert again(log).guarded_from == log.state.index > 0


def test_a_leader_whose_clock_is_wild_breaks_no_sentence(log):
    index = measure(log, 9.7)
    body = CheckpointEvaluated(index, 0, 0, TWO.key, 9.7)
    former = log.records[-1]
    record = msgspec.structs.replace(
        former, index=former.index + 1, previous=log.state.head, at_s=1e12, body=body
    )
    log.state.apply(record, bytes(32))
    assert "Merging is paused since 8307-" in pause_words(again(log).pause, {})


def test_a_summary_of_a_former_version_is_read(log):
    fields = msgspec.msgpack.decode(wire.encode(log.state.summary()))
    kept = SwarmSummary.__struct_fields__.index("pause")
    summary = wire.decode(msgspec.msgpack.encode(fields[:kept]), SwarmSummary)
    assert (summary.pause, summary.guarded_from) == (None, 0)


def test_those_who_measured_are_named_with_the_time(log):
    wreck(log)
    said = pause_words(
        log.state.pause, {ONE.key: Account(name="ada"), TWO.key: Account(name="bob")}
    )
    ada, bob = f"ada ({ONE.key.hex()[:8]})", f"bob ({TWO.key.hex()[:8]})"
    assert said == (
        "Merging is paused since 2023-11-14 22:13 UTC: the held-out loss is 9.70, the best was "
        f"2.00 at global step 30 (measured by {ada} and {bob})"
    )


LOSSES = st.floats(0.0, limits.LOSS_MAX)
POINTS = st.lists(st.one_of(LOSSES.map(lambda one: (one,)), st.tuples(LOSSES, LOSSES)), max_size=12)


@given(POINTS, st.integers(0, 12))
def test_whatever_was_measured_only_words_of_all_that_could_measure_pause(told, since):
    curve = [
        CurvePoint(at, at, at, max(losses), b"a", b"b" if len(losses) == 2 else b"", losses)
        for at, losses in enumerate(told, 1)
    ]
    best = found_far(curve, since)
    if best is None:
        assert is_doubtful(curve, since) in (True, False)
        return
    assert best in curve[:-1]
    assert best.checkpoint > since
    assert all(is_far(loss, best.loss) for loss in curve[-1].losses)
    assert curve[-1].is_agreed <= best.is_agreed
    assert not is_doubtful(curve, since)
    assert len(curve) - since >= 3
