"""One learner's training once more, as a process: `python -m simulator.replay.retrainer`.

Reads a learner's tape, takes global versions from a directory of arrays, and writes a line of JSON
for every push: the digest that came out. A process of its own, because the number of threads must
be set before torch is loaded. The real workshop and the real bank do the work.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from host.bulk.blob_store import BlobStore
from host.tape.tape_file import TapeLife, find_tapes
from node.trainer.failures import TrainerFailure
from node.trainer.link import messages
from node.trainer.setup import TrainerSetup, limit_resources
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.tape import replay_class
from protocol.fragments import build_layout
from protocol.project import Charter, Genesis
from protocol.tape import (
    CharterInForce,
    Fed,
    Frame,
    Inexact,
    PushCaptured,
    PushClosed,
    ReplayClass,
    SnapshotTaken,
    StepsDone,
    TrainerBegan,
    VersionApplied,
)
from simulator.replay.frames import F32, Said, Unreplayable, delivered, pushed


def say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


class Retrainer:
    """Repeats the trainers of one daemon, in order."""

    def __init__(self, life: TapeLife, spool: Path, data_cache: Path) -> None:
        self.life = life
        self.spool = spool
        self.data_cache = data_cache
        self.bank: FragmentBank | None = None
        self.shop: TrainerSetup | None = None
        self.incarnation = 0
        self.copies: dict[int, F32] = {}
        """The newest copy of each fragment of the inner loop."""
        self.reason = ""
        """Why what follows cannot be repeated; empty while it can."""
        self.steps = 0

    def run(self) -> None:
        for place, frame in self.life.frames("events"):
            if isinstance(frame, TrainerBegan):
                self._began(frame)
            elif self.reason:
                if isinstance(frame, PushCaptured):
                    say(Said("untried", self.incarnation, frame.sequence, text=self.reason))
            else:
                try:
                    self._take(place, frame)
                except Unreplayable as error:
                    self.reason = str(error)
        say(Said("done", number=self.steps))

    def _began(self, frame: TrainerBegan) -> None:
        if self.bank is not None and self.reason:
            # What the former trainer's merged pushes left behind is not known.
            self.reason = f"an earlier trainer of this daemon was not repeated: {self.reason}"
            return
        self.incarnation = frame.incarnation
        genesis = msgspec.msgpack.decode(frame.genesis, type=Genesis)
        if self.bank is None:
            layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
            self.bank = FragmentBank(layout, BlobStore(clock=lambda: 0.0))
        self.bank.charter = msgspec.msgpack.decode(frame.charter, type=Charter)
        self.bank.trainer_lost()
        self.copies = {}
        try:
            self.shop = self._workshop(frame, frame.replay_class)
            self.reason = ""
        except (TrainerFailure, Unreplayable) as error:
            self.reason = str(error)

    def _workshop(self, frame: TrainerBegan, recorded: ReplayClass) -> TrainerSetup:
        if recorded.device != "cpu":
            raise Unreplayable(f"it trained on {recorded.device}, where sums have no fixed order")
        here = replay_class("cpu", recorded.threads, recorded.corpus)
        others = recorded.differences(here)
        if others:
            raise Unreplayable(f"this host is of another class ({'; '.join(others)})")
        configure = messages.Configure(
            genesis=frame.genesis,
            inner=frame.inner,
            data_cache=str(self.data_cache),
            threads=recorded.threads,
            micro_batch=frame.micro_batch,
            seed_salt=frame.seed_salt,
            device="cpu",
        )
        limit_resources(configure)
        shop = TrainerSetup(configure)
        if shop.corpus.facts.digest != recorded.corpus:
            raise Unreplayable("the training text here is another one than it was there")
        return shop

    def _take(self, place: str, frame: Frame) -> None:
        shop, bank = self.shop, self.bank
        assert shop is not None
        assert bank is not None
        match frame:
            case Fed(start, stop, skip):
                shop.loop.reader.append(((start, stop),), skip)
            case StepsDone(local_step, progress):
                self._step(local_step, progress)
            case CharterInForce(charter):
                bank.charter = msgspec.msgpack.decode(charter, type=Charter)
            case VersionApplied():
                self._expect(place, frame.local_step)
                self._apply(frame)
            case SnapshotTaken(fragment, local_step):
                self._expect(place, local_step)
                values = np.empty(shop.layout.fragments[fragment].numel, np.float32)
                shop.view.read(fragment, values)
                self.copies[fragment] = values
            case PushCaptured():
                self._push(place, frame)
            case PushClosed(fragment, sequence, is_merged):
                bank.settle(fragment, sequence, is_merged=is_merged)
            case Inexact(reason):
                raise Unreplayable(reason)
            case _:
                pass

    def _step(self, local_step: int, progress: float) -> None:
        shop = self.shop
        assert shop is not None
        loop = shop.loop
        loop.progress = progress
        while loop.local_step < local_step:
            if not loop.can_step:
                raise Unreplayable("the tape does not say which text it read")
            loop.step()
            self.steps += 1

    def _expect(self, place: str, local_step: int) -> None:
        """Local steps whose own frame comes later, as when a command waited behind one."""
        shop = self.shop
        assert shop is not None
        if shop.loop.local_step != local_step:
            raise Unreplayable(f"local step {local_step} is not where {place} has it")

    def _apply(self, frame: VersionApplied) -> None:
        shop, bank = self.shop, self.bank
        assert shop is not None
        assert bank is not None
        delivery = delivered(bank, self.spool, frame)
        if delivery.is_assign:
            shop.view.blend(frame.fragment, delivery.values, delivery.kept_frac)
        else:
            shop.view.add(frame.fragment, delivery.values)

    def _push(self, place: str, frame: PushCaptured) -> None:
        assert self.bank is not None
        values = self.copies.get(frame.fragment)
        if values is None:
            raise Unreplayable(f"there is no copy of fragment {frame.fragment} at {place}")
        said = pushed(self.bank, self.incarnation, place, frame, values)
        say(said)
        if said.kind == "diverged":
            self.reason = "it diverged before"


def main() -> int:
    tape, spool, cache = (Path(argument) for argument in sys.argv[1:4])
    Retrainer(find_tapes(tape)[0], spool, cache).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
