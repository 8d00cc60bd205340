"""The inner loop: local steps on leased blocks, and held-out loss of other weights.

Every local step reads exactly `batch_sequences` sequences, in the order of the leased positions.
What a step does with them is its trainer's business (`node.trainer.own.interface`): that of Shoal
is `node.trainer.builtin`.

The learning rate is peak * schedule(progress) * ramp(local step): a linear rise to the peak, a
cosine to the final share, and a short ramp for moments that start from zero. Progress comes from
outside and belongs to the swarm; the ramp belongs to this process.

It does not know of the daemon: `node.trainer.session` and `node.trainer.tools.alone` drive it.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Generic, Protocol, TypeVar, cast, runtime_checkable

import accelerate
import torch
from blake3 import blake3

from host.runtime import processor
from node.trainer.failures import StepAbandoned
from node.trainer.model import Floats, FragmentView
from node.trainer.moments_view import MomentsView
from node.trainer.own.interface import Samples, Trainer, Twinned, Work
from node.trainer.text.reader import BlockReader, Pieces
from protocol.fragments import Layout
from protocol.project import InnerSpec

T_co = TypeVar("T_co", bound=Trainer, covariant=True)

BF16_PARAMETERS_MIN: Final = 500_000
"""On a processor. Smaller models lose more by conversions than they gain: benchmarks/bf16.py has
the figures."""

WARMUP_FLOOR_FRAC: Final = 0.1
"""The rise starts here, not at zero: progress stands still until the first merge is committed."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """What one local step did."""

    loss: float
    """Nats per token; NaN if gradients were not finite and the weights were left alone."""
    work_s: float
    learning_rate: float


Between = Callable[[float], float]
"""Called between micro-batches with the seconds of work since the last call; returns the seconds
that it rested. May raise StepAbandoned."""

Worked = Callable[[float], None]
"""Called behind each micro-batch with the seconds that it took; may raise StepAbandoned."""


@runtime_checkable
class InParts(Protocol):
    """A trainer that holds a part of each tensor, and so reads and writes fragments its own way."""

    def fragment_view(self, layout: Layout) -> FragmentView: ...

    def moments_view(self, layout: Layout) -> MomentsView: ...


def view_of(trainer: Trainer, layout: Layout) -> FragmentView:
    """A trainer's weights as fragments."""
    one: object = trainer
    if isinstance(one, InParts):
        return one.fragment_view(layout)
    return FragmentView(trainer.tensors(), layout)


class InnerLoop(Generic[T_co]):
    """A trainer's place in the text, its counters, its schedule."""

    def __init__(
        self,
        trainer: T_co,
        reader: BlockReader,
        inner: InnerSpec,
        *,
        device: torch.device,
        adjustments: list[str] | None = None,
    ) -> None:
        """adjustments: where the trainer puts what it has to make do without."""
        self.trainer = trainer
        self.device = device
        self.reader = reader
        self.inner = inner
        self.local_step = 0
        self.tokens_total = 0
        self.progress = 0.0
        self.is_seasoned = False
        """The moments are another learner's: no ramp for fresh ones."""
        self.adjustments = adjustments if adjustments is not None else []
        """What it had to make do without since somebody emptied the list, in words."""
        self.before_moving: Callable[[], None] = lambda: None
        """Called before the optimizer moves the weights."""
        self._put_aside = (b"", b"")
        """The random stream of the training while something is measured."""

    def view(self, layout: Layout) -> FragmentView:
        """The weights as fragments."""
        return view_of(self.trainer, layout)

    def moments(self, layout: Layout) -> MomentsView:
        """The optimizer's state as fragments."""
        trainer: object = self.trainer
        if isinstance(trainer, InParts):
            return trainer.moments_view(layout)
        return MomentsView(self.trainer, layout)

    @property
    def can_step(self) -> bool:
        """Whether the queue holds a whole local step."""
        return self.reader.available >= self.inner.batch_sequences

    def step(self, between: Between | None = None) -> LocalStep:
        """Reads one batch and moves the weights; `can_step` must hold.

        If `between` raises StepAbandoned, nothing has happened: weights, moments, the place in the
        text and the random stream are as before.
        """
        before = self.reader.mark(), self.random_state()
        try:
            return self._step(between)
        except StepAbandoned:
            mark, random = before
            self.reader.go_to(*mark)
            self.set_random_state(*random)
            raise

    def _step(self, between: Between | None) -> LocalStep:
        started, inner = time.monotonic(), self.inner
        ramp_step = max(self.local_step, inner.fresh_moment_steps if self.is_seasoned else 0)
        rate = learning_rate(inner, progress=self.progress, local_step=ramp_step)
        work = self._work(self.reader.plan(inner.batch_sequences), rate, between)
        loss = self.trainer.step(work)
        if self.device.type == "xla":
            _run_what_was_noted()
        self.local_step += 1
        self.tokens_total += work.count * self.reader.sample_tokens
        return LocalStep(loss, time.monotonic() - started - work.rested_s, rate)

    def follow(self, pieces: Pieces, rate: float, between: Between) -> None:
        """This rank's part of a local step that rank 0 leads, whether it comes to count or not."""
        with suppress(StepAbandoned):
            self.trainer.step(self._work(pieces, rate, between))

    def _work(self, pieces: Pieces, rate: float, between: Between | None) -> Work:
        if not getattr(self.trainer, "announces_moves", False):
            self.before_moving()  # It may move them at any moment from here on.
        return Work(
            self.reader.read,
            pieces,
            learning_rate=rate,
            local_step=self.local_step,
            progress=self.progress,
            between=between,
            moving=lambda: self.before_moving(),
        )

    def take_adjustments(self) -> tuple[str, ...]:
        """The list of them, which is empty then."""
        taken = tuple(self.adjustments)
        self.adjustments.clear()
        return taken

    def random_state(self) -> tuple[bytes, bytes]:
        """The random streams on the processor and, where it has one of its own, on the device."""
        return random_state(self.device)

    def set_random_state(self, processor: bytes, device: bytes) -> None:
        """Goes on with these streams."""
        set_random_state(self.device, processor, device)

    def evaluate(
        self,
        sequences: Samples,
        *,
        layout: Layout,
        values: Floats,
        worked: Worked | None = None,
    ) -> float:
        """Mean loss, as the trainer measures it, of the weights whose fragments are `values`.

        values: every fragment, one after the other; worked: called between micro-batches, may raise
        StepAbandoned. The weights in training and the random stream are not touched. Cost: a second
        copy of what is trained.
        """
        since = time.monotonic()

        def rest() -> None:
            nonlocal since
            if worked is not None:
                worked(time.monotonic() - since)
            since = time.monotonic()

        with self.other(layout, values) as trainer, torch.no_grad():
            return trainer.heldout_loss(sequences, rest)

    @contextmanager
    def other(self, layout: Layout, values: Floats | None) -> Iterator[T_co]:
        """The trainer with other weights, if given, to measure with; random state is restored.

        Where it cannot be copied, local steps must wait until this is over.
        """
        self._put_aside = self.random_state()
        try:
            trainer: object = self.trainer
            if isinstance(trainer, Twinned):
                twin = cast(T_co, trainer.twin())
                if values is not None:
                    view_of(twin, layout).write_all(values)
                yield twin
                return
            view = self.view(layout)
            kept = view.copies() if values is not None else []
            try:
                if values is not None:
                    view.write_all(values)
                yield self.trainer
            finally:
                for fragment, own in enumerate(kept):
                    view.write(fragment, own)
        finally:
            self.set_random_state(*self._put_aside)

    def step_amid(self, between: Between | None = None) -> LocalStep:
        """A local step while `other` holds, whose trainer must be a twin: the random stream of the
        training goes on as if nothing were measured."""
        measuring = self.random_state()
        self.set_random_state(*self._put_aside)
        try:
            with torch.enable_grad():
                return self.step(between)
        finally:
            self._put_aside = self.random_state()
            self.set_random_state(*measuring)


def _run_what_was_noted() -> None:
    """XLA notes operations down and runs them when asked to. Untested on a real device."""
    import_module("torch_xla").sync()


def random_state(device: torch.device) -> tuple[bytes, bytes]:
    """The random streams on the processor and, where it has one of its own, on the device."""
    there = b""
    if device.type == "cuda":
        there = bytes(torch.cuda.get_rng_state(device).numpy().data)
    return bytes(torch.get_rng_state().numpy().data), there


def set_random_state(device: torch.device, processor: bytes, there: bytes) -> None:
    """Goes on with these streams."""
    torch.set_rng_state(torch.frombuffer(bytearray(processor), dtype=torch.uint8))
    if there and device.type == "cuda":
        state = torch.frombuffer(bytearray(there), dtype=torch.uint8)
        torch.cuda.set_rng_state(state, device)


def free_device_memory(device: torch.device) -> None:
    """Gives back what torch keeps for later, so that larger pieces can be had."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def learning_rate(inner: InnerSpec, *, progress: float, local_step: int) -> float:
    """The rate of the local step with this number (from 0) at this share of the token budget."""
    if progress < inner.warmup_frac:
        share = WARMUP_FLOOR_FRAC + (1.0 - WARMUP_FLOOR_FRAC) * progress / inner.warmup_frac
    else:
        floor = inner.final_learning_rate_frac
        share = floor + (1.0 - floor) * _left(inner, progress)
    fresh = inner.fresh_moment_steps
    ramp = min(1.0, (local_step + 1) / fresh) if fresh else 1.0
    return inner.learning_rate * share * ramp


def _left(inner: InnerSpec, progress: float) -> float:
    """How much of the rate's way down is left, from 1 to 0."""
    if inner.schedule == "wsd":
        return min(1.0, max(0.0, 1.0 - progress) / inner.decay_frac)
    span = max(1.0 - inner.warmup_frac, 1e-9)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (progress - inner.warmup_frac) / span)))


def make_accelerator(
    device: str | None, *, parameters: int = 0, in_f32: bool = False
) -> accelerate.Accelerator:
    """Device and precision: bf16 autocast where it makes passes faster, else f32.

    `device` None takes what `accelerate` prefers. parameters: of the model, frozen ones included;
    on a processor small ones stay in f32. in_f32: whatever would be faster. Process-wide: the first
    call decides. Raises whatever torch raises where the device does not exist.
    """
    if device == "xla":
        import_module("torch_xla")  # Without it torch knows no such device, and accelerate neither.
    elif device not in (None, "cpu"):
        torch.zeros(1, device=device)  # Fails here, with torch's own words, not in the first step.
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    on_cpu = device == "cpu"
    kind = accelerate.PartialState(cpu=on_cpu).device.type
    is_bf16 = not in_f32 and is_in_bf16(kind, parameters)
    return accelerate.Accelerator(cpu=on_cpu, mixed_precision="bf16" if is_bf16 else "no")


def is_in_bf16(kind: str, parameters: int) -> bool:
    """Whether passes of a model of so many parameters are faster in bf16 on a device of this kind.

    One that has no instructions for it would only emulate it, which is slower than f32.
    """
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind == "cpu":
        has_kernels = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return parameters >= BF16_PARAMETERS_MIN and has_kernels and processor.has_bf16()
    return kind in ("xpu", "xla")


def best_kind() -> str:
    """The kind of the best device here, as torch calls it."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def seed_random_stream(seed: int, salt: int, *, rank: int = 0, local_step: int = 0) -> None:
    """Seeds torch's global generators from the project's seed and this learner's salt.

    Ranks other than 0 do so for every local step, so that there is nothing of theirs to keep.
    """
    material = seed.to_bytes(8, "little") + salt.to_bytes(8, "little")
    if rank:
        material += rank.to_bytes(8, "little") + local_step.to_bytes(8, "little")
    drawn = blake3(material, derive_key_context="shoal 1 trainer random stream").digest(8)
    torch.manual_seed(int.from_bytes(drawn, "little") >> 1)
