"""Decoupled DiLoCo in virtual time: the daemons' machines, banks and log around real inner loops.

Each learner is the simulator's, with a real model where the tiny one was. Time, network, crashes
and returns are virtual; local steps, payloads, merges and records are what real daemons produce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import cast

import msgspec
import numpy as np

from node.machine.jobs import FinishAsked, SetProgress
from node.machine.moments import moments_numel
from node.trainer.builtin import BuiltinTrainer
from node.trainer.gain import Change, measure_gain
from node.trainer.loop import InnerLoop
from node.trainer.model import FragmentView
from node.trainer.objective import LossSum
from node.trainer.text.reader import BlockReader, Pieces, SequenceSource, read_places
from protocol import wire
from protocol.errors import InternalError
from protocol.machine import Note
from protocol.merge_rules import RULES, MergeRules
from protocol.messages import Gain, Message, SequencePlaces
from protocol.numerics.codecs import F32
from protocol.project import Voter, encode, project_id
from protocol.trace import FragmentCommitted
from simulator.checkers.ledger import Ledger
from simulator.compare.bench import Bench
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting, failures_until
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer
from simulator.stand_ins.backends import Backend
from simulator.stand_ins.tiny import SimSigner, TinyProject, TinyTrainer
from simulator.virtual.network import NetworkModel
from simulator.virtual.world import Host, World

LEARNERS_START_S = 1.0

SETTLE_S = 10.0
"""After the last local step: for the merges still on their way."""

DAY_STEPS = 200
"""Of a learner that is always there, in a day of those that come and go."""

PATIENCE_FACTOR = 50.0
"""A run that takes so many times the work of its steps is stuck."""


@dataclass(slots=True)
class Allowance:
    """Sequences that all learners together may still read: the equal budget."""

    sequences: int
    left: int
    first_s: float = -1.0
    """When the first of them began."""


class CountingWorld(World):
    """Counts bytes, and lets payloads take as long as the clock's model size asks.

    Both from the first local step on: how the first weights come to everybody is not compared.
    """

    def __init__(self, setting: Setting, parameters: int) -> None:
        network = NetworkModel(setting.latency_s, setting.latency_s / 10, setting.link_bytes_per_s)
        super().__init__(setting.seed, network)
        self.bytes = 0
        self._payload_factor = 1.0
        self._factor_begun = setting.clock_bytes(1.0, parameters)

    def begin(self) -> None:
        """Local steps begin."""
        self.bytes = 0
        self._payload_factor = self._factor_begun

    def send(self, sender: Host, peer: bytes, message: Message) -> None:
        self.bytes += len(wire.encode(message))
        super().send(sender, peer, message)

    def carried_bytes(self, size_bytes: int) -> int:
        return round(size_bytes * self._payload_factor)

    def transfer_s(self, source: bytes, target: bytes, size_bytes: int) -> float:
        self.bytes += size_bytes
        return super().transfer_s(source, target, size_bytes)


class _BatchReader(BlockReader):
    """Sequences of the leased positions that the simulated trainer reads next."""

    batch: list[tuple[int, int]]

    def plan(self, count: int) -> Pieces:
        return tuple((position, sequence, 1) for position, sequence in self.batch[:count])


class _Weights:
    """A model's fragments as the simulator's trainers hold them."""

    def __init__(self, loop: InnerLoop[BuiltinTrainer], bench: Bench) -> None:
        self.view = FragmentView(loop.trainer.model, bench.layout)
        self._assigned = [False] * len(bench.layout.fragments)

    def __getitem__(self, fragment: int) -> F32 | None:
        if not self._assigned[fragment]:
            return None
        values = np.empty(self.view.numel(fragment), np.float32)
        self.view.read(fragment, values)
        return values

    def __setitem__(self, fragment: int, values: F32) -> None:
        self._assigned[fragment] = True
        self.view.write(fragment, values)


class RealTrainer(TinyTrainer):
    """The daemons' inner loop where the tiny model was."""

    __slots__ = ("host", "loop", "reader", "swarm", "weights")

    def __init__(self, former: TinyTrainer, host: RealLearner) -> None:
        bench = host.swarm.bench
        self.host, self.swarm = host, host.swarm
        self.reader = _BatchReader(
            host.text or bench.corpus, block_sequences=former.block_sequences
        )
        self.loop = bench.loop(self.reader, loss_sum=host.loss_sum)
        self.loop.inner = self.loop.inner.with_batch(former.sequences_per_step)
        self.weights = _Weights(self.loop, bench)
        super().__init__(
            sizes=former.sizes,
            tokens_per_step=former.tokens_per_step,
            sequences_per_step=former.sequences_per_step,
            block_sequences=former.block_sequences,
            speed=former.speed,
            noise_seed=former.noise_seed,
        )

    def __post_init__(self) -> None:
        self.theta = cast("list[F32 | None]", self.weights)

    def can_step(self) -> bool:
        left = self.swarm.allowance.left
        return left >= self.sequences_per_step and super().can_step()

    def begin_step(self, now_s: float) -> float:
        allowance = self.swarm.allowance
        if allowance.left == allowance.sequences and allowance.first_s < 0:
            self.swarm.begun(now_s)
        allowance.left -= self.sequences_per_step
        return super().begin_step(now_s)

    def end_step(self, seconds: float) -> float:
        self.host.tokens += self.tokens_per_step
        self.host.kept_s += seconds
        return super().end_step(seconds)

    def learn(self) -> float:
        self.reader.batch = list(islice(self._unread(), self.sequences_per_step))
        return self.loop.step().loss

    def _unread(self) -> Iterator[tuple[int, int]]:
        for span in self.spans:
            for position in range(span.start, span.stop):
                first = span.skip if position == span.start else 0
                for sequence in range(first, self.block_sequences):
                    yield position, sequence

    def get_moments(self) -> list[F32]:
        """The optimizer's state, one array for each fragment."""
        view = self.loop.moments(self.swarm.bench.layout)
        found = []
        for fragment in self.swarm.bench.layout.fragments:
            values = np.empty(moments_numel(fragment), np.float32)
            view.read(fragment.index, values)
            found.append(values)
        return found

    def set_moments(self, moments: list[F32]) -> None:
        """Go on with another learner's."""
        if not moments:
            return
        view = self.loop.moments(self.swarm.bench.layout)
        for index, values in enumerate(moments):
            view.write(index, values)
        self.loop.is_seasoned = True

    moments = property(get_moments, set_moments)


class RealBackend(Backend):
    """The simulator's port for a real model."""

    def __init__(self, bench: Bench, learners: dict[bytes, RealLearner]) -> None:
        self._bench, self._learners = bench, learners
        self._prober: InnerLoop[BuiltinTrainer] | None = None
        """Takes no steps: it lends its model for probes."""

    def weights(self, numel: int, fragment: int) -> F32:
        """Version 0 of a fragment."""
        return self._bench.first[fragment].copy()

    def adopt(self, trainer: TinyTrainer, learner: bytes) -> TinyTrainer:
        """A trainer with a real model in place of this one."""
        return RealTrainer(trainer, self._learners[learner])

    def gains(
        self, pushed: list[F32], fragment: int, own: SequencePlaces, other: SequencePlaces
    ) -> tuple[Gain, Gain]:
        """Measured as a learner's trainer does."""
        bench = self._bench
        if self._prober is None:
            self._prober = bench.loop()
        *values, changed = pushed
        texts = [
            read_places(bench.corpus, [(place.position, place.sequence) for place in places])
            for places in (own, other)
        ]
        of_own, of_other = measure_gain(
            self._prober,
            bench.layout,
            np.concatenate(values),
            Change(fragment, changed),
            tuple(texts),
            lambda _: None,
        )
        return of_own, of_other

    def loss(self, fragments: list[F32]) -> float:
        """Held-out loss of a model."""
        return self._bench.heldout_loss(self._bench.loop(), fragments)


class RealLearner(SimLearner):
    """A volunteer in virtual time that trains a real model."""

    def __init__(self, run: Decoupled, project: TinyProject, number: int) -> None:
        super().__init__(
            run.world,
            project,
            [run.syncer],
            number=number,
            speed=run.setting.speed(number),
            backend=run.backend,
        )
        self.swarm = run
        self.loss_sum: LossSum | None = None
        """What it trains for; None: to predict the next token."""
        self.text: SequenceSource | None = None
        """What it reads; None: the text of all."""
        self.tokens = 0
        self.kept_s = 0.0
        """In local steps, but for those that an interruption took with it."""
        self._handed_in = [0] * len(self.layout.fragments)
        """Of each fragment, the local step of this life's last push."""
        self._unassigned = 0
        """Fragments of the trainer of this life that have no weights yet."""
        self.on_capture.append(self._note_push)
        self.on_assign.append(self._note_weights)

    @property
    def starts_s(self) -> float:
        """When its daemon starts, in virtual time."""
        return LEARNERS_START_S

    @property
    def is_stepping(self) -> bool:
        return self.is_up and self.trainer is not None and self.trainer.is_stepping

    def _note_push(self, host: SimLearner, fragment: int, *_: object) -> None:
        assert self.trainer is not None
        self._handed_in[fragment] = self.trainer.local_step

    def _start_trainer(self) -> object:
        self._unassigned = len(self.layout.fragments)
        return super()._start_trainer()

    def _note_weights(self, *_: object) -> None:
        """Once a learner that came back has all weights, it takes another's, if the run says so."""
        self._unassigned -= 1
        if self._unassigned == 0 and self.life > 1 and self.swarm.rejoins_locally:
            self._go_on_as_another()

    def _go_on_as_another(self) -> None:
        """With local weights and moments of the one that took most local steps in its life.

        What that one has moved since its last merges is then in this one's next displacements too.
        """
        others = [one for one in self.swarm.learners if one is not self and one.is_up]
        trained = [one.trainer for one in others if one.trainer and one.trainer.local_step]
        if not trained or self.trainer is None:
            return
        donor = max(trained, key=lambda one: one.local_step)
        for fragment, values in enumerate(donor.theta):
            if values is not None:
                self.trainer.theta[fragment] = values
        self.trainer.moments = donor.moments

    def look_for_work(self) -> None:
        """Take a local step if one is left."""
        if self.is_up:
            self._step()

    def act(self, action: object) -> None:
        if isinstance(action, SetProgress):
            if self.trainer is not None:
                cast(RealTrainer, self.trainer).loop.progress = action.fraction
            return
        super().act(action)

    def crash(self) -> None:
        lost_sequences = 0
        if self.is_up and self.trainer is not None:
            lost_sequences = self.trainer.sequences_per_step if self.is_stepping else 0
            step = self.trainer.local_step
            lost = sum(step - handed for handed in self._handed_in) / len(self._handed_in)
            self.kept_s -= lost * self.step_s
            self._handed_in = [0] * len(self._handed_in)
        super().crash()
        if lost_sequences:
            self.swarm.allowance.left += lost_sequences
            self.swarm.resume_others()


def _project(bench: Bench, syncer: SimSigner) -> TinyProject:
    """The bench's project as the simulator's hosts know theirs, led by this syncer."""
    owner = SimSigner("owner")
    genesis = msgspec.structs.replace(bench.genesis, owner=owner.key)
    genesis_bytes = encode(genesis)
    project = project_id(genesis_bytes)
    charter = msgspec.structs.replace(
        bench.charter, project=project, voters=(Voter(syncer.key, "syncer", 50),)
    )
    return TinyProject(genesis, genesis_bytes, project, charter, owner)


class Decoupled:
    """One run: a syncer, learners, and interruptions of learners if it `fails`."""

    def __init__(
        self,
        bench: Bench,
        setting: Setting,
        *,
        fails: bool,
        batches: Sequence[int] = (),
        is_daily: bool = False,
        rejoins_locally: bool = False,
        rules: MergeRules = RULES,
    ) -> None:
        """batches: sequences in a local step of each learner, over and over; empty for as many as
        the setting's steps were counted in. is_daily: every second learner leaves for half of each
        day. rejoins_locally: who comes back goes on from another's local weights and moments."""
        self.bench, self.setting = bench, setting
        self.limit_s = PATIENCE_FACTOR * setting.steps * setting.step_s
        self.world = CountingWorld(setting, bench.layout.parameters)
        budget = bench.charter.limits.tokens // bench.genesis.data.sequence_tokens
        self.allowance = Allowance(budget, budget)
        signer = SimSigner("syncer")
        project = _project(bench, signer)
        self.ledger = Ledger(project.charter)
        by_key: dict[bytes, RealLearner] = {}
        self.backend = RealBackend(bench, by_key)
        self.syncer = SimSyncer(
            self.world,
            project,
            signer,
            observer=self.ledger.add,
            notices={},
            backend=self.backend,
            rules=rules,
        )
        self.learners = [self.learner(project, at) for at in range(setting.learners)]
        for learner, batch in zip(self.learners, cycle(batches), strict=False):
            learner.batch_sequences = batch
        self.smallest = min(batches, default=bench.charter.inner.batch_sequences)
        by_key.update((learner.key, learner) for learner in self.learners)
        self.syncer.boot()
        for learner in self.learners:
            self.world.at(learner.starts_s, learner.boot)
        self._fails, self._is_daily = fails, is_daily
        self.rejoins_locally = rejoins_locally

    def learner(self, project: TinyProject, number: int) -> RealLearner:
        """The learner of that number."""
        return RealLearner(self, project, number)

    def run(self, tell: Tell) -> Outcome:
        """Until every local step of the budget is taken and the merges on their way have landed.

        The steps since a fragment's last merge are not waited for: they are lost, as when a real
        run ends.
        """
        world, allowance = self.world, self.allowance

        def is_over() -> bool:
            tell(1.0 - allowance.left / allowance.sequences)
            if self.syncer.syncer.state.is_ending:
                return True  # Its tokens are merged, which where some do not count is guesswork.
            is_spent = allowance.left < self.smallest
            return is_spent and not any(one.is_stepping for one in self.learners)

        world.run(self.limit_s, stop=is_over)
        if not is_over():
            raise InternalError(
                f"after {world.now_s:.0f} virtual seconds {allowance.left} of"
                f" {allowance.sequences} sequences are not read yet: the swarm is stuck"
            )
        trained_s = world.now_s
        world.run(trained_s + SETTLE_S)
        merged = [at for at, _, fact in world.facts if isinstance(fact, FragmentCommitted)]
        wall_s = max([trained_s, *merged]) - allowance.first_s
        return Outcome(
            eval_loss=self._loss(),
            tasks=self.bench.task_scores(self.bench.loop(), self.weights()),
            tokens=sum(learner.tokens for learner in self.learners),
            bytes=world.bytes,
            virtual_wall_s=wall_s,
            goodput=sum(one.kept_s for one in self.learners) / (len(self.learners) * wall_s),
        )

    def begun(self, time_s: float) -> None:
        """The first local step begins: the clock of the run and interruptions start."""
        self.allowance.first_s = time_s
        self.world.begin()
        if self._is_daily:
            self._live_by_day(time_s)
        if not self._fails:
            return
        for at_s, number in failures_until(self.setting, self.limit_s):
            self.world.at(time_s + at_s, partial(self._interrupt, self.learners[number]))

    def _live_by_day(self, begun_s: float) -> None:
        """Every second learner says goodbye for half of each day, one after the other."""
        day_s = DAY_STEPS * self.setting.step_s
        sometimes = self.learners[1::2]
        for number, learner in enumerate(sometimes):
            leaves_s = begun_s + day_s * (0.25 + 0.5 * number / len(sometimes))
            self.world.at(leaves_s, partial(self._leave, learner, day_s))

    def _leave(self, learner: RealLearner, day_s: float) -> None:
        if learner.is_up:
            learner.take(Note(FinishAsked()))
        self.world.after(day_s / 2, partial(self._return, learner, day_s))

    def _return(self, learner: RealLearner, day_s: float) -> None:
        if learner.is_up:
            learner.crash()
        learner.revive()
        self.world.after(day_s / 2, partial(self._leave, learner, day_s))

    def resume_others(self) -> None:
        """A local step was given back: whoever waits with text may take it."""
        for learner in self.learners:
            self.world.after(0.0, learner.look_for_work)

    def _interrupt(self, learner: RealLearner) -> None:
        if not learner.is_up:
            return
        learner.crash()
        self.world.after(self.setting.away_s, learner.revive)

    def weights(self) -> list[F32]:
        """The newest global value of every fragment."""
        bank = self.syncer.bank
        return [bank.current(at).theta for at in range(len(self.bench.first))]

    def _loss(self) -> float:
        return self.backend.loss(self.weights())
