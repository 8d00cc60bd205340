"""A model that no rank holds whole: FSDP2, torch's `fully_shard`.

Of every tensor each rank holds some rows, and of its gradient and its moments the same rows. A
block's tensors are put together on every rank right before it computes, and let go right behind it.
So all ranks begin every pass together, whoever has fewer sequences, and none may leave a pass that
others are in. To the daemon, rank 0 has the whole model: it puts fragments together out of all
ranks' rows and cuts what arrives into them, one tensor at a time.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate

from node.machine.moments import moments_numel
from node.trainer.builtin import BuiltinTrainer
from node.trainer.failures import (
    OOM_ADVICE,
    RankLost,
    StepAbandoned,
    TrainerFailure,
    is_out_of_memory,
)
from node.trainer.model import Floats, FragmentView, Values
from node.trainer.moments_view import MomentsView
from node.trainer.objective import LossSum
from node.trainer.own.interface import Rest, Samples
from node.trainer.ranks import messages
from node.trainer.ranks.group import RankGroup
from protocol.errors import InternalError, UserError
from protocol.fragments import Layout, TensorSpan
from protocol.project import InnerSpec

InStep: TypeAlias = messages.Gather | messages.Change | messages.Look | messages.Sample
"""What all ranks do together because rank 0 does it."""

BACKEND_WORDS: Final = ("gloo", "nccl", "xccl", "processgroup")
"""How errors of back-ends begin or end that have no class of their own."""


class ShardedTrainer(BuiltinTrainer):
    """Shoal's own trainer, over some rows of each tensor."""

    is_sharded = True
    twin = None  # type: ignore[assignment]  # No rank has room for a second model.

    def __init__(self, model: nn.Module, inner: InnerSpec, *, group: RankGroup, **how: Any) -> None:
        """Cuts up `model`, which must be the same on every rank; all must call it. The rest as in
        `BuiltinTrainer`. UserError if it cannot be cut up."""
        self.group = group
        super().__init__(model, inner, **how)

    def _placed(self, model: nn.Module) -> nn.Module:
        shard(model, init_device_mesh(self.device.type, (self.group.ranks,)))
        return model

    def tell(self, order: InStep) -> None:
        """The other ranks do the same, if this is rank 0."""
        if self._leading is not None:
            self._leading.tell(order)

    def fragment_view(self, layout: Layout) -> FragmentView:
        """Its weights as whole fragments."""
        return ShardedView(self, layout)

    def moments_view(self, layout: Layout) -> MomentsView:
        """Its optimizer's state as that of whole fragments."""
        return ShardedMoments(self, layout)

    # Local steps.

    def _gradients(self, batch: Samples, terms: int, rest: Rest) -> float:
        """As many passes as the rank with the most sequences needs, all in step.

        Where memory runs out the trainer ends, and says so: others are in the same pass.
        """
        loss = 0.0
        largest = -(-self.inner.batch_sequences // self.group.ranks)
        for first in range(0, largest, self.micro_batch):
            if first:
                self._rest_together(rest)
            piece = batch[first : first + self.micro_batch]
            if len(piece):
                loss += self._pass(piece, terms)
            else:
                loss += self._pass(batch[:1], math.inf)  # It computes along, and adds nothing.
        return loss

    def _rest_together(self, rest: Rest) -> None:
        """StepAbandoned on every rank if it is raised on one."""
        is_abandoned = False
        try:
            rest()
        except StepAbandoned:
            is_abandoned = True
            if self._leading is not None:
                self._leading.abandon()  # They may rest for longer.
        if self.group.agree(0.0, is_abandoned=is_abandoned) is None:
            raise StepAbandoned

    def _give_up(self) -> None:
        """All have heard of it."""

    def _add_up(self, group: RankGroup) -> None:
        """Each pass has done it."""

    def _pass(self, samples: Samples, terms: float) -> float:
        with in_step():
            return super()._pass(samples, terms)

    def _clip(self) -> float:
        with in_step():
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.inner.grad_norm_max)
            return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def compile(self) -> None:
        """Leaves it out, and says so."""
        self._tell("learner.compile is left out: it does not go with learner.sharded")

    def least(self, number: int) -> int:
        return self.group.least(number)

    def trained_bytes(self) -> int:
        return sum(_rows(one).nbytes for one in self.model.parameters() if one.requires_grad)

    # Measuring.

    def _look(self, loss: LossSum, samples: Samples) -> Tensor:
        self.tell(messages.Look(samples.shape))
        return self.look_along(loss, torch.from_numpy(samples).to(self.device))

    def look_along(self, loss: LossSum, samples: Tensor) -> Tensor:
        """What the model says of rank 0's samples, which come to be in `samples`."""
        self.group.spread([samples])
        with self._aside(), self._measuring():
            return loss(self.model, samples)

    def write(self, ids: Sequence[int], tokens: int, *, temperature: float, end: int) -> list[int]:
        self.tell(messages.Sample(tuple(ids), tokens, temperature, end))
        return self.write_along(ids, tokens, temperature=temperature, end=end)

    def write_along(
        self, ids: Sequence[int], tokens: int, *, temperature: float, end: int
    ) -> list[int]:
        """As `write`; what another rank than 0 samples is of no use."""
        with self._aside():
            return super().write(ids, tokens, temperature=temperature, end=end)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Forward passes that no backward pass follows, which would let go of the outer tensors."""
        self.model.eval()
        try:
            with in_step(), torch.no_grad():
                yield
        finally:
            cast(FSDPModule, self.model).reshard()
            self.model.train()


class ShardedView(FragmentView):
    """Weights of which every rank holds some rows, as whole fragments on rank 0.

    What rank 0 does here, all other ranks do in its turn (`follow`).
    """

    def __init__(self, trainer: ShardedTrainer, layout: Layout) -> None:
        self.layout = layout
        self._trainer = trainer
        tensors = trainer.tensors()
        self._tensors: dict[str, Tensor] = {}
        for span in (span for fragment in layout.fragments for span in fragment.spans):
            tensor = tensors.get(span.name)
            if tensor is None or tuple(tensor.shape) != span.shape:
                raise InternalError(f"the model has no tensor {span.name} {span.shape}")
            self._tensors[span.name] = tensor

    def tensors(self, fragment: int) -> list[Tensor]:
        """This rank's rows of a fragment's tensors."""
        spans = self.layout.fragments[fragment].spans
        return [_rows(self._tensors[span.name]) for span in spans]

    def read(self, fragment: int, out: Floats, *, non_blocking: bool = False) -> None:
        self._check(fragment, out)
        self._trainer.tell(messages.Gather(fragment))
        for span, whole in self.gather(fragment):
            end = span.offset + span.numel
            target = torch.from_numpy(out[span.offset : end])
            part = whole.view(-1)[span.start : span.end]
            target.copy_(part, non_blocking=non_blocking)
            out[end : span.offset + span.padded] = 0.0

    def gather(self, fragment: int) -> Iterator[tuple[TensorSpan, Tensor]]:
        """Each tensor of a fragment, whole, one after the other; all ranks must take them."""
        for span in self.layout.fragments[fragment].spans:
            yield span, _whole(self._tensors[span.name])

    def write(self, fragment: int, values: Values) -> None:
        self.blend(fragment, values, 0.0)

    def blend(self, fragment: int, values: Values, kept_frac: float) -> None:
        self._check(fragment, values)
        self._trainer.tell(messages.Change(fragment, kept_frac))
        self.change(fragment, values, kept_frac)

    def add(self, fragment: int, values: Values) -> None:
        self._check(fragment, values)
        self._trainer.tell(messages.Change(fragment, None))
        self.change(fragment, values, None)

    def change(self, fragment: int, values: Values | None, kept_frac: float | None) -> None:
        """As `blend`, or as `add` with None; all ranks must call it, those but 0 without values."""
        for span in self.layout.fragments[fragment].spans:
            tensor = self._tensors[span.name]
            piece = torch.empty(span.numel, device=tensor.device)
            if values is not None:
                piece.copy_(torch.as_tensor(values[span.offset : span.offset + span.numel]))
            self._trainer.group.spread([piece])
            rows, (new, is_new) = _rows(tensor), _laid_out(piece, span, tensor)
            moved = _moved(rows, new, kept_frac)
            rows.copy_(torch.where(is_new, moved, rows))


class ShardedMoments(MomentsView):
    """Moments of which every rank holds some rows, as those of whole fragments on rank 0."""

    def __init__(self, trainer: ShardedTrainer, layout: Layout) -> None:
        super().__init__(trainer, layout)
        self._tell = trainer.tell

    def read(self, fragment: int, out: Floats) -> None:
        self._tell(messages.Gather(fragment, is_moments=True))
        super().read(fragment, out)

    def _whole(self, moments: Tensor) -> Tensor:
        return _whole(moments)

    def _with(
        self, tensor: Tensor, former: Tensor | None, span: TensorSpan, values: Floats
    ) -> Tensor:
        moments = torch.zeros_like(tensor.detach())
        here = torch.from_numpy(values[span.offset :][: span.numel].copy()).to(tensor.device)
        new, is_new = _laid_out(here, span, tensor)
        rows = _rows(moments)
        if former is not None:
            rows.copy_(_rows(former))
        rows.copy_(torch.where(is_new, new, rows))
        return moments


def follow(
    order: InStep, trainer: ShardedTrainer, view: ShardedView, moments: ShardedMoments
) -> None:
    """Another rank's part in what rank 0 does."""
    match order:
        case messages.Gather(fragment, is_moments=True):
            numel = moments_numel(moments.layout.fragments[fragment])
            moments.read(fragment, np.empty(numel, np.float32))
        case messages.Gather(fragment):
            for _ in view.gather(fragment):
                pass
        case messages.Change(fragment, kept_frac):
            view.change(fragment, None, kept_frac)
        case messages.Look(shape):
            samples = torch.empty(shape, dtype=torch.int64, device=trainer.device)
            trainer.look_along(trainer.objective.measured, samples)
        case messages.Sample(ids, tokens, temperature, end):
            trainer.write_along(ids, tokens, temperature=temperature, end=end)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leaves each rank its rows of every tensor, on its device. UserError if that cannot be."""
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(
            f"learner.sharded needs a newer torch than {torch.__version__}. Install 2.13, or set"
            " learner.sharded to false."
        )
    # It warns of what is done in place to what a model says; nothing here does that.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for unit in (*units(model), model):
        try:
            cut = fully_shard(unit, mesh=mesh)
        except ValueError as error:
            raise UserError(
                f"torch cannot cut up {type(model).__name__} ({error}). Set learner.sharded to"
                " false, or name another architecture."
            ) from error
        # Losses are divided by the terms of the whole batch already, so gradients are added up.
        cut.set_gradient_divide_factor(1.0)
        cut.set_force_sum_reduction_for_comms(True)
        # Experts that got no token on one rank may have got some on another.
        if hasattr(cut, "set_reduce_scatter_unused_params"):
            cut.set_reduce_scatter_unused_params(True, recurse=False)


def units(model: nn.Module) -> list[nn.Module]:
    """What is put together at a time: blocks of the outermost lists, but for those of which a
    tensor is used elsewhere too."""
    everywhere = _uses(model)
    found: list[nn.Module] = []
    waiting = [model]
    while waiting:
        for child in waiting.pop().children():
            if isinstance(child, nn.ModuleList):
                found += [one for one in child if not isinstance(one, nn.ModuleList)]
            else:
                waiting.append(child)
    used = [(one, _uses(one)) for one in found]
    return [one for one, uses in used if uses and all(everywhere[k] == uses[k] for k in uses)]


def _uses(module: nn.Module) -> Counter[int]:
    """How often each tensor of a module is used, by `id`."""
    named = module.named_parameters(remove_duplicate=False)
    return Counter(id(tensor) for _, tensor in named)


@contextmanager
def in_step() -> Iterator[None]:
    """What all ranks do together, and where none can go on alone.

    What a back-end says when another rank is gone comes as RankLost. Where memory runs out it is a
    TrainerFailure, which nobody makes do with; all else comes as it is.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise TrainerFailure("oom", f"Out of memory ({error}). {OOM_ADVICE}") from error
        words = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(w in words for w in BACKEND_WORDS):
            raise
        raise RankLost(f"the trainer's ranks lost contact with each other ({error})") from error


def _part(tensor: Tensor) -> DTensor:
    """The same, as rows of a tensor. InternalError if it is one that is put together."""
    found = tensor.detach()
    if not isinstance(found, DTensor):
        raise InternalError("a tensor is whole that should be cut up between the ranks")
    return found


def _whole(tensor: Tensor) -> Tensor:
    """All of it, put together; all ranks must call it."""
    with in_step(), torch.no_grad():
        found: Tensor = _part(tensor).full_tensor()
        return found


def _rows(tensor: Tensor) -> Tensor:
    """What this rank holds of it: the memory itself."""
    with torch.no_grad():
        found: Tensor = _part(tensor).to_local()
        return found


def _moved(old: Tensor, new: Tensor, kept_frac: float | None) -> Tensor:
    """What is kept of the old, and the new for the rest; None: both together."""
    if kept_frac is None:
        return old + new
    # The same operations as of a whole tensor (`FragmentView.blend`), to the bit.
    return (old * kept_frac).add_(new, alpha=1.0 - kept_frac) if kept_frac else new


def _laid_out(values: Tensor, span: TensorSpan, like: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's rows of a tensor that has these values where the span lies, and where that is.

    Nothing is sent: every rank holds the values.
    """
    whole = torch.zeros(like.numel(), device=values.device)
    is_here = torch.zeros(like.numel(), device=values.device)
    whole[span.start : span.end] = values
    is_here[span.start : span.end] = 1.0
    shape = tuple(like.shape)
    return _cut(whole.view(shape), like), _cut(is_here.view(shape), like).bool()


def _cut(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a tensor that every rank holds."""
    part = _part(like)
    with torch.no_grad():
        same = DTensor.from_local(whole, part.device_mesh, [Replicate()], run_check=False)
        return _rows(same.redistribute(placements=part.placements))
