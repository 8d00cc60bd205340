"""What learners announce of themselves, and whom an owner asks first."""

from __future__ import annotations

import msgspec

from host.network.leader_discovery import SYNCING, LearnerNotice, holders_of_all
from protocol import wire

ADA, BOB, EVE, IVY = (bytes([digit]) * 32 for digit in (1, 2, 3, 4))


def announced(**changes):
    return wire.encode(msgspec.structs.replace(LearnerNotice("a", "training", 7), **changes))


FOUND = {
    EVE: announced(),
    ADA: announced(is_brief=True),
    IVY: announced(state=SYNCING),
    BOB: announced(is_brief=True),
    bytes(32): b"nothing that is one",
}


def test_those_with_all_fragments_are_named_in_one_order():
    assert holders_of_all(FOUND) == [ADA, BOB, EVE]


def test_those_with_a_whole_log_come_first_where_it_is_asked_for():
    assert holders_of_all(FOUND, whole_first=True) == [EVE, ADA, BOB]
