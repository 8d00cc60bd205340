"""Merged payloads of others: who has nothing yet, who is silent, who sends something else."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from node.download import payload_donors, payload_fetcher
from node.download.payload_donors import donors
from node.download.payload_fetcher import PayloadFetcher
from protocol import limits
from protocol.errors import MalformedMessage, NotHeld, PeerUnreachable
from tests.support.builders import contribution, merged

KEYS = [number.to_bytes(32, "big") for number in range(40)]
MERGED = merged(contributions=(contribution(),))
OWN = payload_donors.order(MERGED.payload, KEYS)[-1]
FIRST, SECOND, *_ = donors(MERGED.payload, KEYS, OWN)


class Sources:
    """A transport whose peers behave as told; those of which nothing is told have nothing."""

    key = OWN

    def __init__(self, **behaviours):
        self.behaviours = {FIRST: behaviours.get("first"), SECOND: behaviours.get("second")}
        self.asked = []
        self.cancelled = []
        self.carried = set()

    async def fetch(self, source, digest, length, *, on_progress, may_be_carried):
        assert (digest, length) == (MERGED.payload, MERGED.payload_bytes)
        self.carried.add(may_be_carried)
        self.asked.append(source)
        behaviour = self.behaviours.get(source) or lacks
        try:
            return await behaviour(on_progress, self.asked.count(source))
        except asyncio.CancelledError:
            self.cancelled.append(source)
            raise


async def gives(on_progress, times):
    on_progress(1)
    return memoryview(b"content")


async def lacks(on_progress, times):
    raise NotHeld("not here")


async def has_it_later(on_progress, times):
    if times < 3:
        raise NotHeld("not here")
    return memoryview(b"content")


async def hangs(on_progress, times):
    await asyncio.Event().wait()


async def trickles(on_progress, times):
    for filled in range(1, 100):
        on_progress(filled * MERGED.payload_bytes / 1000)
        await asyncio.sleep(0.02)


async def lies(on_progress, times):
    raise MalformedMessage("something else")


async def is_gone(on_progress, times):
    raise PeerUnreachable("gone")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(payload_donors, "POLL_S", 0.01)
    monkeypatch.setattr(payload_donors, "SILENT_S", 0.05)
    monkeypatch.setattr(payload_donors, "PATIENCE_S_MIN", 0.5)
    monkeypatch.setattr(payload_donors, "GENERATION_S", 0.1)
    monkeypatch.setattr(payload_donors, "AGAIN_S", 0.05)


class Syncer:
    """One that says no so many times, and then gives."""

    def __init__(self, refusals=0, error=NotHeld):
        self.refusals, self.error, self.asked = refusals, error, 0

    async def fetch(self, merged):
        self.asked += 1
        if self.asked <= self.refusals:
            raise self.error("not now")
        return memoryview(b"of the syncer")


def test_a_learner_whose_own_line_was_away_asks_the_same_donors_again():
    sources, syncer = Sources(first=is_gone, second=hangs), Syncer(1, PeerUnreachable)
    sources.behaviours |= dict.fromkeys(set(KEYS) - {FIRST, SECOND, OWN}, is_gone)
    fetcher = PayloadFetcher(sources, lambda peer, _: None)
    assert asyncio.run(fetcher.fetch(MERGED, KEYS, syncer.fetch, MERGED.version)) is None
    sources.behaviours[FIRST] = gives
    assert asyncio.run(fetcher.fetch(MERGED, KEYS, syncer.fetch, MERGED.version)) == b"content"
    assert syncer.asked == 1


def test_who_was_away_while_the_syncer_answered_is_left_alone():
    sources, syncer = Sources(first=is_gone), Syncer()
    fetcher = PayloadFetcher(sources, lambda peer, _: None)
    for times in (1, 2):
        payload = asyncio.run(fetcher.fetch(MERGED, KEYS, syncer.fetch, MERGED.version))
        assert (payload, syncer.asked) == (b"of the syncer", times)
    assert sources.asked.count(FIRST) == 1


def fetch(sources, here=KEYS, syncer=None, record=MERGED, behind=0, **options):
    faults = []
    fetcher = PayloadFetcher(sources, lambda peer, _: faults.append(peer))
    syncer = syncer or Syncer()
    asked = fetcher.fetch(record, here, syncer.fetch, record.version + behind, **options)
    return asyncio.run(asked), faults


def test_where_there_are_few_the_syncer_is_asked():
    sources = Sources(first=gives)
    assert fetch(sources, KEYS[:10]) == (b"of the syncer", [])
    assert sources.asked == []


@pytest.mark.parametrize("is_syncer_carried", [False, True])
def test_no_relay_carries_what_the_syncer_could_send_over_a_connection(is_syncer_carried):
    sources = Sources(first=gives)
    fetch(sources, may_be_carried=is_syncer_carried)
    assert sources.carried == {is_syncer_carried}
    sources = Sources(first=gives)
    fetch(sources)
    assert sources.carried == {False}


def test_where_the_syncer_sends_few_copies_few_ask_it():
    few = sorted({*KEYS[:4], OWN})
    record = structs.replace(MERGED, copies=2)
    rank = payload_donors.order(MERGED.payload, few).index(OWN)
    assert rank >= 2, "it comes last of all"
    (donor, *_) = donors(MERGED.payload, few, OWN, 2)
    sources = Sources()
    sources.behaviours[donor] = gives
    assert fetch(sources, few, record=record)[0] == b"content"
    assert fetch(sources, few)[0] == b"of the syncer"


def test_where_the_syncer_says_no_it_is_looked_for_among_all_others():
    for giver in KEYS[:12]:
        sources = Sources()
        sources.behaviours[giver] = gives
        syncer = Syncer(refusals=1000)
        assert fetch(sources, KEYS[:12], syncer)[0] == b"content"
        assert OWN not in sources.asked
        assert 1 <= syncer.asked <= 4


def test_a_syncer_that_said_no_is_asked_again():
    syncer = Syncer(refusals=3)
    assert fetch(Sources(), KEYS[:12], syncer)[0] == b"of the syncer"
    assert syncer.asked == 4


def test_a_syncer_that_said_no_is_not_asked_at_once_where_nobody_else_is_here(monkeypatch):
    monkeypatch.setattr(payload_fetcher, "REFUSED_S", 0.2)
    syncer = Syncer(refusals=1000)
    assert fetch(Sources(), [OWN], syncer)[0] is None
    assert syncer.asked <= 6


def test_who_hears_nothing_but_no_gives_up(monkeypatch):
    monkeypatch.setattr(payload_fetcher, "REFUSED_S", 0.2)
    syncer = Syncer(refusals=1000)
    assert fetch(Sources(), KEYS[:12], syncer)[0] is None
    assert syncer.asked > 2


def test_nobody_waits_for_what_a_syncer_has_dropped():
    syncer = Syncer(refusals=1000)
    assert fetch(Sources(), KEYS[:12], syncer, behind=limits.PAYLOAD_RING)[0] is None
    assert syncer.asked == 1


def test_a_syncer_that_is_gone_is_asked_once():
    syncer = Syncer(refusals=1, error=PeerUnreachable)
    assert fetch(Sources(), KEYS[:12], syncer)[0] is None
    assert syncer.asked == 1


def test_a_donor_gives_it_once_it_has_it():
    sources = Sources(first=has_it_later)
    assert fetch(sources)[0] == b"content"
    assert sources.asked.count(FIRST) == 3


def test_one_that_hangs_is_not_waited_for_alone_and_ends():
    sources = Sources(first=hangs, second=gives)
    assert fetch(sources)[0] == b"content"
    assert sources.cancelled == [FIRST]


@pytest.mark.parametrize(("bad", "faults"), [(lies, [FIRST]), (is_gone, [])])
def test_one_that_sends_something_else_is_blamed_and_asked_no_more(bad, faults):
    sources = Sources(first=bad, second=has_it_later)
    assert fetch(sources) == (b"content", faults)
    assert sources.asked.count(FIRST) == 1


def test_in_the_end_the_syncer_is_asked():
    assert fetch(Sources())[0] == b"of the syncer"
    assert fetch(Sources(first=hangs, second=hangs))[0] == b"of the syncer"


def test_one_that_would_need_long_is_not_waited_for_alone():
    sources = Sources(first=trickles, second=gives)
    assert fetch(sources)[0] == b"content"
    assert sources.cancelled == [FIRST]
