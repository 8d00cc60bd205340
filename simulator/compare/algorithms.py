"""The algorithms of a comparison by name: what each changes in the project, and who runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from protocol.errors import UserError
from protocol.project import Charter, FragmentStrategy, Genesis, MergeRule
from simulator.compare.asynchronous import Asynchronous, AsynchronousSpec
from simulator.compare.bench import Bench
from simulator.compare.data_parallel import DataParallel
from simulator.compare.decoupled import Decoupled
from simulator.compare.lockstep import Lockstep, LockstepSpec
from simulator.compare.outcome import Outcome, Tell
from simulator.compare.setting import Setting
from simulator.compare.tuning import Range

Value = int | float | str
BASELINE = "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of the table."""

    name: str
    says: str
    kind: Literal["rigid", "elastic", "lockstep", "asynchronous", "decoupled"]
    fails: bool = False
    inner: Mapping[str, Value] = field(default_factory=dict)
    outer: Mapping[str, Value] = field(default_factory=dict)
    rounds: Mapping[str, Value] = field(default_factory=dict)
    lockstep: LockstepSpec | None = None
    asynchronous: AsynchronousSpec | None = None
    fragments: int | None = None
    batches: tuple[int, ...] = ()
    """Sequences in a local step of each learner; empty for what the project says."""
    rule: MergeRule | None = None
    """For every tensor, instead of what the project says."""
    strategy: FragmentStrategy | None = None
    is_daily: bool = False
    """Whether every second learner is there for half of each day only."""
    rejoins_locally: bool = False
    """Whether who comes back goes on from another's local weights and moments."""
    link_mbps: float | None = None
    """Of every link, instead of what the comparison says."""
    tunes: tuple[Range, ...] = ()
    """What is tuned where tuning is wanted; empty for what its kind has."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What a tuning looks for the best value of."""
        if self.tunes:
            return self.tunes
        if self.kind in ("decoupled", "lockstep", "asynchronous"):
            part = "outer" if self.kind == "decoupled" else self.kind
            return (*INNER_RANGES, *outer_ranges(part))
        return INNER_RANGES

    def untuned(self, charter: Charter) -> dict[str, float]:
        """What it has without a tuning, by keys of `ranges`."""
        charter = self.charter(charter)
        parts = {
            "inner": charter.inner,
            "outer": charter.outer,
            "lockstep": self.lockstep,
            "asynchronous": self.asynchronous,
        }
        keys = [one.key.partition(".") for one in self.ranges]
        return {f"{part}.{name}": float(getattr(parts[part], name)) for part, _, name in keys}

    def tuned(self, settings: Mapping[str, float]) -> Algorithm:
        """The same with these values, by keys of `ranges`."""
        parts = ("inner", "outer", "lockstep", "asynchronous")
        found: dict[str, dict[str, Any]] = {part: {} for part in parts}
        for key, value in settings.items():
            part, _, name = key.partition(".")
            found[part][name] = value
        lockstep, asynchronous = self.lockstep, self.asynchronous
        return replace(
            self,
            inner={**self.inner, **found["inner"]},
            outer={**self.outer, **found["outer"]},
            lockstep=replace(lockstep, **found["lockstep"]) if lockstep else None,
            asynchronous=(replace(asynchronous, **found["asynchronous"]) if asynchronous else None),
        )

    def reads(self, key: str) -> bool:
        """Whether this setting of the project file, as `outer.momentum`, changes anything here."""
        section, _, name = key.partition(".")
        own = {"training": self.inner, "outer": self.outer, "rounds": self.rounds}
        if name in own.get(section, {}):
            return False
        if section == "model" and name in ("fragments", "strategy"):
            return getattr(self, name) is None
        if key.startswith("model.merge."):
            return self.rule is None
        if section not in ("outer", "rounds") or self.kind == "decoupled":
            return True
        if key != "rounds.local_steps":
            return False
        has_own = self.lockstep is not None and self.lockstep.local_steps is not None
        return self.kind == "asynchronous" or (self.kind == "lockstep" and not has_own)

    def local_steps(self, charter: Charter) -> int:
        """Between two merges of a fragment; 0 where gradients are averaged."""
        if self.kind in ("rigid", "elastic"):
            return 0
        own = self.lockstep.local_steps if self.lockstep is not None else None
        return self.charter(charter).rounds.local_steps if own is None else own

    def setting(self, setting: Setting) -> Setting:
        """The common ground with this algorithm's link."""
        return replace(setting, link_mbps=self.link_mbps) if self.link_mbps else setting

    def charter(self, charter: Charter) -> Charter:
        """The project's rules with this algorithm's changes."""
        return msgspec.structs.replace(
            charter,
            inner=msgspec.structs.replace(charter.inner, **self.inner),
            outer=msgspec.structs.replace(charter.outer, **self.outer),
            rounds=msgspec.structs.replace(charter.rounds, **self.rounds),
        )

    def genesis(self, genesis: Genesis) -> Genesis:
        """The project's facts with this algorithm's changes."""
        changes: dict[str, object] = {}
        if self.fragments is not None:
            changes["fragments"] = self.fragments
        if self.strategy is not None:
            changes["strategy"] = self.strategy
        if self.rule is not None:
            rule = self.rule
            tensors = tuple(msgspec.structs.replace(t, rule=rule) for t in genesis.model.tensors)
            changes["model"] = msgspec.structs.replace(genesis.model, tensors=tensors)
        return msgspec.structs.replace(genesis, **changes)

    def run(self, bench: Bench, setting: Setting, tell: Tell) -> Outcome:
        """Train. The bench must be of this algorithm's genesis and charter."""
        setting = self.setting(setting)
        if self.kind == "decoupled":
            return Decoupled(
                bench,
                setting,
                fails=self.fails,
                batches=self.batches,
                is_daily=self.is_daily,
                rejoins_locally=self.rejoins_locally,
            ).run(tell)
        if self.kind == "lockstep":
            assert self.lockstep is not None
            return Lockstep(bench, setting, self.lockstep).run(tell)
        if self.kind == "asynchronous":
            assert self.asynchronous is not None
            return Asynchronous(bench, setting, self.asynchronous).run(tell)
        elastic = self.kind == "elastic"
        return DataParallel(bench, setting, fails=self.fails, is_elastic=elastic).run(tell)


INNER_RANGES = (
    Range("inner.learning_rate", 0.002, 0.02),
    Range("inner.beta1", 0.05, 0.4, is_rest=True),
    Range("inner.beta2", 0.003, 0.1, is_rest=True),
)


def outer_ranges(part: str) -> tuple[Range, ...]:
    """Of rate and momentum of the outer step, which that part of the algorithm has."""
    return (
        Range(f"{part}.learning_rate", 0.3, 1.2),
        Range(f"{part}.momentum", 0.1, 1.0, is_rest=True),
    )


_FREE_LINK_MBPS = 1e9
"""What is sent is there at once, so a codec costs no delay."""

_PLAIN = {"learning_rate": 1.0, "momentum": 0.0}
"""Outer settings that suit learners that keep local steps which the merge has not seen."""


def _decoupled(name: str, says: str, **rest: Any) -> Algorithm:
    return Algorithm(name=f"decoupled{name}", says=says, kind="decoupled", **rest)


ALGORITHMS: dict[str, Algorithm] = {
    one.name: one
    for one in (
        Algorithm(name="dp", says="data parallel", kind="rigid"),
        Algorithm(
            name="elastic-dp-failing",
            says="data parallel; goes on with fewer when one fails",
            kind="elastic",
            fails=True,
        ),
        Algorithm(
            name="fedavg",
            says="mean of the whole models as often as the project merges",
            kind="lockstep",
            lockstep=LockstepSpec(),
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
            name="diloco-adamw",
            says="as often as the project merges, AdamW outside",
            kind="lockstep",
            lockstep=LockstepSpec(outer="adamw", learning_rate=0.005, momentum=0.9),
            fragments=1,
            rule="mean",
            tunes=(
                *INNER_RANGES,
                Range("lockstep.learning_rate", 0.001, 0.02),
                Range("lockstep.momentum", 0.05, 0.5, is_rest=True),
            ),
        ),
        Algorithm(
            name="asynchronous",
            says="a parameter server merges each learner alone, delayed Nesterov 0.7 and 0.9",
            kind="asynchronous",
            asynchronous=AsynchronousSpec(),
            fragments=1,
        ),
        Algorithm(
            name="asynchronous-dynamic",
            says="the same; a slow learner takes as many local steps fewer",
            kind="asynchronous",
            asynchronous=AsynchronousSpec(is_dynamic=True),
            fragments=1,
        ),
        Algorithm(
            name="two-level",
            says="asynchronous in two regions, whose servers hand in to a global one",
            kind="asynchronous",
            asynchronous=AsynchronousSpec(regions=2),
            fragments=1,
            tunes=(
                *INNER_RANGES,
                *outer_ranges("asynchronous"),
                Range("asynchronous.region_learning_rate", 0.3, 1.2),
            ),
        ),
        Algorithm(
            name="streaming-diloco",
            says="each fragment every 16 local steps, 0.4 and 0.9, alpha 0.5, int4, 1 step overlap",
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
        _decoupled("", "the project as it is"),
        _decoupled("-failing", "learners fail and come back", fails=True),
        _decoupled(
            "-failing-local",
            "who comes back goes on from another's local weights and moments, as published",
            fails=True,
            rejoins_locally=True,
        ),
        _decoupled("-no-grace", "a merge waits for nobody", rounds={"grace_safety": 0.0}),
        _decoupled(
            "-all-four",
            "a merge waits for four learners, and then for nobody",
            rounds={"quorum": 4, "grace_safety": 0.0},
        ),
        _decoupled(
            "-daily",
            "every second learner is there for half of a day of 200 local steps",
            is_daily=True,
        ),
        _decoupled(
            "-mean",
            "mean instead of RDA, Nesterov 0.7 and 0.7",
            rule="mean",
            outer={"learning_rate": 0.7, "momentum": 0.7},
        ),
        _decoupled(
            "-rebase",
            "local steps that are not handed in live on; mean, outer rate 1 without momentum",
            rounds={"apply": "rebase"},
            rule="mean",
            outer=_PLAIN,
        ),
        _decoupled("-h8", "merges after 8 local steps", rounds={"local_steps": 8}),
        _decoupled("-h64", "merges after 64 local steps", rounds={"local_steps": 64}),
        _decoupled(
            "-bf16",
            "bf16 both ways instead of int4",
            rounds={"up_codec": "bf16", "down_codec": "bf16"},
        ),
        _decoupled(
            "-blend",
            "a learner keeps half of its own value; mean, outer rate 1 without momentum",
            rounds={"apply": "blend"},
            rule="mean",
            outer=_PLAIN,
        ),
        _decoupled(
            "-paper",
            "as published: H = P = 24, embeddings by mean, all else RDA, Nesterov 0.7 and 0.9, any"
            " learner with a local step is asked, bf16",
            fragments=24,
            strategy="rows",
            outer={"learning_rate": 0.7, "momentum": 0.9, "clip_to_median": 1e6},
            rounds={
                "local_steps": 24,
                "eligible": "step",
                "pace_share": 0.0,
                "up_codec": "bf16",
                "down_codec": "bf16",
            },
        ),
        _decoupled(
            "-free-link",
            "what is sent is there at once",
            link_mbps=_FREE_LINK_MBPS,
        ),
        _decoupled(
            "-bf16-free-link",
            "bf16 both ways, there at once",
            link_mbps=_FREE_LINK_MBPS,
            rounds={"up_codec": "bf16", "down_codec": "bf16"},
        ),
        _decoupled(
            "-uneven",
            "one learner of sixteen takes eight times as much per local step as each of the others",
            inner={"batch_sequences": 6, "batch_sequences_max": 48},
            rounds={"weights": "tokens"},
            batches=(48, *15 * (6,)),
        ),
        _decoupled(
            "-turns",
            "a merge asks four learners, in turn",
            rounds={"participants_max": 4},
        ),
        _decoupled("-int2", "2 bits up, 4 down", rounds={"up_codec": "int2"}),
        _decoupled("-muon", "Muon inside", inner={"optimizer": "muon"}),
        Algorithm(
            name="dp-muon",
            says="data parallel, Muon inside",
            kind="rigid",
            inner={"optimizer": "muon"},
        ),
        Algorithm(
            name="dp-failing",
            says="data parallel; everybody waits for who failed",
            kind="rigid",
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
