"""What a configured trainer owns: model, text, device, inner loop, and its place among the ranks.

Heavy imports happen here and not before, because the number of threads must be set before torch is
loaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from node.trainer.devices import device_of, in_words
from node.trainer.failures import TrainerFailure, failing_as
from node.trainer.link import messages
from protocol import decoders
from protocol.project import Genesis, InnerSpec

if TYPE_CHECKING:
    import torch

    from node.trainer.capture import Copies
    from node.trainer.loop import InnerLoop
    from node.trainer.model import Floats, FragmentView
    from node.trainer.moments_view import MomentsView
    from node.trainer.ranks.followers import Followers
    from node.trainer.ranks.group import RankGroup
    from node.trainer.text.corpus import Corpus

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class OtherRanks(Protocol):
    """The other ranks of a trainer, as one rank meets them."""

    rank: int
    ranks: int

    def begin(self) -> None:
        """The text is there: others may start."""

    def meet(self, device: torch.device) -> RankGroup:
        """The model is there: returns when all have it."""


class TrainerSetup:
    """Model, text and inner loop of one rank."""

    def __init__(self, configure: messages.Configure, others: OtherRanks | None = None) -> None:
        """TrainerFailure if model, text or device is not available. Cost: seconds.

        others: the other ranks; None where there is one rank, whatever `configure` says.
        """
        self.startup_s: dict[str, float] = {}
        self._others = others
        self._group: RankGroup | None = None
        genesis, inner = decoded(configure)
        with self._phase("data"), failing_as("data"):
            from node.trainer.text.corpus import (
                open_corpus,
            )  # No torch: bad text is noticed in a second.

            cache = Path(configure.data_cache)
            data = genesis.data
            if configure.data_location is not None:
                data = msgspec.structs.replace(data, location=configure.data_location)
            self.corpus: Corpus = open_corpus(data, seed=genesis.seed, cache=cache)
        if others is not None:
            others.begin()
        with self._phase("import"):
            import torch

            from node.trainer import capture, loop, memory_limits, model
            from node.trainer.text import reader
        torch.set_num_threads(configure.threads)
        with self._phase("device"), _failing_device():
            accelerator = loop.make_accelerator(_device(configure, others))
            memory_limits.limit_device_memory(accelerator.device, configure.gpu_memory_frac)
        with self._phase("model"), failing_as("model"):
            model.check_fits(genesis.model, genesis.data, self.corpus.vocabulary.size)
            network = model.build_model(genesis.model, seed=genesis.seed)
            self.layout = model.layout_of(genesis)
            self._positions = int(network.config.max_position_embeddings)
        self.seed(genesis.seed, configure.seed_salt)
        with failing_as("model"):
            self.loop: InnerLoop = loop.InnerLoop(
                network,
                reader.BlockReader(self.corpus, block_sequences=genesis.data.block_sequences),
                inner,
                accelerator=accelerator,
                micro_batch=_micro_batch_max(configure, inner),
            )
            self._fit(configure, genesis)
        # After the move to the device: the view holds the tensors that are trained.
        self.view: FragmentView = model.FragmentView(network, self.layout)
        self.moments: MomentsView = self.loop.moments(self.layout)
        self.copies: Copies = capture.copies_for(accelerator.device)
        self.loop.before_moving = self.copies.fence
        if others is not None:
            with self._phase("ranks"), _failing_device():
                self._group = others.meet(accelerator.device)
                self.loop.join(self._group, self._followers)
        memory_limits.limit_host_memory(configure.ram_bytes_max)

    def _fit(self, configure: messages.Configure, genesis: Genesis) -> None:
        """Finds the micro-batch, if it is not given, and compiles, if that is wanted."""
        from node.trainer import micro_batch

        if configure.micro_batch is None:
            with self._phase("dry step"):
                largest = self.loop.micro_batch
                found = micro_batch.fit(
                    self.loop,
                    genesis,
                    folder=Path(configure.data_cache),
                    room_bytes=configure.ram_bytes_max,
                    ranks=configure.ranks,
                )
                self.loop.micro_batch = micro_batch.even(found, largest)
        if configure.compiles:
            with self._phase("compile"):
                self.loop.compile()
                micro_batch.rehearse(self.loop, genesis, self.loop.micro_batch)
                self.loop.forget_gradients()

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
        """Rank 0's weights of a fragment become those of every rank; all must call it."""
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
            micro_batch=self.loop.micro_batch,
            corpus_digest=self.corpus.facts.digest,
            corpus_matches=self.corpus.matches,
            train_tokens=self.corpus.facts.train_tokens,
            heldout_tokens=self.corpus.facts.heldout_tokens,
            blocks_local=self.corpus.local_blocks,
            startup_s=self.startup_s,
            ranks=self._others.ranks if self._others is not None else 1,
            is_compiled=self.loop.is_compiled,
            adjustments=self.loop.take_adjustments(),
        )

    def _devices(self) -> str:
        own = str(self.loop.device)
        return in_words((own, *(self._followers.devices() if self._followers else ())))

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

        vocabulary = self.corpus.vocabulary
        ids = [vocabulary.eos, *vocabulary.encode([prompt])[0].tolist()]
        # Some architectures have no positions beyond those they were built with.
        tokens = min(tokens, self._positions - 1)
        ids = ids[tokens - self._positions :]
        with self.loop.other_model(self.layout, values) as model, torch.no_grad():
            torch.manual_seed(seed)
            sample: Callable[..., Any] = model.generate  # type: ignore[assignment]
            produced = sample(
                torch.tensor([ids], device=self.loop.device),
                max_new_tokens=tokens,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                eos_token_id=vocabulary.eos,
                pad_token_id=vocabulary.eos,
            )
        return vocabulary.decode(produced[0, len(ids) :].tolist())


def decoded(configure: messages.Configure) -> tuple[Genesis, InnerSpec]:
    try:
        genesis = decoders.msgpack_decoder(Genesis).decode(configure.genesis)
        inner = decoders.msgpack_decoder(InnerSpec).decode(configure.inner)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainerFailure("model", f"The genesis cannot be read ({error}).") from error
    return genesis, inner


def limit_resources(configure: messages.Configure) -> None:
    """Sets what must be set before torch is loaded."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(configure.threads)
    if configure.nice:
        os.nice(configure.nice)


def _micro_batch_max(configure: messages.Configure, inner: InnerSpec) -> int:
    """A rank's whole part of a batch, or what was said."""
    part = -(-inner.batch_sequences // configure.ranks)
    return min(configure.micro_batch or part, part)


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
