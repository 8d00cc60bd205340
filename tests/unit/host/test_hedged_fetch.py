"""Sources of a blob: one that hangs, one that fails, one that is slow."""

from __future__ import annotations

import asyncio

import pytest

from host import hedged_fetch
from protocol.errors import NotHeld, TransientError

WANTED = [(b"a" * 32, 2), (b"b" * 32, 2)]
ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))


class Sources:
    """A transport whose peers behave as told."""

    def __init__(self, **behaviours):
        self.behaviours = behaviours
        self.asked = []
        self.cancelled = []

    async def fetch(self, source, digest, length, *, on_progress):
        self.asked.append(source)
        behaviour = {ONE: "one", TWO: "two", THREE: "three"}[source]
        try:
            return await self.behaviours[behaviour](digest, length, on_progress)
        except asyncio.CancelledError:
            self.cancelled.append(source)
            raise


async def gives(digest, length, on_progress):
    return memoryview(digest[:length])


async def lacks(digest, length, on_progress):
    raise NotHeld("not here")


async def hangs(digest, length, on_progress):
    await asyncio.Event().wait()


async def trickles(digest, length, on_progress):
    for count in range(20):
        await asyncio.sleep(0.01)
        on_progress(count)
    return memoryview(digest[:length])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hedged_fetch, "QUIET_S", 0.05)
    monkeypatch.setattr(hedged_fetch, "LOOK_S", 0.005)


def fetch(sources, keys):
    return asyncio.run(hedged_fetch.fetch_from(sources, keys, WANTED))


def test_the_first_that_has_it_is_enough():
    sources = Sources(one=gives, two=gives)
    assert [bytes(part) for part in fetch(sources, [ONE, TWO])] == [b"aa", b"bb"]
    assert set(sources.asked) == {ONE}


def test_one_that_lacks_it_is_passed_over():
    sources = Sources(one=lacks, two=gives)
    assert len(fetch(sources, [ONE, TWO])) == len(WANTED)


def test_one_that_hangs_is_not_waited_for():
    sources = Sources(one=hangs, two=lacks, three=gives)
    assert len(fetch(sources, [ONE, TWO, THREE])) == len(WANTED)
    assert sources.cancelled == [ONE]


def test_one_that_is_slow_but_sends_is_asked_alone():
    sources = Sources(one=trickles, two=gives)
    assert len(fetch(sources, [ONE, TWO])) == len(WANTED)
    assert set(sources.asked) == {ONE}


def test_nobody_has_it():
    with pytest.raises(TransientError, match="not here"):
        fetch(Sources(one=lacks, two=lacks), [ONE, TWO])
    with pytest.raises(TransientError, match="no known host"):
        fetch(Sources(), [])
