"""Shoal: a syncer process as users start it, and learners with everything but the training.

A worker here is the machine, transport, shelf and fragment bank of the learner's daemon. In place
of the trainer there is the displacement, and local steps when the runner asks for a round, just
enough that every fragment becomes due once. Timed is all that a learner does in a swarm: the local
value is put beside its anchor, encoded with error feedback, pushed; the merged payload is fetched,
decoded, the outer step taken and its outcome checked against the signed record.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.peers.work import Floats, Process, Task, serve
from benchmarks.synthetic import Learner, Manner, Payloads
from host.bulk.blob_store import BlobStore
from host.files.home import Home
from host.join_link import parse_link
from host.runtime.lifecycle import quiet_about_peers
from node.download.fetcher import StateFetcher
from node.machine import jobs
from node.trainer_client.fragment_bank import FragmentBank
from protocol.errors import TransientError
from protocol.fragments import Layout
from protocol.machine import Job, JobResult
from protocol.status import SyncerStatus
from shoal.common import daemons

UP_S = 150.0
ROUND_S = 150.0
STEP_S = 0.001
STALLED_S = 20.0
"""Without a merge; on the slowest line one takes half of that."""

DUE_EACH_STEP = 2
"""Fragments: shoal_project.py asks for half as many local steps as there are fragments."""

POOL_THREADS = 2
"""As in the learner's daemon."""


class Syncer(Process):
    """`shoal syncer run` in a process of its own; this one only waits for its join link."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.home = Home(Path(task.project).parent / "home")
        words = ["--home", str(self.home.root), "syncer", "run", task.project]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words, "--listen", task.host, "--port", "0"],
            env={**os.environ, "SHOAL_CONFIG": os.devnull},
            stdin=subprocess.DEVNULL,
            stdout=2,
        )

    def place(self) -> Any:
        until_s = time.monotonic() + UP_S
        while time.monotonic() < until_s:
            for one in self.home.daemons():
                with contextlib.suppress(TransientError):
                    now = daemons.ask_status(one)
                    if isinstance(now, SyncerStatus) and "learners" in now.sentence:
                        return now.join_link
            time.sleep(0.1)
        raise RuntimeError("the syncer has no join link")


class Hands(Learner):
    """A learner whose fragments are real and whose training is a given displacement."""

    bank: FragmentBank
    fetcher: StateFetcher
    moved: list[Floats]

    async def meet(self) -> Layout:
        """Also what the daemon has beside its machine."""
        layout = await super().meet()
        self.blob_store = BlobStore(clock=time.monotonic)
        self.bank = FragmentBank(layout, self.blob_store)
        self.pool = ThreadPoolExecutor(POOL_THREADS)
        self.fetcher = StateFetcher(
            self.transport,
            self.locator,
            rng=random.Random(self.name),
            leader=lambda: self.machine.context.leader,
            newest=lambda fragment: self.machine.context.state.fragments[fragment].version,
            on_fault=self._fault,
        )
        self.before: list[Floats] = []
        self.newer = asyncio.Event()
        self.captured = 0
        self.wanted = 0
        return layout

    def own_blob(self, digest: bytes) -> memoryview | None:
        """Also parts of its weights."""
        return self.blob_store.get(digest)

    async def _train(self) -> None:
        """No steps but those that a round asks for."""
        await self._begun.wait()
        self.bank.charter = self.machine.context.charter
        assert self.bank.charter is not None
        self.clock.batch = self.bank.charter.inner.batch_sequences
        self._begun_s = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """Whether the inner loop stands on every fragment."""
        return self._begun.is_set() and len(self._based) == len(self.bank.layout.fragments)

    @property
    def versions(self) -> list[int]:
        return [self.bank.version(at) for at in range(len(self.bank.layout.fragments))]

    async def whole_sync(self) -> None:
        """Back when every fragment has a newer version, its outer step taken.

        The pace of H = P / 2 lets two rounds open with each local step, but only one with the first
        of all. So the first call merges one fragment twice, and later ones begin with the next.
        """
        count = len(self.moved)
        is_first = not self.wanted
        # Where others merged without it, a slow worker's own pushes are merged later, and ahead.
        self.wanted = count + 1 if is_first else max(self.wanted, sum(self.versions)) + count
        await self._step_on()
        while sum(self.versions) < self.wanted:
            self.newer.clear()
            try:
                async with asyncio.timeout(STALLED_S):
                    await self.newer.wait()
            except TimeoutError:
                # A round that left somebody's push for later leaves it without a step for the
                # next one. A trainer would have gone on.
                await self._step_on()
            if is_first and sum(self.versions) == self.captured:
                await self._step_if_due()

    async def _step_if_due(self) -> None:
        due = DUE_EACH_STEP * self.clock.local_step - 1
        if due <= self.captured < self.wanted:
            await self._step_on()

    async def _step_on(self) -> None:
        """One local step, as soon as there is text for it: two more fragments become due."""
        former = self.clock.local_step
        self._step(STEP_S)
        while self.clock.local_step == former:
            await asyncio.sleep(0.01)
            self._step(STEP_S)

    async def _run_job(self, job: Job) -> JobResult:
        if self.bank.charter is None:
            self.bank.charter = self.machine.context.charter
        match job:
            case jobs.FetchState(fragment, version, state):
                numel = self.bank.layout.fragments[fragment].numel
                arrays = (await self.fetcher.fetch(job, numel)).arrays()
                await self._in_pool(partial(self.bank.install, fragment, version, state, *arrays))
                return jobs.StateFetched(())
            case jobs.Deliver(fragment):
                self.bank.deliver(
                    fragment, is_assign=job.is_assign, merged_sequence=job.merged_sequence
                )
                self._based[fragment] = job.version
                return jobs.Delivered(job.version, self.clock.local_step, self.clock.tokens)
            case jobs.Capture(fragment):
                return await self._capture_real(job)
        return await super()._run_job(job)

    async def _capture_real(self, job: jobs.Capture) -> jobs.Captured:
        clock, at = self.clock, job.fragment

        def encode() -> Any:
            local = np.subtract(self.bank.theta(at), self.moved[at])
            return self.bank.push(at, job.sequence, local)

        push = await self._in_pool(encode)
        captured = jobs.Captured(
            push.base_version,
            push.digest,
            push.payload_bytes,
            clock.local_step,
            clock.tokens,
            clock.cursor,
        )
        self.captured += 1
        if self.captured > len(self.moved):  # Otherwise after the merge: see `whole_sync`.
            await self._step_if_due()
        return captured

    async def _advance(self, merged: Any) -> jobs.Advanced:
        payload = await self.download(merged)
        await self._in_pool(partial(self.bank.advance, merged, bytes(payload)))
        self.newer.set()
        if sum(self.versions) > self.captured:  # Merged without a push of this learner.
            self.captured = sum(self.versions)
            await self._step_if_due()
        return jobs.Advanced()

    async def _in_pool(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def _act(self, action: object) -> None:
        if isinstance(action, jobs.Settle):
            is_merged = action.outcome == "merged"
            self.bank.settle(action.fragment, action.sequence, is_merged=is_merged)
        super()._act(action)


class Worker(Process):
    """The learner's event loop is in a thread; the runner is answered by the main one."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(quiet_about_peers)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.learner: Hands
        self.origin: list[Floats] = []
        self.rounds = -1

    def _run(self, work: Any, timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def connect(self, places: list[Any]) -> None:
        self._run(self._join(places[0]), UP_S)

    async def _join(self, text: str) -> None:
        home = Path(self.task.folder) / "learners" / str(self.task.rank)
        home.mkdir(parents=True, exist_ok=True)
        link = parse_link(text)
        nothing = Payloads(home)
        manner = Manner(step_s=STEP_S, downloads=True, gives=True)
        self.learner = Hands(home, link, nothing, manner, False, listen_host=self.task.host)
        await self.learner.meet()
        self.fetching = asyncio.create_task(self.learner.fetcher.run())
        self.running = asyncio.create_task(self.learner.run())
        while not self.learner.is_ready:
            await asyncio.sleep(0.05)
            if self.running.done():
                self.running.result()
                raise RuntimeError("the learner has ended")

    def load(self) -> None:
        bank = self.learner.bank
        count = self.task.fragments
        self.learner.moved = [self.task.displacement(fragment) for fragment in range(count)]
        self.learner.before = [bank.theta(at) for at in range(self.task.fragments)]
        self.rounds += 1
        if self.rounds == 1:  # The call before was to warm up.
            self.origin = self.learner.before

    def sync(self) -> None:
        self._run(self.learner.whole_sync(), ROUND_S)

    def result(self, fragment: int) -> Floats:
        found: Floats = self.learner.before[fragment] - self.learner.bank.theta(fragment)
        return found

    def result_over_rounds(self, fragment: int) -> Floats:
        found: Floats = self.origin[fragment] - self.learner.bank.theta(fragment)
        return found / np.float32(self.rounds)


def main() -> None:
    serve(lambda task: Syncer(task) if task.role == "syncer" else Worker(task))


if __name__ == "__main__":
    main()
