from __future__ import annotations

from host.runtime.offences import KINDS_MAX, TOLD_EVERY_S, Offences
from protocol.trace import PeerMisbehaved, RoundOpened

PEER = b"p" * 32
FALSE = PeerMisbehaved(PEER, "bad-signature", "it does not match")


def test_an_offence_is_told_at_once_and_those_after_it_are_counted():
    offences = Offences()
    assert offences.worth_telling(FALSE, 0.0) == FALSE
    told = [offences.worth_telling(FALSE, TOLD_EVERY_S * at / 100) for at in range(1, 100)]
    assert told == [None] * 99
    later = offences.worth_telling(FALSE, TOLD_EVERY_S)
    assert later.detail == "it does not match (99 times before)"
    assert offences.worth_telling(FALSE, 3 * TOLD_EVERY_S) == FALSE


def test_another_reason_and_another_peer_are_told():
    offences = Offences()
    others = [PeerMisbehaved(PEER, "malformed", ""), PeerMisbehaved(b"o" * 32, "bad-signature", "")]
    assert [offences.worth_telling(one, 0.0) for one in (FALSE, *others)] == [FALSE, *others]


def test_other_facts_are_told_each_time():
    offences, fact = Offences(), RoundOpened(1, 2, 3, 4)
    assert [offences.worth_telling(fact, 0.0) for _ in range(2)] == [fact] * 2


def test_what_is_remembered_is_bounded():
    offences = Offences()
    for number in range(KINDS_MAX + 1):
        offences.worth_telling(PeerMisbehaved(number.to_bytes(32, "big"), "malformed", ""), 0.0)
    first, last = (PeerMisbehaved(at.to_bytes(32, "big"), "malformed", "") for at in (0, KINDS_MAX))
    assert offences.worth_telling(last, 1.0) is None
    assert offences.worth_telling(first, 1.0) == first
