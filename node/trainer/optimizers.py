"""The inner optimizers: AdamW, and Muon with AdamW beside it.

Muon (K. Jordan and others, https://kellerjordan.github.io/posts/muon, 2024) moves a matrix along
the orthogonalised momentum of its gradient, so it is for the hidden matrices only: embeddings,
output tables, norms and biases stay with AdamW. Its steps are scaled to the root mean square that
AdamW's have (J. Liu and others, Muon is scalable for LLM training, arXiv 2502.16982), so that one
learning rate and one weight decay serve both. Both are torch's; nothing is reimplemented here.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from node.trainer.model import embedding_ids
from protocol.errors import UserError
from protocol.project import InnerSpec

State: TypeAlias = dict[str, Any]

MATRIX_DIMS: Final = 2
"""Dimensions of what Muon can orthogonalise."""


class MuonAndAdamW:
    """Two optimizers of one model that step as one; no tensor is in both."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        self.muon, self.adamw = muon, adamw
        self._in_muon = {id(one) for group in muon.param_groups for one in group["params"]}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both; a rate that is set here counts."""
        return [*self.muon.param_groups, *self.adamw.param_groups]

    @property
    def state(self) -> Mapping[Tensor, State]:
        """What is kept of each tensor that was stepped."""
        return {**self.muon.state, **self.adamw.state}

    def home_of(self, tensor: Tensor) -> MutableMapping[Tensor, State]:
        """Where the state of this tensor is kept."""
        return self.muon.state if id(tensor) in self._in_muon else self.adamw.state

    def has_in_muon(self, tensor: Tensor) -> bool:
        return id(tensor) in self._in_muon

    def step(self) -> None:
        self.muon.step()
        self.adamw.step()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        self.muon.zero_grad(set_to_none=set_to_none)
        self.adamw.zero_grad(set_to_none=set_to_none)


InnerOptimizer: TypeAlias = torch.optim.Optimizer | MuonAndAdamW


def make_optimizer(model: nn.Module, inner: InnerSpec) -> InnerOptimizer:
    """The optimizer that the project names, over every tensor of `model` that is trained.

    UserError if this torch has no Muon and the project wants it.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    if inner.optimizer == "adamw":
        return _adamw(trained, inner)
    known = getattr(torch.optim, "Muon", None)
    if known is None:
        raise UserError(
            f"This project trains with Muon, and torch {torch.__version__} has no Muon. Install "
            "torch 2.9 or newer on this machine, and start again."
        )
    tables = embedding_ids(model)
    hidden = [one for one in trained if one.dim() == MATRIX_DIMS and id(one) not in tables]
    if not hidden:
        raise UserError(
            'This model has no hidden matrices, and Muon trains only those. Set optimizer = "'
            'adamw" in the section [training] of the project file.'
        )
    others = {id(one) for one in hidden}
    muon: torch.optim.Optimizer = known(
        hidden,
        lr=inner.learning_rate,
        weight_decay=inner.weight_decay,
        momentum=inner.muon_momentum,
        nesterov=True,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonAndAdamW(muon, _adamw([one for one in trained if id(one) not in others], inner))


def _adamw(trained: list[nn.Parameter], inner: InnerSpec) -> torch.optim.Optimizer:
    """AdamW; norms and biases, the one-dimensional tensors, do not decay."""
    groups = [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": inner.weight_decay},
        {"params": [one for one in trained if one.dim() <= 1], "weight_decay": 0.0},
    ]
    kinds = {one.device.type for one in trained}
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
        fused=kinds <= {"cpu", "cuda"},
    )
