"""The algorithms of a comparison by name: what each changes in the project, and who runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from protocol.errors import UserError
from protocol.project import Charter, Genesis, InnerSpec, MergeRule, OuterSpec, RoundSpec
from simulator.compare.bench import Bench
from simulator.compare.data_parallel import DataParallel
from simulator.compare.decoupled import Decoupled
from simulator.compare.lockstep import Lockstep, LockstepSpec
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting

Value = int | float | str
Spec = TypeVar("Spec", InnerSpec, OuterSpec, RoundSpec)
BASELINE = "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of the table."""

    name: str
    says: str
    kind: Literal["rigid", "elastic", "lockstep", "decoupled"]
    fails: bool = False
    inner: Mapping[str, Value] = field(default_factory=dict)
    outer: Mapping[str, Value] = field(default_factory=dict)
    rounds: Mapping[str, Value] = field(default_factory=dict)
    lockstep: LockstepSpec | None = None
    fragments: int | None = None
    rule: MergeRule | None = None
    """For every tensor, instead of RDA with the mean for embeddings."""

    def charter(self, charter: Charter) -> Charter:
        """The project's rules with this algorithm's changes."""
        return msgspec.structs.replace(
            charter,
            inner=_changed(charter.inner, self.inner),
            outer=_changed(charter.outer, self.outer),
            rounds=_changed(charter.rounds, self.rounds),
        )

    def genesis(self, genesis: Genesis) -> Genesis:
        """The project's facts with this algorithm's changes."""
        changes: dict[str, object] = {}
        if self.fragments is not None:
            changes["fragments"] = self.fragments
        if self.rule is not None:
            rule = self.rule
            tensors = tuple(msgspec.structs.replace(t, rule=rule) for t in genesis.model.tensors)
            changes["model"] = msgspec.structs.replace(genesis.model, tensors=tensors)
        return msgspec.structs.replace(genesis, **changes)

    def run(self, bench: Bench, setting: Setting, tell: Tell) -> Outcome:
        """Train. The bench must be of this algorithm's genesis and charter."""
        if self.kind == "decoupled":
            return Decoupled(bench, setting, fails=self.fails).run(tell)
        if self.kind == "lockstep":
            assert self.lockstep is not None
            return Lockstep(bench, setting, self.lockstep).run(tell)
        elastic = self.kind == "elastic"
        return DataParallel(bench, setting, fails=self.fails, is_elastic=elastic).run(tell)


def _changed(spec: Spec, changes: Mapping[str, Value]) -> Spec:
    return msgspec.structs.replace(spec, **changes)


ALGORITHMS: dict[str, Algorithm] = {
    one.name: one
    for one in (
        Algorithm(name="dp", says="data parallel, nobody fails", kind="rigid"),
        Algorithm(
            name="dp-failing",
            says="data parallel, waits for the lost",
            kind="rigid",
            fails=True,
        ),
        Algorithm(
            name="elastic-dp-failing",
            says="data parallel, goes on with fewer",
            kind="elastic",
            fails=True,
        ),
        Algorithm(
            name="fedavg",
            says="mean of whole models every 16 local steps",
            kind="lockstep",
            lockstep=LockstepSpec(local_steps=16),
            fragments=1,
            rule="mean",
        ),
        Algorithm(
            name="diloco",
            says="whole model every 16 local steps, Nesterov 0.7 and 0.9",
            kind="lockstep",
            lockstep=LockstepSpec(local_steps=16, learning_rate=0.7, momentum=0.9),
            fragments=1,
            rule="mean",
        ),
        Algorithm(
            name="streaming-diloco",
            says="fragments in turn, 1 step of overlap, alpha 0.5, int4",
            kind="lockstep",
            lockstep=LockstepSpec(
                local_steps=16,
                overlap_steps=1,
                learning_rate=0.4,
                momentum=0.9,
                alpha=0.5,
                codec="int4",
            ),
            rule="mean",
        ),
        Algorithm(name="decoupled", says="the project as it is", kind="decoupled"),
        Algorithm(
            name="decoupled-no-grace",
            says="K = 1 and nobody is waited for",
            kind="decoupled",
            rounds={"grace_safety": 0.0},
        ),
        Algorithm(name="decoupled-mean", says="mean instead of RDA", kind="decoupled", rule="mean"),
        Algorithm(
            name="decoupled-overwrite",
            says="merged weights replace local ones",
            kind="decoupled",
            rounds={"apply": "overwrite"},
        ),
        Algorithm(
            name="decoupled-rebase",
            says="local movement lives on",
            kind="decoupled",
            rounds={"apply": "rebase"},
        ),
        Algorithm(
            name="decoupled-bf16",
            says="bf16 both ways instead of int4",
            kind="decoupled",
            rounds={"up_codec": "bf16", "down_codec": "bf16"},
        ),
        Algorithm(
            name="decoupled-failing",
            says="learners are interrupted and come back",
            kind="decoupled",
            fails=True,
        ),
    )
}


def chosen(names: Sequence[str]) -> list[Algorithm]:
    """The algorithms of these names, in this order, each once; all of them for no names.

    UserError for a name that there is none of.
    """
    for name in names:
        if name not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise UserError(f"There is no algorithm {name!r}. Choose from: {known}.")
    return [ALGORITHMS[name] for name in dict.fromkeys(names or ALGORITHMS)]
