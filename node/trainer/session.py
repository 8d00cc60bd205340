"""One trainer's life: configure, then commands at local-step boundaries and local steps between.

Commands are carried out strictly in the order received, and all that wait are carried out before
the next local step. With nothing to train the trainer sleeps on the socket. Where several ranks
train, this is rank 0, and what changes weights or optimizer is spread to the others before it is
answered.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from host.runtime import garbage
from node.machine.moments import moments_numel
from node.trainer.duty import DutyCycle, Measuring
from node.trainer.failures import RankLost, StepAbandoned, is_out_of_memory
from node.trainer.link import messages
from node.trainer.link.endpoint import TrainerEnd
from node.trainer.link.shared_memory import Slot
from node.trainer.own.interface import TellsLosses, Twinned
from node.trainer.ranks.followers import Followers, part_for
from node.trainer.setup import TrainerSetup, decoded, limit_resources
from protocol.errors import InternalError

if TYPE_CHECKING:
    from node.trainer.loop import Between, LocalStep, Worked
    from node.trainer.model import Floats, FragmentView, Values
    from node.trainer.moments_view import MomentsView
    from protocol.messages import Gain


COPYING: Final = (messages.OfferSlot, messages.Snapshot, messages.Assign, messages.Add)
"""Commands whose answers come with the copies that they begin, in their order."""


class Session:
    """Drives a `TrainerSetup` from the link."""

    def __init__(self, end: TrainerEnd) -> None:
        self._end = end
        self._setup: TrainerSetup
        self._slots: dict[int, Slot] = {}
        self._assigned: set[int] = set()
        self._seasoned: set[int] = set()
        self._has_begun = False
        self._is_paused = False
        self._said_starved = False
        self._duty = DutyCycle(self._is_held)
        self._measuring = Measuring(DutyCycle(self._is_held))
        self._followers: Followers | None = None
        self._rest_until = 0.0
        self._boundary = 0.0
        self._started = 0.0
        """When the present command was taken up."""
        self._is_over = False
        self._actions: dict[type[Any], Callable[[Any], None]] = {
            messages.OfferSlot: self._offer_slot,
            messages.DropSlot: lambda command: self._drop_slot(command.slot),
            messages.Assign: self._assign,
            messages.Add: self._add,
            messages.Snapshot: self._snapshot,
            messages.CaptureMoments: self._capture_moments,
            messages.InstallMoments: self._install_moments,
            messages.CutPart: self._cut_part,
            messages.RestorePart: self._restore_part,
            messages.Suspend: self._suspend,
            messages.Restore: self._restore,
            messages.Blocks: self._blocks,
            messages.DropBlocks: self._drop_blocks,
            messages.SetProgress: self._set_progress,
            messages.SetDuty: self._set_duty,
            messages.Evaluate: self._evaluate,
            messages.MeasureGain: self._measure_gain,
            messages.Generate: self._generate,
            messages.Begin: self._begin,
            messages.Pause: self._pause,
            messages.Resume: self._resume,
        }

    def run(self) -> None:
        """Returns after `Quit`. Raises TrainerFailure, LinkClosed, or whatever torch raises."""
        try:
            self._run()
        except RankLost as error:
            if self._followers is None:
                raise
            raise self._followers.failure() from error
        finally:
            if self._followers is not None:
                self._followers.end()

    def _run(self) -> None:
        first = self._end.receive(None)
        if isinstance(first, messages.Quit):
            return
        if not isinstance(first, messages.Configure):
            raise InternalError(f"the first command was {type(first).__name__}, not Configure")
        first = self._shared(first)
        limit_resources(first)
        self._duty.duty_frac = self._measuring.duty.duty_frac = first.duty_frac
        with garbage.seldom_sought():
            self._setup = TrainerSetup(first, self._followers)
        ready = self._setup.ready()
        self._end.send(ready)
        spent_s = sum(ready.startup_s.values())
        say(f"ready on {ready.device} after {spent_s:.1f} s, micro-batch {ready.micro_batch}")
        while not self._is_over:
            may_train = self._may_train()
            if not may_train:
                self._setup.copies.finish()  # Nothing else would tell of them.
            command = self._end.receive(self._rest_s() if may_train else None)
            if command is None:
                self._train()
                continue
            if isinstance(command, messages.Quit):
                return
            action = self._actions.get(type(command))
            if action is None:
                raise InternalError(f"{type(command).__name__} makes no sense here")
            if not isinstance(command, COPYING):
                self._setup.copies.finish()  # Answers keep the order of the commands.
            self._started = time.monotonic()
            action(command)
            if not may_train:
                self._boundary = time.monotonic()  # Waiting is not part of a local step's time.

    def _shared(self, configure: messages.Configure) -> messages.Configure:
        """This rank's part of it, where there are several; at most one for each sequence."""
        ranks = min(configure.ranks, decoded(configure)[1].batch_range[1])
        if ranks > 1:
            configure = part_for(configure, ranks)
            self._followers = Followers(configure, self._give_up)
        return configure

    def _give_up(self, failed: messages.Failed) -> None:
        """Ends the process on behalf of a thread that is stuck."""
        print(failed.message, file=sys.stderr, flush=True)
        try:
            self._end.send(failed)
        finally:
            os._exit(messages.EXIT_CODES[failed.kind])

    @property
    def _is_live(self) -> bool:
        """Whether local steps are expected."""
        return self._has_begun and not self._is_paused

    def _may_train(self) -> bool:
        """Whether a local step is due; says so, once, if only blocks are missing."""
        if not self._is_live:
            return False
        if self._setup.loop.can_step:
            return True
        if not self._said_starved:
            self._said_starved = True
            self._end.send(messages.Starved(self._setup.loop.local_step))
        return False

    def _rest_s(self) -> float:
        """How long a command may still keep the next local step waiting."""
        return max(0.0, self._rest_until - time.monotonic())

    def _train(self) -> None:
        with suppress(StepAbandoned):  # A pause is the next command.
            self._step(self._setup.loop.step)

    def _step(self, step: Callable[[Between], LocalStep]) -> LocalStep:
        """A local step, told. StepAbandoned if a command came that allows none."""
        loop = self._setup.loop
        self._duty.begin()
        done = step(self._duty.between)
        self._setup.copies.finish()
        if loop.local_step == 1:
            self._extras()  # Too much of it is said now, and not at the first pause.
        if loop.adjustments:
            reason = "; ".join(loop.take_adjustments())
            say(reason)
            self._end.send(messages.Adjusted(self._setup.micro_batch, reason))
        now = time.monotonic()
        step_s, self._boundary = max(done.work_s, now - self._boundary), now
        self._rest_after(done.work_s - self._duty.paid_s)
        self._end.send(
            messages.Stepped(
                local_step=loop.local_step,
                tokens_total=loop.tokens_total,
                loss=done.loss,
                step_s=step_s,
                work_s=done.work_s,
                position=loop.reader.position,
                sequence=loop.reader.sequence,
                learning_rate=done.learning_rate,
                progress=loop.progress,
                measured_s=self._measuring.take_spent_s(),
            )
        )
        return done

    def _is_held(self, timeout_s: float) -> bool:
        """Whether a command that allows no more work is waiting, or comes in time."""
        self._setup.copies.poll()
        if any(isinstance(command, messages.Pause | messages.Quit) for command in self._end.seen()):
            return True
        ends_s = time.monotonic() + timeout_s
        while True:
            command = self._end.glance(max(0.0, ends_s - time.monotonic()))
            if isinstance(command, messages.Pause | messages.Quit):
                return True
            if isinstance(command, messages.Assign | messages.Add) and command.slot in self._slots:
                self._setup.copies.stage(self._slots[command.slot])  # Its turn comes soon.
            if command is None:
                return False

    def _rest_after(self, work_s: float) -> None:
        self._rest_until = max(self._rest_until, time.monotonic() + self._duty.owed_s(work_s))

    # ------------------------------------------------------------------------------- commands

    def _offer_slot(self, command: messages.OfferSlot) -> None:
        self._drop_slot(command.slot)
        descriptor = self._end.take_descriptor()
        self._slots[command.slot] = Slot.attach(command.slot, command.numel, descriptor)

    def _drop_slot(self, identity: int) -> None:
        slot = self._slots.pop(identity, None)
        if slot is not None:
            self._setup.copies.forget(slot)
            slot.close()

    def _slot(self, identity: int, numel: int) -> Slot:
        slot = self._slots.get(identity)
        if slot is None or slot.numel != numel:
            raise InternalError(f"there is no slot {identity} of {numel} elements")
        return slot

    def _assign(self, command: messages.Assign) -> None:
        setup = self._setup

        def change(values: Values) -> None:
            setup.view.blend(command.fragment, values, command.kept_frac)
            setup.spread_weights(command.fragment)

        slot = self._slot(command.slot, command.numel)
        setup.copies.write(slot, change, self._once_copied(command.job))
        self._assigned.add(command.fragment)

    def _add(self, command: messages.Add) -> None:
        setup = self._setup

        def change(values: Values) -> None:
            setup.view.add(command.fragment, values)
            setup.spread_weights(command.fragment)

        slot = self._slot(command.slot, command.numel)
        setup.copies.write(slot, change, self._once_copied(command.job))

    def _snapshot(self, command: messages.Snapshot) -> None:
        slot = self._slot(command.slot, command.numel)
        told = self._once_copied(command.job)
        self._setup.copies.read(self._setup.view, command.fragment, slot, told)

    def _once_copied(self, job: int) -> Callable[[], None]:
        """Answers that a command is carried out as of now, once it is called."""
        started = self._started
        loop, reader = self._setup.loop, self._setup.loop.reader
        at, place = (loop.local_step, loop.tokens_total), (reader.position, reader.sequence)

        def told() -> None:
            self._end.send(messages.Done(job, *at, time.monotonic() - started, *place))

        return told

    def _capture_moments(self, command: messages.CaptureMoments) -> None:
        slot = self._slot(command.slot, command.numel)
        self._setup.moments.read(command.fragment, slot.values)
        self._done(command.job)

    def _install_moments(self, command: messages.InstallMoments) -> None:
        if self._has_begun:
            raise InternalError("moments came after the first local step")
        slot = self._slot(command.slot, command.numel)
        self._setup.moments.write(command.fragment, slot.values)
        self._setup.spread_moments(command.fragment, slot.values)
        self._seasoned.add(command.fragment)
        self._setup.loop.is_seasoned = len(self._seasoned) == len(self._setup.layout.fragments)
        self._done(command.job)

    def _cut_part(self, command: messages.CutPart) -> None:
        slot = self._slot(command.slot, command.numel)
        for view, pieces in self._views(slot.values):
            for fragment, piece in enumerate(pieces):
                view.read(fragment, piece)
        self._end.send(messages.PartCut(command.job, self._loop_state()))

    def _restore_part(self, command: messages.RestorePart) -> None:
        setup = self._setup
        slot = self._slot(command.slot, command.numel)
        for view, pieces in self._views(slot.values):
            for fragment, piece in enumerate(pieces):
                view.write(fragment, piece)
                if view is setup.view:
                    setup.spread_weights(fragment)
                else:
                    setup.spread_moments(fragment, piece)
        self._assigned = set(range(len(setup.layout.fragments)))
        self._go_on(command.state)
        self._done(command.job)

    def _views(self, values: Floats) -> list[tuple[FragmentView | MomentsView, list[Floats]]]:
        """The trainer's arrays, and where each of their fragments lies in `values`."""
        fragments = self._setup.layout.fragments
        weights = [fragment.numel for fragment in fragments]
        moments = [moments_numel(fragment) for fragment in fragments]
        pieces = np.split(values, np.cumsum([*weights, *moments])[:-1])
        count = len(fragments)
        return [(self._setup.view, pieces[:count]), (self._setup.moments, pieces[count:])]

    def _done(self, job: int) -> None:
        self._once_copied(job)()

    def _blocks(self, command: messages.Blocks) -> None:
        self._setup.loop.reader.append(command.ranges, command.start_sequence)
        self._said_starved = False

    def _drop_blocks(self, command: messages.DropBlocks) -> None:
        self._setup.loop.reader.clear()
        self._said_starved = False

    def _set_progress(self, command: messages.SetProgress) -> None:
        self._setup.loop.progress = command.frac

    def _set_duty(self, command: messages.SetDuty) -> None:
        self._duty.duty_frac = self._measuring.duty.duty_frac = command.frac
        if self._followers is not None:
            self._followers.duty_frac = command.frac
        # A longer rest begun under the old share would outlast the change.
        self._rest_until = min(self._rest_until, time.monotonic())

    def _evaluate(self, command: messages.Evaluate) -> None:
        slot = self._slot(command.slot, command.numel)
        sequences = self._setup.corpus.heldout(command.sequences)
        loop, layout = self._setup.loop, self._setup.layout
        loss, is_cut = math.nan, False
        started = self._started
        self._measuring.begin()
        try:
            with self._measured() as worked:
                loss = loop.evaluate(sequences, layout=layout, values=slot.values, worked=worked)
        except StepAbandoned:
            is_cut = True
        tokens = len(sequences) * self._setup.corpus.spec.sequence_tokens
        seconds = time.monotonic() - started - self._measuring.turns_s
        self._end.send(messages.Evaluated(command.job, loss, tokens, seconds, is_cut))

    def _measure_gain(self, command: messages.MeasureGain) -> None:
        """Measures, and carries out meanwhile what must not wait for the end of it."""
        started = self._started
        self._measuring.begin()
        gains, trouble = self._gains(command)
        seconds = time.monotonic() - started - self._measuring.turns_s
        own, other = gains or (None, None)
        self._end.send(messages.GainMeasured(command.job, own, other, seconds, trouble))

    def _gains(
        self, command: messages.MeasureGain
    ) -> tuple[tuple[Gain, ...], messages.GainTrouble | None]:
        """The gains, or why there are none."""
        from node.trainer.gain import Change, NotFinite, measure_gain
        from node.trainer.loop import free_device_memory

        setup = self._setup
        if not setup.corpus.matches:
            return (), "other text"
        trainer: object = setup.trainer
        if not isinstance(trainer, TellsLosses):
            return (), "no losses"
        slot = self._slot(command.slot, command.numel)
        whole = command.numel - setup.view.numel(command.fragment)
        try:
            with self._measured() as worked:
                return measure_gain(
                    setup.loop,
                    setup.layout,
                    slot.values[:whole],
                    Change(command.fragment, slot.values[whole:]),
                    (setup.read_places(command.own), setup.read_places(command.other)),
                    worked,
                ), None
        except StepAbandoned:
            return (), "paused"
        except NotFinite:
            return (), "not finite"
        except (RuntimeError, MemoryError) as error:
            if self._measuring.is_amid or not is_out_of_memory(error):
                raise
        # Behind the handler: what the failed pass held is free only now.
        free_device_memory(setup.loop.device)
        return (), "no memory"

    @contextmanager
    def _measured(self) -> Iterator[Worked]:
        """What a measurement must call between its micro-batches; it is as polite as local steps.

        Commands that need not wait are carried out meanwhile, and local steps take their turns.
        """
        measuring = self._measuring
        trainer: object = self._setup.trainer
        is_apart = isinstance(trainer, Twinned)  # Otherwise the weights are those of another.
        if is_apart:
            self._rest_out()
        pending_s = self._rest_s()
        resumed_s = time.monotonic()

        def pass_over() -> None:
            """What is measured takes no part of a local step's time."""
            nonlocal resumed_s
            now = time.monotonic()
            if self._is_live:
                measuring.spend(now - resumed_s)
            self._boundary += now - resumed_s
            resumed_s = now

        def worked(seconds: float) -> None:
            nonlocal resumed_s
            measuring.on_worked(seconds)
            if is_apart:
                pass_over()
                measuring.is_amid = True
                self._meanwhile()
                self._take_turns()
                measuring.is_amid = False
                resumed_s = time.monotonic()

        try:
            yield worked
        finally:
            pass_over()
            rest_s = self._duty.owed_s(measuring.unpaid_s)
            if self._is_live:
                measuring.spend(rest_s)
            self._boundary += rest_s
            self._rest_until = time.monotonic() + pending_s + rest_s

    def _meanwhile(self) -> None:
        """Carries out the commands whose turn it is, as long as they may come amid a measurement.

        A push is captured, a fragment delivered and text fed as promptly as between local steps.
        """
        while isinstance(self._end.peek(), messages.AMID):
            command = self._end.receive(0.0)
            if not isinstance(command, COPYING):
                self._setup.copies.finish()
            self._started = time.monotonic()
            self._actions[type(command)](command)

    def _rest_out(self) -> None:
        """The rest that is due, during which commands are carried out as amid a measurement.

        StepAbandoned if one allows no more work.
        """
        self._meanwhile()
        while not self._is_held(0.0) and (rest_s := self._rest_s()):
            self._end.glance(rest_s)
            self._meanwhile()
        if self._is_held(0.0):
            raise StepAbandoned

    def _take_turns(self) -> None:
        """Local steps for as long as was measured since the last ones.

        Only where both fit into memory for certain: what a local step fails to get would leave it
        with smaller micro-batches for good.
        """
        measuring = self._measuring
        while self._setup.has_room_to_measure and measuring.is_due and self._may_train():
            began = time.monotonic()
            done = self._step(self._setup.loop.step_amid)
            self._rest_out()
            measuring.on_turn(done.work_s, time.monotonic() - began)

    def _generate(self, command: messages.Generate) -> None:
        values = None
        if command.slot is not None:
            values = self._slot(command.slot, command.numel).values
        try:
            text = self._setup.generate(
                command.prompt,
                command.tokens,
                seed=command.seed,
                temperature=command.temperature,
                values=values,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            say("no memory for a sample of what the model writes")
            text = ""
        self._rest_after(time.monotonic() - self._started)
        self._end.send(messages.Generated(command.job, text))

    def _suspend(self, command: messages.Suspend) -> None:
        state = self._loop_state()
        say(f"suspended after local step {state.local_step}")
        self._end.send(messages.Suspended(command.job, state))
        self._is_over = True

    def _loop_state(self) -> messages.LoopState:
        loop = self._setup.loop
        ranges, position, sequence = loop.reader.mark()
        processor, device = loop.random_state()
        return messages.LoopState(
            local_step=loop.local_step,
            tokens_total=loop.tokens_total,
            progress=loop.progress,
            is_seasoned=loop.is_seasoned,
            ranges=ranges,
            position=position,
            sequence=sequence,
            random=processor,
            device_random=device,
            extras=self._extras(),
        )

    def _extras(self) -> bytes:
        """What the training code keeps besides weights and moments."""
        from node.trainer.own import extras

        return extras.encode(self._setup.trainer.state())

    def _restore(self, command: messages.Restore) -> None:
        self._go_on(command.state)
        self._done(command.job)

    def _go_on(self, state: messages.LoopState) -> None:
        loop = self._setup.loop
        if self._has_begun:
            raise InternalError("another trainer's state came after the first local step")
        loop.local_step, loop.tokens_total = state.local_step, state.tokens_total
        loop.progress, loop.is_seasoned = state.progress, state.is_seasoned
        loop.reader.go_to(state.ranges, state.position, state.sequence)
        if state.extras:
            from node.trainer.own import extras

            self._setup.trainer.load_state(extras.decode(state.extras))
        loop.set_random_state(state.random, state.device_random)
        say(f"goes on after local step {state.local_step}")

    def _begin(self, command: messages.Begin) -> None:
        missing = set(range(len(self._setup.layout.fragments))) - self._assigned
        if missing:
            raise InternalError(f"begin came before fragments {sorted(missing)} were assigned")
        self._has_begun = True

    def _pause(self, command: messages.Pause) -> None:
        self._is_paused = True

    def _resume(self, command: messages.Resume) -> None:
        self._is_paused = False


def say(text: str) -> None:
    """Writes a line to the log that the daemon keeps of its trainer."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
