"""The daemon's side of its trainer: jobs of the machine become commands, events become notes.

Encoding, decoding and hashing run on a thread pool, so that neither the event loop nor the inner
loop waits for them. When the trainer dies every open job fails at once.
"""

from __future__ import annotations

import asyncio
import logging
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

from host.tape.taping import NoTape
from node.machine import jobs
from node.trainer.link import messages
from node.trainer.link.shared_memory import Slot
from node.trainer_client.clock import Clock
from node.trainer_client.fragment_bank import Delivery, FragmentBank
from node.trainer_client.process import ExitReason, TrainerProcess
from node.trainer_client.suspended_trainer import (
    Gate,
    SuspendedTrainer,
    mib,
    room_for,
    suspended_bytes,
)
from node.trainer_client.tape import TrainerTape, applied, how_trained, replay_class, snapshot
from protocol.errors import TransientError
from protocol.log.records import Span
from protocol.machine import Failed, JobResult
from protocol.messages import Cursor
from protocol.project import InnerSpec
from protocol.tape import Frame

DUTY_STEP_FRAC = 0.02
"""A trainer is not told of smaller changes."""

READY_TIMEOUT_S = 600.0
"""A first start may tokenise a large corpus."""

SUSPENDED_END_S = 1.0
"""A trainer that has answered `Suspended` has nothing left to do but to end."""

F32 = NDArray[np.float32]
SlotCommand = Callable[..., messages.Command]
"""Makes a command about the content of a slot from `job`, `slot` and `numel`."""
T = TypeVar("T")

log = logging.getLogger("shoal.node")


@dataclass(slots=True)
class TrainerPort:
    """One trainer at a time."""

    configure: messages.Configure
    """What its owner decided; `inner`, micro-batch and memory are said anew with every start."""
    log_path: Path
    suspend_folder: Path
    """For the files of a suspended trainer."""
    bank: FragmentBank
    pool: Executor
    note: Callable[[object], None]
    notice: Callable[[str], None]
    ready_timeout_s: float = READY_TIMEOUT_S
    """From its start until a trainer could step."""
    tape: TrainerTape = field(default_factory=lambda: TrainerTape(NoTape()))
    process: TrainerProcess | None = None
    ready: messages.Ready | None = None
    ended: ExitReason | None = None
    """Why the last process ended."""
    clock: Clock = field(default_factory=Clock)
    evaluations: int = 0
    duty_frac: float = 1.0
    """Share of the time in which the trainer works."""
    suspended: SuspendedTrainer | None = None
    """There is no process, or one that has not got its state back yet."""
    gate: Gate = field(default_factory=Gate)
    """Passed by whatever needs the trainer's weights; closed while they move."""
    ram_room: Callable[[], int | None] = lambda: None
    """Bytes of memory that a new trainer may hold; None for no limit."""
    ram_ceiling: Callable[[], int | None] = lambda: None
    """What its owner allows all of Shoal here; None for no limit."""
    disk_room: Callable[[], int | None] = lambda: None
    """Bytes of files that a suspended one may take; None for whatever the disk has."""
    progress: float | None = None
    """Of the schedule, as last told."""
    queued: Callable[[], tuple[Span, ...]] = lambda: ()
    """Text leased to it that it gets later: its shards are not here yet."""
    _job: int = 0
    _waiting: dict[int, asyncio.Future[messages.Event]] = field(default_factory=dict)
    _replacing: str = ""
    _drops_error_feedback: bool = False
    """As soon as the next trainer is there: what the former one hands in is on its tape with it."""
    _starting: asyncio.Future[messages.Event] | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.is_running else None

    def act(self, action: jobs.TrainerAction) -> None:
        """Carry out one action of the machine."""
        match action:
            case jobs.UseCharter(charter):
                self.bank.charter = charter
                self.tape.under(charter)
            case jobs.Settle(fragment, sequence, outcome):
                is_merged = outcome == "merged"
                self.bank.settle(fragment, sequence, is_merged=is_merged)
                self.tape.closed(fragment, sequence, is_merged=is_merged)
            case jobs.Feed() | jobs.DropFed():
                self.feed(action)
            case jobs.BeginSteps():
                self.begin()
            case jobs.HoldSteps() | jobs.ReleaseSteps():
                self.hold(is_held=isinstance(action, jobs.HoldSteps))
            case jobs.ReplaceTrainer(reason):
                self.replace(reason)
            case jobs.DropErrorFeedback():
                self._drops_error_feedback = True
            case jobs.SetProgress(fraction):
                self.set_progress(fraction)

    # Jobs.

    async def start(self, job: jobs.StartTrainer) -> JobResult:
        """Start a trainer; the answer comes when it could step, or cannot."""
        self.clock = Clock()
        result = await self.launch(job.micro_batch, job.inner)
        if isinstance(result, jobs.TrainerReady) and self.ready is not None:
            self._tape_began(job.inner, self.ready)
            if not self.ready.corpus_matches:
                self.notice(
                    "the training data on this machine differs from the project's (another Python "
                    "version, or other files); it is used anyway. Where pushes are probed, those "
                    "of this machine add little beside others', because nobody can check them"
                )
        return result

    async def launch(self, micro_batch: int | None, inner: InnerSpec) -> JobResult:
        """Start a process, and wait until it could be given weights.

        There is never a second one: what is not ready in time is ended, and one that cannot be
        ended, such as in a driver that hangs, is waited for.
        """
        if self.process is not None and self.process.is_running:
            await self.process.stop()
            if self.process.is_running:
                return Failed("the former trainer does not end; another would be one too many")
        self._starting = asyncio.get_running_loop().create_future()
        process = TrainerProcess(
            log_path=self.log_path, on_event=self._on_event, on_exit=self._on_exit
        )
        self.process = process
        await process.start(
            msgspec.structs.replace(
                self.configure,
                inner=msgspec.msgpack.encode(inner),
                micro_batch=micro_batch,
                duty_frac=self.duty_frac,
                ram_bytes_max=self.ram_room(),
                ram_ceiling_bytes=self.ram_ceiling(),
            )
        )
        try:
            async with asyncio.timeout(self.ready_timeout_s):
                event = await self._starting
        except TimeoutError:
            await process.stop()
            return Failed(f"it was not ready after {self.ready_timeout_s:.0f} s")
        if isinstance(event, messages.Failed):
            return _not_started(event)
        if not isinstance(event, messages.Ready):
            await process.stop()
            return Failed("it did not get ready")
        if event.layout_digest != self.bank.layout.digest:
            await process.stop()
            return Failed("the model here has other tensors than the project; update transformers")
        self.ready = event
        for words in event.adjustments:
            self.notice(words)
        return jobs.TrainerReady(
            event.device,
            event.micro_batch,
            has_other_text=not event.corpus_matches,
            batch_sequences=event.batch_sequences,
        )

    async def deliver(self, job: jobs.Deliver) -> JobResult:
        """Bring the inner loop to the newest global value of a fragment."""
        async with self.gate.passing():
            return await self._deliver(job)

    async def _deliver(self, job: jobs.Deliver) -> JobResult:
        if self.suspended is None:
            self.live()
        delivery = await self.in_pool(
            lambda: self.bank.deliver(
                job.fragment,
                is_assign=job.is_assign,
                merged_sequence=job.merged_sequence,
                kept_frac=job.kept_frac,
            )
        )
        mark = applied(job.fragment, delivery, job.merged_sequence)
        if self.suspended is not None:
            return await self._deliver_suspended(self.suspended, job.fragment, delivery, mark)
        command: SlotCommand = partial(messages.Add, fragment=job.fragment)
        if delivery.is_assign:
            kept_frac = delivery.kept_frac
            command = partial(messages.Assign, fragment=job.fragment, kept_frac=kept_frac)
        done = await self._hand([delivery.values], command, mark=mark)
        if not isinstance(done, messages.Done):
            return Failed("the trainer ended")
        return jobs.Delivered(delivery.version, done.local_step, done.tokens_total)

    async def _deliver_suspended(
        self,
        suspended: SuspendedTrainer,
        fragment: int,
        delivery: Delivery,
        mark: Callable[[int], Frame],
    ) -> JobResult:
        state = suspended.state
        assert state is not None, "the gate is closed until the state is here"
        await self.in_pool(lambda: suspended.apply(fragment, delivery))
        if delivery.kept_frac:
            self.tape.inexact("a blend was taken while the trainer was suspended")
        self.tape.took(mark(state.local_step))
        return jobs.Delivered(delivery.version, state.local_step, state.tokens_total)

    async def capture(self, job: jobs.Capture) -> JobResult:
        """Snapshot a fragment at the next local-step boundary and encode its displacement."""
        async with self.gate.passing():
            if self.suspended is not None:
                return await self._capture_suspended(self.suspended, job)
            return await self._capture(job)

    async def _capture_suspended(self, suspended: SuspendedTrainer, job: jobs.Capture) -> JobResult:
        state = suspended.state
        assert state is not None, "the gate is closed until the state is here"
        slot = suspended.theta[job.fragment]
        self.tape.took(snapshot(job.fragment)(state.local_step))
        at = (state.local_step, state.tokens_total, Cursor(state.position, state.sequence))
        captured = await self._push(job, slot.values, *at)
        slot.relax()
        return captured

    async def _capture(self, job: jobs.Capture) -> JobResult:
        process = self.live()
        numel = self.bank.layout.fragments[job.fragment].numel
        slot = process.slot(numel)
        done = await self.ask(
            lambda n: messages.Snapshot(n, job.fragment, slot.identity, numel),
            mark=snapshot(job.fragment),
        )
        if not isinstance(done, messages.Done):
            return Failed("the trainer ended")
        at = (done.local_step, done.tokens_total, Cursor(done.position, done.sequence))
        captured = await self._push(job, slot.values, *at)
        process.release(slot)
        return captured

    async def _push(
        self, job: jobs.Capture, values: F32, local_step: int, tokens: int, cursor: Cursor
    ) -> jobs.Captured:
        """Encode and offer a fragment's displacement, which stood so at this local step.

        cursor: the place in the text there. The trainer may have reported later steps since.
        """
        push = await self.in_pool(lambda: self.bank.push(job.fragment, job.sequence, values))
        self.tape.captured(job.sequence, job.fragment, push.base_version, push.digest)
        return jobs.Captured(
            base_version=push.base_version,
            digest=push.digest,
            payload_bytes=push.payload_bytes,
            local_step=local_step,
            tokens=tokens,
            cursor=cursor,
        )

    async def capture_moments(self, numels: Sequence[int]) -> list[F32] | None:
        """Every fragment's optimizer state, all at the next boundary; None if the trainer ended.

        The arrays are the slots themselves, which nobody else has any more: nothing is copied
        twice, and the memory goes with the last reference.
        """
        process = self.live()
        slots = []
        for numel in numels:
            slots.append(process.slot(numel))
            await asyncio.sleep(0)  # Making a large slot takes a while.
        answers = [
            self.ask(
                partial(messages.CaptureMoments, fragment=at, slot=one.identity, numel=one.numel)
            )
            for at, one in enumerate(slots)
        ]
        done = [await answer for answer in answers]
        for slot in slots:
            process.drop(slot)
        if not all(isinstance(one, messages.Done) for one in done):
            return None
        return [slot.values for slot in slots]

    async def install_moments(self, fragment: int, values: F32) -> bool:
        """Hand a fragment's optimizer state to a trainer that has not begun; False if it ended."""
        self.live()
        self.tape.inexact("its moments came from another learner")
        command = partial(messages.InstallMoments, fragment=fragment)
        done = await self._hand([values], command, is_last=True)
        return isinstance(done, messages.Done)

    async def cut_part(self, numel: int) -> tuple[F32, messages.LoopState] | None:
        """All arrays of the trainer and the rest of its state; None if it ended.

        The array is the slot itself, which nobody else has any more, or a copy of a suspended
        trainer's.
        """
        async with self.gate.passing():
            suspended = self.suspended
            if suspended is not None:
                slots = (*suspended.theta, *suspended.moments)
                values = await self.in_pool(lambda: np.concatenate([one.values for one in slots]))
                return values, with_queued(suspended.state_with_fed(), self.queued())
            process = self.live()
            slot = process.slot(numel)
            # What it is given after this command is not in its answer.
            answer, queued = (
                self.ask(lambda n: messages.CutPart(n, slot.identity, numel)),
                self.queued(),
            )
            cut = await answer
            process.drop(slot)
            if not isinstance(cut, messages.PartCut):
                return None
            return slot.values, with_queued(cut.state, queued)

    async def restore_part(self, values: F32, state: messages.LoopState) -> bool:
        """Make a trainer that has not begun what another one was; False if it ended."""
        self.live()
        self.tape.inexact("it goes on from a snapshot")
        done = await self._hand([values], partial(messages.RestorePart, state=state), is_last=True)
        return isinstance(done, messages.Done)

    async def evaluate(self, job: jobs.Evaluate) -> JobResult:
        """Held-out loss of the frozen global value."""
        self.live()
        command = partial(messages.Evaluate, sequences=job.sequences)
        answer = await self._hand(self.bank.frozen(job.index), command)
        if not isinstance(answer, messages.Evaluated):
            return Failed("the trainer ended")
        self.evaluations += 1
        return loss_of(answer)

    @property
    def has_signed_text(self) -> bool:
        """Whether the trainer reads the very text that the project was signed with."""
        return self.ready is not None and self.ready.corpus_matches

    async def measure_gain(
        self, job: jobs.ProbePush, displacement: F32
    ) -> messages.GainMeasured | None:
        """What a push does to the loss of the newest global value held here; None if the trainer
        ended."""
        self.live()
        command = partial(messages.MeasureGain, fragment=job.fragment, own=job.own, other=job.other)
        pushed = await self.in_pool(partial(self.bank.pushed, job.fragment, displacement))
        # Its slot is as large as no other command's, and a copy of the model.
        answer = await self._hand(pushed, command, is_last=True)
        if not isinstance(answer, messages.GainMeasured):
            return None
        return answer

    async def generate(self, prompt: str, tokens: int) -> str:
        """Text sampled from the newest global value held here."""
        self.live()
        pieces = [self.bank.theta(at) for at in range(len(self.bank.layout.fragments))]
        answer = await self._hand(pieces, partial(messages.Generate, prompt=prompt, tokens=tokens))
        if not isinstance(answer, messages.Generated):
            raise TransientError("the trainer ended before it had sampled any text")
        return answer.text

    # Suspending: until the suspended state is complete the trainer has it, and until the woken
    # trainer has it the files do.

    async def suspend(self) -> JobResult:
        """The trainer ends, its state is in files; or it holds, and the answer says why."""
        process = self.live()
        process.send(messages.Pause())
        self.clock.pause()
        needed, bytes_max = suspended_bytes(self.bank.layout), self.disk_room()
        if bytes_max is not None and needed > bytes_max:
            return Failed(
                f"its state takes {mib(needed)} and limits.disk_bytes_max leaves too little"
            )
        async with self.gate.closed():
            micro_batch = self.ready.micro_batch if self.ready else 1
            make_room = partial(room_for, self.bank.layout, self.suspend_folder, micro_batch)
            suspended = await self.in_pool(make_room)
            if not isinstance(suspended, SuspendedTrainer):
                return Failed(suspended)
            if not process.is_running:
                suspended.close()
                return Failed("the trainer ended")
            self.suspended = suspended
            try:
                answers = [
                    *self._ask_each(messages.Snapshot, suspended.theta),
                    *self._ask_each(messages.CaptureMoments, suspended.moments),
                    self.ask(messages.Suspend),
                ]
                process.expect_end()
                *done, last = [await answer for answer in answers]
                if isinstance(last, messages.Suspended) and all(
                    isinstance(one, messages.Done) for one in done
                ):
                    suspended.state = last.state
            finally:
                if suspended.state is None:
                    self._drop_suspended()
            await process.stop(SUSPENDED_END_S)
            if suspended.state is None:
                self.note(jobs.TrainerLost(False, "it ended while it was being suspended"))
                return Failed("the trainer ended")
        return jobs.TrainerSuspended()

    async def wake(self, job: jobs.WakeTrainer) -> JobResult:
        """A new trainer goes on where the suspended one stood; or the state stays where it is."""
        suspended = self.suspended
        if suspended is None or suspended.state is None:
            return jobs.TrainerLost(False, "its suspended state is gone")
        result = await self.launch(job.micro_batch or suspended.micro_batch, job.inner)
        if not isinstance(result, jobs.TrainerReady):
            return result
        async with self.gate.closed():
            if self.suspended is not suspended:
                return jobs.TrainerLost(False, "its suspended state is gone")
            if not await self._is_restored(suspended, suspended.state):
                ended = self.ended
                if ended is not None and ended.oom:
                    return Failed(ended.message)  # No fault of the state.
                return jobs.NotRestored("the trainer ended before it had its state")
            process = self.live()
            for span in suspended.fed:
                process.send(messages.Blocks(((span.start, span.stop),), span.skip))
            if self.progress is not None:
                process.send(messages.SetProgress(self.progress))
            self._drop_suspended()
        self.clock.go_on()
        return result

    async def _is_restored(self, suspended: SuspendedTrainer, state: messages.LoopState) -> bool:
        """Whether the trainer took up all of it."""
        try:
            done = await asyncio.gather(
                *self._ask_each(messages.Assign, suspended.theta),
                *self._ask_each(messages.InstallMoments, suspended.moments),
                self.ask(lambda number: messages.Restore(number, state)),
            )
        except TransientError:
            return False  # It ended while it was given its state.
        return all(isinstance(one, messages.Done) for one in done)

    def _ask_each(
        self, kind: Callable[..., messages.Command], slots: Sequence[Slot]
    ) -> list[Awaitable[messages.Event]]:
        """The same command for every fragment, on slots that stay ours."""
        process, answers = self.live(), []
        for fragment, slot in enumerate(slots):
            lent = process.lend(slot)
            answers.append(
                self.ask(partial(kind, fragment=fragment, slot=lent.identity, numel=lent.numel))
            )
        return answers

    # Actions.

    def feed(self, feed: jobs.Feed | jobs.DropFed) -> None:
        if isinstance(feed, jobs.DropFed):
            log.info("away for too long: its text went to others; starting over with other text")
            if self.suspended is not None:
                self.suspended.drop_fed()
            elif self.process is not None:
                self.process.send(messages.DropBlocks())
            # Which local step comes before it is not known here.
            self.tape.inexact("its blocks went to others")
            return
        for span in feed.spans:
            if self.suspended is not None:
                self.suspended.fed.append(span)
            elif self.process is not None:
                self.process.send(messages.Blocks(((span.start, span.stop),), span.skip))
            self.tape.fed(span.start, span.stop, span.skip)

    def begin(self) -> None:
        if self.process is not None:
            if not self.clock.begun_s:
                self.clock.begun_s = time.monotonic()
            self.process.send(messages.Begin())

    def replace(self, reason: str) -> None:
        """End the trainer; the machine hears of it as of a death, and starts another."""
        is_running = self.process is not None and self.process.is_running
        if self.suspended is not None:
            self._drop_suspended()
            self.bank.trainer_lost()
            if not is_running:
                self.note(jobs.TrainerLost(False, reason))
        if self.process is not None and is_running:
            self._replacing = reason
            self.process.send(messages.Quit())

    def hold(self, *, is_held: bool) -> None:
        if is_held:
            self.clock.pause()
        else:
            self.clock.go_on()
        if self.process is not None:
            self.process.send(messages.Pause() if is_held else messages.Resume())

    def set_duty(self, frac: float) -> None:
        """The share of the time in which the trainer may work; never above what was asked for."""
        frac = min(frac, self.configure.duty_frac)
        if abs(frac - self.duty_frac) <= DUTY_STEP_FRAC * self.duty_frac:
            return
        self.duty_frac = frac
        if self.process is not None:
            self.process.send(messages.SetDuty(frac))

    def set_progress(self, fraction: float) -> None:
        self.progress = fraction
        if self.process is not None:
            self.process.send(messages.SetProgress(fraction))

    async def stop(self) -> None:
        """End the trainer, bounded in time."""
        self._drop_suspended()
        if self.process is not None:
            await self.process.stop(grace_s=2.0)

    # Inside.

    def _drop_suspended(self) -> None:
        suspended, self.suspended = self.suspended, None
        if suspended is not None:
            suspended.close()

    def live(self) -> TrainerProcess:
        if self.process is None or not self.process.is_running:
            raise TransientError("there is no trainer")
        return self.process

    async def in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def _tape_began(self, inner: InnerSpec, ready: messages.Ready) -> None:
        drops, self._drops_error_feedback = self._drops_error_feedback, False
        if drops:
            self.bank.drop_error_feedback()
        charter = self.bank.charter
        if charter is not None:
            told, how = self.configure, how_trained(ready)
            self.tape.began(
                genesis=told.genesis,
                charter=charter,
                inner=inner.with_batch(ready.batch_sequences),
                micro_batch=ready.micro_batch,
                seed_salt=told.seed_salt,
                replay_class=replay_class(
                    how, told.threads, ready.corpus_digest, precision=ready.precision
                ),
                drops_error_feedback=drops,
            )

    async def _hand(
        self,
        pieces: Sequence[F32],
        command: SlotCommand,
        *,
        mark: Callable[[int], Frame] | None = None,
        is_last: bool = False,
    ) -> messages.Event:
        """Put values into a slot and have a command carried out on them; its answer.

        is_last: no command will need a slot of this size again.
        """
        process = self.live()
        slot = process.slot(sum(one.size for one in pieces))
        await self.in_pool(lambda: np.concatenate(pieces, out=slot.values))
        told = partial(command, slot=slot.identity, numel=slot.numel)
        answer = await self.ask(lambda number: told(job=number), mark=mark)
        (process.drop if is_last else process.release)(slot)
        return answer

    def ask(
        self,
        command: Callable[[int], messages.Command],
        *,
        mark: Callable[[int], Frame] | None = None,
    ) -> Awaitable[messages.Event]:
        """Send a command under a new number; its answer, or `Failed` when the trainer ends."""
        self._job += 1
        number = self._job
        future: asyncio.Future[messages.Event] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if mark is not None:
            self.tape.expect(number, mark)
        if not self.live().send(command(number)):
            self._fail_open("the trainer is gone")
        return future

    def _on_event(self, event: messages.Event) -> None:
        match event:
            case messages.Stepped():
                self._stepped(event)
            case messages.Starved():
                self.note(jobs.Starved())
            case messages.Adjusted():
                self._adjusted(event)
            case (
                messages.Done()
                | messages.Suspended()
                | messages.PartCut()
                | messages.Evaluated()
                | messages.GainMeasured()
                | messages.Generated()
            ):
                if isinstance(event, messages.Done):
                    self.tape.answered(event.job, event.local_step)
                future = self._waiting.pop(event.job, None)
                if future is not None and not future.done():
                    future.set_result(event)
            case messages.Ready() | messages.Failed():
                if self._starting is not None and not self._starting.done():
                    self._starting.set_result(event)

    def _adjusted(self, event: messages.Adjusted) -> None:
        """It goes on with less than it began with; the tape cannot be followed from here."""
        if self.ready is not None:
            self.ready = msgspec.structs.replace(self.ready, micro_batch=event.micro_batch)
        self.tape.inexact(event.reason)
        self.notice(event.reason)

    def _stepped(self, event: messages.Stepped) -> None:
        self.tape.stepped(event.local_step, event.progress)
        self.clock.measuring_s += event.measured_s
        self.clock.step(event.step_s, event.work_s, self.duty_frac)
        is_finite = abs(event.loss) < 1e300
        self.note(
            jobs.Stepped(
                local_step=event.local_step,
                tokens=event.tokens_total,
                loss=event.loss if is_finite else None,
                step_s=event.step_s,
                work_s=self.clock.work_s,
                alive_s=max(self.clock.alive_s(), self.clock.work_s),
                cursor=Cursor(event.position, event.sequence),
                busy_s=self.clock.busy_s,
            )
        )

    def _on_exit(self, reason: ExitReason) -> None:
        self.ready, self.ended = None, reason
        is_safe = self.suspended is not None and self.suspended.state is not None
        if not is_safe:
            self.bank.trainer_lost()
        was_starting = self._starting is not None and not self._starting.done()
        self._fail_open(reason.message)
        message, self._replacing = self._replacing or reason.message, ""
        if not reason.was_asked and not was_starting and not is_safe:
            self.note(jobs.TrainerLost(reason.oom, message))

    def _fail_open(self, message: str) -> None:
        failed = messages.Failed("internal", message)
        if self._starting is not None and not self._starting.done():
            self._starting.set_result(failed)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(failed)


def with_queued(state: messages.LoopState, queued: tuple[Span, ...]) -> messages.LoopState:
    """The state with more text to read behind what it has."""
    more = tuple((span.start, span.stop, span.skip) for span in queued)
    return msgspec.structs.replace(state, ranges=(*state.ranges, *more))


def loss_of(answer: messages.Evaluated) -> JobResult:
    """What was measured, also if it is no number; Failed if a pause cut it short."""
    if answer.is_cut:
        return Failed("a pause cut the evaluation short")
    return jobs.EvaluatedLoss(answer.loss, answer.tokens, answer.seconds)


def _not_started(event: messages.Failed) -> Failed:
    """Why no trainer runs, and whether another try would end the same way."""
    match event.kind:
        case "data" | "model" | "memory":
            return jobs.TrainerUnfit(event.message, event.kind)
        case "oom":
            return jobs.TrainerUnfit(event.message, "memory")
    return Failed(event.message)
