"""The trainer that Shoal brings: models of `transformers`, AdamW or Muon, several devices.

Every local step reads its batch in micro-batches whose gradients add up to that of the whole.
Weights and moments are f32. The forward pass runs under bf16 autocast where that is faster
(`node.trainer.loop.is_in_bf16`).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import accelerate
import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from node.trainer.failures import StepAbandoned, is_out_of_memory
from node.trainer.loop import InnerLoop, free_device_memory, random_state, set_random_state
from node.trainer.objective import Forward, LossSum, Objective, next_token
from node.trainer.optimizers import (
    EightBitAdamW,
    InnerOptimizer,
    MuonAndAdamW,
    make_optimizer,
)
from node.trainer.own.interface import Losses, Rest, Samples, State, Work
from node.trainer.ranks.group import RankGroup, share_of
from node.trainer.text.reader import BlockReader
from protocol.project import DocumentRule, InnerSpec

if TYPE_CHECKING:
    from node.trainer.ranks.followers import Followers


class BuiltinTrainer:
    """A model, what it is to say, and its optimizer."""

    announces_moves = True
    is_sharded = False
    """This rank holds a part of each tensor (`node.trainer.ranks.sharded`)."""

    def __init__(
        self,
        model: nn.Module,
        inner: InnerSpec,
        *,
        accelerator: accelerate.Accelerator,
        micro_batch: int | None = None,
        objective: Objective,
        positions: int | None = None,
        tell: Callable[[str], None] = lambda words: None,
        optimizer_in_8_bits: bool = False,
    ) -> None:
        """Moves `model` to the accelerator's device. The optimizer's moments start from zero.

        tell: is told what it has to make do without. UserError if the optimizer is not available.
        """
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.model = self._placed(model).train()
        self.inner = inner
        self.micro_batch = min(micro_batch or inner.batch_sequences, inner.batch_sequences)
        self.positions = positions
        self._tell = tell
        self._forward: Forward = self.model
        self.is_checkpointed = False
        """Activations are computed again in the backward pass."""
        self.objective = objective
        self.optimizer: InnerOptimizer = make_optimizer(
            self.model, inner, in_8_bits=optimizer_in_8_bits
        )
        self._group: RankGroup | None = None
        self._leading: Followers | None = None

    def _placed(self, model: nn.Module) -> nn.Module:
        """The model on this rank's device."""
        return model.to(self.device)

    def take_batch(self, sequences: int) -> None:
        """How many sequences every local step takes from now on."""
        self.inner = msgspec.structs.replace(self.inner, batch_sequences=sequences)

    def join(self, group: RankGroup, leading: Followers | None) -> None:
        """Local steps are taken together with other ranks from now on; rank 0 is the one that
        leads."""
        self._group, self._leading = group, leading

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model."""
        return dict(self.model.named_parameters())

    def step(self, work: Work) -> float:
        """Moves the weights by the batch of which this rank has its part: its mean loss."""
        group = self._group
        if self._leading is not None:
            self._leading.share(work.local_step, work.pieces, work.learning_rate)
        cut = (0, work.count) if group is None else share_of(group.rank, group.ranks, work.count)
        try:
            return self._move(work.part(*cut), work)
        except StepAbandoned:
            self.optimizer.zero_grad(set_to_none=True)
            raise

    def _move(self, batch: Samples, work: Work) -> float:
        group = self._group
        # Of the whole batch: what is learned may lie in the parts of other ranks.
        terms = self.objective.terms(batch if group is None else work.samples)
        try:
            loss = self._gradients(batch, terms, work.rest)
        except StepAbandoned:
            self._give_up()
            raise
        if group is not None:
            agreed = group.agree(loss, is_abandoned=False)
            if agreed is None:
                raise StepAbandoned
            loss = agreed
            self._add_up(group)
        if math.isfinite(self._clip()):
            for one in self.optimizer.param_groups:
                one["lr"] = work.learning_rate
            work.moving()
            self.optimizer.step()
        else:
            loss = math.nan  # One bad batch must not turn every weight into NaN.
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _give_up(self) -> None:
        """The other ranks hear that this step shall not count."""
        if self._leading is not None:
            self._leading.abandon()
        if self._group is not None:
            self._group.agree(0.0, is_abandoned=True)

    def _add_up(self, group: RankGroup) -> None:
        """Every gradient becomes that of the whole batch."""
        group.add_up(list(self.model.parameters()))

    def _clip(self) -> float:
        """Shortens the gradient to the norm that the project allows; the norm that it had."""
        largest = self.inner.grad_norm_max
        return float(self.accelerator.clip_grad_norm_(self.model.parameters(), largest))

    def _gradients(self, batch: Samples, terms: int, rest: Rest) -> float:
        """Adds up the gradients of a batch's mean loss over `terms`: its part of that loss.

        What can be made do without is: where memory runs out, the batch is done again in smaller
        pieces. Nothing has moved by then, so nothing is lost.
        """
        random = random_state(self.device)
        while True:
            try:
                return self._accumulate(batch, terms, rest)
            except (RuntimeError, MemoryError) as error:
                self._make_do(error)
            # Behind the handler: what the failed pass held is free only now.
            self.optimizer.zero_grad(set_to_none=True)
            set_random_state(self.device, *random)
            free_device_memory(self.device)

    def _accumulate(self, batch: Samples, terms: int, rest: Rest) -> float:
        loss = 0.0
        for first in range(0, len(batch), self.micro_batch):
            if first:
                rest()
            loss += self._pass(batch[first : first + self.micro_batch], terms)
        return loss

    def _pass(self, samples: Samples, terms: float) -> float:
        """Forward and backward: the loss of these samples over `terms`."""
        piece = torch.from_numpy(samples).to(self.device)
        with self.accelerator.autocast():
            share = self.objective.lowered(self._forward, piece) / terms
        self.accelerator.backward(share)
        return float(share.detach())

    def _make_do(self, error: RuntimeError | MemoryError) -> None:
        """Goes on with less, and says so; raises `error` again where there is nothing to spare."""
        if is_out_of_memory(error):
            if self.micro_batch > 1:
                self.micro_batch = (self.micro_batch + 1) // 2
                how = f"with a micro-batch of {self.micro_batch}"
            elif self.checkpoint_activations():
                how = "and computes activations again in the backward pass, to save memory"
            else:
                raise error
            self._tell(f"memory ran out; the trainer continues {how}")
        elif self._forward is not self.model:
            self._forward = self.model
            words = " ".join(str(error).split())[:200]
            self._tell(f"torch.compile failed; continuing without it ({words})")
        else:
            raise error

    def checkpoint_activations(self) -> bool:
        """Activations are computed again in backward passes from now on, where they were kept:
        less memory, the same gradients, about a third more time (arXiv 1604.06174).

        False where nothing changes: the model cannot, or does so already.
        """
        if self.is_checkpointed or not getattr(
            self.model, "supports_gradient_checkpointing", False
        ):
            return False
        # Newer versions of `transformers` call it by another name.
        is_new = hasattr(self.model, "activation_checkpointing_enable")
        word = "activation" if is_new else "gradient"
        enable: Callable[..., None] = getattr(self.model, f"{word}_checkpointing_enable")
        enable(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
        self.is_checkpointed = True
        return True

    def compile(self) -> None:
        """Forward and backward passes are compiled from now on; by torch, at the first one."""
        self._forward = torch.compile(self.model)

    @property
    def is_compiled(self) -> bool:
        return self._forward is not self.model

    def rehearse(self, count: int) -> None:
        """A forward and a backward pass over so many samples as in a local step, whose gradients
        stay.

        Raises what the device raises where memory is short; a compiler that fails is left out.
        """
        samples = self.objective.blank(count)
        random = random_state(self.device)
        try:
            self._pass(samples, samples.size)
        except RuntimeError as error:
            if is_out_of_memory(error) or not self.is_compiled:
                raise
            self._make_do(error)
            self._pass(samples, samples.size)
        finally:
            set_random_state(self.device, *random)

    def least(self, number: int) -> int:
        """The smallest of those that ranks which compute in step have; its own, where they do
        not."""
        return number

    def trained_bytes(self) -> int:
        """Of the trained tensors, as far as this rank holds them."""
        return sum(one.nbytes for one in self.model.parameters() if one.requires_grad)

    def forget_gradients(self) -> None:
        """Frees what rehearsals left."""
        self.optimizer.zero_grad(set_to_none=True)
        free_device_memory(self.device)

    # The optimizer's state.

    def moments_bytes(self) -> int:
        """What the moments take once every tensor has moved, as far as this rank holds them."""
        trained = self.trained_bytes()
        return trained // 2 if isinstance(self.optimizer, EightBitAdamW) else 2 * trained

    def state(self) -> State:
        """AdamW's two moments and its counter; Muon's momentum is a first moment."""
        return _Kept(self.optimizer, self.tensors())

    def load_state(self, state: State) -> None:
        """Replaces what is kept of these tensors."""
        tensors = self.tensors()
        for name, given in state.items():
            tensor, optimizer = tensors[name], self.optimizer
            home: MutableMapping[Tensor, Any]
            if isinstance(optimizer, EightBitAdamW):
                optimizer.put(tensor, given)
                continue
            if not isinstance(optimizer, MuonAndAdamW):
                home = optimizer.state
            else:
                home = optimizer.home_of(tensor)
                if optimizer.has_in_muon(tensor):
                    home[tensor] = {"momentum_buffer": given["first"]} if given["step"] else {}
                    continue
            home[tensor] = {
                # The fused kernel wants its counter where the tensor is.
                "step": given["step"].to(tensor.device),
                "exp_avg": given["first"],
                "exp_avg_sq": given["second"],
            }

    # Measuring.

    def twin(self) -> Self:
        """The same with a copy of the model, to read; it has no optimizer of its own.

        What is frozen is not copied.
        """
        frozen = {id(one): one for one in self.model.parameters() if not one.requires_grad}
        other = copy.copy(self)
        other._forward = other.model = copy.deepcopy(self.model, frozen).eval()
        return other

    def _look(self, loss: LossSum, samples: Samples) -> Tensor:
        """What the model says of samples, without gradients wherever it is called."""
        piece = torch.from_numpy(samples).to(self.device)
        with self._measuring():
            return loss(self.model, piece)

    def _measuring(self) -> AbstractContextManager[None]:
        """In f32 on a processor: differences between pushes are small, and there is time."""
        return nullcontext() if self.device.type == "cpu" else self.accelerator.autocast()

    def heldout_loss(self, samples: Samples, rest: Rest) -> float:
        """Cross-entropy in nats per token, or whatever else the model says, in f32-summed order."""
        total = 0.0
        for first in range(0, len(samples), self.micro_batch):
            if first:
                rest()
            piece = samples[first : first + self.micro_batch]
            total += float(self._look(self.objective.measured, piece))
        return total / self.objective.terms(samples)

    def losses(self, samples: Samples, rest: Rest) -> Losses:
        """Mean cross-entropy of each sample."""
        found = []
        for first in range(0, len(samples), self.micro_batch):
            losses = self._look(self.objective.each, samples[first : first + self.micro_batch])
            found.append(losses.cpu().numpy().astype(np.float64))
            rest()
        return np.concatenate(found)

    def write(self, ids: Sequence[int], tokens: int, *, temperature: float, end: int) -> list[int]:
        """Token ids sampled after these, at most so many."""
        sample: Callable[..., Any] = self.model.generate  # type: ignore[assignment]
        produced = sample(
            torch.tensor([ids], device=self.device),
            max_new_tokens=tokens,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            eos_token_id=end,
            pad_token_id=end,
            synced_gpus=self.is_sharded,
        )
        written: list[int] = produced[0, len(ids) :].tolist()
        return written


class _Kept(Mapping[str, Mapping[str, Tensor]]):
    """What an optimizer keeps of each tensor that has moved, decoded once it is asked for."""

    def __init__(self, optimizer: InnerOptimizer, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer, self._tensors = optimizer, tensors
        # Of two optimizers it is put together anew each time.
        self._state = {} if isinstance(optimizer, EightBitAdamW) else optimizer.state

    def __getitem__(self, name: str) -> Mapping[str, Tensor]:
        tensor = self._tensors[name]
        if isinstance(self._optimizer, EightBitAdamW):
            state = self._optimizer.kept(tensor)
        else:
            kept = self._state.get(tensor) or {}
            state = {_KEYS[key]: values for key, values in kept.items()}
        if not state:
            raise KeyError(name)
        return state

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_KEYS = {"exp_avg": "first", "momentum_buffer": "first", "exp_avg_sq": "second", "step": "step"}


def builtin_loop(
    model: nn.Module,
    reader: BlockReader,
    inner: InnerSpec,
    *,
    accelerator: accelerate.Accelerator,
    micro_batch: int | None = None,
    loss_sum: LossSum | None = None,
    objective: Objective | None = None,
    documents: DocumentRule = None,
    optimizer_in_8_bits: bool = False,
) -> InnerLoop[BuiltinTrainer]:
    """An inner loop over a model, without a session.

    objective: what the model says; None: the next token, of such documents. loss_sum: lowered and
    measured instead.
    """
    adjustments: list[str] = []
    if objective is None:
        tokens = reader.sample_tokens or 1
        objective = next_token(
            model,
            vocabulary=2,
            sequence_tokens=tokens,
            documents=documents,
            z_loss=inner.z_loss,
        )
    if loss_sum is not None:
        objective = dataclasses.replace(objective, lowered=loss_sum, measured=loss_sum)
    trainer = BuiltinTrainer(
        model,
        inner,
        accelerator=accelerator,
        micro_batch=micro_batch,
        objective=objective,
        tell=adjustments.append,
        optimizer_in_8_bits=optimizer_in_8_bits,
    )
    return InnerLoop(trainer, reader, inner, device=trainer.device, adjustments=adjustments)
