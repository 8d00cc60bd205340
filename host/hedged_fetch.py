"""Fetching from the first of several sources that sends something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from host.runtime import lifecycle
from host.transport import Transport
from protocol.errors import NotHeld, RemoteError, TransientError
from protocol.ids import Digest, NodeKey, short

QUIET_S = 2.5
"""A source from which nothing came for this long is not waited for alone: one that was cut off or
stopped shows itself in no other way before `blobs.READ_S`."""

LOOK_S = 0.25


@dataclass(slots=True, eq=False)
class _Try:
    """All of what is wanted, of one source."""

    transport: Transport
    source: NodeKey
    heard_s: float

    async def fetch(self, wanted: Sequence[tuple[Digest, int]]) -> list[memoryview]:
        return [
            await self.transport.fetch(self.source, *one, on_progress=self._note) for one in wanted
        ]

    def _note(self, _: int) -> None:
        self.heard_s = asyncio.get_running_loop().time()


async def fetch_from(
    transport: Transport, sources: Sequence[NodeKey], wanted: Sequence[tuple[Digest, int]]
) -> list[memoryview]:
    """The content of every (digest, length) wanted, of the first source that sent all of it.

    Sources are asked in order; the next one when one has failed, and beside those that have gone
    quiet. Raises TransientError when none has it, NotHeld where that was all that any of them said.
    """
    clock = asyncio.get_running_loop().time
    trouble, is_lacking = "no known host has it", bool(sources)
    left = list(sources)
    tasks: dict[asyncio.Task[list[memoryview]], _Try] = {}
    async with lifecycle.ending(tasks):
        while left or tasks:
            if left and all(clock() - one.heard_s > QUIET_S for one in tasks.values()):
                attempt = _Try(transport, left.pop(0), clock())
                tasks[asyncio.create_task(attempt.fetch(wanted))] = attempt
            done, _ = await asyncio.wait(
                tasks, timeout=LOOK_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                source = tasks.pop(task).source
                try:
                    return task.result()
                except (TransientError, RemoteError) as error:
                    trouble = f"{short(source)}: {error}"
                    is_lacking = is_lacking and isinstance(error, NotHeld)
    raise NotHeld(trouble) if is_lacking else TransientError(trouble)
