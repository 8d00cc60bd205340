"""How much strangers get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.page import gate
from shoal.page.gate import Gate, forwarded, whose


def test_an_address_may_ask_so_often_at_once_and_then_so_often_a_second():
    door = Gate()
    assert [door.ask("192.0.2.1", 0.0) for _ in range(gate.REQUESTS_AT_ONCE)] == [0.0] * 40
    assert door.ask("192.0.2.1", 0.0) == pytest.approx(1 / gate.REQUESTS_PER_S)
    assert door.ask("192.0.2.2", 0.0) == 0.0, "another address is another matter"
    assert door.ask("192.0.2.1", 0.4) > 0.0
    assert door.ask("192.0.2.1", 0.5) == 0.0
    assert door.refused["requests"] == 2


@given(st.lists(st.floats(0.0, 20.0), max_size=200))
def test_over_any_stretch_nobody_gets_more_than_what_is_given(gaps):
    door, now_s, granted = Gate(), 0.0, 0
    for gap_s in gaps:
        now_s += gap_s / 20
        granted += door.ask("192.0.2.1", now_s) == 0.0
    assert granted <= gate.REQUESTS_AT_ONCE + gate.REQUESTS_PER_S * now_s + 1e-6


def test_so_many_connections_of_one_address_and_so_many_of_all():
    door = Gate()
    taken = [door.connect("192.0.2.1") for _ in range(gate.CONNECTIONS_EACH_MAX + 1)]
    assert taken == [*(gate.CONNECTIONS_EACH_MAX * [True]), False]
    door.disconnect("192.0.2.1")
    assert door.connect("192.0.2.1")
    others = sum(door.connect(f"198.51.{at // 250}.{at % 250}") for at in range(1000))
    assert others == gate.CONNECTIONS_MAX - gate.CONNECTIONS_EACH_MAX


def test_a_proxy_is_bounded_by_the_whole_alone():
    door = Gate()
    taken = sum(door.connect("127.0.0.1", is_proxy=True) for _ in range(1000))
    assert taken == gate.CONNECTIONS_MAX


def test_streams_are_counted_and_given_back():
    door = Gate()
    assert all(door.open_stream("192.0.2.1") for _ in range(gate.STREAMS_EACH_MAX))
    assert not door.open_stream("192.0.2.1")
    door.close_stream("192.0.2.1")
    assert door.open_stream("192.0.2.1")
    opened = sum(door.open_stream(f"198.51.100.{at}") for at in range(256))
    assert opened + gate.STREAMS_EACH_MAX == gate.STREAMS_MAX
    assert door.streams == gate.STREAMS_MAX


def test_what_is_remembered_is_bounded():
    door = Gate()
    for at in range(3 * gate.ADDRESSES_MAX):
        door.ask(f"2001:db8:{at >> 8:x}:{at & 255:x}::1", 0.0)
    assert door.remembered == gate.ADDRESSES_MAX


def test_one_line_of_ipv6_is_one_asker():
    assert whose("2001:db8:1:2::1") == whose("2001:db8:1:2:ffff::9") != whose("2001:db8:1:3::1")
    assert whose("::ffff:192.0.2.1") == whose("192.0.2.1") == "192.0.2.1"
    assert whose("fe80::1%eth0") == whose("fe80::2")
    assert whose("nonsense") == "unknown"


def test_of_what_a_proxy_says_only_its_own_word_counts():
    assert forwarded("203.0.113.9, 198.51.100.4", "127.0.0.1") == "198.51.100.4"
    assert forwarded("", "127.0.0.1") == "127.0.0.1"
    assert forwarded("198.51.100.4, <script>", "127.0.0.1") == "127.0.0.1"
