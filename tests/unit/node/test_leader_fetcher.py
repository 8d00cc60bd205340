"""Transfers from the leader: begun anew when another host leads, and ended with who waits."""

from __future__ import annotations

import asyncio

import pytest

from node.download.leader_fetcher import LeaderFetcher
from protocol.errors import TransientError

WANTED = [(bytes(32), 4)]


class FakeLocator:
    """Transfers that end when a test says so."""

    def __init__(self):
        self.open = []
        self.cancelled = []
        self.asked = asyncio.Event()

    async def fetch_from(self, sources, wanted, on_fault):
        assert wanted == WANTED
        answer = asyncio.get_running_loop().create_future()
        self.open.append((sources, answer))
        self.asked.set()
        try:
            return sources[0], await answer
        except asyncio.CancelledError:
            self.cancelled.append(sources)
            raise

    async def next_ask(self):
        await self.asked.wait()
        self.asked.clear()
        return self.open[-1]


def run(scene):
    async def bounded():
        async with asyncio.timeout(10.0):
            locator = FakeLocator()
            fetcher = LeaderFetcher(locator, lambda peer, error: None)
            fetcher.follow(b"first")
            task = asyncio.ensure_future(fetcher.fetch(WANTED))
            await scene(locator, fetcher, task)

    asyncio.run(bounded())


def test_another_leader_is_asked_at_once_and_the_former_transfer_ends():
    async def scene(locator, fetcher, task):
        assert (await locator.next_ask())[0] == [b"first"]
        fetcher.follow(b"second")
        sources, answer = await locator.next_ask()
        assert sources == [b"second"]
        assert locator.cancelled == [[b"first"]]
        answer.set_result(["content"])
        assert await task == ["content"]

    run(scene)


def test_what_the_leader_cannot_give_is_told():
    async def scene(locator, fetcher, task):
        _, answer = await locator.next_ask()
        answer.set_exception(TransientError("not held"))
        with pytest.raises(TransientError, match="not held"):
            await task
        assert len(locator.open) == 1

    run(scene)


def test_whoever_waits_no_longer_ends_the_transfer():
    async def scene(locator, fetcher, task):
        await locator.next_ask()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert locator.cancelled == [[b"first"]]

    run(scene)
