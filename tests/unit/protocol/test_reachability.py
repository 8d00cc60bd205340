"""Whether others can dial this host: the verdict, and whom to ask for it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.peers.reachability import (
    AGAIN_S,
    ANSWER_S,
    ASK_AT_ONCE_MAX,
    PEERS_MAX,
    RELAYS_MAX,
    Reaching,
)


def key(number):
    return number.to_bytes(32, "big")


def reaching():
    return Reaching(random.Random(1).random)


def tell(machine, number, could_dial, *, relays=False, is_public=True, now_s=0.0, version=4):
    machine.told(
        key(number),
        could_dial=could_dial,
        is_public=is_public,
        relays=relays,
        now_s=now_s,
        ip_version=version,
    )


ALL = {key(number) for number in range(9)}


def test_nobody_asked_means_unknown():
    assert reaching().verdict(ALL, 0.0) == "unknown"


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([True], "direct"),
        ([True, False], "direct"),
        ([True, False, False], "outward"),
        ([None], "unknown"),
        ([None, False], "outward"),
    ],
)
def test_half_of_those_that_tried_decide(answers, verdict):
    machine = reaching()
    for number, could_dial in enumerate(answers):
        tell(machine, number, could_dial)
    assert machine.verdict(ALL, 1.0) == verdict


@pytest.mark.parametrize(("opened", "closed"), [(4, 6), (6, 4)])
def test_a_port_that_is_open_over_one_version_alone_is_open(opened, closed):
    machine = reaching()
    for number in range(3):
        tell(machine, number, could_dial=False, version=closed)
    assert machine.verdict(ALL, 1.0) == "outward"
    assert machine.closed_over(1.0) == (closed,)
    tell(machine, 3, could_dial=True, version=opened)
    assert machine.verdict(ALL, 1.0) == "direct"
    assert machine.direct_over(1.0) == (opened,)
    assert machine.closed_over(1.0) == (closed,)
    assert machine.count(1.0) == (1, 4)


def test_a_neighbour_says_nothing_of_the_nat():
    machine = reaching()
    for number in range(3):
        tell(machine, number, could_dial=True, is_public=False)
    assert machine.verdict(ALL, 1.0) == "direct"
    tell(machine, 4, could_dial=False)
    assert machine.verdict(ALL, 1.0) == "outward"


def test_a_relay_counts_while_we_are_connected_with_it():
    machine = reaching()
    tell(machine, 1, could_dial=False, relays=True)
    assert machine.verdict(ALL, 1.0) == "relayed"
    assert machine.relays(ALL) == (key(1),)
    assert machine.verdict(ALL - {key(1)}, 1.0) == "outward"


def test_a_relay_that_does_not_answer_any_more_is_none():
    machine = reaching()
    tell(machine, 1, could_dial=False, relays=True)
    tell(machine, 2, could_dial=False)
    machine.failed(key(1), 5.0)
    assert machine.verdict(ALL, 6.0) == "outward"


def test_what_was_found_holds_while_a_busy_host_does_not_answer():
    machine = reaching()
    tell(machine, 1, could_dial=True)
    machine.failed(key(1), 5.0)
    tell(machine, 1, could_dial=None, now_s=6.0)
    assert machine.verdict(ALL, 7.0) == "direct"
    assert machine.verdict(ALL, ANSWER_S + 1) == "unknown", "it is not new by that"


def test_answers_grow_old():
    machine = reaching()
    tell(machine, 1, could_dial=True)
    assert machine.verdict(ALL, ANSWER_S - 1) == "direct"
    assert machine.verdict(ALL, ANSWER_S + 1) == "unknown"


def test_another_network_is_another_question():
    machine = reaching()
    tell(machine, 1, could_dial=True)
    machine.moved()
    assert machine.verdict(ALL, 1.0) == "unknown"
    assert machine.to_ask(ALL, 1.0)


def test_a_direct_host_stops_asking_and_a_hidden_one_looks_for_relays():
    machine = reaching()
    for number in range(3):
        tell(machine, number, could_dial=True)
    assert machine.to_ask(ALL, 1.0) == []
    machine = reaching()
    for number in range(3):
        tell(machine, number, could_dial=False, relays=number == 0)
    assert machine.to_ask(ALL, 1.0), "one relay is few"


def test_the_same_host_is_asked_less_and_less_often():
    machine, asked_s, now_s = reaching(), [], 0.0
    while now_s < 2000.0:
        if machine.to_ask({key(1)}, now_s):
            asked_s.append(now_s)
            machine.failed(key(1), now_s)
        now_s += 1.0
    pauses = [b - a for a, b in itertools.pairwise(asked_s)]
    assert len(asked_s) < 14
    assert pauses[0] <= 1.25 * AGAIN_S[0] + 1
    assert max(pauses) >= 0.75 * AGAIN_S[-1]


steps = st.lists(
    st.tuples(
        st.integers(0, 2 * PEERS_MAX),
        st.sampled_from([True, False, None, "failed"]),
        st.booleans(),
        st.booleans(),
        st.floats(0.0, 100.0),
    ),
    max_size=60,
)


@given(steps, st.sets(st.integers(0, 40)))
def test_whatever_is_said_the_verdict_keeps_its_word(said, here):
    machine, now_s = reaching(), 0.0
    connected = {key(number) for number in here}
    for number, could_dial, is_public, relays, pause_s in said:
        now_s += pause_s
        if could_dial == "failed":
            machine.failed(key(number), now_s)
        else:
            tell(machine, number, could_dial, relays=relays, is_public=is_public, now_s=now_s)
        asked = machine.to_ask(connected, now_s)
        assert len(asked) <= ASK_AT_ONCE_MAX
        assert set(asked) <= connected
        assert len(machine.answers) <= PEERS_MAX
        relays_now = machine.relays(connected)
        assert set(relays_now) <= connected
        assert len(relays_now) <= RELAYS_MAX
        verdict, (could, tried) = machine.verdict(connected, now_s), machine.count(now_s)
        assert (verdict == "unknown") == (tried == 0)
        assert (verdict == "direct") == (tried > 0 and 2 * could >= tried)
        assert verdict != "relayed" or relays_now
        assert verdict != "outward" or not relays_now
