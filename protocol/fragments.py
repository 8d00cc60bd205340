"""How a model is cut into fragments, the unit that is merged and sent.

Every host derives the same layout from the genesis; the layout's digest lets two hosts notice that
they do not. Only `rows` splits tensors; with the other strategies, one tensor larger than its fair
share sets the largest fragment. No tensor content passes through here.

Source: `balanced`, `layer` and `tensor` are those of Decoupled DiLoCo, arXiv 2604.21428. Ours: how
ties fall, how `layer` and `tensor` share out more pieces than there are fragments, and `rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
from blake3 import blake3

from protocol.errors import UserError
from protocol.project import FragmentStrategy, MergeRule, TensorSpec

BLOCK = 128
"""Elements that share one scale on the wire; tensors are padded to it so no block spans two."""

LARGEST_FRAC = (6, 5)
"""With `rows`, the largest fragment is at most this ratio of the mean, as far as rows allow."""
HALVINGS_MAX = 6
"""How often `rows` tries smaller pieces: the smallest are a 64th of a mean fragment."""


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where one tensor, or some rows of one, lies in its fragment, in elements."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    numel: int
    """Elements that lie here: all of the tensor's, unless it is split."""
    rule: MergeRule
    offset: int
    """In the fragment."""
    start: int = 0
    """The first element that lies here, counted in the tensor."""

    @property
    def end(self) -> int:
        """One past the last element that lies here, counted in the tensor."""
        return self.start + self.numel

    @property
    def padded(self) -> int:
        """Elements taken up in the fragment: `numel` rounded up to whole blocks."""
        return _padded(self.numel)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Tensors, or rows of them, that are merged and sent as one flat array."""

    index: int
    spans: tuple[TensorSpan, ...]
    """In the model's own order, back to back."""
    numel: int
    """Elements including the padding of every span."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole cut."""

    fragments: tuple[Fragment, ...]
    digest: bytes
    """Equal on two hosts exactly if every name, shape, rule, offset, start and fragment is."""
    parameters: int
    """Trainable parameters of the model, without padding."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is dealt out: a tensor, or some of its rows."""

    tensor: TensorSpec
    position: int
    """Of the tensor in the model."""
    start: int
    numel: int

    @property
    def padded(self) -> int:
        return _padded(self.numel)


def build_layout(tensors: Sequence[TensorSpec], strategy: FragmentStrategy, count: int) -> Layout:
    """The cut of `tensors`, given in the model's order, into `count` non-empty fragments.

    - `rows`: as `balanced`, and where the largest fragment would be more than 1.2 times the mean,
      large tensors are split between rows (of their first dimension) into pieces of equal size:
      of at most a mean fragment, then half of one and so on, until it is not.
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
    whole = [_Piece(tensor, at, 0, tensor.numel) for at, tensor in enumerate(tensors)]
    if strategy == "rows":
        groups = _by_rows(whole, count)
    elif strategy == "balanced":
        groups = _balanced(whole, count)
    else:
        pieces = _layers(tensors) if strategy == "layer" else [[i] for i in range(len(tensors))]
        cut = _contiguous(pieces, [_size(tensors, piece) for piece in pieces], count)
        groups = [[whole[position] for position in group] for group in cut]
    fragments = tuple(_fragment(i, group) for i, group in enumerate(groups))
    parameters = sum(tensor.numel for tensor in tensors)
    return Layout(fragments, _digest(fragments, parameters), parameters)


def _by_rows(whole: list[_Piece], count: int) -> list[list[_Piece]]:
    """The first cut whose largest fragment is small enough, or else the one whose is smallest."""
    total = sum(piece.padded for piece in whole)
    best: list[list[_Piece]] = []
    best_size = 0
    for halvings in range(-1, HALVINGS_MAX + 1):
        # The first attempt splits nothing.
        most = total if halvings < 0 else max(BLOCK, total // (count << halvings))
        pieces = [part for piece in whole for part in _split(piece, most)]
        if len(pieces) < count and halvings < HALVINGS_MAX:
            continue
        groups = _balanced(pieces, count)
        size = max(sum(piece.padded for piece in group) for group in groups)
        if not best or size < best_size:
            best, best_size = groups, size
        if best_size * count * LARGEST_FRAC[1] <= total * LARGEST_FRAC[0]:
            break
    return best


def _split(piece: _Piece, most: int) -> list[_Piece]:
    """The piece in parts of whole rows, as few and as equal as keep each within `most` elements.

    A row that is longer than that stays whole, and so does a vector.
    """
    shape = piece.tensor.shape
    if piece.padded <= most or len(shape) < 2:
        return [piece]
    rows, row = shape[0], piece.numel // shape[0]
    parts = min(rows, -(-piece.padded // most))
    edges = [rows * part // parts * row for part in range(parts + 1)]
    return [
        _Piece(piece.tensor, piece.position, start, end - start) for start, end in pairwise(edges)
    ]


def _balanced(pieces: Sequence[_Piece], count: int) -> list[list[_Piece]]:
    """Greedy number partitioning: the fullest fragment is at most 4/3 of the best possible."""
    _require_pieces(len(pieces), count, "tensors")
    groups: list[list[_Piece]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(pieces, key=lambda one: (-one.numel, one.tensor.name, one.start)):
        # `index` finds the first of equals, so ties fall to the lowest fragment.
        smallest = loads.index(min(loads))
        groups[smallest].append(piece)
        loads[smallest] += piece.padded
    return [sorted(group, key=lambda one: (one.position, one.start)) for group in groups]


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


def _fragment(index: int, pieces: list[_Piece]) -> Fragment:
    spans: list[TensorSpan] = []
    offset = 0
    for piece in _joined(pieces):
        tensor = piece.tensor
        span = TensorSpan(
            tensor.name, tensor.shape, piece.numel, tensor.rule, offset, start=piece.start
        )
        spans.append(span)
        offset += span.padded
    return Fragment(index, tuple(spans), offset)


def _joined(pieces: list[_Piece]) -> list[_Piece]:
    """The same with neighbouring rows of a tensor as one piece."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and (last.position, last.start + last.numel) == (
            piece.position,
            piece.start,
        ):
            joined[-1] = replace(last, numel=last.numel + piece.numel)
        else:
            joined.append(piece)
    return joined


def _digest(fragments: tuple[Fragment, ...], parameters: int) -> bytes:
    facts = (
        BLOCK,
        parameters,
        [
            (
                fragment.index,
                fragment.numel,
                [_facts(span) for span in fragment.spans],
            )
            for fragment in fragments
        ],
    )
    canonical = msgspec.msgpack.encode(facts)
    return blake3(canonical, derive_key_context="shoal 1 layout").digest()


def _facts(span: TensorSpan) -> tuple[object, ...]:
    """What of a span makes a layout another one."""
    placed = (span.name, span.shape, span.rule, span.offset)
    is_whole = span.numel == math.prod(span.shape)
    return placed if is_whole else (*placed, span.start, span.numel)


def _size(tensors: Sequence[TensorSpec], positions: list[int]) -> int:
    return sum(_padded(tensors[position].numel) for position in positions)


def _padded(numel: int) -> int:
    return -(-numel // BLOCK) * BLOCK
