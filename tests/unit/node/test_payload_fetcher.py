"""Merged payloads of others: who has nothing yet, who is silent, who sends something else."""

from __future__ import annotations

import asyncio

import pytest

from node.download import payload_donors
from node.download.payload_donors import donors
from node.download.payload_fetcher import PayloadFetcher
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

    async def fetch(self, source, digest, length, *, on_progress):
        assert (digest, length) == (MERGED.payload, MERGED.payload_bytes)
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


async def lies(on_progress, times):
    raise MalformedMessage("something else")


async def is_gone(on_progress, times):
    raise PeerUnreachable("gone")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(payload_donors, "POLL_S", 0.01)
    monkeypatch.setattr(payload_donors, "SILENT_S", 0.05)
    monkeypatch.setattr(payload_donors, "PATIENCE_S_MIN", 0.5)


def fetch(sources, here=KEYS):
    faults = []
    fetcher = PayloadFetcher(sources, lambda peer, _: faults.append(peer))
    return asyncio.run(fetcher.fetch(MERGED, here)), faults


def test_where_there_are_few_the_syncer_is_asked():
    sources = Sources(first=gives)
    assert fetch(sources, KEYS[:10]) == (None, [])
    assert sources.asked == []


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
    assert fetch(Sources())[0] is None
    assert fetch(Sources(first=hangs, second=hangs))[0] is None
