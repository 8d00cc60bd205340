"""What training code must offer so that a swarm can train with it.

Shoal's own trainer (`node.trainer.builtin`) is one such class, somebody's own another; the session
makes no difference between them. A class needs no import of Shoal: having the methods is enough.
`Trainer` is what it must have; the other protocols are what it may have.

Shoal keeps the rest: which samples are leased and read, counters, the learning-rate schedule, the
random streams, fragments, pushes, pauses and snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from node.trainer.text.reader import Pieces, part_of

if TYPE_CHECKING:
    import accelerate
    import torch
    from torch import Tensor

    from node.trainer.link.messages import Configure
    from node.trainer.ranks.group import RankGroup
    from protocol.project import ConfigValue, Genesis, InnerSpec

Samples: TypeAlias = NDArray[np.int64]
"""Of text: token ids [n, sequence_tokens + 1], or with hidden tokens [n, 2, sequence_tokens], what
is read and what is asked. Of own data and of images: numbers of samples [n]."""

Losses: TypeAlias = NDArray[np.float64]
"""Nats per token, or whatever the class measures, one for each sample."""

State: TypeAlias = "Mapping[str, Mapping[str, Tensor]]"
"""By the name of a trained tensor, what the optimizer keeps of it: `first` and `second`, f32 of the
tensor's shape, and `step`, a number. Whatever else there is has other names."""

Rest: TypeAlias = Callable[[], None]
"""Called between two pieces of work. It may take a while, and may raise StepAbandoned."""


class Images(Protocol):
    """Where the images with some numbers come from, such as `node.trainer.images.image_set`."""

    def look(self, numbers: Samples) -> tuple[NDArray[np.uint8], Samples]:
        """u8 [n, channels, height, width], and the number of each one's class [n].

        A number below 0 stands for any image at all.
        """


@dataclass(frozen=True, slots=True)
class Start:
    """What a trainer is made from."""

    genesis: Genesis
    inner: InnerSpec
    """The section [training] of the project file."""
    accelerator: accelerate.Accelerator
    """Device and precision."""
    machine: Configure
    """What the owner of this machine allows."""
    vocabulary_size: int
    """Of the project's tokenizer; 0 without text."""
    phase: Callable[[str], AbstractContextManager[None]]
    """Measures a part of the start for the log."""
    tell: Callable[[str], None]
    """Says to the owner of this machine what had to be made do without."""
    images: Images | None = None
    """What the numbers of samples stand for, where the project trains on images."""
    sharing: RankGroup | None = None
    """The ranks that hold a model of Shoal's own together, each of them a part of it."""

    @property
    def config(self) -> Mapping[str, ConfigValue]:
        """The section [model.config] of the project file: a stranger's words."""
        return self.genesis.model.config

    @property
    def device(self) -> torch.device:
        found: torch.device = self.accelerator.device
        return found

    @property
    def seed(self) -> int:
        """The project's. Torch's random stream begins with it when the class is made."""
        return self.genesis.seed

    @property
    def sequence_tokens(self) -> int:
        return self.genesis.data.sequence_tokens

    @property
    def location(self) -> str:
        """Where the data lies on this machine: what its owner said with --data, or the project file
        on the project's own machine. Otherwise empty: no path of a stranger's choice is read."""
        said = self.machine.data_location
        return self.genesis.data.location if said is None else said

    @property
    def cache(self) -> Path:
        """A folder for what can be made again."""
        return Path(self.machine.data_cache)


class Work:
    """One local step, as the swarm wants it."""

    def __init__(
        self,
        read: Callable[[Pieces], Samples],
        pieces: Pieces,
        *,
        learning_rate: float,
        local_step: int,
        progress: float,
        between: Callable[[float], float] | None = None,
        moving: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, self._between = read, between
        self.pieces = pieces
        """Leased position, first sequence in its block, sequences."""
        self.count = sum(length for _, _, length in pieces)
        """Samples in the whole batch."""
        self.learning_rate = learning_rate
        """Of the project's schedule."""
        self.local_step = local_step
        """Number of this local step, from 0."""
        self.progress = progress
        """Share of the project's budget that is trained."""
        self.moving = moving
        """Must be called before weights move by a class that says `announces_moves`."""
        self.rested_s = 0.0
        self._since = time.monotonic()

    @property
    def samples(self) -> Samples:
        """The whole batch."""
        return self._read(self.pieces)

    def part(self, first: int, last: int) -> Samples:
        """Samples [first, last) of the batch."""
        return self._read(part_of(self.pieces, first, last))

    def rest(self) -> None:
        """Rests as long as the owner of this machine wants, between two pieces of a step.

        StepAbandoned where there shall be no more work: the step then counts for nothing, so
        weights and optimizer must be as before. A class that never calls it is paused and throttled
        between whole steps.
        """
        if self._between is None:
            return
        self.rested_s += self._between(time.monotonic() - self._since)
        self._since = time.monotonic()


class Trainer(Protocol):
    """What training code must offer. It is made by calling the class with a `Start`."""

    def tensors(self) -> Mapping[str, Tensor]:
        """What is trained and goes to the swarm: contiguous f32, always the same memory.

        Shoal reads and writes them between local steps. Others may be in it too; which ones count
        is decided when the project is signed.
        """

    def step(self, work: Work) -> float:
        """Takes one local step; the mean loss of its batch. NaN where the step was left out."""

    def state(self) -> State:
        """What the optimizer keeps, so that training can go on elsewhere bit for bit.

        Nothing of a tensor that has not moved yet. Tensors may be the optimizer's own.
        """

    def load_state(self, state: State) -> None:
        """Puts back a part of what `state` gave, whole tensors; called several times.

        The tensors are new ones that may be kept, `first` and `second` zeros and `step` 0 where
        nothing had been kept.
        """

    def heldout_loss(self, samples: Samples, rest: Rest) -> float:
        """Mean loss of samples that nobody trains on, with the weights as they are."""


@runtime_checkable
class HasOwnData(Protocol):
    """Brings its data itself; such a project says `source = "own"`."""

    def data(self) -> tuple[int, int, bytes]:
        """What there is on this machine, as `OwnData`."""


class OwnData(NamedTuple):
    """How much data a class has on this machine; a plain tuple will do."""

    samples: int
    """To train on: their numbers are 0 .. samples - 1."""
    heldout: int
    """Numbered by themselves, from 0."""
    digest: bytes
    """32 bytes; equal on two machines exactly if their data is."""


@runtime_checkable
class Twinned(Protocol):
    """Measures on weights of its own while those in training stay. Without it Shoal puts other
    weights in for the time of a measurement, and the former ones back."""

    def twin(self) -> Trainer:
        """Another one with a copy of the weights, for measuring only."""


@runtime_checkable
class TellsLosses(Protocol):
    """Can measure pushes of others, as a project with `probes_frac` wants."""

    def losses(self, samples: Samples, rest: Rest) -> Losses:
        """The loss of each sample, with the weights as they are."""


@runtime_checkable
class Writes(Protocol):
    """Can sample text."""

    @property
    def positions(self) -> int | None:
        """The longest sequence that it knows; None without a limit."""

    def write(self, ids: Sequence[int], tokens: int, *, temperature: float, end: int) -> list[int]:
        """Token ids after these, at most so many; `end` ends a document."""


@runtime_checkable
class Fits(Protocol):
    """Cuts its batch into pieces that fit, and says so."""

    @property
    def micro_batch(self) -> int:
        """Samples in one pass."""

    @property
    def is_compiled(self) -> bool: ...

    def take_batch(self, sequences: int) -> None:
        """How many sequences every local step takes from now on."""


@runtime_checkable
class Ranked(Protocol):
    """Trains on several devices as one."""

    def join(self, group: Any, leading: Any) -> None:
        """Local steps are taken together with other ranks from now on."""
