"""The retrain level of a simulated learner's tape: its tiny trainers once more, in this process."""

from __future__ import annotations

import random

from node.trainer_client.tape import replay_class
from protocol import decoders
from protocol.numerics.codecs import F32
from protocol.project import Genesis
from protocol.tape import Frame, StepsDone, TrainerBegan, VersionApplied
from simulator.replay.retrainer import Retrainer, require_class
from simulator.stand_ins.tiny import VIRTUAL, TinyTrainer
from simulator.virtual.nodes import Speed, SpeedModel


class TinyRetrainer(Retrainer):
    """Trains as simulated learners do."""

    trainer: TinyTrainer

    def begin(self, frame: TrainerBegan) -> None:
        require_class(frame.replay_class, replay_class(VIRTUAL, 1, None))
        genesis = decoders.msgpack_decoder(Genesis).decode(frame.genesis)
        self.trainer = TinyTrainer(
            sizes=[fragment.numel for fragment in self.bank.layout.fragments],
            tokens_per_step=0,
            sequences_per_step=0,
            block_sequences=genesis.data.block_sequences,
            speed=Speed(SpeedModel(), random.Random(0)),
            noise_seed=frame.seed_salt,
        )

    def train(self, place: str, frame: Frame) -> None:
        trainer = self.trainer
        match frame:
            case StepsDone(local_step, _):
                while trainer.local_step < local_step:
                    trainer.learn()
                    trainer.local_step += 1
                    self.steps += 1
            case VersionApplied():
                trainer.apply(frame.fragment, self.deliver(frame))

    def values(self, fragment: int) -> F32 | None:
        return self.trainer.theta[fragment]
