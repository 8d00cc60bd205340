from __future__ import annotations

import pytest

from host.network.message_pace import BURST_S, PEERS_MAX, SHARE, MessagePace

PEER, OTHER = b"p" * 32, b"o" * 32


def test_a_peer_takes_its_share_and_no_more():
    pace, now_s, spent_s = MessagePace(), 100.0, 0.0
    while now_s < 200.0:
        spent_s += 0.001
        now_s += max(0.001, pace.pause_s(PEER, 0.001, now_s))
    assert spent_s == pytest.approx(SHARE * 100.0, rel=0.01)


def test_what_came_at_once_after_a_rest_is_read_at_once():
    pace = MessagePace()
    pauses = [pace.pause_s(PEER, 0.001, 100.0) for _ in range(60)]
    assert sum(pause == 0.0 for pause in pauses) == pytest.approx(1000 * BURST_S * SHARE, abs=1)


def test_a_new_stream_is_no_new_share_and_others_have_theirs():
    pace = MessagePace()
    pace.pause_s(PEER, 1.0, 100.0)
    assert pace.pause_s(PEER, 0.0, 101.0) > 0.0
    assert pace.pause_s(OTHER, 0.0, 101.0) == 0.0


def test_of_many_peers_only_those_over_their_share_are_remembered():
    pace = MessagePace()
    pace.pause_s(PEER, 1.0, 100.0)
    for number in range(PEERS_MAX + 1):
        pace.pause_s(number.to_bytes(32, "big"), 0.0, 100.0)
    assert pace.pause_s(PEER, 0.0, 101.0) > 0.0
