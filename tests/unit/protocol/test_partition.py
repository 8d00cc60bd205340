"""A swarm that fell in two: told from a moment's confusion, and said plainly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.peers.partition import (
    ALONE_S,
    CUT_OFF_S,
    HEADS_S,
    OFFLINE_S,
    PartitionWatch,
    Sight,
)

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
WHOLE = Sight(here=3, voters={A}, seen={A}, follows=True, away=1)
CUT_OFF = Sight(here=2, voters={A, B}, seen=(), follows=False, away=2)
ALONE = Sight(here=0, voters={A}, seen=(), follows=False, away=3)
HEADS = Sight(here=4, voters={A, B}, seen={A}, follows=True, heads={A, B})


def watch(*looks):
    made = PartitionWatch()
    for now_s, sight in looks:
        made.look(sight, now_s)
    return made


@pytest.mark.parametrize(
    ("sight", "patience_s", "kind"),
    [(CUT_OFF, CUT_OFF_S, "cut-off"), (ALONE, ALONE_S, "alone"), (HEADS, HEADS_S, "two-heads")],
)
def test_trouble_has_to_last(sight, patience_s, kind):
    begins = [(0.0, WHOLE), (10.0, sight)]
    assert not watch(*begins, (10.0 + patience_s - 0.1, sight)).trouble
    made = watch(*begins, (10.0 + patience_s, sight))
    assert made.kind == kind
    assert made.trouble
    assert made.look(WHOLE, 200.0), "it changed"
    assert not made.trouble


def test_a_moment_of_health_begins_the_count_anew():
    made = watch((0.0, CUT_OFF), (15.0, WHOLE), (16.0, CUT_OFF), (30.0, CUT_OFF))
    assert not made.trouble


def test_who_is_missing_is_named():
    said = watch((0.0, CUT_OFF), (CUT_OFF_S, CUT_OFF)).trouble
    assert "2 hosts here" in said
    assert "01010101, 02020202" in said
    assert "dialled again" in said


def test_who_claims_the_seat_is_named():
    said = watch((0.0, HEADS), (HEADS_S, HEADS)).trouble
    assert "01010101, 02020202 prove at once that they lead" in said


@pytest.mark.parametrize(
    "sight",
    [
        Sight(here=2, voters={A}, seen=(), follows=True),  # It hears a leader by way of others.
        Sight(here=2, voters={A, B}, seen={B}, follows=False),  # An election.
        Sight(here=2, voters=(), seen=(), follows=False),  # The only voter.
        Sight(here=0, voters={A}, seen=(), follows=False),  # The first host of a swarm.
        Sight(here=2, voters={A}, seen={A}, follows=True, heads=[A, A]),
    ],
)
def test_what_is_no_split(sight):
    assert not watch((0.0, sight), (1000.0, sight)).trouble


def test_from_one_trouble_to_another_it_does_not_look_well_meanwhile():
    made = watch((0.0, CUT_OFF), (CUT_OFF_S, CUT_OFF), (CUT_OFF_S + 1, ALONE))
    assert made.kind == "alone"


keys = st.sets(st.sampled_from([A, B, C]))
sights = st.builds(
    Sight,
    here=st.integers(0, 5),
    voters=keys,
    seen=keys,
    follows=st.booleans(),
    heads=keys,
    away=st.integers(0, 4),
)


@given(st.lists(st.tuples(st.floats(0.1, 100.0), sights), max_size=30))
def test_trouble_is_told_exactly_while_there_is_a_kind_of_it(looks):
    made, now_s = PartitionWatch(), 0.0
    for pause_s, sight in looks:
        now_s += pause_s
        before = made.kind
        assert made.look(sight, now_s) == (made.kind != before)
        assert bool(made.trouble) == (made.kind != "whole")
        if sight.here and sight.follows and len(sight.heads) < 2:
            assert made.kind == "whole", "nothing is wrong now"


def test_without_a_network_of_its_own_a_host_blames_nobody_else():
    offline = Sight(0, (), (), follows=False, no_network="this machine has no network: do this")
    made = watch((0.0, WHOLE), (10.0, offline))
    assert not made.trouble, "a wifi that roams is back within seconds"
    made.look(offline, 10.0 + OFFLINE_S)
    assert made.trouble == "This machine has no network: do this."
    made.look(WHOLE, 60.0)
    assert not made.trouble


def test_what_else_is_missed_without_a_network_is_missed_because_of_that():
    lost = Sight(2, {A, B}, (), follows=False, away=2, no_network="this machine has no network")
    assert watch((0.0, lost), (CUT_OFF_S, lost)).kind == "offline"
