"""A project of the right size in a folder of its own, and trainers over it: in this process, or as
the child process that a daemon starts."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from benchmarks.gpu.device import ROOT
from benchmarks.gpu.sizes import Model, Sizes
from node.trainer.builtin import BuiltinTrainer
from node.trainer.failures import TrainerFailure
from node.trainer.link import messages
from node.trainer.loop import free_device_memory
from node.trainer.model import Floats, describe_model, initial_weights, layout_of
from node.trainer.setup import TrainerSetup
from node.trainer.text.corpus import describe_corpus
from node.trainer_client.process import ExitReason, TrainerProcess
from protocol.project import DataSpec, Genesis, encode

E = TypeVar("E", bound=messages.Event)

ROOMS = ("protocol", "host", "node", "syncer_node")
"""What is trained on is their source."""

BLOCKS = 1_000_000
EVENT_S = 600.0
"""A large model takes minutes to be made."""

BLOCK_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class Workplace:
    """A text, and everything that is made from it."""

    folder: Path
    sizes: Sizes

    def genesis(self, model: Model) -> Genesis:
        """A project that trains this model on the text."""
        data = DataSpec(
            source="file",
            location=str(self.folder / "text.txt"),
            text_field="text",
            tokenizer="bytes",
            sequence_tokens=self.sizes.sequence_tokens,
            block_sequences=BLOCK_SEQUENCES,
            blocks=1,
            heldout_frac=0.1,
            digest=bytes(32),
        )
        counted = describe_corpus(data, cache=self.folder / "cache")
        return Genesis(
            wire_version=1,
            name="benchmark",
            owner=bytes(32),
            model=describe_model(model.architecture, model.config),
            data=msgspec.structs.replace(data, blocks=counted.blocks, digest=counted.digest),
            seed=1,
            strategy="balanced",
            fragments=self.sizes.fragments,
        )

    def configure(self, genesis: Genesis, device: str, **changes: Any) -> messages.Configure:
        """What a daemon would tell its trainer; changes: other fields of it."""
        plain = messages.Configure(
            genesis=encode(genesis),
            inner=msgspec.msgpack.encode(self.sizes.inner),
            data_cache=str(self.folder / "cache"),
            threads=self.sizes.cores,
            device=device,
            micro_batch=self.sizes.micro_batch,
        )
        return msgspec.structs.replace(plain, **changes)

    def setup(self, genesis: Genesis, device: str, **changes: Any) -> TrainerSetup:
        """A trainer in this process, as a session makes it, with text to read."""
        made = TrainerSetup(self.configure(genesis, device, **changes))
        made.loop.reader.append(((0, BLOCKS),))
        return made


@contextlib.contextmanager
def workplace(sizes: Sizes) -> Iterator[Workplace]:
    """A folder with a text, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="shoal-gpu-") as folder:
        parts = [part for room in ROOMS for part in sorted((ROOT / room).rglob("*.py"))]
        text = "".join(part.read_text() for part in parts)
        (Path(folder) / "text.txt").write_text(text[: sizes.text_chars])
        yield Workplace(Path(folder), sizes)


def builtin_of(setup: TrainerSetup) -> BuiltinTrainer:
    """Its trainer, which is Shoal's own."""
    trainer = setup.trainer
    assert isinstance(trainer, BuiltinTrainer)
    return trainer


def release(device: torch.device) -> None:
    """Gives back what models that nobody has any more took."""
    free_device_memory(device)


def median_step_s(step: Callable[[], object], sizes: Sizes) -> float:
    """The median time of a local step, in seconds, once it is warm.

    step: takes one, and returns when the device is done, as whoever reads its loss does.
    """
    for _ in range(sizes.warm_steps):
        step()
    took = []
    for _ in range(sizes.timed_steps):
        began_s = time.perf_counter()
        step()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took)


class LiveTrainer:
    """A trainer process, driven as a daemon drives it."""

    def __init__(self, log: Path) -> None:
        self.events: asyncio.Queue[messages.Event] = asyncio.Queue()
        self.ended: asyncio.Future[ExitReason] = asyncio.get_running_loop().create_future()
        self.process = TrainerProcess(
            log_path=log, on_event=self.events.put_nowait, on_exit=self.ended.set_result
        )

    async def next(self, kind: type[E]) -> E:
        """The next event of this kind. TrainerFailure if the trainer fails before."""
        async with asyncio.timeout(EVENT_S):
            while True:
                taken = asyncio.ensure_future(self.events.get())
                either: set[asyncio.Future[Any]] = {taken, self.ended}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not taken.done():
                    taken.cancel()
                    raise TrainerFailure("internal", self.ended.result().message)
                event = taken.result()
                if isinstance(event, messages.Failed):
                    raise TrainerFailure(event.kind, event.message)
                if isinstance(event, kind):
                    return event

    async def begin(self, genesis: Genesis) -> None:
        """Assigns version 0 of every fragment, and lets local steps begin."""
        for fragment, values in enumerate(initial_weights(genesis)):
            await self.put(messages.Assign, fragment, values)
        self.process.send(messages.Blocks(((0, BLOCKS),)))
        self.process.send(messages.Begin())

    async def put(
        self,
        kind: type[messages.Assign] | type[messages.Add],
        fragment: int,
        values: Floats,
    ) -> None:
        """Carries a fragment in, and waits until it is there."""
        slot = self.process.slot(values.size)
        slot.values[:] = values
        self.process.send(kind(fragment, fragment, slot.identity, slot.numel))
        await self.next(messages.Done)
        self.process.release(slot)


@contextlib.asynccontextmanager
async def live_trainer(
    place: Workplace, genesis: Genesis, device: str, **changes: Any
) -> AsyncIterator[tuple[LiveTrainer, messages.Ready]]:
    """A trainer process that is ready, and gone behind the block."""
    one = LiveTrainer(place.folder / "trainer.log")
    await one.process.start(place.configure(genesis, device, **changes))
    try:
        yield one, await one.next(messages.Ready)
    finally:
        await one.process.stop(5.0)


def numel_of(genesis: Genesis) -> list[int]:
    """Elements of each fragment."""
    return [fragment.numel for fragment in layout_of(genesis).fragments]
