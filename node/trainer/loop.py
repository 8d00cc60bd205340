"""The inner loop: local steps on leased blocks, and held-out loss of another model.

Every local step reads exactly `batch_sequences` sequences, in the order of the leased positions,
whatever the micro-batch: gradients of micro-batches add up to that of the whole batch. Weights and
moments are f32; on an accelerator the forward pass runs under bf16 autocast.

The learning rate is peak * schedule(progress) * ramp(local step): a linear rise to the peak, a
cosine to the final share, and a short ramp for moments that start from zero. Progress comes from
outside and belongs to the swarm; the ramp belongs to this process.

It does not know of the daemon: `node.trainer.session` and `node.trainer.tools.alone` drive it.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import accelerate
import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.nn import functional

from node.trainer.failures import StepAbandoned, is_out_of_memory
from node.trainer.model import Floats, FragmentView
from node.trainer.moments_view import MomentsView
from node.trainer.optimizers import make_optimizer
from node.trainer.ranks.group import RankGroup, share_of
from node.trainer.text.reader import BlockReader, Pieces, Sequences, part_of
from protocol.fragments import Layout
from protocol.project import InnerSpec

if TYPE_CHECKING:
    from node.trainer.ranks.followers import Followers

WARMUP_FLOOR_FRAC: Final = 0.1
"""The rise starts here, not at zero: progress stands still until the first merge is committed."""

Forward = Callable[..., Any]
"""The model, or what torch compiled of it."""

LossSum = Callable[[Forward, Tensor], Tensor]
"""Summed cross-entropy of the model on sequences [batch, sequence_tokens + 1]."""


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


class InnerLoop:
    """A model in training: its optimizer, its place in the text, its counters."""

    def __init__(
        self,
        model: nn.Module,
        reader: BlockReader,
        inner: InnerSpec,
        *,
        accelerator: accelerate.Accelerator,
        micro_batch: int | None = None,
        loss_sum: LossSum | None = None,
    ) -> None:
        """Moves `model` to the accelerator's device. The optimizer's moments start from zero."""
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.model = model.to(self.device).train()
        self.reader = reader
        self.inner = inner
        self.micro_batch = min(micro_batch or inner.batch_sequences, inner.batch_sequences)
        self.local_step = 0
        self.tokens_total = 0
        self.progress = 0.0
        self.is_seasoned = False
        """The moments are another learner's: no ramp for fresh ones."""
        self.adjustments: list[str] = []
        """What it had to make do without since somebody emptied the list, in words."""
        self._forward: Forward = self.model
        self._loss_sum = loss_sum or cross_entropy_sum
        self._optimizer = make_optimizer(self.model, inner)
        self.before_moving: Callable[[], None] = lambda: None
        """Called before the optimizer moves the weights."""
        self._group: RankGroup | None = None
        self._leading: Followers | None = None

    def join(self, group: RankGroup, leading: Followers | None) -> None:
        """Local steps are taken together with other ranks from now on; rank 0 is the one that
        leads."""
        self._group, self._leading = group, leading

    def moments(self, layout: Layout) -> MomentsView:
        """The optimizer's state as fragments."""
        return MomentsView(self.model, self._optimizer, layout)

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
            self._optimizer.zero_grad(set_to_none=True)
            mark, random = before
            self.reader.go_to(*mark)
            self.set_random_state(*random)
            raise

    def _step(self, between: Between | None) -> LocalStep:
        started, inner = time.monotonic(), self.inner
        ramp_step = max(self.local_step, inner.fresh_moment_steps if self.is_seasoned else 0)
        rate = learning_rate(inner, progress=self.progress, local_step=ramp_step)
        if self._leading is None:
            batch = self.reader.take(inner.batch_sequences)
        else:
            pieces = self.reader.plan(inner.batch_sequences)
            self._leading.share(self.local_step, pieces, rate)
            batch = self._part(pieces)
        loss, tokens, rested_s = self._move(batch, rate, between)
        self.local_step += 1
        self.tokens_total += tokens
        return LocalStep(loss, time.monotonic() - started - rested_s, rate)

    def follow(self, pieces: Pieces, rate: float, between: Between) -> None:
        """This rank's part of a local step that rank 0 leads, whether it comes to count or not."""
        try:
            self._move(self._part(pieces), rate, between)
        except StepAbandoned:
            self._optimizer.zero_grad(set_to_none=True)

    def _part(self, pieces: Pieces) -> Sequences:
        """What this rank reads of a batch."""
        group = self._group
        assert group is not None, "one rank reads all of it"
        cut = share_of(group.rank, group.ranks, self.inner.batch_sequences)
        return self.reader.read(part_of(pieces, *cut))

    def _move(
        self, batch: Sequences, rate: float, between: Between | None
    ) -> tuple[float, int, float]:
        """Moves the weights by the batch of which this rank has its part: loss, tokens, seconds of
        rest."""
        group = self._group
        sequences = len(batch) if group is None else self.inner.batch_sequences
        tokens = sequences * (batch.shape[1] - 1)
        try:
            loss, rested_s = self._gradients(batch, tokens, between)
        except StepAbandoned:
            if self._leading is not None:
                self._leading.abandon()
            if group is not None:
                group.agree(0.0, is_abandoned=True)
            raise
        if group is not None:
            agreed = group.agree(loss, is_abandoned=False)
            if agreed is None:
                raise StepAbandoned
            loss = agreed
            group.add_up(list(self.model.parameters()))
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.inner.grad_norm_max)
        if math.isfinite(float(norm)):
            for one in self._optimizer.param_groups:
                one["lr"] = rate
            self.before_moving()
            self._optimizer.step()
            if self.device.type == "xla":
                self._run_what_was_noted()
        else:
            loss = math.nan  # One bad batch must not turn every weight into NaN.
        self._optimizer.zero_grad(set_to_none=True)
        return loss, tokens, rested_s

    def _gradients(
        self, batch: Sequences, tokens: int, between: Between | None
    ) -> tuple[float, float]:
        """Adds up the gradients of a batch's mean loss over `tokens`: its part of that loss, and
        seconds of rest.

        What can be made do without is: where memory runs out, the batch is done again in smaller
        pieces. Nothing has moved by then, so nothing is lost.
        """
        random = self.random_state()
        while True:
            try:
                return self._accumulate(batch, tokens, between)
            except (RuntimeError, MemoryError) as error:
                self._make_do(error)
            # Behind the handler: what the failed pass held is free only now.
            self._optimizer.zero_grad(set_to_none=True)
            self.set_random_state(*random)
            free_device_memory(self.device)

    def _accumulate(
        self, batch: Sequences, tokens: int, between: Between | None
    ) -> tuple[float, float]:
        loss, rested_s, since = 0.0, 0.0, time.monotonic()
        for first in range(0, len(batch), self.micro_batch):
            if first and between is not None:
                rested_s += between(time.monotonic() - since)
                since = time.monotonic()
            loss += self._pass(batch[first : first + self.micro_batch], tokens)
        return loss, rested_s

    def _pass(self, sequences: Sequences, tokens: int) -> float:
        """Forward and backward: the loss of these sequences over `tokens`."""
        piece = torch.from_numpy(sequences).to(self.device)
        with self.accelerator.autocast():
            share = self._loss_sum(self._forward, piece) / tokens
        self.accelerator.backward(share)
        return float(share.detach())

    def _make_do(self, error: RuntimeError | MemoryError) -> None:
        """Goes on with less, and says so; raises `error` again where there is nothing to spare."""
        if is_out_of_memory(error):
            if self.micro_batch == 1:
                raise error
            self.micro_batch = (self.micro_batch + 1) // 2
            self.adjustments.append(
                f"memory ran out; the trainer continues with a micro-batch of {self.micro_batch}"
            )
        elif self._forward is not self.model:
            self._forward = self.model
            words = " ".join(str(error).split())[:200]
            self.adjustments.append(f"torch.compile failed; continuing without it ({words})")
        else:
            raise error

    def compile(self) -> None:
        """Forward and backward passes are compiled from now on; by torch, at the first one."""
        self._forward = torch.compile(self.model)

    @property
    def is_compiled(self) -> bool:
        return self._forward is not self.model

    def rehearse(self, sequences: Sequences) -> None:
        """A forward and a backward pass as in a local step, whose gradients stay.

        Raises what the device raises where memory is short; a compiler that fails is left out.
        """
        random = self.random_state()
        try:
            self._pass(sequences, sequences.size)
        except RuntimeError as error:
            if is_out_of_memory(error) or not self.is_compiled:
                raise
            self._make_do(error)
            self._pass(sequences, sequences.size)
        finally:
            self.set_random_state(*random)

    def take_adjustments(self) -> tuple[str, ...]:
        """The list of them, which is empty then."""
        taken, self.adjustments = tuple(self.adjustments), []
        return taken

    def forget_gradients(self) -> None:
        """Frees what rehearsals left."""
        self._optimizer.zero_grad(set_to_none=True)
        free_device_memory(self.device)

    def _run_what_was_noted(self) -> None:
        """XLA notes operations down and runs them when asked to. Untested on a real device."""
        torch_xla: Any = import_module("torch_xla")
        torch_xla.sync()

    def random_state(self) -> tuple[bytes, bytes]:
        """The random streams on the processor and, where it has one of its own, on the device."""
        device = b""
        if self.device.type == "cuda":
            device = bytes(torch.cuda.get_rng_state(self.device).numpy().data)
        return bytes(torch.get_rng_state().numpy().data), device

    def set_random_state(self, processor: bytes, device: bytes) -> None:
        """Goes on with these streams."""
        torch.set_rng_state(torch.frombuffer(bytearray(processor), dtype=torch.uint8))
        if device and self.device.type == "cuda":
            state = torch.frombuffer(bytearray(device), dtype=torch.uint8)
            torch.cuda.set_rng_state(state, self.device)

    def evaluate(
        self,
        sequences: Sequences,
        *,
        layout: Layout,
        values: Floats,
        between: Between | None = None,
    ) -> float:
        """Loss in nats per token, in f32-summed order, of the model whose fragments are `values`.

        sequences: [n, sequence_tokens + 1]; values: every fragment, one after the other. The model
        in training and its random stream are not touched. Cost: a second copy of the weights.
        """
        with self.other_model(layout, values) as model, torch.no_grad():
            total = 0.0
            for first in range(0, len(sequences), self.micro_batch):
                if first and between is not None:
                    between(0.0)
                piece = torch.from_numpy(sequences[first : first + self.micro_batch])
                with self.accelerator.autocast():
                    total += float(self._loss_sum(model, piece.to(self.device)))
        tokens: int = len(sequences) * (sequences.shape[1] - 1)
        return total / tokens

    @contextmanager
    def other_model(self, layout: Layout, values: Floats | None) -> Iterator[nn.Module]:
        """A copy of the model to read, with other weights if given; random state is restored."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            model = copy.deepcopy(self.model).eval()
            if values is not None:
                FragmentView(model, layout).write_all(values)
            yield model


def free_device_memory(device: torch.device) -> None:
    """Gives back what torch keeps for later, so that larger pieces can be had."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def cross_entropy_sum(model: Forward, sequences: Tensor) -> Tensor:
    """Summed cross-entropy of each token given those before it, in f32 whatever the autocast."""
    logits = model(input_ids=sequences[:, :-1], use_cache=False).logits
    targets = sequences[:, 1:].reshape(-1)
    flat = logits.float().view(-1, logits.shape[-1])
    return functional.cross_entropy(flat, targets, reduction="sum")


def learning_rate(inner: InnerSpec, *, progress: float, local_step: int) -> float:
    """The rate of the local step with this number (from 0) at this share of the token budget."""
    if progress < inner.warmup_frac:
        share = WARMUP_FLOOR_FRAC + (1.0 - WARMUP_FLOOR_FRAC) * progress / inner.warmup_frac
    else:
        span = max(1.0 - inner.warmup_frac, 1e-9)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, (progress - inner.warmup_frac) / span)))
        floor = inner.final_learning_rate_frac
        share = floor + (1.0 - floor) * cosine
    fresh = inner.fresh_moment_steps
    ramp = min(1.0, (local_step + 1) / fresh) if fresh else 1.0
    return inner.learning_rate * share * ramp


def make_accelerator(device: str | None) -> accelerate.Accelerator:
    """Device and precision: bf16 autocast where the device does it in hardware, else f32.

    `device` None takes what `accelerate` prefers. Process-wide: the first call decides. Raises
    whatever torch raises where the device does not exist.
    """
    if device == "xla":
        import_module("torch_xla")  # Without it torch knows no such device, and accelerate neither.
    elif device not in (None, "cpu"):
        torch.zeros(1, device=device)  # Fails here, with torch's own words, not in the first step.
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    on_cpu = device == "cpu"
    kind = accelerate.PartialState(cpu=on_cpu).device.type
    # Devices that would only emulate it are faster in f32.
    on_cuda = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    has_bf16 = on_cuda or kind in ("xpu", "xla")
    return accelerate.Accelerator(cpu=on_cpu, mixed_precision="bf16" if has_bf16 else "no")


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
