"""Swarms in which nobody lies and not all are alike: what earned trust costs those."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from node.trainer.text.corpus import Corpus
from node.trainer.text.reader import Sequences
from simulator.attack.trial import SLACK, TRUSTED
from simulator.compare.bench import Bench
from simulator.compare.decoupled import Allowance, Decoupled, RealLearner
from simulator.compare.outcome import Tell
from simulator.compare.setting import Setting
from simulator.stand_ins.tiny import TinyProject
from simulator.virtual.nodes import Speed

BLOCKS_LOOKED_AT: Final = 2048
"""Spread over the text, to find those of one kind."""

KIND_FRAC: Final = 0.25

NEAR_FRAC: Final = 0.9
"""From this share of the budget on, the loss is measured after each merge."""

POINTS_MIN: Final = 3
"""Fewer measurements are no line."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the last learner differs from the others, which are alike."""

    about: str
    slower: float = 1.0
    """How many times as long its local steps take."""
    is_of_kind: bool = False
    """Whether it reads `TextOfKind`."""


MIXTURES: Mapping[str, Mixture] = {
    "alike": Mixture("all learners are alike"),
    "slow": Mixture("a local step of the last takes ten times as long", slower=10.0),
    "kind": Mixture(
        "the last reads only the quarter of the text in which the most common token is most common",
        is_of_kind=True,
    ),
}


class TextOfKind:
    """The quarter of a text's blocks in which its most common token is most common.

    In a program's source that token is the space or the end of a line: such blocks are deeply
    indented code and tables, where others are prose. Whatever position is read, it is one of these.
    """

    def __init__(self, corpus: Corpus) -> None:
        spread = np.linspace(0, corpus.spec.blocks - 1, BLOCKS_LOOKED_AT).astype(int)
        places = [int(at) for at in np.unique(spread)]
        blocks = [corpus.sequences(at)[:, :-1] for at in places]
        self.whole = _counts(blocks, 0)
        common = self.whole.argmax()
        order = np.argsort([-float((one == common).mean()) for one in blocks], kind="stable")
        chosen = order[: max(1, round(KIND_FRAC * len(blocks)))]
        self.part = _counts([blocks[at] for at in chosen], self.whole.size)
        self._places = [places[at] for at in chosen]
        self._corpus = corpus

    @property
    def distance(self) -> float:
        """Total variation distance between its tokens and those of the whole text, 0 to 1."""
        shares = self.part / self.part.sum() - self.whole / self.whole.sum()
        return float(np.abs(shares).sum() / 2)

    def sequences(self, position: int) -> Sequences:
        """As `Corpus.sequences`, of a block of this kind."""
        return self._corpus.sequences(self._places[position % len(self._places)])


@dataclass(frozen=True, slots=True)
class HonestRun:
    """What became of a run without liars."""

    loss: float
    """Held-out, once learners handed in as many tokens as the budget has."""
    merges: int
    pushes: int
    doubted: int
    """Of these, how many counted less than half."""
    refused: int
    """Pushes that were called a false claim."""


class Mixed(Decoupled):
    """A run whose last learner differs."""

    def __init__(self, bench: Bench, setting: Setting, mixture: Mixture) -> None:
        self._mixture = mixture
        super().__init__(bench, setting, fails=False)
        batch = bench.charter.inner.batch_sequences
        self.allowance = Allowance(*[SLACK * setting.learners * setting.steps * batch] * 2)

    def learner(self, project: TinyProject, number: int) -> RealLearner:
        """The learner of that number."""
        learner = super().learner(project, number)
        if number == self.setting.learners - 1:
            usual = self.setting.speed(number)
            model = structs.replace(usual, step_s=usual.step_s * self._mixture.slower)
            learner.speed = Speed(model, random.Random(f"speed {learner.name} {self.world.seed}"))
            if self._mixture.is_of_kind:
                learner.text = TextOfKind(self.bench.corpus)
                learner.has_other_text = True  # As a daemon says it: of other blocks.
        return learner


class LossNearEnd:
    """The loss of a run where its learners have handed in as many tokens as the budget has.

    A run ends with a merge, somewhat behind its budget, and one merge more or less changes the loss
    of a short run by half a percent: more than what is looked for. Tokens count as handed in
    whether they were trusted or not, for who was not trusted had to do the work as well.
    """

    def __init__(self, run: Mixed, tell: Tell) -> None:
        self._run, self._tell = run, tell
        self._merges = self._tokens = 0
        self.budget = run.bench.charter.limits.tokens
        self.points: list[tuple[float, float]] = []
        """Tokens handed in, and the held-out loss then."""

    def tell(self, share: float) -> None:
        """The run goes on: measures, if it is near its end and something was merged."""
        self._tell(share)
        merges = self._run.ledger.merges
        if len(merges) == self._merges:
            return
        new, self._merges = merges[self._merges :], len(merges)
        self._tokens += sum(part.tokens for merge in new for part in merge.contributions)
        tokens = self._tokens / len(self._run.bench.layout.fragments)
        if tokens >= NEAR_FRAC * self.budget:
            self.points.append((tokens, self._run.backend.loss(self._run.weights())))


def loss_at(points: Sequence[tuple[float, float]], tokens: float) -> float:
    """The loss at so many tokens on the line through all points, by least squares.

    points: tokens and loss. The last loss where they are too few.
    """
    if len(points) < POINTS_MIN:
        return points[-1][1]
    at, losses = np.array(points, np.float64).T
    _, level = np.polyfit(at - tokens, losses, 1)
    return float(level)


def train(bench: Bench, setting: Setting, mixture: Mixture, tell: Tell) -> HonestRun:
    """A whole run of this mixture."""
    run = Mixed(bench, setting, mixture)
    near = LossNearEnd(run, tell)
    outcome = run.run(near.tell)
    parts = [part for merge in run.ledger.merges for part in merge.contributions]
    leadership = run.syncer.syncer.leadership
    return HonestRun(
        loss=loss_at(near.points, near.budget) if near.points else outcome.eval_loss,
        merges=len(run.ledger.merges),
        pushes=len(parts),
        doubted=sum(part.trust < TRUSTED for part in parts),
        refused=leadership.rounds.outcomes.get("false-claim", 0) if leadership else 0,
    )


def _counts(blocks: Sequence[Sequences], size: int) -> NDArray[np.intp]:
    """How often each token is in these blocks; `size` tokens at least."""
    return np.bincount(np.concatenate([one.ravel() for one in blocks]), minlength=size)
