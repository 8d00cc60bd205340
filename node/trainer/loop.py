"""The inner loop: local steps on leased blocks, and held-out loss of another model.

Every local step reads exactly `batch_sequences` sequences, in the order of the leased positions,
whatever the micro-batch: gradients of micro-batches add up to that of the whole batch. Weights and
moments are f32; on an accelerator the forward pass runs under bf16 autocast.

The learning rate is peak * schedule(progress) * ramp(local step): a linear rise to the peak, a
cosine to the final share, and a short ramp for moments that start from zero. Progress comes from
outside and belongs to the swarm; the ramp belongs to this process.

It does not know of the daemon: `node.trainer.session` and `node.trainer.alone` drive it.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import accelerate
import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from node.trainer.failures import StepAbandoned
from node.trainer.model import Floats, FragmentView
from node.trainer.moments import MomentsView
from node.trainer.optimizers import make_optimizer
from protocol.errors import InternalError
from protocol.fragments import Layout
from protocol.project import InnerSpec

Sequences = NDArray[np.int64]

WARMUP_FLOOR_FRAC: Final = 0.1
"""The rise starts here, not at zero: progress stands still until the first merge is committed."""

LossSum = Callable[[nn.Module, Tensor], Tensor]
"""Summed cross-entropy of the model on sequences [batch, sequence_tokens + 1]."""


class SequenceSource(Protocol):
    """Where the sequences of a leased position come from; `node.trainer.data.Corpus` is one."""

    def sequences(self, position: int) -> Sequences:
        """[block_sequences, sequence_tokens + 1] token ids."""


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


Ranges = tuple[tuple[int, int, int], ...]
"""Positions [start, stop) and the sequences of the first that are read."""


class BlockReader:
    """Leased positions in the order they came, read sequence by sequence."""

    def __init__(self, source: SequenceSource, *, block_sequences: int) -> None:
        self._source = source
        self._block_sequences = block_sequences
        self._ranges: deque[tuple[int, int, int]] = deque()
        """Positions [start, stop) and the sequences of the first that are read."""
        self._block: tuple[int, Sequences] | None = None
        self.available = 0
        """Sequences leased and not yet read."""
        self.position = 0
        """Leased position last read from."""
        self.sequence = 0
        """Sequences of that block that are read."""

    def append(self, ranges: tuple[tuple[int, int], ...], start_sequence: int = 0) -> None:
        """Adds positions [start, stop), the very first block without its first `start_sequence`.

        InternalError if a range is empty or a block has no such sequence.
        """
        if not 0 <= start_sequence <= self._block_sequences:
            raise InternalError(f"a block has no sequence {start_sequence}")
        for start, stop in ranges:
            if start >= stop:
                raise InternalError(f"positions {start} to {stop} are no range")
            self._push(start, stop, start_sequence)
            self.available += (stop - start) * self._block_sequences - start_sequence
            start_sequence = 0

    def mark(self) -> tuple[Ranges, int, int]:
        """Where it stands: what is left to read, position and sequence last read."""
        return tuple(self._ranges), self.position, self.sequence

    def go_to(self, ranges: Ranges, position: int, sequence: int) -> None:
        """Stands where it stood at a mark; the text is read again from there."""
        self._ranges = deque(ranges)
        self.position, self.sequence = position, sequence
        self.available = sum(
            (stop - start) * self._block_sequences - first for start, stop, first in ranges
        )

    def clear(self) -> None:
        """Forgets everything not yet read."""
        self._ranges.clear()
        self.available = 0

    def take(self, count: int) -> Sequences:
        """The next `count` sequences, [count, sequence_tokens + 1]; there must be that many."""
        assert 0 < count <= self.available
        pieces = []
        wanted = count
        while wanted:
            start, stop, first = self._ranges.popleft()
            piece = self._read(start)[first : first + wanted]
            pieces.append(piece)
            wanted -= len(piece)
            self.position, self.sequence = start, first + len(piece)
            self._push(start, stop, self.sequence, in_front=True)
        self.available -= count
        return np.concatenate(pieces)

    def _push(self, start: int, stop: int, first: int, *, in_front: bool = False) -> None:
        if first == self._block_sequences:
            start, first = start + 1, 0
        if start < stop:
            entry = (start, stop, first)
            self._ranges.appendleft(entry) if in_front else self._ranges.append(entry)

    def _read(self, position: int) -> Sequences:
        if self._block is None or self._block[0] != position:
            self._block = (position, self._source.sequences(position))
        return self._block[1]


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
        self._loss_sum = loss_sum or cross_entropy_sum
        self._optimizer = make_optimizer(self.model, inner)

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
        started, rested_s = time.monotonic(), 0.0
        batch = self.reader.take(self.inner.batch_sequences)
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        inner = self.inner
        ramp_step = max(self.local_step, inner.fresh_moment_steps if self.is_seasoned else 0)
        rate = learning_rate(inner, progress=self.progress, local_step=ramp_step)
        loss, since = 0.0, started
        for first in range(0, len(batch), self.micro_batch):
            if first and between is not None:
                rested_s += between(time.monotonic() - since)
                since = time.monotonic()
            piece = torch.from_numpy(batch[first : first + self.micro_batch]).to(self.device)
            with self.accelerator.autocast():
                share = self._loss_sum(self.model, piece) / tokens
            self.accelerator.backward(share)
            loss += float(share.detach())
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.inner.grad_norm_max)
        if math.isfinite(float(norm)):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        else:
            loss = math.nan  # One bad batch must not turn every weight into NaN.
        self._optimizer.zero_grad(set_to_none=True)
        self.local_step += 1
        self.tokens_total += tokens
        return LocalStep(loss, time.monotonic() - started - rested_s, rate)

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


def cross_entropy_sum(model: nn.Module, sequences: Tensor) -> Tensor:
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
    if device not in (None, "cpu"):
        torch.zeros(1, device=device)  # Fails here, with torch's own words, not in the first step.
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    on_cpu = device == "cpu"
    kind = accelerate.PartialState(cpu=on_cpu).device.type
    has_bf16 = kind == "xpu" or (kind == "cuda" and torch.cuda.is_bf16_supported())
    return accelerate.Accelerator(cpu=on_cpu, mixed_precision="bf16" if has_bf16 else "no")


def seed_random_stream(seed: int, salt: int) -> None:
    """Seeds torch's global generators from the project's seed and this learner's salt."""
    material = seed.to_bytes(8, "little") + salt.to_bytes(8, "little")
    drawn = blake3(material, derive_key_context="shoal 1 trainer random stream").digest(8)
    torch.manual_seed(int.from_bytes(drawn, "little") >> 1)
