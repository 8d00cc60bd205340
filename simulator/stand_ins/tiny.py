"""A model small enough to simulate: a few dozen floats through the real codecs, merge and log.

The loss is the squared distance to a target; each learner pulls towards its own noisy view of it,
so a swarm that merges rightly ends nearer to the target than any learner alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np

from node.trainer_client.fragment_bank import Delivery
from protocol.fragments import BLOCK
from protocol.limits import WIRE_VERSION
from protocol.log.records import Span
from protocol.messages import Cursor, Envelope
from protocol.numerics.codecs import F32, flush
from protocol.project import (
    AdmissionRule,
    Charter,
    DataSpec,
    Durability,
    FragmentStrategy,
    Genesis,
    InnerSpec,
    LimitSpec,
    ModelSpec,
    OuterSpec,
    PublishedSpec,
    RoundSpec,
    TensorSpec,
    Voter,
    encode,
    project_id,
)
from protocol.signing import seal
from simulator.virtual.nodes import Speed

START = Cursor(0, 0)
TENSORS = 8
TENSOR_ELEMENTS = 64


class SimSigner:
    """A keyed hash in place of Ed25519: same shape, a hundred times cheaper.

    Only the simulator's own hosts exist in its world, so nobody is there to forge.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = hashlib.blake2b(name.encode(), digest_size=32).digest()

    def sign(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.key, digest_size=64).digest()


def sim_verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` was made by the `SimSigner` of this key."""
    return hashlib.blake2b(message, key=key, digest_size=64).digest() == signature


@dataclass(frozen=True, slots=True)
class TinyProject:
    """Genesis and charter of a tiny project."""

    genesis: Genesis
    genesis_bytes: bytes
    project: bytes
    charter: Charter
    owner: SimSigner


def charter_envelope(tiny: TinyProject, charter: Charter | None = None) -> Envelope:
    """The project's first charter, or a newer one, as its owner signed it."""
    return seal("charter", tiny.project, encode(charter or tiny.charter), tiny.owner)


LIMITS = LimitSpec(10**9, 256, 20, 8, 60.0, 64)


DATA = DataSpec(
    source="python-stdlib",
    location="",
    text_field="text",
    tokenizer="bytes",
    sequence_tokens=16,
    block_sequences=4,
    blocks=1000,
    heldout_frac=0.1,
    digest=bytes(32),
)


def tiny_project(
    syncer: bytes,
    *,
    fragments: int = 4,
    rounds: RoundSpec | None = None,
    outer: OuterSpec | None = None,
    limits: LimitSpec | None = None,
    seed: int = 1,
    voters: tuple[Voter, ...] | None = None,
    durability: Durability = "standby",
    moments: Literal["fresh", "peer"] = "fresh",
    tensors_of: tuple[int, int] = (TENSORS, TENSOR_ELEMENTS),
    strategy: FragmentStrategy = "balanced",
    admission: AdmissionRule = "open",
    shard_blocks: int = 0,
    batch_sequences_max: int = 0,
) -> TinyProject:
    """A project whose only voter is `syncer`, or with these voters.

    tensors_of: how many tensors, and elements in each. shard_blocks: of published text, if it is.
    batch_sequences_max: of a learner that takes more than the others.
    """
    owner = SimSigner("owner")
    tensors = tuple(
        TensorSpec(f"layers.{at}.weight", (tensors_of[1],), "mean" if at == 0 else "rda")
        for at in range(tensors_of[0])
    )
    genesis = Genesis(
        wire_version=WIRE_VERSION,
        name="tiny",
        owner=owner.key,
        model=ModelSpec("tiny", {}, tensors),
        data=DATA,
        seed=seed,
        strategy=strategy,
        fragments=fragments,
        published=PublishedSpec(bytes(32), 1, shard_blocks, 2) if shard_blocks else None,
    )
    genesis_bytes = encode(genesis)
    project = project_id(genesis_bytes)
    charter = Charter(
        project=project,
        revision=1,
        voters=voters or (Voter(syncer, "syncer", 50),),
        banned=(),
        inner=msgspec.structs.replace(
            InnerSpec("adamw", 1e-3, 0.1, 0.9, 0.95, 1.0, 2, 0.05, 0.1, 0, moments),
            batch_sequences_max=batch_sequences_max,
        ),
        outer=outer or OuterSpec(0.7, 0.5, 3.0),
        rounds=rounds or RoundSpec(8, 2, 1, 0.9, 0.5, 20.0, 20.0, "overwrite", "int4", "int4"),
        limits=limits or LIMITS,
        durability=durability,
        admission=admission,
    )
    return TinyProject(genesis, genesis_bytes, project, charter, owner)


def tiny_weights(numel: int, fragment: int) -> F32:
    """Version 0 of a fragment."""
    values = np.random.default_rng(fragment).normal(0.0, 1.0, numel).astype(np.float32)
    values.reshape(-1, 128)[:, TENSOR_ELEMENTS:] = 0.0
    flush(values)
    return values


@cache
def tiny_target(numel: int, fragment: int) -> F32:
    """Where training leads."""
    values = np.random.default_rng(1000 + fragment).normal(0.0, 1.0, numel).astype(np.float32)
    values.reshape(-1, 128)[:, TENSOR_ELEMENTS:] = 0.0
    return values


VIRTUAL = "virtual"
"""The device of learners in virtual time."""


@dataclass(slots=True)
class TinyTrainer:
    """An inner loop in virtual time: local steps, and commands carried out at their boundaries."""

    sizes: list[int]
    tokens_per_step: int
    sequences_per_step: int
    block_sequences: int
    speed: Speed
    noise_seed: int
    theta: list[F32 | None] = field(default_factory=list)
    moments: list[F32] = field(default_factory=list)
    """As in `node.machine.moments`: honest ones, which nothing here makes use of."""
    local_step: int = 0
    tokens: int = 0
    work_s: float = 0.0
    ready_s: float = 0.0
    is_begun: bool = False
    is_stepping: bool = False
    is_held: bool = False
    spans: deque[Span] = field(default_factory=deque)
    commands: deque[Callable[[], None]] = field(default_factory=deque)
    _end: Cursor = START
    _noise: np.random.Generator = field(default_factory=np.random.default_rng)
    read: list[tuple[int, int]] = field(default_factory=list)
    """Every (position, sequence) that a local step consumed, for the checkers."""

    def __post_init__(self) -> None:
        self.theta = [None] * len(self.sizes)
        self.moments = [np.zeros(2 * size + size // BLOCK, np.float32) for size in self.sizes]
        self._noise = np.random.default_rng(self.noise_seed)

    def command(self, action: Callable[[], None]) -> None:
        """Carry this out at the next boundary; at once while no local step is running."""
        if self.is_stepping:
            self.commands.append(action)
        else:
            action()

    def cursor(self) -> Cursor:
        """Where it read last: a block, and how many of its sequences are read."""
        return self._end

    def noise_state(self) -> dict[str, Any]:
        """State of its source of chance."""
        return dict(self._noise.bit_generator.state)

    def go_on(self, end: Cursor, noise: dict[str, Any]) -> None:
        """Reads and draws on where another one stood."""
        self._end = end
        self._noise.bit_generator.state = noise

    def can_step(self) -> bool:
        if not self.is_begun or self.is_held:
            return False
        unread = sum((s.stop - s.start) * self.block_sequences - s.skip for s in self.spans)
        return unread >= self.sequences_per_step

    def begin_step(self, now_s: float) -> float:
        """Seconds that the local step now running takes."""
        self.is_stepping = True
        return self.speed.step_s(now_s)

    def end_step(self, seconds: float) -> float:
        """Finish the running local step: its loss. Then the waiting commands are carried out."""
        loss = self.learn()
        for _ in range(self.sequences_per_step):
            self._read_one()
        self.local_step += 1
        self.tokens += self.tokens_per_step
        self.work_s += seconds
        self.is_stepping = False
        return loss

    def apply(self, fragment: int, delivery: Delivery) -> bool:
        """Take a delivery up; whether the fragment starts over from the global value."""
        local = self.theta[fragment]
        if local is not None and delivery.kept_frac:
            kept = np.float32(delivery.kept_frac)
            self.theta[fragment] = kept * local + (np.float32(1) - kept) * delivery.values
            return False
        if delivery.is_assign or local is None:
            self.theta[fragment] = delivery.values.copy()
            return True
        self.theta[fragment] = local + delivery.values
        return False

    def learn(self) -> float:
        """What the local step does to the weights: its loss."""
        loss = 0.0
        for at, values in enumerate(self.theta):
            assert values is not None
            pull = values - tiny_target(values.size, at)
            loss += float(pull @ pull) / values.size
            noise = self._noise.standard_normal(values.size, np.float32)
            noise *= np.float32(0.5)
            noise.reshape(-1, BLOCK)[:, TENSOR_ELEMENTS:] = 0.0
            gradient = pull + noise
            self.theta[at] = values - np.float32(0.05) * gradient
            self.remember(at, gradient)
        return loss / len(self.theta)

    def remember(self, at: int, gradient: F32) -> None:
        """What AdamW would keep of a gradient that was clipped to 1."""
        norm = len(self.theta) * float(np.linalg.norm(gradient))
        clipped = (gradient / max(1.0, norm)).astype(np.float32)
        size, kept = self.sizes[at], self.moments[at]
        kept[:size] += np.float32(0.1) * (clipped - kept[:size])
        kept[size : 2 * size] += np.float32(0.05) * (clipped**2 - kept[size : 2 * size])
        kept[2 * size :] += 1.0

    def boundary(self) -> None:
        """Carry out what waited for the local step to end."""
        while self.commands:
            self.commands.popleft()()

    def _read_one(self) -> None:
        span = self.spans[0]
        self.read.append((span.start, span.skip))
        start, skip = span.start, span.skip + 1
        self._end = Cursor(start, skip)
        if skip == self.block_sequences:
            start, skip = start + 1, 0
        if start == span.stop:
            self.spans.popleft()
        else:
            self.spans[0] = Span(start, span.stop, skip)
