"""One run of which some learners lie, and the same run without them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import fmean

from protocol.log.records import FragmentMerged, PushProbed, Record
from protocol.merge_rules import RULES, MergeRules
from simulator.attack.attacks import Attack
from simulator.attack.backdoor import success
from simulator.attack.liar import Liar
from simulator.attack.sight import Side
from simulator.compare.bench import Bench
from simulator.compare.decoupled import Allowance, Decoupled, RealLearner
from simulator.compare.outcome import Tell
from simulator.compare.setting import Setting
from simulator.stand_ins.tiny import TinyProject

TRUSTED = 0.5
"""Who counts less than this in a merge was named there."""

SLACK = 6
"""Local steps that each key may take, per step of the budget. A run ends when the tokens of its
charter are merged, with liars and without; this is only for one in which they never are. Pushes of
many learners share the syncer's line, and what they do meanwhile is overwritten."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one run."""

    loss: float
    merges: int
    pushes_per_merge: float
    virtual_s: float
    """From the first local step to the last merge."""
    liar_share: float
    """What liars' pushes added of all that was merged, by length."""
    pushes_until_named: int | None
    """Pushes of the first liar that were merged until one counted less than half; None: never."""
    pushes_until_suspended: int | None
    """Pushes of the first liar that were merged until it was suspended; None: never."""
    liar_pushes: int
    """That were merged, whether they counted or not."""
    honest_suspended: int
    """Honest learners that were suspended."""
    honest_doubted: int
    """Pushes of honest learners that counted less than half."""
    honest_pushes: int
    backdoor: float = 0.0
    """Share of held-out sequences after which the trigger of `backdoor` opens it."""


def silent(share: float) -> None:
    """For whom nobody waits."""


class Attacked(Decoupled):
    """A run whose last learners lie; `setting.learners` counts people, not keys."""

    def __init__(
        self,
        bench: Bench,
        setting: Setting,
        liars: int,
        attack: Attack,
        rules: MergeRules = RULES,
    ) -> None:
        self._honest, self._attack, self._side = setting.learners - liars, attack, Side()
        keys = self._honest + liars * len(attack.keys)
        super().__init__(
            bench, dataclasses.replace(setting, learners=keys), fails=False, rules=rules
        )
        batch = bench.charter.inner.batch_sequences
        self.allowance = Allowance(*[SLACK * keys * setting.steps * batch] * 2)

    def learner(self, project: TinyProject, number: int) -> RealLearner:
        """The learner of that number: a liar's key if it is one of the last."""
        if number < self._honest:
            return super().learner(project, number)
        key_number = (number - self._honest) % len(self._attack.keys)
        return Liar(
            self, project, number, attack=self._attack, key_number=key_number, side=self._side
        )


def attempt(
    bench: Bench,
    setting: Setting,
    liars: int,
    attack: Attack,
    tell: Tell = silent,
    rules: MergeRules = RULES,
) -> Trial:
    """The run with so many liars among `setting.learners`, and what the log says of everybody."""
    run = Attacked(bench, setting, liars, attack, rules)
    outcome = run.run(tell)
    lying = [learner.key for learner in run.learners if isinstance(learner, Liar)]
    keys, merges, records = set(lying), run.ledger.merges, run.ledger.records
    parts = [part for merge in merges for part in merge.contributions]
    honest = [part.trust for part in parts if part.learner not in keys]
    return Trial(
        loss=outcome.eval_loss,
        merges=len(merges),
        pushes_per_merge=fmean(len(merge.contributions) for merge in merges) if merges else 0.0,
        virtual_s=outcome.virtual_wall_s,
        liar_share=_share(merges, keys),
        pushes_until_named=_until_named(merges, lying[0]) if lying else None,
        pushes_until_suspended=_until_suspended(records, lying[0]) if lying else None,
        liar_pushes=len(parts) - len(honest),
        honest_suspended=len(_suspended(records) - keys),
        honest_doubted=sum(trust < TRUSTED for trust in honest),
        honest_pushes=len(honest),
        backdoor=success(bench.loop(), bench.layout, run.weights(), bench.heldout),
    )


def _share(merges: list[FragmentMerged], keys: set[bytes]) -> float:
    lengths = [
        (one.learner in keys, one.share * one.scale * one.norm)
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


def _suspended(records: list[Record]) -> set[bytes]:
    bodies = (record.body for record in records)
    return {body.learner for body in bodies if isinstance(body, PushProbed) and body.suspends}


def _until_suspended(records: list[Record], key: bytes) -> int | None:
    pushes = 0
    for body in (record.body for record in records):
        if isinstance(body, FragmentMerged):
            pushes += sum(part.learner == key for part in body.contributions)
        elif isinstance(body, PushProbed) and body.suspends and body.learner == key:
            return pushes
    return None
