"""One learner's training once more, as a process: `python -m simulator.replay.torch_retrainer`.

Reads a learner's tape, takes global versions from a directory of arrays, and writes a line of JSON
for every push: the digest that came out. A process of its own, because the number of threads must
be set before torch is loaded. The real trainer and the real bank do the work.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from host.tape.tape_file import TapeLife, find_tapes
from node.trainer.failures import TrainerFailure
from node.trainer.link import messages
from node.trainer.setup import TrainerSetup, limit_resources
from node.trainer_client.tape import replay_class
from protocol import tape
from protocol.numerics.codecs import F32
from simulator.replay.retrainer import Retrainer, Unreplayable, require_class


class TorchRetrainer(Retrainer):
    """Trains as daemons' trainers do."""

    shop: TrainerSetup

    def __init__(self, life: TapeLife, spool: Path, data_cache: Path) -> None:
        super().__init__(life, spool)
        self.data_cache = data_cache
        self.copies: dict[int, F32] = {}
        """The newest copy of each fragment of the inner loop."""

    def begin(self, frame: tape.TrainerBegan) -> None:
        recorded = frame.replay_class
        self.copies = {}
        if recorded.device != "cpu":
            raise Unreplayable(f"it trained on {recorded.device}, where sums have no fixed order")
        here = replay_class("cpu", recorded.threads, recorded.corpus, precision=recorded.precision)
        require_class(recorded, here)
        configure = messages.Configure(
            genesis=frame.genesis,
            inner=frame.inner,
            data_cache=str(self.data_cache),
            threads=recorded.threads,
            micro_batch=frame.micro_batch,
            seed_salt=frame.seed_salt,
            device="cpu",
            in_f32=recorded.precision == "f32",
        )
        limit_resources(configure)
        try:
            self.shop = TrainerSetup(configure)
        except TrainerFailure as error:
            raise Unreplayable(str(error)) from error
        if self.shop.precision != recorded.precision:
            here_in = self.shop.precision
            raise Unreplayable(f"it trained in {recorded.precision}, and would in {here_in} here")
        if self.shop.corpus.facts.digest != recorded.corpus:
            raise Unreplayable("the training text here differs from the recorded one")

    def train(self, place: str, frame: tape.Frame) -> None:
        match frame:
            case tape.Fed(start, stop, skip):
                self.shop.loop.reader.append(((start, stop),), skip)
            case tape.StepsDone(local_step, progress):
                self._step(local_step, progress)
            case tape.VersionApplied():
                self._expect(place, frame.local_step)
                self._apply(frame)
            case tape.SnapshotTaken(fragment, local_step):
                self._expect(place, local_step)
                values = np.empty(self.shop.layout.fragments[fragment].numel, np.float32)
                self.shop.view.read(fragment, values)
                self.copies[fragment] = values
            case tape.Inexact(reason):
                raise Unreplayable(reason)

    def values(self, fragment: int) -> F32 | None:
        return self.copies.get(fragment)

    def _step(self, local_step: int, progress: float) -> None:
        loop = self.shop.loop
        loop.progress = progress
        while loop.local_step < local_step:
            if not loop.can_step:
                raise Unreplayable("the tape does not say which text it read")
            loop.step()
            self.steps += 1

    def _expect(self, place: str, local_step: int) -> None:
        """Local steps whose own frame comes later, as when a command waited behind one."""
        if self.shop.loop.local_step != local_step:
            raise Unreplayable(f"local step {local_step} is not where {place} has it")

    def _apply(self, frame: tape.VersionApplied) -> None:
        delivery = self.deliver(frame)
        if delivery.is_assign:
            self.shop.view.blend(frame.fragment, delivery.values, delivery.kept_frac)
        else:
            self.shop.view.add(frame.fragment, delivery.values)


def main() -> int:
    place, spool, cache = (Path(argument) for argument in sys.argv[1:4])
    for outcome in TorchRetrainer(find_tapes(place)[0], spool, cache).outcomes():
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
