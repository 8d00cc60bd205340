"""Who gets into a full project, and who gives way."""

from __future__ import annotations

import pytest

from protocol.machine import PeerUp
from protocol.messages import Refused, Welcome
from protocol.peers.membership import Membership
from protocol.project import LimitSpec
from protocol.trace import SessionClosed
from simulator.stand_ins.tiny import SimSigner
from syncer_node.machine.trust import admission
from syncer_node.machine.trust.admission import FULL_RETRY_S, UNMERGED_S_MAX, gives_way
from tests.support.builders import (
    SyncerBench,
    disconnected,
    facts,
    heartbeat,
    hello,
    project,
    session,
)

LEARNERS = 8
SMALL = project(None, LimitSpec(1_000_000, LEARNERS, 40, 8, 60.0, 8))
CROWD = [SimSigner(f"crowd {number}") for number in range(12)]
NEWCOMERS = [SimSigner(f"newcomer {number}") for number in range(12)]
HERE, THERE = "192.0.2.1", "198.51.100.7"


def greet(bench, signer, network, **changes):
    bench.feed(PeerUp(signer.key, network))
    return bench.say(signer.key, hello(project=SMALL.project, name="x", **changes))


def full(network=HERE):
    """A syncer whose project is full of learners from one network address."""
    bench = SyncerBench(SMALL).start()
    for signer in CROWD[:LEARNERS]:
        greet(bench, signer, network)
        bench.now_s += 0.1
    return bench


def is_welcome(bench, signer):
    return bench.last(signer.key, Welcome) is not None


def live(bench):
    return {one.peer for one in bench.machine.leadership.members.live()}


def test_while_there_is_room_everybody_of_one_address_gets_in():
    assert live(full()) == {one.key for one in CROWD[:LEARNERS]}


def test_in_a_full_project_a_crowded_address_gives_way_down_to_its_share():
    bench = full()
    for at, newcomer in enumerate(NEWCOMERS):
        effects = greet(bench, newcomer, f"{THERE}{at}")
        is_within = at < LEARNERS - admission.SHARE_MIN
        assert is_welcome(bench, newcomer) == is_within
        if is_within:
            left = CROWD[LEARNERS - 1 - at]
            assert disconnected(effects) == [left.key], "who came last goes first"
            refused = bench.last(left.key, Refused)
            assert (refused.reason, refused.retry_after_s) == ("full", FULL_RETRY_S)
            assert "come from your network address" in refused.text
            assert [fact.peer for fact in facts(effects, SessionClosed)] == [left.key]
        else:
            assert bench.last(newcomer.key, Refused).retry_after_s == FULL_RETRY_S
    assert len(live(bench)) == LEARNERS


def test_nobody_of_an_address_that_has_its_share_takes_the_place_of_others():
    bench = full()
    for signer in CROWD[LEARNERS:]:
        greet(bench, signer, HERE)
        assert not is_welcome(bench, signer)
    for at, signer in enumerate(NEWCOMERS):
        greet(bench, signer, THERE)
        assert is_welcome(bench, signer) == (at < admission.SHARE_MIN)


def test_hosts_behind_relays_count_as_one_address():
    bench = full(network="")
    greet(bench, NEWCOMERS[0], THERE)
    assert is_welcome(bench, NEWCOMERS[0])
    greet(bench, CROWD[-1], "")
    assert not is_welcome(bench, CROWD[-1])


def test_who_speaks_without_a_session_is_sent_away():
    bench = SyncerBench(SMALL).start()
    bench.feed(PeerUp(CROWD[0].key, HERE))
    assert disconnected(bench.say(CROWD[0].key, heartbeat())) == [CROWD[0].key]
    assert bench.machine.faults == {"unexpected-message": 1}


def sessions(*, merged_s=None, **changes):
    """Eight sessions from addresses of their own; something of the last was merged then."""
    members = Membership()
    for at, signer in enumerate(CROWD[:LEARNERS]):
        one = session(signer, network=f"address {at}", arrived_s=float(at), **changes)
        members.sessions[signer.key] = one
    if merged_s is not None:
        one.merged(0, 8, merged_s)
    return members


def who(members, now_s, network=THERE):
    found = gives_way(members, LEARNERS, network, now_s)
    return None if found is None else found[0].peer


def test_who_has_trained_for_long_and_was_never_merged_gives_way():
    late_s = UNMERGED_S_MAX + 1.0
    members = sessions(merged_s=late_s)
    assert who(members, UNMERGED_S_MAX - 1.0) is None
    assert who(members, late_s) == CROWD[0].key
    _, text = gives_way(members, LEARNERS, THERE, late_s)
    assert "nothing of this learner was merged in 10 minutes" in text
    members.sessions[CROWD[0].key].merges = 1
    assert who(members, late_s) == CROWD[1].key


def test_where_nothing_of_anybody_was_merged_nobody_gives_way():
    assert who(sessions(), 10 * UNMERGED_S_MAX) is None
    assert who(sessions(merged_s=60.0), 10 * UNMERGED_S_MAX) is None


def test_another_connection_or_daemon_does_not_set_the_clock_of_a_key_back():
    members = Membership()
    members.open(CROWD[0].key, hello(), 5.0, HERE)
    members.close(CROWD[0].key, "cable")
    assert members.open(CROWD[0].key, hello(), 50.0, THERE).arrived_s == 5.0
    again = members.open(CROWD[0].key, hello(incarnation=2), 90.0, HERE)
    assert (again.arrived_s, again.network) == (5.0, HERE)


@pytest.mark.parametrize("merges", [0, 1])
def test_who_lost_its_connection_finds_its_place_again_if_it_was_merged(merges):
    bench = full()
    lost = CROWD[0]
    bench.machine.leadership.members.sessions[lost.key].merges = merges
    bench.machine.leadership.lose(lost.key, "cable", bench.now_s)
    greet(bench, CROWD[LEARNERS], HERE)
    assert is_welcome(bench, CROWD[LEARNERS])
    greet(bench, lost, HERE)
    assert (lost.key in live(bench)) == bool(merges)
