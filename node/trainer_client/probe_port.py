"""The daemon's side of a probe: fetch the push from the leader, check it, and have it measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from host.runtime import lifecycle
from node.download.locator import Locator
from node.machine import jobs
from node.trainer.link import messages
from node.trainer_client.client import TrainerPort
from protocol.errors import MalformedPayload, RemoteError, TransientError
from protocol.machine import JobResult
from protocol.numerics import codecs, payload_sizes
from protocol.numerics.codecs import F32

FETCH_S_MAX = 60.0
"""A payload that has not come by then is not waited for: nobody may keep a learner busy with it."""

LENT_AFTER_S = 2.0
"""A merger that does not lend a push yet is asked once more after this."""

TROUBLE: dict[messages.GainTrouble, tuple[jobs.ProbeTrouble, str]] = {
    "paused": ("paused", "a pause came before the end"),
    "other text": ("other text", "the text here is not the one that the project was signed with"),
    "no memory": ("no memory", "memory does not suffice for a second copy of the weights"),
    "not finite": ("failed", "the model has no finite loss without the push either"),
    "no losses": ("failed", "its training code measures no losses of single samples"),
}


@dataclass(slots=True)
class ProbePort:
    """Probes of one learner, one after the other."""

    locator: Locator
    trainer: TrainerPort
    on_fault: Callable[[bytes, RemoteError], None]
    _forgotten: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_job(self, job: jobs.ProbePush) -> JobResult:
        """Measure a push, or say why not."""
        if not self.trainer.has_signed_text:
            return jobs.NotProbed(*TROUBLE["other text"])
        self._forgotten = asyncio.Event()
        fetch = asyncio.ensure_future(self._fetch(job))
        forgotten = asyncio.ensure_future(self._forgotten.wait())
        async with lifecycle.ending((fetch, forgotten)):
            await asyncio.wait(
                (fetch, forgotten), timeout=FETCH_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )
            if forgotten.done():
                return jobs.NotProbed("no payload", "nobody waits for it any more")
            if not fetch.done():
                return jobs.NotProbed("no payload", f"it did not come within {FETCH_S_MAX:.0f} s")
            try:
                displacement = fetch.result()
            except (TransientError, RemoteError) as error:
                return jobs.NotProbed("no payload", str(error))
        return await self._measure(job, displacement)

    def forget(self) -> None:
        """Fetch nothing for it any more; what is being measured ends by itself."""
        self._forgotten.set()

    # Inside.

    async def _fetch(self, job: jobs.ProbePush) -> F32:
        """The displacement that was handed in. For faults the leader is blamed: it checked them."""
        numel = self.trainer.bank.layout.fragments[job.fragment].numel
        try:
            due_bytes = payload_sizes.payload_bytes(job.codec, numel)
            if job.payload_bytes != due_bytes:
                raise MalformedPayload(f"a payload of {job.payload_bytes} bytes, not {due_bytes}")
            wanted = [(job.payload, job.payload_bytes)]
            holders = [job.leader] if job.holder is None else [job.holder]
            try:
                _, (payload,) = await self.locator.fetch_from(holders, wanted, self.on_fault)
            except TransientError:
                if job.holder is None:
                    raise
                # The leader's word to lend it may be on its way to the merger still.
                await asyncio.sleep(LENT_AFTER_S)
                _, (payload,) = await self.locator.fetch_from(holders, wanted, self.on_fault)
            return await self.trainer.in_pool(partial(codecs.decode, job.codec, payload, numel))
        except RemoteError as error:
            self.on_fault(job.leader, error)
            raise

    async def _measure(self, job: jobs.ProbePush, displacement: F32) -> JobResult:
        measured = await self.trainer.measure_gain(job, displacement)
        if measured is None:
            return jobs.NotProbed("failed", "the trainer ended")
        if measured.own is None or measured.other is None:
            return jobs.NotProbed(*TROUBLE[measured.trouble or "paused"])
        return jobs.PushProbed(measured.own, measured.other, measured.seconds)
