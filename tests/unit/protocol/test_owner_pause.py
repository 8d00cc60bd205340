"""The owner's pause of a run: what the log makes of the charter that says so."""

from __future__ import annotations

import msgspec
import pytest

from protocol import wire
from protocol.log.guard import owner_pause_words
from protocol.log.records import CharterAdopted, RunEnding, SeatTaken
from protocol.log.state import SwarmState, SwarmSummary
from tests.support.builders import SYNCER, Log, project, sealed_charter, weights

SINCE_S = 1_795_356_120.0


def charter(revision: int, paused_at_s: float | None) -> CharterAdopted:
    changed = msgspec.structs.replace(project().charter, revision=revision, paused_at_s=paused_at_s)
    return CharterAdopted(sealed_charter(changed))


def again(log) -> SwarmState:
    """The same state by way of a summary, as a joiner or a restarted syncer has it."""
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    return SwarmState.restore(summary, log.state.block_sequences)


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), charter(1, None), weights())


def test_the_charter_in_force_says_whether_the_run_is_paused(log):
    assert not log.state.is_resting
    log.add(charter(2, SINCE_S))
    assert log.state.is_resting
    assert log.state.owner_paused_at_s == again(log).owner_paused_at_s == SINCE_S
    assert again(log) == log.state
    log.add(charter(3, None))
    assert not log.state.is_resting
    assert again(log) == log.state


def test_a_run_that_is_ending_is_not_paused_any_more(log):
    log.add(charter(2, SINCE_S))
    log.add(RunEnding("token-budget"))
    assert not log.state.is_resting
    assert again(log) == log.state
    log.add(charter(3, SINCE_S + 60.0))
    assert not log.state.is_resting
    assert again(log) == log.state


def test_a_pause_is_told_to_the_minute():
    said = owner_pause_words(SINCE_S)
    assert said == "Paused by the project's owner since 2026-11-22 14:02 UTC"
