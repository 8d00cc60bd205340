"""The runs of `shoal sim attack`: which there are, and how one is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from host.files.home import Home
from protocol.merge_rules import RULES, MergeRules
from protocol.project import Charter, TrustRule
from shoal.project.project_file import ProjectFile
from shoal.sim import trial_project
from simulator.compare.setting import Setting

if TYPE_CHECKING:
    from simulator.attack.trial import Trial

NOBODY = "nobody"
"""The run without liars, to which the others are compared."""

Quorum = Literal["set", "one", "half", "all"]
"""K: as the project has it, or one push, half of the learners', or everybody's."""


@dataclass(frozen=True, slots=True)
class Defence:
    """Under which rule pushes are merged."""

    trust: TrustRule
    without: str = ""
    """A layer that is left out; empty for none."""

    def __str__(self) -> str:
        return f"{self.trust} - {self.without}" if self.without else self.trust

    def charter(self, charter: Charter) -> Charter:
        """The charter with this defence."""
        from simulator.attack.layers import LAYERS

        outer = msgspec.structs.replace(charter.outer, trust=self.trust)
        if self.trust == "all":
            outer = msgspec.structs.replace(outer, probes_frac=0.0)
        charter = msgspec.structs.replace(charter, outer=outer)
        return LAYERS[self.without].leave_out(charter) if self.without else charter

    @property
    def rules(self) -> MergeRules:
        """By which is merged."""
        from simulator.attack.layers import LAYERS

        return LAYERS[self.without].rules if self.without else RULES


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to be done."""

    attack: str
    defence: Defence
    quorum: Quorum
    liars: int
    setting: Setting

    @property
    def honest(self) -> int:
        return self.setting.learners - self.liars

    @property
    def quiet(self) -> Cell:
        """The run without liars that this one is compared with."""
        return replace(self, attack=NOBODY)

    def __str__(self) -> str:
        return (
            f"{self.attack}, trust {self.defence}, {self.setting.learners} learners, quorum "
            f"{self.quorum}, seed {self.setting.seed}"
        )


class AttackRow(Struct, frozen=True, kw_only=True):
    """What became of one run."""

    attack: str
    trust: TrustRule
    without: str
    """The layer that was left out."""
    learners: int
    liars: int
    quorum: Quorum
    steps: int
    seed: int
    eval_loss: float
    ratio: float
    """Of the loss to that of the same run without liars."""
    virtual_s: float
    pushes_per_merge: float
    liar_share: float
    named_after: int | None
    """Merged pushes of the first liar until one counted less than half."""
    suspended_after: int | None
    """Merged pushes of the first liar until it was suspended."""
    liar_pushes: int
    honest_suspended: int
    """Honest learners that were suspended."""
    honest_doubted: int
    honest_pushes: int
    backdoor: float
    """Share of held-out sequences after which the trigger of `backdoor` opens it."""


def plan(
    attacks: Sequence[str],
    defences: Sequence[Defence],
    *,
    learners: Sequence[int],
    liars: Callable[[int], int],
    quorums: Sequence[Quorum],
    seeds: Sequence[int],
    steps: int,
) -> list[Cell]:
    """Seed by seed; of each defence, the run without liars first."""
    return [
        Cell(attack, defence, quorum, liars(count), Setting(seed=seed, learners=count, steps=steps))
        for seed in seeds
        for count in learners
        for quorum in quorums
        for defence in defences
        for attack in (NOBODY, *attacks)
    ]


def attempt_one(task: tuple[Cell, ProjectFile, Home]) -> tuple[Cell, Trial]:
    """A whole run."""
    from simulator.attack.attacks import ATTACKS
    from simulator.attack.trial import attempt
    from simulator.compare.bench import open_bench

    cell, file, home = task
    is_quiet = cell.attack == NOBODY
    genesis, charter = trial_project.sign(file, cell.setting, home, learners=cell.honest)
    charter = cell.defence.charter(charter)
    # The learning rate falls with the tokens that count: liars' do where all are trusted.
    if charter.outer.trust == "all" and not is_quiet:
        tokens = charter.limits.tokens // cell.honest * cell.setting.learners
        limits = msgspec.structs.replace(charter.limits, tokens=tokens)
        charter = msgspec.structs.replace(charter, limits=limits)
    setting = replace(cell.setting, learners=cell.honest) if is_quiet else cell.setting
    charter = with_quorum(charter, cell.quorum, cell.setting.learners, present=setting.learners)
    bench = open_bench(genesis, charter, home.data_cache())
    liars, attack = (
        (0, next(iter(ATTACKS.values())))
        if is_quiet
        else (
            cell.liars,
            ATTACKS[cell.attack],
        )
    )
    return cell, attempt(bench, setting, liars, attack, rules=cell.defence.rules)


def with_quorum(charter: Charter, quorum: Quorum, learners: int, *, present: int) -> Charter:
    """The charter by which so many pushes are merged, and no grace brings more.

    Without the liars the number is the same, unless fewer learners are `present`.
    """
    if quorum == "set":
        return charter
    needed = min({"one": 1, "half": (learners + 1) // 2, "all": learners}[quorum], present)
    rounds = msgspec.structs.replace(
        charter.rounds, quorum=needed, grace_safety=0.0, pace_share=0.0
    )
    return msgspec.structs.replace(charter, rounds=rounds)


def rows(found: Mapping[Cell, Trial], cells: Sequence[Cell]) -> list[AttackRow]:
    """In the order of the plan."""
    return [
        AttackRow(
            attack=cell.attack,
            trust=cell.defence.trust,
            without=cell.defence.without,
            learners=cell.setting.learners,
            liars=cell.liars,
            quorum=cell.quorum,
            steps=cell.setting.steps,
            seed=cell.setting.seed,
            eval_loss=trial.loss,
            ratio=trial.loss / found[cell.quiet].loss,
            virtual_s=trial.virtual_s,
            pushes_per_merge=trial.pushes_per_merge,
            liar_share=trial.liar_share,
            named_after=trial.pushes_until_named,
            suspended_after=trial.pushes_until_suspended,
            liar_pushes=trial.liar_pushes,
            honest_suspended=trial.honest_suspended,
            honest_doubted=trial.honest_doubted,
            honest_pushes=trial.honest_pushes,
            backdoor=trial.backdoor,
        )
        for cell, trial in ((cell, found[cell]) for cell in cells)
    ]
