"""A small language model that every contender of over_lines.py trains alike, in its own processes.

A decoder of bytes with gated layers on the Python standard library's text, of 4.2 million
parameters. Where larger fragments are merged, noise makes up the rest: it travels as the weights of
a larger model would, whose gradients this machine has no time for. Each worker reads its own places
of the text. Between two
merges it takes local steps of AdamW; what a merge brings is the mean displacement of all workers,
and each of them takes the same outer step along it: SGD with Nesterov momentum. Where gradients
are averaged instead, the optimizer steps on their mean.

Only torch and numpy are needed: it is imported in the environments of all contenders.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Floats = NDArray[np.float32]

WIDTH: Final = 256
LAYERS: Final = 4
HEADS: Final = 4
BYTES: Final = 256
"""Kinds of tokens."""

SEQUENCE: Final = 64
BATCH: Final = 4
"""Sequences in a local step."""

HELD_OUT: Final = 64
"""Sequences."""

LEARNING_RATE: Final = 2e-3
BETAS: Final = (0.9, 0.98)
WEIGHT_DECAY: Final = 0.1
GRAD_NORM_MAX: Final = 1.0
WARM_STEPS: Final = 24

NOISE_SIZE: Final = 1e-3
"""As what local steps move."""

OUTER_RATE: Final = 0.7
OUTER_MOMENTUM: Final = 0.7


class Block(nn.Module):
    """Attention and a gated layer, each beside the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.asked = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.told = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """(sequences, tokens, WIDTH) both ways."""
        many, tokens, _ = stream.shape
        parts = self.asked(self.before(stream)).view(many, tokens, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.told(seen.transpose(1, 2).reshape(many, tokens, WIDTH))
        gate, up = self.up(self.between(stream)).chunk(2, dim=-1)
        moved: Tensor = self.down(functional.silu(gate) * up)
        return stream + moved


class Decoder(nn.Module):
    """Tells the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.register_buffer("places", _places(), persistent=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.RMSNorm(WIDTH)

    places: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of what comes after each of (sequences, SEQUENCE) tokens."""
        stream = self.bytes(tokens) + self.places
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.last(stream) @ self.bytes.weight.T
        return logits


def _places() -> Tensor:
    """(SEQUENCE, WIDTH): waves of many lengths, of the size of the first weights."""
    lengths = torch.logspace(0, 2, WIDTH // 2)
    turns = torch.arange(SEQUENCE)[:, None] / lengths
    return 0.02 * torch.cat([turns.sin(), turns.cos()], dim=1)


class Training:
    """One worker's."""

    def __init__(self, rank: int, sizes: list[int]) -> None:
        """sizes: of the fragments that hold the model, one after the other, and noise behind it.
        The first weights are the same for all ranks, the noise is each one's own."""
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model = Decoder()
        for one in self.model.parameters():
            if one.dim() > 1:
                nn.init.normal_(one, std=0.02)
        numel = sum(one.numel() for one in self.model.parameters())
        if numel > sum(sizes):
            raise ValueError(f"{sum(sizes)} parameters are merged, and the model has {numel}")
        self.numel, self.sizes = numel, sizes
        noise = np.random.default_rng([4, rank])
        self.noise = noise.standard_normal(sum(sizes) - numel, np.float32) * np.float32(NOISE_SIZE)
        self.start = self._weights()
        self.momentum = np.zeros_like(self.start)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY
        )
        self.steps = 0
        text = _text()
        cut = len(text) // 20
        self.held_out, self.text = text[:cut], text[cut:]
        self.chance = np.random.default_rng([3, rank])

    def local_steps(self, count: int) -> list[Floats]:
        """The displacement of so many of them, start minus now, in fragments."""
        for _ in range(count):
            self._gradients()
            self._move()
        return self._cut(self.start - self._weights())

    def gradients(self) -> list[Floats]:
        """Of the next batch, in fragments."""
        self._gradients()
        return self._cut(_flat(one.grad for one in self.model.parameters()))

    def merged(self, fragments: list[Floats]) -> None:
        """The outer step along the mean displacement; training goes on from there."""
        moved = np.concatenate(fragments)[: self.numel]
        self.momentum *= OUTER_MOMENTUM
        self.momentum += moved
        self.start -= OUTER_RATE * (moved + OUTER_MOMENTUM * self.momentum)
        self._each(self.start, lambda one, values: one.data.copy_(values))

    def averaged(self, fragments: list[Floats]) -> None:
        """A step along the mean gradient."""
        mean = np.concatenate(fragments)[: self.numel]
        self._each(mean, _set_gradient)
        self._move()

    def loss(self) -> float:
        """Nats per byte of the held-out text."""
        places = np.linspace(0, len(self.held_out) - SEQUENCE - 1, HELD_OUT).astype(int)
        with torch.no_grad():
            return float(self._loss(self.held_out, places))

    def _gradients(self) -> None:
        places = self.chance.integers(0, len(self.text) - SEQUENCE - 1, BATCH)
        self.optimizer.zero_grad()
        self._loss(self.text, places).backward()

    def _move(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), GRAD_NORM_MAX)
        self.steps += 1
        rate = LEARNING_RATE * min(1.0, self.steps / WARM_STEPS)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _loss(self, text: NDArray[np.uint8], places: NDArray[np.int64]) -> Tensor:
        rows = np.stack([text[at : at + SEQUENCE + 1] for at in places]).astype(np.int64)
        tokens = torch.from_numpy(rows)
        logits = self.model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def _weights(self) -> Floats:
        return _flat(self.model.parameters())

    def _cut(self, values: Floats) -> list[Floats]:
        whole = np.concatenate([values, self.noise])
        return np.split(whole, np.cumsum(self.sizes)[:-1])

    def _each(self, values: Floats, put: Callable[[nn.Parameter, Tensor], object]) -> None:
        first = 0
        for one in self.model.parameters():
            part = values[first : first + one.numel()]
            put(one, torch.from_numpy(part).view_as(one))
            first += one.numel()


def _set_gradient(one: nn.Parameter, values: Tensor) -> None:
    one.grad = values.clone()


def _flat(tensors: Iterable[Tensor | None]) -> Floats:
    parts = [one.detach().reshape(-1).numpy() for one in tensors if one is not None]
    return np.concatenate(parts)


def _text() -> NDArray[np.uint8]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    return np.frombuffer(b"\n".join(one.read_bytes() for one in files), np.uint8)


def alone(steps: int) -> None:
    """What one worker comes to, to see that it learns: `python benchmarks/peers/training.py`."""
    one = Training(0, [4_300_000])
    print(f"{one.numel} parameters, {len(one.text)} bytes of text")
    began_s = time.monotonic()
    for step in range(steps):
        if step % 24 == 0:
            print(f"{step:4d} {one.loss():.4f} {time.monotonic() - began_s:.1f} s", flush=True)
        one.local_steps(1)


if __name__ == "__main__":
    alone(240)
