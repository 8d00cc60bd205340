"""The retrain level of a simulated learner's tape: its tiny trainers once more, in this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from host.bulk.blob_store import BlobStore
from host.tape.tape_file import TapeLife
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.tape import replay_class
from protocol.fragments import build_layout
from protocol.project import Charter, Genesis
from protocol.tape import (
    CharterInForce,
    Frame,
    PushCaptured,
    PushClosed,
    StepsDone,
    TrainerBegan,
    VersionApplied,
)
from simulator.replay.frames import Said, Unreplayable, delivered, pushed
from simulator.stand_ins.tiny import VIRTUAL, TinyTrainer
from simulator.virtual.nodes import Speed, SpeedModel


class TinyAgain:
    """Repeats the trainers of one simulated learner, in order."""

    def __init__(self, life: TapeLife, spool: Path) -> None:
        self.life = life
        self.spool = spool
        self.bank: FragmentBank | None = None
        self.trainer: TinyTrainer | None = None
        self.incarnation = 0
        self.steps = 0
        self.reason = ""
        """Why what follows cannot be repeated; empty while it can."""

    def said(self) -> Iterator[Said]:
        """What came of every push, and at the end of the local steps."""
        for place, frame in self.life.frames("events"):
            if isinstance(frame, TrainerBegan):
                self._began(frame)
            elif self.reason:
                if isinstance(frame, PushCaptured):
                    yield Said("untried", self.incarnation, frame.sequence, text=self.reason)
            elif isinstance(frame, PushCaptured):
                yield self._push(place, frame)
            else:
                try:
                    self._take(frame)
                except Unreplayable as error:
                    self.reason = str(error)
        yield Said("done", number=self.steps)

    def _began(self, frame: TrainerBegan) -> None:
        if self.bank is not None and self.reason:
            # What the former trainer's merged pushes left behind is not known.
            self.reason = f"an earlier trainer of this learner was not repeated: {self.reason}"
            return
        self.incarnation = frame.incarnation
        others = frame.replay_class.differences(replay_class(VIRTUAL, 1, None))
        if others:
            self.reason = f"this host is of another class ({'; '.join(others)})"
            return
        genesis = msgspec.msgpack.decode(frame.genesis, type=Genesis)
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        if self.bank is None:
            self.bank = FragmentBank(layout, BlobStore(clock=lambda: 0.0))
        self.bank.charter = msgspec.msgpack.decode(frame.charter, type=Charter)
        self.bank.trainer_lost()
        self.trainer = TinyTrainer(
            sizes=[fragment.numel for fragment in layout.fragments],
            tokens_per_step=0,
            sequences_per_step=0,
            block_sequences=genesis.data.block_sequences,
            speed=Speed(SpeedModel(), random.Random(0)),
            noise_seed=frame.seed_salt,
        )

    def _take(self, frame: Frame) -> None:
        assert self.trainer is not None
        assert self.bank is not None
        match frame:
            case StepsDone(local_step, _):
                while self.trainer.local_step < local_step:
                    self.trainer.learn()
                    self.trainer.local_step += 1
                    self.steps += 1
            case CharterInForce(charter):
                self.bank.charter = msgspec.msgpack.decode(charter, type=Charter)
            case VersionApplied():
                self._apply(self.bank, self.trainer, frame)
            case PushClosed(fragment, sequence, is_merged):
                self.bank.settle(fragment, sequence, is_merged=is_merged)
            case _:
                pass

    def _apply(self, bank: FragmentBank, trainer: TinyTrainer, frame: VersionApplied) -> None:
        trainer.apply(frame.fragment, delivered(bank, self.spool, frame))

    def _push(self, place: str, frame: PushCaptured) -> Said:
        assert self.trainer is not None
        assert self.bank is not None
        values = self.trainer.theta[frame.fragment]
        if values is None:
            self.reason = f"fragment {frame.fragment} was not delivered before {place}"
            return Said("untried", self.incarnation, frame.sequence, text=self.reason)
        said = pushed(self.bank, self.incarnation, place, frame, values)
        if said.kind == "diverged":
            self.reason = "it diverged before"
        return said
