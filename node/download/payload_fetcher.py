"""Fetches merged payloads from other learners, as `payload_donors` says whom to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from host.runtime import lifecycle
from host.transport import Transport
from node.download.payload_donors import REFUSED_S, PayloadDonors, PayloadHunt
from protocol import limits
from protocol.errors import NotHeld, RemoteError, TransientError
from protocol.ids import NodeKey
from protocol.log.records import FragmentMerged

OfSyncer = Callable[[FragmentMerged], Awaitable[memoryview]]
"""A merged payload, of who merged it. NotHeld where that says no; TransientError or RemoteError."""


class PayloadFetcher:
    """One learner's transfers of merged payloads from others."""

    def __init__(
        self, transport: Transport, on_fault: Callable[[bytes, RemoteError], None]
    ) -> None:
        self._transport = transport
        self._on_fault = on_fault
        self._donors = PayloadDonors(transport.key)

    async def fetch(
        self,
        merged: FragmentMerged,
        here: Collection[NodeKey],
        of_syncer: OfSyncer,
        newest: int,
        *,
        may_be_carried: bool = False,
    ) -> memoryview | None:
        """The payload, its digest checked; None where neither learners nor the syncer send it.

        here: keys of the learners that the log knows to be here. newest: version of the fragment,
        by the log; a syncer that says no to one of long ago has dropped it. may_be_carried: by
        a relay, where the syncer's would be as well; otherwise that is no better than to ask it.
        """
        clock = asyncio.get_running_loop().time
        refusals, until_s = 0, clock() + REFUSED_S
        hunt = self._donors.hunt(merged.payload, here, clock(), merged.copies)
        while True:
            found = None if hunt is None else await self._of_learners(merged, hunt, may_be_carried)
            if found is not None:
                return found
            payload, has_answered = await self._ask_syncer(merged, of_syncer)
            if hunt is not None and has_answered:
                self._donors.answered(hunt, clock())
            if payload is not None or not has_answered:
                return payload
            refusals += 1
            is_dropped = newest - merged.version >= limits.PAYLOAD_RING
            if is_dropped or clock() > until_s:
                return None
            hunt = self._donors.again(merged.payload, here, clock(), refusals)

    @staticmethod
    async def _ask_syncer(
        merged: FragmentMerged, of_syncer: OfSyncer
    ) -> tuple[memoryview | None, bool]:
        """The payload; or nothing, and whether it said no."""
        try:
            return await of_syncer(merged), True
        except NotHeld:
            return None, True
        except (TransientError, RemoteError):
            return None, False

    async def _of_learners(
        self, merged: FragmentMerged, hunt: PayloadHunt, may_be_carried: bool
    ) -> memoryview | None:
        """What the search brings; None once it is over."""
        clock = asyncio.get_running_loop().time
        tasks: dict[asyncio.Task[memoryview], NodeKey] = {}
        async with lifecycle.ending(tasks):
            while not hunt.is_over(clock()):
                for key in hunt.asks(clock()):
                    fetch = self._transport.fetch(
                        key,
                        merged.payload,
                        merged.payload_bytes,
                        on_progress=partial(self._heard, hunt, key, merged.payload_bytes),
                        may_be_carried=may_be_carried,
                    )
                    tasks[asyncio.ensure_future(fetch)] = key
                found = await self._first(hunt, tasks)
                if found is not None:
                    self._donors.held(hunt, clock())
                    return found
        hunt.end(clock())
        return None

    @staticmethod
    def _heard(hunt: PayloadHunt, key: NodeKey, size: int, filled: int) -> None:
        hunt.heard(key, asyncio.get_running_loop().time(), filled / size)

    async def _first(
        self, hunt: PayloadHunt, tasks: dict[asyncio.Task[memoryview], NodeKey]
    ) -> memoryview | None:
        """What came by the time when the hunt has to be looked at again, and who failed."""
        clock = asyncio.get_running_loop().time
        left_s = max(0.0, hunt.deadline_s(clock()) - clock())
        if not tasks:
            await asyncio.sleep(left_s)
            return None
        done, _ = await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            key = tasks.pop(task)
            try:
                return task.result()
            except NotHeld:
                hunt.failed(key, clock(), is_waiting=True)
            except TransientError:
                hunt.failed(key, clock(), is_waiting=False)
            except RemoteError as error:
                self._on_fault(key, error)
                hunt.failed(key, clock(), is_waiting=False)
        return None
