"""The link model of the network lab, without a network."""

from __future__ import annotations

import pytest

from tests.netlab import Link
from tests.netlab.link import RateLimiter
from tests.netlab.nat import begins_tcp

PACKET_BYTES = 1000


def send(shaper, packets, *, every_s=0.001):
    """When each of so many packets arrives, or None."""
    return [shaper.admit(PACKET_BYTES, number * every_s) for number in range(packets)]


def test_a_perfect_link_delivers_at_once():
    assert send(RateLimiter(Link(), seed="a"), 3) == [0.0, 0.001, 0.002]


def test_latency_is_added():
    assert RateLimiter(Link(latency_s=0.05), seed="a").admit(1, 7.0) == pytest.approx(7.05)


def test_packets_wait_for_their_turn_on_the_rate():
    shaper = RateLimiter(Link(rate_bytes_per_s=100_000, latency_s=0.5), seed="a")
    assert send(shaper, 3) == pytest.approx([0.51, 0.52, 0.53])
    assert shaper.admit(PACKET_BYTES, 2.0) == pytest.approx(2.51), "an idle time is not saved up"


def test_the_queue_drops_what_does_not_fit():
    shaper = RateLimiter(Link(rate_bytes_per_s=100_000, queue_bytes=2 * PACKET_BYTES), seed="a")
    arrivals = [shaper.admit(PACKET_BYTES, 0.0) for _ in range(5)]
    assert arrivals == [pytest.approx(0.01), pytest.approx(0.02), pytest.approx(0.03), None, None]
    assert shaper.counts.overflowed == 2
    assert shaper.admit(PACKET_BYTES, 0.015) == pytest.approx(0.04), "room again"


def test_loss_is_as_frequent_as_said_and_the_same_for_the_same_seed():
    link = Link(loss_frac=0.1)
    one, same, other = (send(RateLimiter(link, seed=seed), 10_000) for seed in "aab")
    assert one == same
    assert one != other
    assert one.count(None) == pytest.approx(1000, rel=0.1)


def test_jitter_stays_within_its_bounds_and_keeps_the_order():
    link = Link(latency_s=0.05, jitter_s=0.02)
    arrivals = send(RateLimiter(link, seed="a"), 1000)
    delays = [arrival - number * 0.001 for number, arrival in enumerate(arrivals)]
    assert arrivals == sorted(arrivals)
    assert min(delays) >= 0.03
    assert max(delays) <= 0.07
    assert len(set(delays)) > 100


def test_a_cut_counts_and_does_not_use_up_chances():
    straight, broken = (RateLimiter(Link(loss_frac=0.5), seed="a") for _ in range(2))
    broken.is_open = False
    assert send(broken, 10) == [None] * 10
    broken.is_open = True
    assert send(broken, 100) == send(straight, 100)
    assert broken.counts.cut == 10
    assert broken.counts.forwarded + broken.counts.lost == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_s": -1.0},
        {"latency_s": 0.01, "jitter_s": 0.02},
        {"loss_frac": 1.1},
        {"rate_bytes_per_s": 0.0},
    ],
)
def test_links_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=r"cannot|not a share|say so"):
        Link(**wrong)


def tcp(flags, *, options=0, protocol=6, fragment=0, version=4):
    """The beginning of an IP packet as a NAT sees it."""
    header = bytearray(20 + options)
    header[0] = version << 4 | (20 + options) // 4
    header[6:8] = fragment.to_bytes(2, "big")
    header[9] = protocol
    segment = bytearray(20)
    segment[13] = flags
    return bytes(header + segment)


@pytest.mark.parametrize(
    ("packet", "begins"),
    [
        (tcp(0x02), True),
        (tcp(0xC2), True),  # With ECN.
        (tcp(0x02, options=8), True),
        (tcp(0x12), False),  # The answer to one that was begun inside.
        (tcp(0x10), False),
        (tcp(0x04), False),
        (tcp(0x02, protocol=17), False),
        (tcp(0x02, fragment=5), False),
        (tcp(0x02, version=6), False),
        (tcp(0x02)[:30], False),
        (b"", False),
    ],
)
def test_a_nat_knows_the_packet_that_begins_a_connection(packet, begins):
    assert begins_tcp(packet) is begins
