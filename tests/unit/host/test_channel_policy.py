"""When bulk data goes over a direct channel, and how long after a failure it is tried again."""

from __future__ import annotations

from host.bulk import channel_policy
from host.bulk.channel_policy import (
    CONNECTIONS_FAR,
    CONNECTIONS_FAR_ALL,
    FAULT_REST_S,
    GONE_AT_ONCE,
    RESTS_S,
    WORTH_BYTES,
    Agreed,
    Carried,
    ChannelPolicy,
    CloseAll,
    Closed,
    Declined,
    Dial,
    Grown,
    Negotiate,
    Offended,
    Opened,
    Wanted,
    Way,
)

ADA, BOB = b"a" * 32, b"b" * 32
LARGE = Wanted(ADA, WORTH_BYTES, 0.05)


def standing(now_s=0.0):
    """A choice with one connection to Ada that we dialled."""
    choice = ChannelPolicy()
    assert choice.handle(LARGE, now_s) == [Negotiate(ADA)]
    assert choice.handle(Opened(ADA), now_s) == []
    assert choice.handle(Agreed(ADA, is_dialler=True), now_s) == []
    assert choice.way(ADA) is Way.DIRECT
    return choice


def test_a_small_transfer_begins_nothing_and_many_do():
    choice = ChannelPolicy()
    for _ in range(3):
        assert choice.handle(Wanted(ADA, WORTH_BYTES // 4), 0.0) == []
    assert choice.way(ADA) is Way.UNTRIED
    assert choice.peers == []
    assert choice.handle(Wanted(ADA, WORTH_BYTES // 4), 0.0) == [Negotiate(ADA)]
    assert choice.peers == [ADA]


def test_one_that_is_off_never_asks():
    choice = ChannelPolicy(is_on=False)
    assert choice.handle(LARGE, 0.0) == []


def test_a_peer_is_asked_once_at_a_time():
    choice = ChannelPolicy()
    assert choice.handle(LARGE, 0.0) == [Negotiate(ADA)]
    assert choice.handle(LARGE, 0.1) == []
    assert choice.handle(Wanted(BOB, WORTH_BYTES), 0.1) == [Negotiate(BOB)]


def test_pauses_grow_with_failures_and_end_with_a_success():
    choice, now_s = ChannelPolicy(), 0.0
    for rest_s in (*RESTS_S, RESTS_S[-1]):
        assert choice.handle(LARGE, now_s) == [Negotiate(ADA)]
        choice.handle(Declined(ADA, "filtered"), now_s)
        assert choice.reason(ADA) == "filtered"
        assert choice.handle(LARGE, now_s + rest_s - 0.001) == []
        now_s += rest_s
    assert choice.handle(LARGE, now_s) == [Negotiate(ADA)]
    choice.handle(Opened(ADA), now_s)
    choice.handle(Agreed(ADA, is_dialler=True), now_s)
    choice.handle(Carried(ADA), now_s)
    choice.handle(Closed(ADA, "reset", is_broken=True), now_s)
    assert choice.handle(LARGE, now_s + RESTS_S[0] - 0.001) == []
    assert choice.handle(LARGE, now_s + RESTS_S[0]) == [Negotiate(ADA)]


def test_a_peer_that_is_away_altogether_is_asked_again_soon():
    choice, now_s = ChannelPolicy(), 0.0
    choice.handle(LARGE, now_s)
    choice.handle(Declined(ADA, "filtered"), now_s)
    for _ in range(2 * len(RESTS_S)):
        now_s += RESTS_S[0]
        assert choice.handle(LARGE, now_s) == [Negotiate(ADA)]
        choice.handle(Declined(ADA, "unreachable", is_away=True), now_s)
        assert choice.handle(LARGE, now_s + RESTS_S[0] - 0.001) == []
    now_s += RESTS_S[0]
    choice.handle(LARGE, now_s)
    choice.handle(Declined(ADA, "filtered"), now_s)
    assert choice.handle(LARGE, now_s + RESTS_S[1] - 0.001) == [], "the second in a row"


def test_a_channel_that_opens_and_never_carries_rests_ever_longer():
    choice, now_s = ChannelPolicy(), 0.0
    for rest_s in RESTS_S:
        assert choice.handle(LARGE, now_s) == [Negotiate(ADA)]
        choice.handle(Opened(ADA), now_s)
        choice.handle(Agreed(ADA, is_dialler=True), now_s)
        choice.handle(Closed(ADA, "reset", is_broken=True), now_s)
        assert choice.handle(LARGE, now_s + rest_s - 0.001) == []
        now_s += rest_s


def test_many_peers_over_long_lines_share_out_the_connections():
    choice, lacking = ChannelPolicy(), []
    peers = [bytes([number]) * 32 for number in range(1, CONNECTIONS_FAR_ALL + 2)]
    for peer in peers:
        large = Wanted(peer, WORTH_BYTES, 0.05)
        assert choice.handle(large, 0.0) == [Negotiate(peer)]
        choice.handle(Opened(peer), 0.0)
        choice.handle(Agreed(peer, is_dialler=True), 0.0)
        found = choice.handle(large, 0.0)
        lacking.append(found[0].count if found else 0)
    assert lacking == [3, 3, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    for peer in peers[1:]:
        choice.handle(Closed(peer, "", is_broken=False), 1.0)
    choice.handle(Grown(peers[0]), 1.0)
    again = choice.handle(Wanted(peers[0], WORTH_BYTES, 0.05), 1.0 + RESTS_S[0])
    assert again == [Dial(peers[0], CONNECTIONS_FAR - 1)], "it is alone again"


def test_a_long_line_gets_more_connections_and_a_short_one_does_not():
    choice = standing()
    assert choice.handle(Wanted(ADA, WORTH_BYTES, 0.0005), 1.0) == []
    assert choice.handle(LARGE, 1.0) == [Dial(ADA, CONNECTIONS_FAR - 1)]
    assert choice.handle(LARGE, 1.0) == [], "while that is under way"
    choice.handle(Grown(ADA), 1.0)
    assert choice.handle(LARGE, 1.1) == [], "it did not work a moment ago"
    again_s = 1.0 + RESTS_S[0]
    assert choice.handle(LARGE, again_s) == [Dial(ADA, CONNECTIONS_FAR - 1)]
    for _ in range(CONNECTIONS_FAR - 1):
        choice.handle(Opened(ADA), again_s)
    choice.handle(Grown(ADA), again_s)
    assert choice.handle(LARGE, again_s + RESTS_S[0]) == []


def test_only_who_dialled_adds_connections():
    choice = ChannelPolicy()
    choice.handle(LARGE, 0.0)
    choice.handle(Opened(ADA), 0.0)
    choice.handle(Agreed(ADA, is_dialler=False), 0.0)
    assert choice.handle(LARGE, 1.0) == []


def test_a_channel_lives_as_long_as_its_last_connection():
    choice = standing()
    choice.handle(Opened(ADA), 0.0)
    choice.handle(Closed(ADA, "reset", is_broken=True), 1.0)
    assert choice.way(ADA) is Way.DIRECT
    choice.handle(Closed(ADA, "reset", is_broken=True), 1.0)
    assert choice.way(ADA) is Way.RESTING
    assert choice.reason(ADA) == "reset"


def test_an_idle_connection_that_closes_last_does_not_hide_that_another_one_broke():
    choice = standing()
    choice.handle(Opened(ADA), 0.5)
    choice.handle(Closed(ADA, "reset", is_broken=True), 1.0)
    choice.handle(Closed(ADA, "", is_broken=False), 1.0)
    assert (choice.way(ADA), choice.reason(ADA)) == (Way.RESTING, "reset")


def test_a_break_that_a_transfer_outlived_is_forgotten():
    choice = standing()
    choice.handle(Opened(ADA), 0.5)
    choice.handle(Closed(ADA, "reset", is_broken=True), 1.0)
    choice.handle(Carried(ADA), 2.0)
    choice.handle(Closed(ADA, "", is_broken=False), 60.0)
    assert choice.way(ADA) is Way.UNTRIED


def test_one_closed_for_lack_of_use_is_opened_again_at_once():
    choice = standing()
    choice.handle(Closed(ADA, "", is_broken=False), 5.0)
    assert choice.handle(LARGE, 5.0) == [Negotiate(ADA)]


def test_the_peers_own_dial_ends_a_rest():
    choice = ChannelPolicy()
    choice.handle(LARGE, 0.0)
    choice.handle(Declined(ADA, "filtered"), 0.0)
    choice.handle(Opened(ADA), 1.0)
    assert choice.way(ADA) is Way.DIRECT
    assert choice.reason(ADA) == ""


def test_an_agreement_whose_connection_is_gone_counts_as_a_failure():
    choice = ChannelPolicy()
    choice.handle(LARGE, 0.0)
    choice.handle(Agreed(ADA, is_dialler=True), 0.0)
    assert choice.way(ADA) is Way.RESTING
    assert choice.reason(ADA) == GONE_AT_ONCE


def test_one_that_offended_stays_on_streams():
    choice = standing()
    assert choice.handle(Offended(ADA, "nonsense"), 1.0) == [CloseAll(ADA, "nonsense")]
    choice.handle(Closed(ADA, "nonsense", is_broken=True), 1.0)
    assert choice.handle(Opened(ADA), 2.0) == [CloseAll(ADA, "nonsense")], "nor lets itself in"
    choice.handle(Closed(ADA, "nonsense", is_broken=True), 2.0)
    assert choice.handle(LARGE, FAULT_REST_S) == []
    assert choice.way(ADA) is Way.BARRED
    assert choice.handle(LARGE, 1.0 + FAULT_REST_S) == [Negotiate(ADA)]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(channel_policy, "PEERS_MAX", 10)
    choice = standing()
    for number in range(100):
        peer = number.to_bytes(32, "big")
        choice.handle(Wanted(peer, WORTH_BYTES), 0.0)
        choice.handle(Declined(peer, "filtered"), 0.0)
    assert len(choice.peers) == 10
    assert ADA in choice.peers, "one in use is not forgotten"
