"""Joiners that come all at once: what they get from each other, in virtual time."""

from __future__ import annotations

import pytest

from node.download import donors
from protocol import limits
from tests.support.choices import first
from tests.support.donors import a_state
from tests.support.joiners import Crowd

CHUNK_BYTES = 4096
LINE = 4 * CHUNK_BYTES
"""Bytes per second of a joiner's line, each way."""

FRAGMENTS, CHUNKS = 12, 12
JOINERS = 6


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(donors, "FIRST_BYTES", 3 * CHUNK_BYTES)


@pytest.fixture(scope="module")
def states():
    former, limits.STATE_CHUNK_BYTES = limits.STATE_CHUNK_BYTES, CHUNK_BYTES
    yield [a_state(at, chunks=CHUNKS, is_fresh=True) for at in range(FRAGMENTS)]
    limits.STATE_CHUNK_BYTES = former


def size_bytes(states):
    return sum(theta.nbytes for theta, _ in states)


def crowd(states, syncer, **how):
    lines = {"up_bytes_per_s": LINE, "down_bytes_per_s": LINE}
    return Crowd(states, JOINERS, syncer_bytes_per_s=syncer * LINE, **lines, **how)


def test_a_syncer_on_a_line_like_theirs_gives_hardly_more_than_a_copy_for_all(states):
    swarm = crowd(states, 1)
    took_s = swarm.run(until_s=1000.0)
    assert swarm.syncer.up.carried_bytes < 1.8 * size_bytes(states)
    assert took_s < 1.8 * size_bytes(states) / LINE


@pytest.mark.parametrize("liars", first(1, [1, 3]))
def test_joiners_that_say_they_have_everything_and_give_nothing_cost_little(states, liars):
    honest_s = crowd(states, 1).run(until_s=1000.0)
    assert crowd(states, 1, liars=liars).run(until_s=1000.0) < 1.25 * honest_s


def test_a_fast_syncer_is_not_asked_for_a_copy_each_and_the_lines_are_full(states):
    swarm = crowd(states, 10)
    took_s = swarm.run(until_s=1000.0)
    assert swarm.syncer.up.carried_bytes < 0.75 * JOINERS * size_bytes(states)
    assert took_s < 1.35 * size_bytes(states) / LINE


def test_beside_learners_that_have_everything_joiners_still_give_to_each_other(states):
    swarm = crowd(states, 1, learners=1)
    took_s = swarm.run(until_s=1000.0)
    given = sum(one.up.carried_bytes for one in swarm.joiners)
    assert given > JOINERS * size_bytes(states) / 3
    assert took_s < 0.4 * JOINERS * size_bytes(states) / LINE
