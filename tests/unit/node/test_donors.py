"""How many requests a donor gets at once."""

from __future__ import annotations

import pytest

from node.download.donors import (
    AHEAD_S,
    FIRST_BYTES,
    IN_FLIGHT_MIN,
    IN_FLIGHT_PER_DONOR_MAX,
    RATE_FADES_S,
    RATE_SURE_S,
    Donor,
)
from protocol.limits import STATE_CHUNK_BYTES, STREAMS_PER_PEER_MAX


def a_donor(bytes_per_s, seconds=10.0, *, every_s=0.05):
    """One that has sent so many bytes per second for so long, and still sends."""
    donor = Donor(b"donor")
    donor.asked(1, 0.0, is_chunk=True)
    for at in range(1, round(seconds / every_s) + 1):
        donor.received(1, round(bytes_per_s * every_s), at * every_s)
    return donor


def test_a_donor_leaves_streams_for_payloads():
    assert IN_FLIGHT_PER_DONOR_MAX < STREAMS_PER_PEER_MAX


def asked_at_once(donor, now_s=10.0, chunk_bytes=STATE_CHUNK_BYTES):
    """How many chunks it is asked for until it has no room."""
    donor.ended(1)
    for number in range(100, 200):
        if not donor.has_room(len(donor.asks) * chunk_bytes, now_s):
            break
        donor.asked(number, now_s, is_chunk=True)
    return len(donor.asks)


def test_a_donor_of_which_nothing_is_known_is_asked_for_what_fills_a_long_line():
    assert asked_at_once(Donor(b"donor")) == FIRST_BYTES // STATE_CHUNK_BYTES
    assert asked_at_once(Donor(b"donor"), chunk_bytes=1000) == IN_FLIGHT_PER_DONOR_MAX


@pytest.mark.parametrize(
    ("bytes_per_s", "chunks"),
    [
        (1e4, IN_FLIGHT_MIN),
        (0.5e6, IN_FLIGHT_MIN),
        (3.5 * STATE_CHUNK_BYTES / AHEAD_S, 4),
        (1e8, IN_FLIGHT_PER_DONOR_MAX),
    ],
)
def test_a_donor_is_asked_for_what_its_line_takes(bytes_per_s, chunks):
    assert asked_at_once(a_donor(bytes_per_s)) == chunks


def test_the_first_moments_of_a_connection_do_not_count_against_it():
    few = FIRST_BYTES // STATE_CHUNK_BYTES
    assert asked_at_once(a_donor(0.5e6, RATE_SURE_S / 2), RATE_SURE_S / 2) == few
    assert asked_at_once(a_donor(1e8, RATE_SURE_S / 2), RATE_SURE_S / 2) == IN_FLIGHT_PER_DONOR_MAX


def test_the_rate_is_known_before_a_chunk_is_complete():
    assert a_donor(1e6, 0.5).rate(0.5) == pytest.approx(1e6, rel=0.01)


def test_a_rate_falls_while_nothing_comes_and_not_while_nothing_is_asked_for():
    donor = a_donor(1e6)
    assert donor.rate(10.0 + RATE_FADES_S) == pytest.approx(0.5e6, rel=0.1)
    donor.ended(1)
    assert donor.rate(10.0 + RATE_FADES_S) == pytest.approx(1e6, rel=0.01)
    donor.asked(2, 100.0, is_chunk=True)
    donor.received(2, 50_000, 100.05)
    assert donor.rate(100.05) == pytest.approx(1e6, rel=0.01)


def test_a_manifest_says_nothing_of_a_rate():
    donor = Donor(b"donor")
    donor.asked(1, 0.0, is_chunk=False)
    donor.received(1, 320, 1.0)
    assert donor.rate(1.0) is None
    assert not donor.is_silent(0.5, 9.0)


def test_a_donor_is_silent_when_nothing_comes_for_longer_than_is_usual():
    often, seldom = a_donor(1e6), a_donor(1e4, every_s=2.0)
    assert [often.is_silent(2.0, 10.0 + wait_s) for wait_s in (1.9, 2.1)] == [False, True]
    assert [seldom.is_silent(2.0, 10.0 + wait_s) for wait_s in (3.9, 4.1)] == [False, True]
    often.ended(1)
    assert not often.is_silent(2.0, 99.0)


def test_a_busy_donor_is_asked_for_little_until_it_serves_again():
    donor = a_donor(1e8)
    donor.busy(10.0)
    assert asked_at_once(donor) == IN_FLIGHT_MIN
    for _ in range(IN_FLIGHT_PER_DONOR_MAX):
        donor.served(1.0)
    assert asked_at_once(donor) == IN_FLIGHT_PER_DONOR_MAX
