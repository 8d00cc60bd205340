"""One run of which some learners lie, and the same run without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from node.machine import jobs
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import decode, encode
from protocol.numerics.outer import digest
from simulator.attack.forgeries import Forge
from simulator.compare.bench import Bench
from simulator.compare.decoupled import Decoupled, RealLearner
from simulator.compare.outcome import Tell
from simulator.compare.setting import Setting
from simulator.stand_ins.tiny import TinyProject, TinyTrainer

TRUSTED = 0.5
"""Who counts less than this in a merge was named there."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one run."""

    loss: float
    merges: int
    liar_share: float
    """What liars' pushes added of all that was merged, by length."""
    pushes_until_named: int | None
    """Pushes of the first liar that were merged until one counted less than half; None: never."""
    honest_doubted: int
    """Pushes of honest learners that counted less than half."""
    honest_pushes: int


def silent(share: float) -> None:
    """For whom nobody waits."""


class Liar(RealLearner):
    """A learner that trains as others do, and hands in something else."""

    def __init__(self, run: Decoupled, project: TinyProject, number: int, forge: Forge) -> None:
        super().__init__(run, project, number)
        self._forge = forge
        self._chance = np.random.default_rng([run.setting.seed, number])

    def _capture(self, job: jobs.Capture, trainer: TinyTrainer) -> object:
        made = super()._capture(job, trainer)
        if not isinstance(made, jobs.Captured):
            return made
        payload = self.blob_store.get(made.digest)
        assert payload is not None, "it was just put there"
        codec = self.swarm.bench.charter.rounds.up_codec
        numel = self.layout.fragments[job.fragment].numel
        forged = encode(codec, self._forge(decode(codec, payload, numel), self._chance))
        name = digest(forged)
        self.blob_store.put(name, forged)
        return dataclasses.replace(made, digest=name)


class Attacked(Decoupled):
    """A run whose last learners lie."""

    def __init__(
        self, bench: Bench, setting: Setting, liars: int, forge: Callable[[], Forge]
    ) -> None:
        self._liars, self._make_forge = liars, forge
        super().__init__(bench, setting, fails=False)

    def learner(self, project: TinyProject, number: int) -> RealLearner:
        """The learner of that number: a liar if it is one of the last."""
        if number < self.setting.learners - self._liars:
            return super().learner(project, number)
        return Liar(self, project, number, self._make_forge())


def attempt(
    bench: Bench, setting: Setting, liars: int, forge: Callable[[], Forge], tell: Tell = silent
) -> Trial:
    """The run with so many liars among `setting.learners`, and what the log says of everybody."""
    run = Attacked(bench, setting, liars, forge)
    outcome = run.run(tell)
    keys = {learner.key for learner in run.learners if isinstance(learner, Liar)}
    merges = run.ledger.merges
    first = next(iter(sorted(keys)), None)
    honest = [
        one.trust for merge in merges for one in merge.contributions if one.learner not in keys
    ]
    return Trial(
        loss=outcome.eval_loss,
        merges=len(merges),
        liar_share=_share(merges, keys),
        pushes_until_named=_until_named(merges, first) if first is not None else None,
        honest_doubted=sum(trust < TRUSTED for trust in honest),
        honest_pushes=len(honest),
    )


def _share(merges: list[FragmentMerged], keys: set[bytes]) -> float:
    lengths = [
        (one.learner in keys, one.weight * one.trust * one.scale * one.norm)
        for merge in merges
        for one in merge.contributions
    ]
    total = sum(length for _, length in lengths)
    return sum(length for is_liar, length in lengths if is_liar) / total if total else 0.0


def _until_named(merges: list[FragmentMerged], key: bytes) -> int | None:
    pushes = 0
    for merge in merges:
        for one in merge.contributions:
            if one.learner == key:
                pushes += 1
                if one.trust < TRUSTED:
                    return pushes
    return None
