"""Decoupled DiLoCo in virtual time: the daemons' machines, banks and log around real inner loops.

Each learner is the simulator's, with a real model where the tiny one was. Time, network, crashes
and returns are virtual; local steps, payloads, merges and records are what real daemons produce.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
import numpy as np

from node.jobs import Evaluate, EvaluatedLoss, SetProgress
from node.moments import moments_numel
from node.trainer.loop import BlockReader, InnerLoop, Sequences
from node.trainer.model import FragmentView
from protocol.errors import InternalError
from protocol.fragments import Fragment
from protocol.messages import Message
from protocol.project import Voter, encode, project_id
from protocol.trace import FragmentCommitted
from simulator.compare.bench import F32, Bench
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting, failures_until
from simulator.hosts import SimLearner
from simulator.ledger import Ledger
from simulator.syncers import SimSyncer
from simulator.tiny import SimSigner, TinyProject, TinyTrainer
from simulator.world import Host, NetworkModel, World

LEARNERS_START_S = 1.0

SETTLE_S = 10.0
"""After the last local step: for the merges still on their way."""

PATIENCE_FACTOR = 50.0
"""A run that takes so many times the work of its steps is stuck."""


@dataclass(slots=True)
class Allowance:
    """Local steps that all learners together may still begin: the equal budget."""

    steps: int
    left: int
    first_s: float = -1.0
    """When the first of them began."""


class CountingWorld(World):
    """Counts bytes, and lets payloads take as long as the clock's model size asks.

    Payloads get a learner's share of one link, as if all of them always passed through the syncer's
    at once; control messages are as small as they are.
    """

    def __init__(self, setting: Setting, parameters: int) -> None:
        network = NetworkModel(setting.latency_s, setting.latency_s / 10, setting.link_bytes_per_s)
        super().__init__(setting.seed, network)
        self.bytes = 0
        # The simulator's hosts charge a transfer for its way there and for its way back.
        self._payload_factor = setting.clock_bytes(setting.learners, parameters) / 2
        self._is_message = False

    def send(self, sender: Host, peer: bytes, message: Message) -> None:
        self._is_message = True
        super().send(sender, peer, message)
        self._is_message = False

    def delay_s(self, size_bytes: int = 0) -> float:
        self.bytes += size_bytes
        factor = 1.0 if self._is_message else self._payload_factor
        return super().delay_s(round(size_bytes * factor))


class _BatchReader(BlockReader):
    """Sequences of the leased positions that the simulated trainer noted as read."""

    batch: list[tuple[int, int]]

    def take(self, count: int) -> Sequences:
        rows = [self._read(position)[sequence] for position, sequence in self.batch[-count:]]
        return np.stack(rows)


class _Weights:
    """A model's fragments as the simulator's trainers hold them."""

    def __init__(self, loop: InnerLoop, bench: Bench) -> None:
        self.view = FragmentView(loop.model, bench.layout)
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

    __slots__ = ("host", "loop", "swarm", "weights")

    def __init__(self, host: RealLearner) -> None:
        bench = host.swarm.bench
        inner, data = bench.charter.inner, bench.genesis.data
        reader = _BatchReader(bench.corpus, block_sequences=data.block_sequences)
        self.host, self.swarm = host, host.swarm
        self.loop = bench.loop(reader, inner)
        self.weights = _Weights(self.loop, bench)
        super().__init__(
            sizes=[fragment.numel for fragment in bench.layout.fragments],
            tokens_per_step=inner.batch_sequences * data.sequence_tokens,
            sequences_per_step=inner.batch_sequences,
            block_sequences=data.block_sequences,
            step_s=host.step_s,
            chance=random.Random(host.chance.random()),
        )
        reader.batch = self.read

    def __post_init__(self) -> None:
        self.theta = self.weights

    def can_step(self) -> bool:
        return self.swarm.allowance.left > 0 and super().can_step()

    def begin_step(self) -> float:
        allowance = self.swarm.allowance
        if allowance.left == allowance.steps and allowance.first_s < 0:
            self.swarm.begun(self.host.world.now_s)
        allowance.left -= 1
        return super().begin_step()

    def end_step(self, seconds: float) -> float:
        self.read_batch()
        loss = self.loop.step().loss
        self.count_step(seconds)
        self.host.tokens += self.tokens_per_step
        self.host.work_s += seconds
        return loss

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


class RealLearner(SimLearner):
    """A volunteer in virtual time that trains a real model."""

    def __init__(
        self, world: World, project: TinyProject, syncer: SimSyncer, run: Decoupled, number: int
    ) -> None:
        super().__init__(world, project, [syncer], number=number, step_s=run.setting.step_s)
        self.swarm = run
        self.work_s = 0.0
        """In local steps, those of lost trainers included."""
        self.tokens = 0

    @property
    def is_stepping(self) -> bool:
        return self.is_up and self.trainer is not None and self.trainer.is_stepping

    def look_for_work(self) -> None:
        """Take a local step if one is left."""
        if self.is_up:
            self._step()

    def make_trainer(self) -> TinyTrainer:
        return RealTrainer(self)

    def act(self, action: object) -> None:
        if isinstance(action, SetProgress):
            if self.trainer is not None:
                cast(RealTrainer, self.trainer).loop.progress = action.fraction
            return
        super().act(action)

    def _evaluate(self, job: Evaluate) -> object:
        loop, bench = cast(RealTrainer, self.trainer).loop, self.swarm.bench
        loss = bench.heldout_loss(loop, self.bank.frozen(job.index))
        return EvaluatedLoss(loss, bench.heldout.size, 1.0)

    def crash(self) -> None:
        is_lost = self.is_stepping
        super().crash()
        if is_lost:
            self.swarm.allowance.left += 1
            self.swarm.resume_others()


class RealSyncer(SimSyncer):
    """The leader, with a real version 0."""

    bench: Bench

    def first_weights(self, fragment: Fragment) -> F32:
        """Version 0 of a fragment."""
        return self.bench.first[fragment.index].copy()


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

    def __init__(self, bench: Bench, setting: Setting, *, fails: bool) -> None:
        self.bench, self.setting = bench, setting
        self.world = CountingWorld(setting, bench.layout.parameters)
        self.allowance = Allowance(*[setting.learners * setting.steps] * 2)
        signer = SimSigner("syncer")
        project = _project(bench, signer)
        ledger = Ledger(project.charter)
        self.syncer = RealSyncer(self.world, project, signer, ledger=ledger, notices={})
        self.syncer.bench = bench
        self.learners = [
            RealLearner(self.world, project, self.syncer, self, number)
            for number in range(setting.learners)
        ]
        self.syncer.boot()
        for learner in self.learners:
            self.world.after(LEARNERS_START_S, learner.boot)
        self._fails = fails

    def run(self, tell: Tell) -> Outcome:
        """Until every local step of the budget is taken and the merges on their way have landed.

        The steps since a fragment's last merge are not waited for: they are lost, as when a real
        run ends.
        """
        world, allowance = self.world, self.allowance
        limit_s = PATIENCE_FACTOR * self.setting.steps * self.setting.step_s

        def is_over() -> bool:
            tell(1.0 - allowance.left / allowance.steps)
            return not allowance.left and not any(one.is_stepping for one in self.learners)

        world.run(limit_s, stop=is_over)
        if not is_over():
            raise InternalError(
                f"after {world.now_s:.0f} virtual seconds {allowance.left} of {allowance.steps}"
                " local steps are not taken yet: the swarm is stuck"
            )
        trained_s = world.now_s
        world.run(trained_s + SETTLE_S)
        merged = [at for at, _, fact in world.facts if isinstance(fact, FragmentCommitted)]
        wall_s = max([trained_s, *merged]) - allowance.first_s
        return Outcome(
            eval_loss=self._loss(),
            tokens=sum(learner.tokens for learner in self.learners),
            bytes=world.bytes,
            virtual_wall_s=wall_s,
            goodput=self._useful_s() / (len(self.learners) * wall_s),
        )

    def begun(self, time_s: float) -> None:
        """The first local step begins: the clock of the run starts, and with it misfortune."""
        self.allowance.first_s = time_s
        if not self._fails:
            return
        horizon_s = PATIENCE_FACTOR * self.setting.steps * self.setting.step_s
        for at_s, number in failures_until(self.setting, horizon_s):
            self.world.at(time_s + at_s, partial(self._interrupt, self.learners[number]))

    def resume_others(self) -> None:
        """A local step was given back: whoever waits with text may take it."""
        for learner in self.learners:
            self.world.after(0.0, learner.look_for_work)

    def _interrupt(self, learner: RealLearner) -> None:
        if not learner.is_up:
            return
        learner.crash()
        self.world.after(self.setting.away_s, lambda: None if learner.is_up else learner.boot())

    def _loss(self) -> float:
        bank = self.syncer.bank
        fragments = [bank.current(at).theta for at in range(len(self.bench.first))]
        return self.bench.heldout_loss(self.bench.loop(), fragments)

    def _useful_s(self) -> float:
        """Seconds of local steps whose outcome is in the global model."""
        committed = self.syncer.syncer.state.tokens
        taken = sum(learner.tokens for learner in self.learners)
        return sum(learner.work_s for learner in self.learners) * committed / taken
