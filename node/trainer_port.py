"""The daemon's side of its trainer: jobs of the machine become commands, events become notes.

Encoding, decoding and hashing run on a thread pool, so that neither the event loop nor the inner
loop waits for them. When the trainer dies every open job fails at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.bank import FragmentBank
from node.jobs import (
    Capture,
    Captured,
    Deliver,
    Delivered,
    Evaluate,
    EvaluatedLoss,
    Feed,
    StartTrainer,
    Starved,
    Stepped,
    TrainerLost,
    TrainerReady,
)
from node.parts import LoopState
from node.trainer import link
from node.trainer.supervisor import ExitReason, TrainerProcess
from node.trainer_tape import TrainerTape, applied, replay_class, snapshot
from protocol.errors import TransientError
from protocol.machine import Failed, JobResult
from protocol.messages import Cursor
from protocol.project import InnerSpec
from protocol.tape import Frame

START = Cursor(0, 0)
READY_TIMEOUT_S = 600.0
"""A first start may tokenise a large corpus."""

F32 = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """What the owner of this machine decided about the trainer."""

    genesis: bytes
    data_cache: Path
    data_location: str
    """Path or name of the text on this machine."""
    log_path: Path
    threads: int
    duty_frac: float
    device: str | None
    salt: int


@dataclass(slots=True)
class Clock:
    """Seconds of one trainer's life, for its goodput."""

    begun_s: float = 0.0
    work_s: float = 0.0
    evaluating_s: float = 0.0

    def alive_s(self) -> float:
        """Since the first local step could have begun, less evaluation."""
        return time.monotonic() - self.begun_s - self.evaluating_s if self.begun_s else 0.0


@dataclass(slots=True)
class TrainerPort:
    """One trainer at a time."""

    settings: TrainerSettings
    bank: FragmentBank
    pool: Executor
    note: Callable[[object], None]
    notice: Callable[[str], None]
    tape: TrainerTape | None = None
    process: TrainerProcess | None = None
    ready: link.Ready | None = None
    clock: Clock = field(default_factory=Clock)
    evaluations: int = 0
    _job: int = 0
    _waiting: dict[int, asyncio.Future[link.Event]] = field(default_factory=dict)
    _replacing: str = ""
    _starting: asyncio.Future[link.Event] | None = None
    _cursor: Cursor = START

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.is_running else None

    # Jobs.

    async def start(self, job: StartTrainer, inner: InnerSpec) -> JobResult:
        """Start a trainer; the answer comes when it could step, or cannot."""
        settings = self.settings
        self._starting = asyncio.get_running_loop().create_future()
        self.clock = Clock()
        self._cursor = Cursor(0, 0)
        process = TrainerProcess(
            log_path=settings.log_path, on_event=self._on_event, on_exit=self._on_exit
        )
        self.process = process
        await process.start(
            link.Configure(
                genesis=settings.genesis,
                inner=msgspec.msgpack.encode(inner),
                data_cache=str(settings.data_cache),
                data_location=settings.data_location,
                threads=settings.threads,
                micro_batch=job.micro_batch,
                duty_frac=settings.duty_frac,
                seed_salt=settings.salt,
                device=settings.device,
            )
        )
        async with asyncio.timeout(READY_TIMEOUT_S):
            event = await self._starting
        if not isinstance(event, link.Ready):
            message = event.message if isinstance(event, link.Failed) else "it did not get ready"
            return Failed(message)
        if event.layout_digest != self.bank.layout.digest:
            await process.stop()
            return Failed("the model here has other tensors than the project; update transformers")
        self.ready = event
        self._tape_began(inner, event)
        if not event.corpus_matches:
            self.notice(
                "the training text on this machine differs from the project's (another Python "
                "version, or other files); it is used all the same"
            )
        return TrainerReady(event.device, event.micro_batch)

    async def deliver(self, job: Deliver) -> JobResult:
        """Bring the inner loop to the newest global value of a fragment."""
        process = self._live()
        delivery = await self._in_pool(
            lambda: self.bank.deliver(
                job.fragment,
                is_assign=job.is_assign,
                merged_sequence=job.merged_sequence,
                kept_frac=job.kept_frac,
            )
        )
        slot = process.slot(delivery.values.size)
        await self._in_pool(lambda: np.copyto(slot.values, delivery.values))
        mark = applied(job.fragment, delivery, job.merged_sequence)
        to = (job.fragment, slot.identity, slot.numel)
        if delivery.is_assign:
            kept_frac = delivery.kept_frac
            done = await self._ask(lambda n: link.Assign(n, *to, kept_frac=kept_frac), mark=mark)
        else:
            done = await self._ask(lambda n: link.Add(n, *to), mark=mark)
        process.release(slot)
        if not isinstance(done, link.Done):
            return Failed("the trainer ended")
        return Delivered(delivery.version, done.local_step, done.tokens_total)

    async def capture(self, job: Capture) -> JobResult:
        """Snapshot a fragment at the next local-step boundary and encode its displacement."""
        process = self._live()
        numel = self.bank.layout.fragments[job.fragment].numel
        slot = process.slot(numel)
        done = await self._ask(
            lambda n: link.Snapshot(n, job.fragment, slot.identity, numel),
            mark=snapshot(job.fragment),
        )
        if not isinstance(done, link.Done):
            return Failed("the trainer ended")
        cursor = self._cursor
        push = await self._in_pool(lambda: self.bank.push(job.fragment, job.sequence, slot.values))
        process.release(slot)
        if self.tape is not None:
            self.tape.captured(job.sequence, job.fragment, push.base_version, push.digest)
        return Captured(
            base_version=push.base_version,
            digest=push.digest,
            payload_bytes=push.payload_bytes,
            local_step=done.local_step,
            tokens=done.tokens_total,
            cursor=cursor,
        )

    async def capture_moments(self, numels: Sequence[int]) -> list[F32] | None:
        """Every fragment's optimizer state, all at the next boundary; None if the trainer ended.

        The arrays are the slots themselves, which nobody else has any more: nothing is copied
        twice, and the memory goes with the last reference.
        """
        process = self._live()
        slots = []
        for numel in numels:
            slots.append(process.slot(numel))
            await asyncio.sleep(0)  # Making a large slot takes a while.
        answers = [
            self._ask(partial(link.CaptureMoments, fragment=at, slot=one.identity, numel=one.numel))
            for at, one in enumerate(slots)
        ]
        done = [await answer for answer in answers]
        for slot in slots:
            process.drop(slot)
        if not all(isinstance(one, link.Done) for one in done):
            return None
        return [slot.values for slot in slots]

    async def install_moments(self, fragment: int, values: F32) -> bool:
        """Hand a fragment's optimizer state to a trainer that has not begun; False if it ended."""
        process = self._live()
        if self.tape is not None:
            self.tape.inexact("its moments came from another learner")
        slot = process.slot(values.size)
        await self._in_pool(lambda: np.copyto(slot.values, values))
        done = await self._ask(
            lambda n: link.InstallMoments(n, fragment, slot.identity, slot.numel)
        )
        process.drop(slot)
        return isinstance(done, link.Done)

    async def cut_part(self, numel: int) -> tuple[F32, LoopState] | None:
        """All arrays of the trainer and the rest of its state; None if it ended.

        The array is the slot itself, as in `capture_moments`.
        """
        process = self._live()
        slot = process.slot(numel)
        answer = await self._ask(lambda n: link.CutPart(n, slot.identity, numel))
        process.drop(slot)
        return (slot.values, answer.state) if isinstance(answer, link.PartCut) else None

    async def restore_part(self, values: F32, state: LoopState) -> bool:
        """Make a trainer that has not begun what another one was; False if it ended."""
        process = self._live()
        if self.tape is not None:
            self.tape.inexact("it goes on from a snapshot")
        slot = process.slot(values.size)
        await self._in_pool(lambda: np.copyto(slot.values, values))
        done = await self._ask(lambda n: link.RestorePart(n, slot.identity, slot.numel, state))
        process.drop(slot)
        self._cursor = Cursor(state.position, state.sequence)
        return isinstance(done, link.Done)

    async def evaluate(self, job: Evaluate) -> JobResult:
        """Held-out loss of the frozen global value."""
        process = self._live()
        parts = self.bank.frozen(job.index)
        slot = process.slot(sum(part.size for part in parts))
        await self._in_pool(lambda: np.concatenate(parts, out=slot.values))
        answer = await self._ask(
            lambda n: link.Evaluate(n, slot.identity, slot.numel, job.sequences)
        )
        process.release(slot)
        if not isinstance(answer, link.Evaluated):
            return Failed("the trainer ended")
        self.clock.evaluating_s += answer.seconds
        self.evaluations += 1
        return EvaluatedLoss(answer.loss, answer.tokens, answer.seconds)

    async def generate(self, prompt: str, tokens: int) -> str:
        """Text sampled from the newest global value held here."""
        process = self._live()
        parts = [self.bank.theta(at) for at in range(len(self.bank.layout.fragments))]
        slot = process.slot(sum(part.size for part in parts))
        await self._in_pool(lambda: np.concatenate(parts, out=slot.values))
        answer = await self._ask(
            lambda n: link.Generate(n, prompt, tokens, slot.identity, slot.numel)
        )
        process.release(slot)
        if not isinstance(answer, link.Generated):
            raise TransientError("the trainer ended before it had sampled any text")
        return answer.text

    # Actions.

    def feed(self, feed: Feed) -> None:
        if self.process is not None:
            for span in feed.spans:
                self.process.send(link.Blocks(((span.start, span.stop),), span.skip))
                if self.tape is not None:
                    self.tape.fed(span.start, span.stop, span.skip)

    def settle(self, fragment: int, sequence: int, *, is_merged: bool) -> None:
        """The fate of a push is known."""
        self.bank.settle(fragment, sequence, is_merged=is_merged)
        if self.tape is not None:
            self.tape.closed(fragment, sequence, is_merged=is_merged)

    def under_charter(self) -> None:
        """Pushes are made under the bank's charter from now on."""
        if self.tape is not None:
            self.tape.under(self.bank.charter)

    def begin(self) -> None:
        if self.process is not None:
            self.clock.begun_s = time.monotonic()
            self.process.send(link.Begin())

    def replace(self, reason: str) -> None:
        """End the trainer; the machine hears of it as of a death, and starts another."""
        if self.process is not None and self.process.is_running:
            self._replacing = reason
            self.process.send(link.Quit())

    def hold(self, *, is_held: bool) -> None:
        if self.process is not None:
            self.process.send(link.Pause() if is_held else link.Resume())

    def set_progress(self, fraction: float) -> None:
        if self.process is not None:
            self.process.send(link.SetProgress(fraction))

    async def stop(self) -> None:
        """End the trainer, bounded in time."""
        if self.process is not None:
            await self.process.stop(grace_s=2.0)

    # Inside.

    def _live(self) -> TrainerProcess:
        if self.process is None or not self.process.is_running:
            raise TransientError("there is no trainer")
        return self.process

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def _tape_began(self, inner: InnerSpec, ready: link.Ready) -> None:
        charter = self.bank.charter
        if self.tape is not None and charter is not None:
            settings = self.settings
            self.tape.began(
                genesis=settings.genesis,
                charter=charter,
                inner=inner,
                micro_batch=ready.micro_batch,
                seed_salt=settings.salt,
                replay_class=replay_class(ready.device, settings.threads, ready.corpus_digest),
            )

    def _ask(
        self,
        command: Callable[[int], link.Command],
        *,
        mark: Callable[[int], Frame] | None = None,
    ) -> Awaitable[link.Event]:
        """Send a command under a new number; its answer, or `Failed` when the trainer ends."""
        self._job += 1
        number = self._job
        future: asyncio.Future[link.Event] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if self.tape is not None and mark is not None:
            self.tape.expect(number, mark)
        if not self._live().send(command(number)):
            self._fail_open("the trainer is gone")
        return future

    def _on_event(self, event: link.Event) -> None:
        match event:
            case link.Stepped():
                self._stepped(event)
            case link.Starved():
                self.note(Starved())
            case link.Done() | link.PartCut() | link.Evaluated() | link.Generated():
                if self.tape is not None and isinstance(event, link.Done):
                    self.tape.answered(event.job, event.local_step)
                future = self._waiting.pop(event.job, None)
                if future is not None and not future.done():
                    future.set_result(event)
            case link.Ready() | link.Failed():
                if self._starting is not None and not self._starting.done():
                    self._starting.set_result(event)

    def _stepped(self, event: link.Stepped) -> None:
        self._cursor = Cursor(event.position, event.sequence)
        if self.tape is not None:
            self.tape.stepped(event.local_step, event.progress)
        # A throttled device is a slower device: the sleep that belongs to a step counts as step.
        self.clock.work_s += event.work_s / self.settings.duty_frac
        is_finite = abs(event.loss) < 1e300
        self.note(
            Stepped(
                local_step=event.local_step,
                tokens=event.tokens_total,
                loss=event.loss if is_finite else None,
                step_s=event.step_s,
                work_s=self.clock.work_s,
                alive_s=max(self.clock.alive_s(), self.clock.work_s),
                cursor=self._cursor,
            )
        )

    def _on_exit(self, reason: ExitReason) -> None:
        self.ready = None
        self.bank.trainer_lost()
        was_starting = self._starting is not None and not self._starting.done()
        self._fail_open(reason.message)
        message, self._replacing = self._replacing or reason.message, ""
        if not reason.was_asked and not was_starting:
            self.note(TrainerLost(reason.oom, message))

    def _fail_open(self, message: str) -> None:
        failed = link.Failed("internal", message)
        if self._starting is not None and not self._starting.done():
            self._starting.set_result(failed)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(failed)
