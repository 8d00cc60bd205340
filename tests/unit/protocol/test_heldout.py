"""Which checkpoint is the best: one learner's word moves nothing where two can measure."""

from __future__ import annotations

import pytest

from protocol import wire
from protocol.log.accounts import Account
from protocol.log.heldout import CurvePoint, agree, believed, disputed_words, measured_by
from protocol.log.records import CheckpointEvaluated, CheckpointMarked, SeatTaken
from protocol.log.state import SwarmState, SwarmSummary
from tests.support.builders import ONE, SYNCER, THREE, TWO, Log, weights


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), weights())


def measure(log, *losses, first=ONE, second=TWO):
    """A mark and what the first and the second said of it; its log index."""
    at = log.state.global_step
    log.add(CheckpointMarked(at, first.key, second.key if second else None))
    index = log.state.index
    for who, loss in zip((first, second), losses, strict=False):
        log.add(CheckpointEvaluated(index, at, 0, who.key, loss))
    return index


def test_two_that_agree_make_a_best_with_the_higher_loss(log):
    at = measure(log, 2.0, 2.01)
    assert log.state.best.checkpoint == at
    assert log.state.best.loss == 2.01
    assert log.state.best.is_agreed


def test_a_false_zero_moves_nothing(log):
    honest = measure(log, 2.0, 2.0)
    false = measure(log, 0.0, 4.0, first=THREE)
    assert log.state.best.checkpoint == honest
    point = log.state.point(false)
    assert point.is_disputed
    assert point.loss == 4.0, "the curve does not dive either"


def test_a_false_zero_that_nobody_has_checked_yet_moves_nothing(log):
    honest = measure(log, 2.0, 2.0)
    measure(log, 0.0, first=THREE)
    assert log.state.best.checkpoint == honest


def test_what_people_see_has_no_word_of_one_against_another(log):
    seen = [measure(log, 2.0, 2.0), measure(log, 2.1), measure(log, 1.9, 1.9)]
    measure(log, 7.8, 1.9, first=THREE)
    claims = [measure(log, 7.8, first=THREE), measure(log, 0.1, first=THREE)]
    assert [point.checkpoint for point in believed(log.state.curve)] == seen
    wrecked = measure(log, 7.8, 7.9)
    assert [point.checkpoint for point in believed(log.state.curve)] == [*seen, wrecked]
    assert {point.checkpoint for point in log.state.curve} >= set(claims)


def test_while_nobody_has_a_second_what_one_says_is_shown(log):
    alone = [measure(log, loss, second=None) for loss in (3.0, 9.0, 2.0)]
    assert [point.checkpoint for point in believed(log.state.curve)] == alone


def test_a_second_that_lies_only_keeps_a_checkpoint_from_counting(log):
    honest = measure(log, 2.0, 2.0)
    measure(log, 1.9, 90.0, second=THREE)
    assert log.state.best.checkpoint == honest
    better = measure(log, 1.8, 1.8)
    assert log.state.best.checkpoint == better


def test_the_second_is_asked_only_if_its_word_could_make_a_new_best(log):
    first = measure(log, 2.0)
    assert log.state.awaits(first, TWO.key)
    assert not log.state.awaits(first, ONE.key)
    log.add(CheckpointEvaluated(first, 0, 0, TWO.key, 2.0))
    assert not log.state.awaits(first, TWO.key)
    worse = measure(log, 2.1)
    assert not log.state.awaits(worse, TWO.key)
    assert worse not in log.state.marks
    assert log.state.best.checkpoint == first


def test_alone_its_word_has_to_do_until_two_agree_on_a_later_one(log):
    alone = measure(log, 0.0, second=None)
    assert log.state.best.checkpoint == alone
    assert log.state.best.is_alone
    checked = measure(log, 3.0)
    assert log.state.awaits(checked, TWO.key), "also where it is not lower than one learner's word"
    log.add(CheckpointEvaluated(checked, 0, 0, TWO.key, 3.0))
    assert log.state.best.checkpoint == checked
    again = measure(log, 2.5, second=None)
    assert log.state.best.checkpoint == again, "everybody else has left"


def test_points_of_a_former_version_count_as_they_did(log):
    log.state.curve = [CurvePoint(1, 10, 100, 2.0), CurvePoint(2, 20, 200, 1.5)]
    assert log.state.best.checkpoint == 2
    assert measured_by(log.state.best, {}) == "by one learner, of which nothing is known"


def test_what_waits_for_a_second_outlives_a_restart(log):
    at = measure(log, 2.0)
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    restored = SwarmState.restore(summary, log.state.block_sequences)
    assert restored.awaits(at, TWO.key)
    assert restored.curve == log.state.curve


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [
        (2.0, 2.0, True),
        (2.0, 2.04, True),
        (2.0, 2.06, False),
        (0.0, 0.01, True),
        (0.0, 2.0, False),
        (50.0, 51.0, True),
    ],
)
def test_two_agree_within_two_percent_and_a_hundredth(one, other, is_so):
    assert agree(one, other) is agree(other, one) is is_so


def test_those_who_measured_are_named(log):
    accounts = {ONE.key: Account(name="ada"), TWO.key: Account(name="bob\x1b[2J")}
    assert disputed_words(log.state.curve, accounts) == ""
    measure(log, 2.0, 2.0)
    ada, bob = f"ada ({ONE.key.hex()[:8]})", f"bob?[2J ({TWO.key.hex()[:8]})"
    assert measured_by(log.state.best, accounts) == f"by {ada} and {bob}"
    assert disputed_words(log.state.curve, accounts) == ""
    measure(log, 0.0, 4.0)
    said = disputed_words(log.state.curve, accounts)
    assert f"{ada} says 0.0000, {bob} says 4.0000" in said
    measure(log, 1.0, second=None)
    assert measured_by(log.state.best, accounts) == f"by {ada} alone"


def test_who_is_here_is_named_before_the_log_has_a_name(log):
    measure(log, 0.0, 4.0)
    here = {ONE.key: "mallory", TWO.key: "bobby"}
    said = disputed_words(log.state.curve, {TWO.key: Account(name="bob")}, here)
    assert f"mallory ({ONE.key.hex()[:8]}) says 0.0000, bob ({TWO.key.hex()[:8]}) says" in said
