"""One trainer's life: configure, then commands at local-step boundaries and local steps between.

Commands are carried out strictly in the order received, and all that wait are carried out before
the next local step. With nothing to train the trainer sleeps on the socket. Heavy imports happen
after `Configure` came, because the number of threads must be set before torch is loaded.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from node.moments import moments_numel
from node.trainer import link
from node.trainer.failures import StepAbandoned, TrainerFailure, failing_as
from node.trainer.link_end import TrainerEnd
from node.trainer.slots import Slot
from protocol.errors import InternalError
from protocol.project import Genesis, InnerSpec

if TYPE_CHECKING:
    from node.trainer.data import Corpus
    from node.trainer.loop import InnerLoop
    from node.trainer.model import Floats, FragmentView
    from node.trainer.moments import MomentsView

BURST_S: Final = 0.2
"""A throttled trainer works for about so long before it rests, also within a local step."""

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class Workshop:
    """What a configured trainer owns: model, text, inner loop."""

    def __init__(self, configure: link.Configure) -> None:
        """TrainerFailure if model, text or device cannot be had. Cost: seconds."""
        self.startup_s: dict[str, float] = {}
        genesis, inner = _decoded(configure)
        with self._phase("data"), failing_as("data"):
            from node.trainer.data import open_corpus  # No torch: bad text is noticed in a second.

            cache = Path(configure.data_cache)
            data = genesis.data
            if configure.data_location is not None:
                data = msgspec.structs.replace(data, location=configure.data_location)
            self.corpus: Corpus = open_corpus(data, seed=genesis.seed, cache=cache)
        with self._phase("import"):
            import torch

            from node.trainer import ceilings, loop, model
        torch.set_num_threads(configure.threads)
        with self._phase("device"), _failing_device():
            accelerator = loop.make_accelerator(configure.device)
            ceilings.limit_device_memory(accelerator.device, configure.gpu_memory_frac)
        with self._phase("model"), failing_as("model"):
            model.check_fits(genesis.model, genesis.data, self.corpus.vocabulary.size)
            network = model.build_model(genesis.model, seed=genesis.seed)
            self.layout = model.layout_of(genesis)
            self._positions = int(network.config.max_position_embeddings)
        loop.seed_random_stream(genesis.seed, configure.seed_salt)
        with failing_as("model"):
            self.loop: InnerLoop = loop.InnerLoop(
                network,
                loop.BlockReader(self.corpus, block_sequences=genesis.data.block_sequences),
                inner,
                accelerator=accelerator,
                micro_batch=configure.micro_batch,
            )
        # After the move to the device: the view holds the tensors that are trained.
        self.view: FragmentView = model.FragmentView(network, self.layout)
        self.moments: MomentsView = self.loop.moments(self.layout)
        ceilings.limit_host_memory(configure.ram_bytes_max)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.startup_s[name] = round(time.monotonic() - started, 3)

    def ready(self) -> link.Ready:
        """What the daemon learns first."""
        return link.Ready(
            layout_digest=self.layout.digest,
            device=str(self.loop.device),
            parameters=self.layout.parameters,
            micro_batch=self.loop.micro_batch,
            corpus_digest=self.corpus.facts.digest,
            corpus_matches=self.corpus.matches,
            train_tokens=self.corpus.facts.train_tokens,
            heldout_tokens=self.corpus.facts.heldout_tokens,
            blocks_local=self.corpus.local_blocks,
            startup_s=self.startup_s,
        )

    def heldout_loss(self, fragments: Sequence[Floats], count: int) -> float:
        """Held-out loss of other weights, in nats per token, over at most `count` sequences."""
        sequences = self.corpus.heldout(count)
        return self.loop.evaluate(
            sequences, layout=self.layout, values=np.concatenate(list(fragments))
        )

    def generate(
        self, prompt: str, tokens: int, *, seed: int, temperature: float, values: Floats | None
    ) -> str:
        """Text sampled after the prompt, from `values` (every fragment) or the own weights.

        At most as many tokens as the model has positions; a long prompt loses its beginning.
        """
        import torch

        vocabulary = self.corpus.vocabulary
        ids = [vocabulary.eos, *vocabulary.encode([prompt])[0].tolist()]
        # Some architectures have no positions beyond those they were built with.
        tokens = min(tokens, self._positions - 1)
        ids = ids[tokens - self._positions :]
        with self.loop.other_model(self.layout, values) as model, torch.no_grad():
            torch.manual_seed(seed)
            sample: Callable[..., Any] = model.generate  # type: ignore[assignment]
            produced = sample(
                torch.tensor([ids], device=self.loop.device),
                max_new_tokens=tokens,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                eos_token_id=vocabulary.eos,
                pad_token_id=vocabulary.eos,
            )
        return vocabulary.decode(produced[0, len(ids) :].tolist())


class Session:
    """Drives a `Workshop` from the link."""

    def __init__(self, end: TrainerEnd) -> None:
        self._end = end
        self._shop: Workshop
        self._slots: dict[int, Slot] = {}
        self._assigned: set[int] = set()
        self._seasoned: set[int] = set()
        self._has_begun = False
        self._is_paused = False
        self._said_starved = False
        self._duty_frac = 1.0
        self._rest_until = 0.0
        self._boundary = 0.0
        self._unrested_s = 0.0
        """Seconds of work in this local step for which it has not rested yet."""
        self._paid_s = 0.0
        """... and for which it has."""
        self._is_over = False
        self._actions: dict[type[Any], Callable[[Any], None]] = {
            link.OfferSlot: self._offer_slot,
            link.DropSlot: lambda command: self._drop_slot(command.slot),
            link.Assign: self._assign,
            link.Add: self._add,
            link.Snapshot: self._snapshot,
            link.CaptureMoments: self._capture_moments,
            link.InstallMoments: self._install_moments,
            link.CutPart: self._cut_part,
            link.RestorePart: self._restore_part,
            link.Park: self._park,
            link.Restore: self._restore,
            link.Blocks: self._blocks,
            link.DropBlocks: self._drop_blocks,
            link.SetProgress: self._set_progress,
            link.SetDuty: self._set_duty,
            link.Evaluate: self._evaluate,
            link.Generate: self._generate,
            link.Begin: self._begin,
            link.Pause: self._pause,
            link.Resume: self._resume,
        }

    def run(self) -> None:
        """Returns after `Quit`. Raises TrainerFailure, LinkClosed, or whatever torch raises."""
        first = self._end.receive(None)
        if isinstance(first, link.Quit):
            return
        if not isinstance(first, link.Configure):
            raise InternalError(f"the first command was {type(first).__name__}, not Configure")
        limit_resources(first)
        self._duty_frac = first.duty_frac
        self._shop = Workshop(first)
        ready = self._shop.ready()
        self._end.send(ready)
        spent_s = sum(ready.startup_s.values())
        say(f"ready on {ready.device} after {spent_s:.1f} s, micro-batch {ready.micro_batch}")
        while not self._is_over:
            may_train = self._may_train()
            command = self._end.receive(self._rest_s() if may_train else None)
            if command is None:
                self._train()
                continue
            if isinstance(command, link.Quit):
                return
            action = self._actions.get(type(command))
            if action is None:
                raise InternalError(f"{type(command).__name__} makes no sense here")
            action(command)
            if not may_train:
                self._boundary = time.monotonic()  # Waiting is not part of a local step's time.

    def _may_train(self) -> bool:
        """Whether a local step is due; says so, once, if only blocks are missing."""
        if not self._has_begun or self._is_paused:
            return False
        if self._shop.loop.can_step:
            return True
        if not self._said_starved:
            self._said_starved = True
            self._end.send(link.Starved(self._shop.loop.local_step))
        return False

    def _rest_s(self) -> float:
        """How long a command may still keep the next local step waiting."""
        return max(0.0, self._rest_until - time.monotonic())

    def _train(self) -> None:
        loop = self._shop.loop
        self._unrested_s = self._paid_s = 0.0
        try:
            done = loop.step(self._between)
        except StepAbandoned:
            return  # A pause is the next command.
        now = time.monotonic()
        step_s, self._boundary = now - self._boundary, now
        self._rest_after(done.work_s - self._paid_s)
        self._end.send(
            link.Stepped(
                local_step=loop.local_step,
                tokens_total=loop.tokens_total,
                loss=done.loss,
                step_s=step_s,
                work_s=done.work_s,
                position=loop.reader.position,
                sequence=loop.reader.sequence,
                learning_rate=done.learning_rate,
                progress=loop.progress,
            )
        )

    def _between(self, work_s: float) -> float:
        """Rests, if enough was worked, until the work is the share of the time that it may be.

        Raises StepAbandoned as soon as a command that allows no more work is waiting.
        """
        self._unrested_s += work_s
        started, owed_s = time.monotonic(), 0.0
        if self._unrested_s >= BURST_S:
            owed_s = self._owed_s(self._unrested_s)
            self._paid_s += self._unrested_s
            self._unrested_s = 0.0
        while True:
            command = self._end.glance(max(0.0, started + owed_s - time.monotonic()))
            if isinstance(command, link.Pause | link.Quit):
                raise StepAbandoned
            if command is None:
                return time.monotonic() - started

    def _owed_s(self, work_s: float) -> float:
        return work_s * (1.0 / self._duty_frac - 1.0)

    def _rest_after(self, work_s: float) -> None:
        self._rest_until = max(self._rest_until, time.monotonic() + self._owed_s(work_s))

    # ------------------------------------------------------------------------------- commands

    def _offer_slot(self, command: link.OfferSlot) -> None:
        self._drop_slot(command.slot)
        descriptor = self._end.take_descriptor()
        self._slots[command.slot] = Slot.attach(command.slot, command.numel, descriptor)

    def _drop_slot(self, identity: int) -> None:
        slot = self._slots.pop(identity, None)
        if slot is not None:
            slot.close()

    def _slot(self, identity: int, numel: int, checksum: link.Checksum = None) -> Slot:
        slot = self._slots.get(identity)
        if slot is None or slot.numel != numel:
            raise InternalError(f"there is no slot {identity} of {numel} elements")
        if checksum is not None and slot.checksum() != checksum:
            raise InternalError(f"the content of slot {identity} changed before it was used")
        return slot

    def _assign(self, command: link.Assign) -> None:
        started = time.monotonic()
        slot = self._slot(command.slot, command.numel, command.checksum)
        self._shop.view.blend(command.fragment, slot.values, command.kept_frac)
        self._assigned.add(command.fragment)
        self._done(command.job, started)

    def _add(self, command: link.Add) -> None:
        started = time.monotonic()
        slot = self._slot(command.slot, command.numel, command.checksum)
        self._shop.view.add(command.fragment, slot.values)
        self._done(command.job, started)

    def _snapshot(self, command: link.Snapshot) -> None:
        started = time.monotonic()
        slot = self._slot(command.slot, command.numel)
        self._shop.view.read(command.fragment, slot.values)
        self._done(command.job, started, slot.checksum() if command.wants_checksum else None)

    def _capture_moments(self, command: link.CaptureMoments) -> None:
        started = time.monotonic()
        slot = self._slot(command.slot, command.numel)
        self._shop.moments.read(command.fragment, slot.values)
        self._done(command.job, started)

    def _install_moments(self, command: link.InstallMoments) -> None:
        started = time.monotonic()
        if self._has_begun:
            raise InternalError("moments came after the first local step")
        slot = self._slot(command.slot, command.numel)
        self._shop.moments.write(command.fragment, slot.values)
        self._seasoned.add(command.fragment)
        self._shop.loop.is_seasoned = len(self._seasoned) == len(self._shop.layout.fragments)
        self._done(command.job, started)

    def _cut_part(self, command: link.CutPart) -> None:
        slot = self._slot(command.slot, command.numel)
        for view, pieces in self._views(slot.values):
            for fragment, piece in enumerate(pieces):
                view.read(fragment, piece)
        self._end.send(link.PartCut(command.job, self._loop_state()))

    def _restore_part(self, command: link.RestorePart) -> None:
        started, shop = time.monotonic(), self._shop
        self._go_on(command.state)
        slot = self._slot(command.slot, command.numel)
        for view, pieces in self._views(slot.values):
            for fragment, piece in enumerate(pieces):
                view.write(fragment, piece)
        self._assigned = set(range(len(shop.layout.fragments)))
        self._done(command.job, started)

    def _views(self, values: Floats) -> list[tuple[FragmentView | MomentsView, list[Floats]]]:
        """The trainer's arrays, and where each of their fragments lies in `values`."""
        fragments = self._shop.layout.fragments
        weights = [fragment.numel for fragment in fragments]
        moments = [moments_numel(fragment) for fragment in fragments]
        pieces = np.split(values, np.cumsum([*weights, *moments])[:-1])
        count = len(fragments)
        return [(self._shop.view, pieces[:count]), (self._shop.moments, pieces[count:])]

    def _done(self, job: int, started: float, checksum: link.Checksum = None) -> None:
        loop = self._shop.loop
        seconds = time.monotonic() - started
        self._end.send(link.Done(job, loop.local_step, loop.tokens_total, seconds, checksum))

    def _blocks(self, command: link.Blocks) -> None:
        self._shop.loop.reader.append(command.ranges, command.start_sequence)
        self._said_starved = False

    def _drop_blocks(self, command: link.DropBlocks) -> None:
        self._shop.loop.reader.clear()
        self._said_starved = False

    def _set_progress(self, command: link.SetProgress) -> None:
        self._shop.loop.progress = command.frac

    def _set_duty(self, command: link.SetDuty) -> None:
        self._duty_frac = command.frac
        # A longer rest begun under the old share would outlast the change.
        self._rest_until = min(self._rest_until, time.monotonic())

    def _evaluate(self, command: link.Evaluate) -> None:
        started = time.monotonic()
        slot = self._slot(command.slot, command.numel, command.checksum)
        sequences = self._shop.corpus.heldout(command.sequences)
        loop, layout = self._shop.loop, self._shop.layout
        self._unrested_s = 0.0
        try:
            loss = loop.evaluate(
                sequences, layout=layout, values=slot.values, between=self._between
            )
        except StepAbandoned:
            loss = math.nan
        tokens = sequences.shape[0] * (sequences.shape[1] - 1)
        seconds = time.monotonic() - started
        self._rest_after(seconds)
        self._end.send(link.Evaluated(command.job, loss, tokens, seconds))

    def _generate(self, command: link.Generate) -> None:
        started = time.monotonic()
        values = None
        if command.slot is not None:
            values = self._slot(command.slot, command.numel, command.checksum).values
        text = self._shop.generate(
            command.prompt,
            command.tokens,
            seed=command.seed,
            temperature=command.temperature,
            values=values,
        )
        self._rest_after(time.monotonic() - started)
        self._end.send(link.Generated(command.job, text))

    def _park(self, command: link.Park) -> None:
        state = self._loop_state()
        say(f"parked after local step {state.local_step}")
        self._end.send(link.Parked(command.job, state))
        self._is_over = True

    def _loop_state(self) -> link.LoopState:
        loop = self._shop.loop
        ranges, position, sequence = loop.reader.mark()
        processor, device = loop.random_state()
        return link.LoopState(
            local_step=loop.local_step,
            tokens_total=loop.tokens_total,
            progress=loop.progress,
            is_seasoned=loop.is_seasoned,
            ranges=ranges,
            position=position,
            sequence=sequence,
            random=processor,
            device_random=device,
        )

    def _restore(self, command: link.Restore) -> None:
        started = time.monotonic()
        self._go_on(command.state)
        self._done(command.job, started)

    def _go_on(self, state: link.LoopState) -> None:
        loop = self._shop.loop
        if self._has_begun:
            raise InternalError("another trainer's state came after the first local step")
        loop.local_step, loop.tokens_total = state.local_step, state.tokens_total
        loop.progress, loop.is_seasoned = state.progress, state.is_seasoned
        loop.reader.go_to(state.ranges, state.position, state.sequence)
        loop.set_random_state(state.random, state.device_random)
        say(f"goes on after local step {state.local_step}")

    def _begin(self, command: link.Begin) -> None:
        missing = set(range(len(self._shop.layout.fragments))) - self._assigned
        if missing:
            raise InternalError(f"begin came before fragments {sorted(missing)} were assigned")
        self._has_begun = True

    def _pause(self, command: link.Pause) -> None:
        self._is_paused = True

    def _resume(self, command: link.Resume) -> None:
        self._is_paused = False


def say(text: str) -> None:
    """Writes a line to the log that the daemon keeps of its trainer."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def _decoded(configure: link.Configure) -> tuple[Genesis, InnerSpec]:
    try:
        genesis = msgspec.msgpack.decode(configure.genesis, type=Genesis)
        inner = msgspec.msgpack.decode(configure.inner, type=InnerSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainerFailure("model", f"The genesis cannot be read ({error}).") from error
    return genesis, inner


def limit_resources(configure: link.Configure) -> None:
    """Sets what must be set before torch is loaded."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(configure.threads)
    if configure.nice:
        os.nice(configure.nice)


@contextmanager
def _failing_device() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        raise TrainerFailure(
            "device", f"The device cannot be used ({error}). Name another one, or `cpu`."
        ) from error
