"""Scenarios: what a simulated swarm is made of and what happens to it, built in or in a file."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import decoders
from protocol.errors import UserError
from protocol.project import ApplyRule, CodecName, Durability, RoundSpec
from simulator.virtual.nodes import ChurnModel, NotNegative, Positive, SpeedModel, Spread

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
FaultKind = Literal[
    "kill-learner",
    "kill-syncer",
    "kill-witness",
    "kill-trainer",
    "out-of-memory",
    "leave",
    "cut",
    "cut-voters",
    "isolate",
    "one-way",
    "clog",
    "slow-link",
    "disk-full",
    "clock-jump",
]
FAULT_KINDS: tuple[FaultKind, ...] = FaultKind.__args__  # type: ignore[attr-defined]


class Hosts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who takes part."""

    learners: Annotated[int, Meta(ge=1, le=1000)] = 4
    syncers: Annotated[int, Meta(ge=1, le=5)] = 1
    witnesses: Annotated[int, Meta(ge=0, le=4)] = 0
    durability: Durability = "standby"
    moments: Literal["fresh", "peer"] = "fresh"
    clock_drift_ppm: Annotated[float, Meta(ge=0.0, le=10_000.0)] = 50.0
    """Clocks run fast or slow by up to this."""


class Rounds(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The charter's rules of merging, and how the model is cut."""

    fragments: Annotated[int, Meta(ge=1, le=32)] = 4
    local_steps: Annotated[int, Meta(ge=1, le=1000)] = 8
    overlap_steps: Annotated[int, Meta(ge=1, le=16)] = 2
    quorum: Annotated[int, Meta(ge=1, le=1000)] = 1
    grace_safety: Share = 0.9
    pace_share: Share = 0.5
    patience_s: Positive = 10.0
    pull_timeout_s: Positive = 10.0
    apply: ApplyRule = "overwrite"
    up_codec: CodecName = "int4"
    down_codec: CodecName = "int4"
    participants_max: Annotated[int, Meta(ge=0, le=1000)] = 0
    mergers_max: Annotated[int, Meta(ge=0, le=5)] = 1

    def spec(self) -> RoundSpec:
        """As the charter says it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        del fields["fragments"]
        return RoundSpec(**fields)


class Net(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everybody's access link; learners' may differ."""

    latency_ms: NotNegative = 30.0
    jitter_ms: NotNegative = 10.0
    up_mbps: Positive = 16.0
    down_mbps: Positive = 16.0
    loss_percent: Annotated[float, Meta(ge=0.0, le=20.0)] = 0.0
    spread: Spread = 0.0
    """Standard deviation of the logarithm of a learner's bandwidth."""


class Speeds(SpeedModel, frozen=True, forbid_unknown_fields=True):
    """Local steps of everybody, as a scenario has them."""

    step_s: Positive = 0.5
    spread: Spread = 0.2


class Faults(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Faults drawn from the seed."""

    every_s: Positive = 12.0
    kinds: tuple[FaultKind, ...] = ()
    """None: no faults."""
    away_s: tuple[Positive, Positive] = (0.5, 20.0)
    """How long one lasts, at least and at most."""


class Snapshots(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Consistent snapshots of the whole swarm."""

    every_s: NotNegative = 0.0
    """0: none."""
    kept: Annotated[int, Meta(ge=1, le=64)] = 3
    restore_s: NotNegative = 0.0
    """When the owner goes back to one that is there, once; 0: never."""


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of it."""

    about: Annotated[str, Meta(max_length=500)] = ""
    until_s: Positive = 300.0
    """Virtual seconds of the run; faults end before, so that healing can be judged."""
    tensors: Literal["tiny", "provenance"] = "tiny"
    hosts: Hosts = Hosts()
    rounds: Rounds = Rounds()
    network: Net = Net()
    speed: Speeds = Speeds()
    churn: ChurnModel = ChurnModel()
    faults: Faults = Faults()
    snapshots: Snapshots = Snapshots()

    @property
    def is_troubled(self) -> bool:
        """Whether anything goes wrong."""
        churn = self.churn
        return bool(
            self.faults.kinds
            or churn.leaves_per_h
            or churn.crashes_per_h
            or churn.trainer_crashes_per_h
        )


BUILT_IN: dict[str, Scenario] = {
    "calm": Scenario(about="Four learners, one syncer, nothing goes wrong."),
    "hour": Scenario(
        about="64 learners for an hour on mixed hardware, some of them coming and going.",
        until_s=3600.0,
        hosts=Hosts(learners=64),
        rounds=Rounds(local_steps=24, patience_s=60.0, pull_timeout_s=60.0),
        speed=Speeds(step_s=10.0, spread=0.2, drift=0.2, stragglers_per_h=0.5),
        churn=ChurnModel(join_s=60.0, crashes_per_h=0.2, leaves_per_h=0.2, repair_s=120.0),
    ),
    "failover": Scenario(
        about="Two syncers and a witness; syncers are killed and cut off again and again.",
        hosts=Hosts(syncers=2, witnesses=1),
        faults=Faults(kinds=("kill-syncer", "cut-voters", "isolate"), every_s=25.0),
    ),
    "home-network": Scenario(
        about="Slow, lossy lines of different speed, links that clog.",
        hosts=Hosts(learners=6),
        network=Net(latency_ms=80.0, jitter_ms=40.0, up_mbps=2.0, loss_percent=1.0, spread=0.8),
        faults=Faults(kinds=("clog", "slow-link", "one-way")),
    ),
    "stragglers": Scenario(
        about="Learners of very different speed, which are slow for a time now and then.",
        hosts=Hosts(learners=8),
        speed=Speeds(spread=0.6, jitter=0.3, drift=0.5, stragglers_per_h=20.0),
    ),
    "churn": Scenario(
        about="Volunteers leave, crash and come back all the time.",
        hosts=Hosts(learners=8, moments="peer"),
        churn=ChurnModel(
            leaves_per_h=20.0, crashes_per_h=20.0, trainer_crashes_per_h=20.0, repair_s=15
        ),
    ),
    "snapshots": Scenario(
        about="Snapshots all the time, learners that die meanwhile, and an owner who goes back.",
        tensors="provenance",
        hosts=Hosts(learners=4),
        rounds=Rounds(fragments=2, apply="rebase"),
        faults=Faults(kinds=("kill-learner", "kill-trainer", "kill-syncer", "cut", "disk-full")),
        snapshots=Snapshots(every_s=8.0, restore_s=90.0),
    ),
    "provenance": Scenario(
        about="Sets of local steps in place of weights, under rebase and all kinds of faults.",
        tensors="provenance",
        hosts=Hosts(learners=3, syncers=3),
        rounds=Rounds(fragments=2, apply="rebase"),
        faults=Faults(kinds=FAULT_KINDS),
    ),
    "turns": Scenario(
        about="Rounds ask four of ten learners in turn; sets of local steps, all kinds of faults.",
        tensors="provenance",
        hosts=Hosts(learners=10, syncers=3),
        rounds=Rounds(fragments=2, participants_max=4),
        faults=Faults(kinds=FAULT_KINDS),
    ),
}
DRAWN = {
    "swarm": "Everything at once: hosts, rules and faults are drawn from the seed.",
    "voters": "Voters alone, under every kind of fault; drawn from the seed.",
}
"""Built-ins that are another scenario for each seed."""


def draw(seed: int) -> Scenario:
    """What `swarm` is with this seed; some kinds of faults are left out, so that rare mixtures of
    the others get their turn."""
    chance = random.Random(f"scenario {seed}")
    syncers, witnesses = chance.choice(((1, 0), (1, 0), (2, 1), (3, 0), (3, 0)))
    learners, local_steps = chance.choice((2, 3, 3, 4, 6)), chance.choice((2, 4, 8, 8, 16))
    codecs: tuple[CodecName, ...] = ("f32", "bf16", "int8", "int4")
    kinds = tuple(kind for kind in FAULT_KINDS if chance.random() < 0.6)
    tensors: Literal["tiny", "provenance"] = chance.choice(("tiny", "provenance"))
    return Scenario(
        until_s=chance.choice((200.0, 260.0)),
        tensors=tensors,
        hosts=Hosts(
            learners=learners,
            syncers=syncers,
            witnesses=witnesses,
            durability=chance.choice(("leader", "standby", "majority")),
            moments=chance.choice(("fresh", "peer")),
            clock_drift_ppm=chance.choice((0.0, 50.0, 500.0)),
        ),
        rounds=Rounds(
            fragments=chance.choice((1, 2, 2, 3)),
            local_steps=local_steps,
            overlap_steps=chance.choice((1, 2, 3)),
            quorum=chance.randint(1, learners),
            grace_safety=chance.choice((0.0, 0.9)),
            pace_share=chance.choice((0.2, 0.5, 1.0)),
            apply=chance.choice(("overwrite", "rebase")),
            up_codec=chance.choice(codecs),
            down_codec=chance.choice(codecs),
            participants_max=random.Random(f"turns {seed}").choice((0, 0, 4)),
            mergers_max=random.Random(f"mergers {seed}").choice((0, 0, 1)),
        ),
        network=Net(
            latency_ms=chance.choice((1.0, 30.0, 120.0)),
            jitter_ms=chance.choice((0.0, 10.0, 60.0)),
            up_mbps=chance.choice((2.0, 16.0)),
            loss_percent=chance.choice((0.0, 0.0, 1.0, 3.0)),
            spread=chance.choice((0.0, 0.5)),
        ),
        speed=Speeds(
            step_s=chance.choice((0.3, 0.6)),
            spread=chance.choice((0.0, 0.3, 0.6)),
            jitter=chance.choice((0.05, 0.3)),
            drift=chance.choice((0.0, 0.5)),
            stragglers_per_h=chance.choice((0.0, 30.0)),
        ),
        churn=ChurnModel(
            leaves_per_h=chance.choice((0.0, 10.0)),
            crashes_per_h=chance.choice((0.0, 20.0)),
            trainer_crashes_per_h=chance.choice((0.0, 20.0)),
            repair_s=10.0,
        ),
        faults=Faults(kinds=kinds, every_s=chance.choice((6.0, 12.0, 25.0))),
        snapshots=Snapshots(
            every_s=chance.choice((0.0, 6.0, 15.0)),
            kept=chance.choice((1, 3)),
            restore_s=chance.choice((0.0, 60.0, 100.0)),
        ),
    )


def find(name: str, seed: int) -> Scenario:
    """The built-in of this name, or the file. Raises UserError."""
    if name == "swarm":
        return draw(seed)
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return load(path)
    known = ", ".join([*DRAWN, *BUILT_IN])
    raise UserError(
        f"There is no scenario {name!r}. Built-in scenarios: {known}; your own file ends in .toml."
    )


def load(path: Path) -> Scenario:
    """The scenario in a TOML file. Raises UserError, which names the file and the line or key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Is it the scenario's file?") from error
    try:
        return decoders.convert(tomllib.loads(text), Scenario)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}. Correct it there.") from error
    except msgspec.ValidationError as error:
        raise UserError(_explain(path, text, str(error))) from error


def _explain(path: Path, text: str, trouble: str) -> str:
    """Where in the file it is, as far as the message says."""
    words, _, where = trouble.partition(" - at `$")
    unknown = re.search(r"unknown field `(\w+)`", words)
    keys = [key for key in re.split(r"[.\[\]`]+", where) if key and not key.isdigit()]
    keys += [unknown[1]] if unknown else []
    name = ".".join(keys) or "the file"
    line = _line(text, keys)
    at = f"line {line}, " if line else ""
    return f"{path}, {at}{name}: {words}. `docs/simulating.md` has a commented example."


def _line(text: str, keys: list[str]) -> int | None:
    """The line on which the last key is set, inside the table named by the ones before."""
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = stripped.strip("[] ").split("#")[0].strip("[] ").split(".")
            if table == keys:
                return number
        key = stripped.partition("=")[0].strip()
        if keys and [*table, key] == keys:
            return number
    return None
