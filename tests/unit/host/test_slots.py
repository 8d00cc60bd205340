"""Who gets a slot when many want one."""

from __future__ import annotations

import pytest

from host.network.slots import Reserve, Slots

MEMBERS = {b"voter", b"learner"}
HERE, THERE, LOCAL = "/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.2/tcp/1", "/ip4/127.0.0.1/tcp/1"


@pytest.fixture
def slots():
    return Slots(10, 3, Reserve(4, 5, MEMBERS.__contains__))


def taken(slots, address, count=20, per_key=1):
    """How many of so many strangers of one address get slots, each asking so often."""
    keys = [b"%d at %s" % (number, address.encode()) for number in range(count)]
    return sum(slots.try_take(key, address) for key in keys for _ in range(per_key))


def test_strangers_leave_slots_to_members(slots):
    assert taken(slots, LOCAL) == 6
    assert [slots.try_take(b"voter", HERE) for _ in range(4)] == [True, True, True, False]
    assert slots.try_take(b"learner", HERE)
    assert not slots.try_take(b"learner", HERE), "ten in all"


def test_strangers_of_one_address_leave_slots_to_those_of_another(slots):
    assert taken(slots, HERE, per_key=3) == 5
    assert taken(slots, THERE) == 1
    assert slots.used == 6


def test_strangers_behind_relays_count_as_one_address(slots):
    assert taken(slots, "") == 5


def test_members_do_not_count_against_their_address(slots):
    for _ in range(3):
        assert slots.try_take(b"voter", HERE)
    assert slots.try_take(b"learner", HERE)
    assert taken(slots, HERE) == 5


def test_who_becomes_a_member_is_a_stranger_no_more():
    members = set()
    slots = Slots(10, 10, Reserve(4, 5, members.__contains__))
    for _ in range(5):
        assert slots.try_take(b"one", HERE)
    assert not slots.try_take(b"other", HERE)
    members.add(b"one")
    assert slots.try_take(b"other", HERE)


def test_a_slot_that_is_given_back_is_free_for_its_address(slots):
    assert taken(slots, HERE) == 5
    slots.release(b"0 at " + HERE.encode())
    assert slots.held(b"0 at " + HERE.encode()) == 0
    assert taken(slots, HERE) == 1
