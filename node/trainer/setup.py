"""What a configured trainer owns: model, text, device, inner loop, and its place among the ranks.

Heavy imports happen here and not before, because the number of threads must be set before torch is
loaded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import msgspec
import numpy as np

from host.files.shard_files import HOST
from node.trainer.devices import device_of, in_words
from node.trainer.failures import TrainerFailure, failing_as
from node.trainer.link import messages
from node.trainer.own import installed
from node.trainer.own.interface import (
    Fits,
    HasOwnData,
    OwnData,
    Ranked,
    Start,
    Trainer,
    Writes,
)
from protocol import decoders
from protocol.errors import InternalError, UserError
from protocol.project import Genesis, InnerSpec

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from node.trainer.capture import Copies
    from node.trainer.images.image_set import ImageSet
    from node.trainer.loop import InnerLoop
    from node.trainer.model import Floats, FragmentView
    from node.trainer.moments_view import MomentsView
    from node.trainer.own.samples import OwnSamples
    from node.trainer.ranks.followers import Followers
    from node.trainer.ranks.group import RankGroup
    from node.trainer.ranks.sharded import InStep
    from node.trainer.text.corpus import Corpus
    from node.trainer.text.masking import MaskedText
    from node.trainer.text.reader import BlockReader, Sequences
    from protocol.messages import SequencePlace

    Data: TypeAlias = Corpus | MaskedText | OwnSamples

OWN: Final = "own"
"""Source of data that training code brings itself."""

IMAGES: Final = "images"

GRADIENT_BYTES: Final = 4
MOMENTS_BYTES: Final = {False: 8, True: 2}
"""Of one parameter, in f32 and in 8 bits; the first local step makes gradients and moments."""

NOTHING_TO_SHARE: Final = (
    "one device trains and holds the whole model: learner.sharded needs several, and a sequence of "
    "the batch for each"
)

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class OtherRanks(Protocol):
    """The other ranks of a trainer, as one rank meets them."""

    rank: int
    ranks: int

    def begin(self) -> None:
        """The text is there: others may start."""

    def meet(self, device: torch.device) -> RankGroup:
        """The model is there, or all are about to make it together: returns once all have come."""


class TrainerSetup:
    """Model, text and inner loop of one rank."""

    def __init__(self, configure: messages.Configure, others: OtherRanks | None = None) -> None:
        """TrainerFailure if model, text or device is not available. Cost: seconds.

        others: the other ranks; None where there is one rank, whatever `configure` says.
        """
        self.startup_s: dict[str, float] = {}
        self._in_low_bits = configure.in_low_bits
        self._others = others
        self._group: RankGroup | None = None
        genesis, inner = decoded(configure)
        text = None if genesis.data.source == OWN else self._opened(configure, genesis)
        if others is not None:
            others.begin()
        with self._phase("import"):
            import torch

            from node.trainer import capture, loop, memory_limits, model
        torch.set_num_threads(configure.threads)
        accelerator = self._device_for(configure, genesis, others)
        has_room = accelerator.device.type != "cpu"
        adjustments = list(text.facts.notes) if text is not None else []
        self._sharing = self._found_to_share(configure, accelerator.device, adjustments)
        with failing_as("model"):
            self.layout = model.layout_of(genesis)
            self.trainer = self._made(
                Start(
                    genesis=genesis,
                    inner=_tried_first(inner, genesis, has_room=has_room),
                    accelerator=accelerator,
                    machine=configure,
                    vocabulary_size=_vocabulary_size(text),
                    phase=self._phase,
                    tell=adjustments.append,
                    images=_images(text),
                    sharing=self._sharing,
                )
            )
        self.seed(genesis.seed, configure.seed_salt)
        self.corpus: Data = text or self._own_samples(genesis)
        device, inner = accelerator.device, self._with_batch(inner, has_room=has_room)
        self.loop: InnerLoop[Trainer] = loop.InnerLoop(
            self.trainer, self._reader(genesis), inner, device=device, adjustments=adjustments
        )
        # After the move to the device: the view holds the tensors that are trained.
        self.view: FragmentView = self.loop.view(self.layout)
        self.moments: MomentsView = self.loop.moments(self.layout)
        self.copies: Copies = capture.copies_for(device)
        self.loop.before_moving = self.copies.fence
        self._join(device)
        step_bytes = GRADIENT_BYTES + MOMENTS_BYTES[configure.optimizer_in_8_bits]
        memory_limits.limit_host_memory(
            configure.ram_bytes_max,
            ceiling=configure.ram_ceiling_bytes,
            step_bytes=step_bytes * self._parameters_here(),
        )
        self.has_room_to_measure = device.type == "cpu" and configure.ram_bytes_max is None
        """Whether a local step may run beside a second copy of the model."""

    def _found_to_share(
        self, configure: messages.Configure, device: torch.device, adjustments: list[str]
    ) -> RankGroup | None:
        """The ranks that hold the model together, once all are there; None where each has it
        whole."""
        group = self._met(device) if configure.sharded else None
        if configure.sharded and group is None:
            adjustments.append(NOTHING_TO_SHARE)
        return group

    def _parameters_here(self) -> int:
        """Of the model, as many as this rank trains."""
        together = self._sharing.ranks if self._sharing is not None else 1
        return -(-self.layout.parameters // together)

    def _opened(self, configure: messages.Configure, genesis: Genesis) -> Data:
        """Text or images; no torch yet, so that bad data is noticed in a second."""
        with self._phase("data"), failing_as("data"):
            cache = Path(configure.data_cache)
            if genesis.published is not None:
                return open_data(genesis, cache, shards=configure.data_location or HOST)
            from node.trainer.text.sources import read_as_a_copy

            with read_as_a_copy(genesis.data, configure.data_location):
                return open_data(read_at(genesis, configure.data_location), cache)

    def _made(self, start: Start) -> Trainer:
        """The trainer, with weights of the project's seed."""
        from node.trainer import making

        named = start.genesis.trainer
        place = start.machine.trainer or (installed.require(named) if named else "")
        return making.own(place, start) if place else making.builtin(start)

    def _own_samples(self, genesis: Genesis) -> OwnSamples:
        """The data that the training code brings."""
        from node.trainer.own.samples import OwnSamples

        trainer: object = self.trainer
        with self._phase("data"), failing_as("data"):
            if not isinstance(trainer, HasOwnData):
                raise UserError(
                    "This project trains on data that its training code brings, and this code"
                    " brings none. Start the trainer that the project names."
                )
            return OwnSamples(genesis.data, OwnData(*trainer.data()), seed=genesis.seed)

    def _reader(self, genesis: Genesis) -> BlockReader:
        from node.trainer.text.reader import BlockReader

        return BlockReader(
            self.corpus,
            block_sequences=genesis.data.block_sequences,
            sample_tokens=genesis.data.sequence_tokens,
        )

    def _met(self, device: torch.device) -> RankGroup | None:
        """The other ranks, once all are there; None where there is one."""
        if self._others is not None and self._group is None:
            with self._phase("ranks"), _failing_device():
                self._group = self._others.meet(device)
        return self._group

    def _join(self, device: torch.device) -> None:
        """Returns when all ranks have their model, or are there to make it together."""
        group, trainer = self._met(device), cast(object, self.trainer)
        if group is None:
            return
        if not isinstance(trainer, Ranked):
            raise InternalError("this training code does not train with other ranks")
        trainer.join(group, self._followers)

    def _with_batch(self, inner: InnerSpec, *, has_room: bool) -> InnerSpec:
        """With what a local step takes, where the batch has a range: on an accelerator all that
        goes through its ranks at once, elsewhere the fewest, and at least one for each rank."""
        ranks = self._others.ranks if self._others is not None else 1
        trainer: object = self.trainer
        if not isinstance(trainer, Fits):
            return inner.with_batch(inner.batch_sequences)
        found = inner.with_batch(ranks * trainer.micro_batch if has_room else ranks)
        trainer.take_batch(found.batch_sequences)
        return found

    @property
    def micro_batch(self) -> int:
        """Samples in one pass."""
        trainer: object = self.trainer
        return trainer.micro_batch if isinstance(trainer, Fits) else self.loop.inner.batch_sequences

    @property
    def _followers(self) -> Followers | None:
        """The ranks that this one leads."""
        from node.trainer.ranks.followers import Followers

        return self._others if isinstance(self._others, Followers) else None

    def seed(self, seed: int, salt: int, *, local_step: int = 0) -> None:
        """Draws from now on what this rank draws in this local step."""
        from node.trainer.loop import seed_random_stream

        rank = self._others.rank if self._others is not None else 0
        seed_random_stream(seed, salt, rank=rank, local_step=local_step)

    def spread_weights(self, fragment: int) -> None:
        """Rank 0's weights of a fragment become those of every rank; all must call it.

        Ranks that hold a model together have them all as soon as they are written.
        """
        if self._sharing is not None:
            return
        if self._followers is not None:
            self._followers.spread_weights(fragment)
        if self._group is not None:
            self._group.spread(self.view.tensors(fragment))

    def spread_moments(self, fragment: int, values: Floats) -> None:
        """Rank 0's `values` become those of every rank, in place; all must call it."""
        if self._group is None:
            return
        import torch

        if self._followers is not None:
            self._followers.spread_moments(fragment)
        passing = torch.from_numpy(values).to(self.loop.device)
        self._group.spread([passing])
        if self._others is not None and self._others.rank:
            torch.from_numpy(values).copy_(passing)

    def follow(self, order: InStep) -> None:
        """Takes this rank's part in what rank 0 does with a model that they hold together."""
        from node.trainer.ranks import sharded

        trainer, view, moments = self.trainer, self.view, self.moments
        assert isinstance(trainer, sharded.ShardedTrainer)
        assert isinstance(view, sharded.ShardedView)
        assert isinstance(moments, sharded.ShardedMoments)
        sharded.follow(order, trainer, view, moments)

    def _device_for(
        self, configure: messages.Configure, genesis: Genesis, others: OtherRanks | None
    ) -> Accelerator:
        """The device of this rank, no more of its memory than may be taken, and the precision."""
        from node.trainer import loop, memory_limits

        with self._phase("device"), _failing_device():
            accelerator = loop.make_accelerator(
                _device(configure, others),
                parameters=_parameters(genesis),
                in_f32=configure.in_f32,
            )
            memory_limits.limit_device_memory(accelerator.device, configure.gpu_memory_frac)
        self.precision = "bf16" if accelerator.mixed_precision == "bf16" else "f32"
        return accelerator

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.startup_s[name] = round(time.monotonic() - started, 3)

    def ready(self) -> messages.Ready:
        """What the daemon learns first."""
        return messages.Ready(
            layout_digest=self.layout.digest,
            device=self._devices(),
            parameters=self.layout.parameters,
            micro_batch=self.micro_batch,
            corpus_digest=self.corpus.facts.digest,
            corpus_matches=self.corpus.matches,
            train_tokens=self.corpus.facts.train_tokens,
            heldout_tokens=self.corpus.facts.heldout_tokens,
            startup_s=self.startup_s,
            ranks=self._others.ranks if self._others is not None else 1,
            is_compiled=isinstance(self.trainer, Fits) and self.trainer.is_compiled,
            adjustments=self.loop.take_adjustments(),
            batch_sequences=self.loop.inner.batch_sequences,
            in_low_bits=self._in_low_bits,
            is_sharded=self._sharing is not None,
            precision=self.precision,
        )

    def _devices(self) -> str:
        own = str(self.loop.device)
        return in_words((own, *(self._followers.devices() if self._followers else ())))

    def read_places(self, places: Sequence[SequencePlace]) -> Sequences:
        """The sequences there; the text that is read next for local steps stays what it is."""
        from node.trainer.text.reader import read_places

        return read_places(self.corpus, [(place.position, place.sequence) for place in places])

    def heldout_loss(self, fragments: Sequence[Floats], count: int) -> float:
        """Held-out loss of other weights, in nats per token, over at most `count` sequences."""
        sequences = self.corpus.heldout(count)
        return self.loop.evaluate(
            sequences, layout=self.layout, values=np.concatenate(list(fragments))
        )

    def generate(
        self, prompt: str, tokens: int, *, seed: int, temperature: float, values: Floats | None
    ) -> str:
        """Text sampled after the prompt, from `values` (every fragment) or the own weights.

        At most as many tokens as the model has positions; a long prompt loses its beginning.
        """
        import torch

        from node.trainer.text.corpus import Corpus

        if not isinstance(self.corpus, Corpus):
            return ""  # Nothing here is text.
        vocabulary = self.corpus.vocabulary
        ids = [vocabulary.eos, *vocabulary.encode([prompt])[0].tolist()]
        with self.loop.other(self.layout, values) as trainer, torch.no_grad():
            if not isinstance(trainer, Writes):
                return ""
            # Some architectures have no positions beyond those they were built with.
            positions = trainer.positions or self.corpus.spec.sequence_tokens
            tokens = min(tokens, positions - 1)
            torch.manual_seed(seed)
            written = trainer.write(
                ids[tokens - positions :], tokens, temperature=temperature, end=vocabulary.eos
            )
        return vocabulary.decode(written)


def open_data(genesis: Genesis, cache: Path, *, shards: str = HOST) -> Data:
    """The project's text or images, as its model reads them. UserError if they cannot be read.

    shards: whose folder of published data in the cache is read.
    """
    if (genesis.data.source == IMAGES) != (genesis.images is not None):
        raise UserError("This project contradicts itself: its data are images, or they are not.")
    if genesis.images is not None:
        from node.trainer.images.image_set import open_images
        from node.trainer.images.published import open_published_images

        if genesis.published is not None:
            return open_published_images(genesis, cache=cache, owner=shards)
        return open_images(genesis.data, genesis.images, seed=genesis.seed, cache=cache)
    text = open_text(genesis, cache, shards=shards)
    if genesis.masked is None:
        return text
    from node.trainer.text.masking import MaskedText

    return MaskedText(text, genesis.masked, seed=genesis.seed)


def read_at(genesis: Genesis, location: str | None) -> Genesis:
    """The project with its data at another place; None, and "" for a mixture: at its own."""
    if genesis.mixture is None:
        at = genesis.data.location if location is None else location
        data = msgspec.structs.replace(genesis.data, location=at)
        return msgspec.structs.replace(genesis, data=data)
    from node.trainer.text.mixture import located

    if not location:
        return genesis
    return msgspec.structs.replace(genesis, mixture=located(genesis.mixture, location))


def open_text(genesis: Genesis, cache: Path, *, shards: str = HOST) -> Corpus:
    """The project's text: published, or this machine's copy. UserError if it cannot be read."""
    from node.trainer.text.mixture import open_sources
    from node.trainer.text.published import open_published

    if genesis.published is not None:
        return open_published(genesis, cache=cache, owner=shards)
    return open_sources(genesis, cache=cache)


def _vocabulary_size(data: Data | None) -> int:
    """Of text; 0 of other data."""
    from node.trainer.own.samples import OwnSamples

    return 0 if data is None or isinstance(data, OwnSamples) else data.vocabulary.size


def _images(data: Data | None) -> ImageSet | None:
    """The data, if it is images."""
    from node.trainer.images.image_set import ImageSet

    return data if isinstance(data, ImageSet) else None


def _tried_first(inner: InnerSpec, genesis: Genesis, *, has_room: bool) -> InnerSpec:
    """How the trainer is made: with the largest batch where it is found out what fits."""
    fewest, most = inner.batch_range
    return inner.with_batch(most if has_room and genesis.trainer is None else fewest)


def decoded(configure: messages.Configure) -> tuple[Genesis, InnerSpec]:
    try:
        genesis = decoders.msgpack_decoder(Genesis).decode(configure.genesis)
        inner = decoders.msgpack_decoder(InnerSpec).decode(configure.inner)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainerFailure("model", f"The genesis cannot be read ({error}).") from error
    return genesis, inner


def limit_resources(configure: messages.Configure) -> None:
    """Sets what should be set before torch is loaded."""
    limit_threads(configure.threads)
    if configure.nice:
        os.nice(configure.nice)


def limit_threads(threads: int) -> None:
    """How many threads the libraries compute with in this process."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)
    if "torch" in sys.modules:  # A fork server had loaded it already.
        sys.modules["torch"].set_num_threads(threads)


def _parameters(genesis: Genesis) -> int:
    """All that a pass goes through, frozen ones included."""
    trained = sum(one.numel for one in genesis.model.tensors)
    frozen = genesis.adapter.frozen if genesis.adapter is not None else ()
    return trained + sum(one.numel for one in frozen)


def _device(configure: messages.Configure, others: OtherRanks | None) -> str | None:
    """The device of this rank."""
    if others is None:
        return configure.device
    from node.trainer.loop import best_kind

    with failing_as("device"):
        return device_of(others.rank, others.ranks, configure.device, best_kind())


@contextmanager
def _failing_device() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        raise TrainerFailure(
            "device", f"The device cannot be used ({error}). Name another one, or `cpu`."
        ) from error
