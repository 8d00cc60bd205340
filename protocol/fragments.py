"""How a model is cut into fragments, the unit that is merged and sent.

Every host derives the same layout from the genesis; the layout's digest lets two hosts notice that
they do not. Tensors are never split, so one tensor larger than its fair share sets the largest
fragment whatever the strategy. No tensor content passes through here.

Source: the three strategies of Decoupled DiLoCo, arXiv 2604.21428. Ours: how ties fall, and how
`layer` and `tensor` share out more pieces than there are fragments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
from blake3 import blake3

from protocol.errors import UserError
from protocol.project import FragmentStrategy, MergeRule, TensorSpec

BLOCK = 128
"""Elements that share one scale on the wire; tensors are padded to it so no block spans two."""


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where one tensor lies in its fragment, in elements."""

    name: str
    shape: tuple[int, ...]
    numel: int
    rule: MergeRule
    offset: int

    @property
    def padded(self) -> int:
        """Elements the tensor takes up in its fragment: `numel` rounded up to whole blocks."""
        return _padded(self.numel)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Tensors that are merged and sent as one flat array."""

    index: int
    spans: tuple[TensorSpan, ...]
    """In the model's own order, back to back."""
    numel: int
    """Elements including the padding of every tensor."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole cut."""

    fragments: tuple[Fragment, ...]
    digest: bytes
    """Equal on two hosts exactly if every name, shape, rule, offset and fragment is."""
    parameters: int
    """Trainable parameters of the model, without padding."""


def build_layout(tensors: Sequence[TensorSpec], strategy: FragmentStrategy, count: int) -> Layout:
    """The cut of `tensors`, given in the model's order, into `count` non-empty fragments.

    - `balanced`: the largest tensor first, each into the fragment that is smallest so far.
    - `layer`: neighbouring layers together. A layer is every tensor whose dotted name agrees up to
      its first number; tensors without a number come before all layers or after them.
    - `tensor`: neighbouring tensors together, one per fragment if there are as many fragments.

    Raises: UserError if two tensors share a name, or if there are fewer pieces than fragments.
    """
    names = sorted(tensor.name for tensor in tensors)
    twice = [name for name, after in pairwise(names) if name == after]
    if twice:
        raise UserError(f"Two tensors are named {twice[0]!r}; every tensor needs its own name.")
    if strategy == "balanced":
        groups = _balanced(tensors, count)
    else:
        pieces = _layers(tensors) if strategy == "layer" else [[i] for i in range(len(tensors))]
        groups = _contiguous(pieces, [_size(tensors, piece) for piece in pieces], count)
    fragments = tuple(_fragment(i, [tensors[j] for j in group]) for i, group in enumerate(groups))
    parameters = sum(tensor.numel for tensor in tensors)
    return Layout(fragments, _digest(fragments, parameters), parameters)


def _balanced(tensors: Sequence[TensorSpec], count: int) -> list[list[int]]:
    """Greedy number partitioning: the fullest fragment is at most 4/3 of the best possible."""
    _require_pieces(len(tensors), count, "tensors")
    groups: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    by_size = sorted(range(len(tensors)), key=lambda i: (-tensors[i].numel, tensors[i].name))
    for position in by_size:
        # `index` finds the first of equals, so ties fall to the lowest fragment.
        smallest = loads.index(min(loads))
        groups[smallest].append(position)
        loads[smallest] += _padded(tensors[position].numel)
    return [sorted(group) for group in groups]


def _layers(tensors: Sequence[TensorSpec]) -> list[list[int]]:
    """Positions of the tensors of each layer, between those before and those after all layers."""
    head: list[int] = []
    tail: list[int] = []
    layers: dict[str, list[int]] = {}
    for position, tensor in enumerate(tensors):
        layer = _layer_of(tensor.name)
        if layer is not None:
            layers.setdefault(layer, []).append(position)
        elif layers:
            tail.append(position)
        else:
            head.append(position)
    return [group for group in (head, *layers.values(), tail) if group]


def _layer_of(name: str) -> str | None:
    """The dotted path up to its first number, so that two stacks of layers stay apart."""
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if part.isascii() and part.isdigit():
            return ".".join(parts[: depth + 1])
    return None


def _contiguous(pieces: list[list[int]], sizes: list[int], count: int) -> list[list[int]]:
    """Neighbouring pieces joined into `count` groups of about equal size.

    Each group grows while one more piece brings it nearer to an equal share of what is left, and
    always leaves at least one piece for each group after it.
    """
    _require_pieces(len(pieces), count, "pieces")
    groups: list[list[int]] = []
    begin = 0
    left = sum(sizes)
    for wanted in range(count, 0, -1):
        end = begin + 1
        taken = sizes[begin]
        last = len(pieces) - wanted + 1
        # Integers only: `taken + next/2 <= left/wanted`, that is, next does more good than harm.
        while end < last and (2 * taken + sizes[end]) * wanted <= 2 * left:
            taken += sizes[end]
            end += 1
        if wanted == 1:
            end = len(pieces)
        groups.append(sorted(i for piece in pieces[begin:end] for i in piece))
        begin = end
        left -= taken
    return groups


def _require_pieces(available: int, count: int, noun: str) -> None:
    if count < 1:
        raise UserError(f"A model is cut into at least 1 fragment, not {count}.")
    if count > available:
        raise UserError(
            f"{count} fragments were asked for, but the model has only {available} {noun}; "
            f"set `fragments` to {available} or less."
        )


def _fragment(index: int, tensors: list[TensorSpec]) -> Fragment:
    spans: list[TensorSpan] = []
    offset = 0
    for tensor in tensors:
        span = TensorSpan(tensor.name, tensor.shape, tensor.numel, tensor.rule, offset)
        spans.append(span)
        offset += span.padded
    return Fragment(index, tuple(spans), offset)


def _digest(fragments: tuple[Fragment, ...], parameters: int) -> bytes:
    facts = (
        BLOCK,
        parameters,
        [
            (
                fragment.index,
                fragment.numel,
                [(span.name, span.shape, span.rule, span.offset) for span in fragment.spans],
            )
            for fragment in fragments
        ],
    )
    canonical = msgspec.msgpack.encode(facts)
    return blake3(canonical, derive_key_context="shoal 1 layout").digest()


def _size(tensors: Sequence[TensorSpec], positions: list[int]) -> int:
    return sum(_padded(tensors[position].numel) for position in positions)


def _padded(numel: int) -> int:
    return -(-numel // BLOCK) * BLOCK
