"""How many requests a donor gets at once."""

from __future__ import annotations

from node.donors import (
    IN_FLIGHT_FIRST,
    IN_FLIGHT_MIN,
    IN_FLIGHT_PER_DONOR_MAX,
    QUICK_S,
    SLUGGISH_S,
    Donor,
)
from protocol.limits import STREAMS_PER_PEER_MAX

CHUNKS = 30


def a_donor(*chunk_s):
    donor = Donor(b"donor")
    for number, seconds in enumerate(chunk_s):
        donor.served(number, seconds)
    return donor


def test_a_donor_leaves_streams_for_payloads():
    assert IN_FLIGHT_PER_DONOR_MAX < STREAMS_PER_PEER_MAX


def test_a_quick_donor_is_asked_for_more_up_to_a_bound():
    assert a_donor(QUICK_S / 2).depth == IN_FLIGHT_FIRST + 1
    assert a_donor(*[QUICK_S / 2] * CHUNKS).depth == IN_FLIGHT_PER_DONOR_MAX


def test_a_donor_whose_line_is_full_is_asked_for_less_down_to_a_bound():
    assert a_donor(SLUGGISH_S * 2).depth == IN_FLIGHT_FIRST - 1
    assert a_donor(*[SLUGGISH_S * 2] * CHUNKS).depth == IN_FLIGHT_MIN


def test_in_between_nothing_changes():
    assert a_donor(*[(QUICK_S + SLUGGISH_S) / 2] * CHUNKS).depth == IN_FLIGHT_FIRST


def test_what_is_no_whole_chunk_says_nothing():
    assert a_donor(*[None] * CHUNKS).depth == IN_FLIGHT_FIRST


def test_a_busy_donor_is_asked_for_little():
    donor = a_donor(*[QUICK_S / 2] * CHUNKS)
    donor.busy(1.0)
    assert donor.depth == IN_FLIGHT_MIN
