"""The thread for bulk data: work goes there and back in order; the last one to leave ends it."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from host.bulk import bulk_loop
from host.bulk.bulk_loop import BulkLoop


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_work_is_done_over_there_in_order_and_answers_come_back_here():
    async def main():
        loop, here = BulkLoop.of_this_loop(), threading.get_ident()
        done, over = [], asyncio.Event()

        def back(number, thread):
            done.append((number, thread != here, threading.get_ident() == here))
            if number == 99:
                over.set()

        for number in range(100):
            loop.there(lambda at: loop.here(back, at, threading.get_ident()), number)
        await over.wait()
        assert done == [(number, True, True) for number in range(100)]
        await loop.give_back()

    asyncio.run(main())


def test_what_fails_is_logged_and_takes_nothing_with_it():
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.exc_info[0])

    async def main():
        loop, done = BulkLoop.of_this_loop(), asyncio.Event()
        loop.there(lambda: 1 / 0)
        loop.there(loop.here, done.set)
        await done.wait()
        await loop.give_back()

    bulk_loop.log.addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        bulk_loop.log.removeHandler(handler)
    assert logged == [ZeroDivisionError]


def test_a_coroutine_returns_raises_and_is_cancelled_as_one_of_this_loop():
    async def main():
        loop = BulkLoop.of_this_loop()

        async def where():
            return threading.current_thread().name

        async def fails():
            raise ValueError("over there")

        ended = threading.Event()

        async def waits():
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        assert await loop.do(where()) == "bulk data"
        with pytest.raises(ValueError, match="over there"):
            await loop.do(fails())
        task = asyncio.ensure_future(loop.do(waits()))
        await loop.do(where())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await asyncio.to_thread(ended.wait, 5.0)
        await loop.give_back()

    asyncio.run(main())


def test_hosts_of_one_loop_share_a_thread_and_the_last_one_ends_it():
    async def main():
        before = names().count("bulk data")
        one, two = BulkLoop.of_this_loop(), BulkLoop.of_this_loop()
        assert one is two
        assert names().count("bulk data") == before + 1
        await one.give_back()
        assert names().count("bulk data") == before + 1
        await two.give_back()
        assert names().count("bulk data") == before
        three = BulkLoop.of_this_loop()
        assert three is not one
        await three.give_back()

    asyncio.run(main())


def test_what_still_runs_is_cancelled_at_the_end():
    async def main():
        loop, ended = BulkLoop.of_this_loop(), threading.Event()

        async def waits():
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        task = asyncio.ensure_future(loop.do(waits()))
        await asyncio.sleep(0)
        await loop.give_back()
        assert ended.is_set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
