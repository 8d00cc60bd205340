"""The inner optimizers: AdamW, with moments in 32 or 8 bits, and Muon with AdamW beside it.

Muon (K. Jordan and others, https://kellerjordan.github.io/posts/muon, 2024) moves a matrix along
the orthogonalised momentum of its gradient, so it is for the hidden matrices only: embeddings,
output tables, norms and biases stay with AdamW. Its steps are scaled to the root mean square that
AdamW's have (J. Liu and others, Muon is scalable for LLM training, arXiv 2502.16982), so that one
learning rate and one weight decay serve both. Both are torch's; nothing is reimplemented here.

In 8 bits (T. Dettmers and others, arXiv 2110.02861) `bitsandbytes` keeps AdamW's moments in codes
of a byte, 256 of them to a scale: 2 bytes per parameter in place of 8. It is a choice of the
machine's owner, since it changes nothing that the swarm sees but a little noise.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from node.trainer.model import embedding_ids
from protocol.errors import UserError
from protocol.project import InnerSpec

State: TypeAlias = dict[str, Any]

MATRIX_DIMS: Final = 2
"""Dimensions of what Muon can orthogonalise."""

CODES_PER_SCALE: Final = 256
"""As `bitsandbytes` keeps moments."""

INSTALL: Final = "pip install 'shoal-train[8bit]'"


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


class EightBitAdamW:
    """AdamW with moments in codes of 8 bits; tensors of fewer than 4,096 elements keep f32."""

    def __init__(self, groups: list[State], inner: InnerSpec) -> None:
        """UserError if `bitsandbytes` is not installed."""
        self._library = _bitsandbytes()
        self._optimizer: Any = self._library.optim.AdamW8bit(
            groups, lr=inner.learning_rate, betas=(inner.beta1, inner.beta2)
        )
        self._places = {
            id(one): (group, number, place)
            for number, group in enumerate(self._optimizer.param_groups)
            for place, one in enumerate(group["params"])
        }

    @property
    def param_groups(self) -> list[State]:
        return self._optimizer.param_groups  # type: ignore[no-any-return]

    def step(self) -> None:
        self._optimizer.step()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def kept(self, tensor: Tensor) -> State:
        """The moments of a tensor in f32, and its counter; empty before its first step."""
        state = self._optimizer.state.get(tensor)
        if not state:
            return {}
        first, second = (self._decoded(state, number) for number in (1, 2))
        step = torch.tensor(float(state["step"]))
        return {"first": first, "second": second, "step": step}

    def bytes_of(self, tensor: Tensor) -> int:
        """Memory that its moments take, scales included."""
        keys = ("state1", "state2", "absmax1", "absmax2")
        state = self._optimizer.state.get(tensor, {})
        return sum(state[key].nbytes for key in keys if key in state)

    def put(self, tensor: Tensor, given: Mapping[str, Tensor]) -> None:
        """Replaces them by these, rounded anew."""
        group, number, place = self._places[id(tensor)]
        self._optimizer.state[tensor] = {}
        self._optimizer.init_state(group, tensor, number, place)
        state = self._optimizer.state[tensor]
        state["step"] = int(given["step"])
        for at, values in ((1, given["first"]), (2, given["second"])):
            if state[f"state{at}"].dtype == torch.float32:
                state[f"state{at}"].copy_(values)
            else:
                self._library.functional.quantize_blockwise(
                    values.to(tensor.device),
                    code=state[f"qmap{at}"],
                    absmax=state[f"absmax{at}"],
                    out=state[f"state{at}"],
                    blocksize=CODES_PER_SCALE,
                )

    def _decoded(self, state: State, number: int) -> Tensor:
        codes: Tensor = state[f"state{number}"]
        if codes.dtype == torch.float32:
            return codes
        decoded: Tensor = self._library.functional.dequantize_blockwise(
            codes,
            absmax=state[f"absmax{number}"],
            code=state[f"qmap{number}"],
            blocksize=CODES_PER_SCALE,
        )
        return decoded


InnerOptimizer: TypeAlias = torch.optim.Optimizer | MuonAndAdamW | EightBitAdamW


def make_optimizer(
    model: nn.Module, inner: InnerSpec, *, in_8_bits: bool = False
) -> InnerOptimizer:
    """The optimizer that the project names, over every tensor of `model` that is trained.

    in_8_bits: AdamW's moments are kept so. UserError if this torch has no Muon and the project
    wants it, if moments in 8 bits are wanted of Muon, or without `bitsandbytes`.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    if in_8_bits:
        if inner.optimizer != "adamw":
            raise UserError(
                "This project trains with Muon, whose momentum is not kept in 8 bits. Start again"
                " with: shoal config unset learner.optimizer_in_8_bits"
            )
        return EightBitAdamW(_groups(trained, inner), inner)
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
    kinds = {one.device.type for one in trained}
    return torch.optim.AdamW(
        _groups(trained, inner),
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
        fused=kinds <= {"cpu", "cuda"},
    )


def _groups(trained: list[nn.Parameter], inner: InnerSpec) -> list[State]:
    """Norms and biases, the one-dimensional tensors, do not decay."""
    groups: list[State] = [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": inner.weight_decay},
        {"params": [one for one in trained if one.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _bitsandbytes() -> ModuleType:
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(
            "learner.optimizer_in_8_bits needs bitsandbytes, which is not installed."
            f" {INSTALL}, or: shoal config unset learner.optimizer_in_8_bits"
        ) from error
    return bitsandbytes  # type: ignore[no-any-return]
