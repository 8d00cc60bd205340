"""Clusters by the machines themselves: a syncer, learners, their log and network in virtual time.

What else this package computes is a model. Here the same cluster is run: a learner of thousands of
chips is one host, whose local steps take as long as its chips would. Its tensors are tiny, and what
is sent takes as long as a model of the wanted size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import structs

from node.machine.jobs import FinishAsked
from protocol.errors import InternalError
from protocol.machine import Note
from protocol.numerics.payload_sizes import payload_bytes
from protocol.project import CodecName, LimitSpec, RoundSpec
from protocol.trace import FragmentCommitted, RoundOpened
from simulator.scale.bandwidth import Link
from simulator.scale.failures import Costs, Lives, elastic_lives
from simulator.scenarios.swarm import Swarm, build_swarm
from simulator.stand_ins.tiny import TENSOR_ELEMENTS
from simulator.virtual.network import AccessLink, NetworkModel
from simulator.virtual.nodes import Speed, SpeedModel
from simulator.virtual.world import World

BASE_LEARNERS: Final = 4
"""That others are borrowed beside."""

LOCAL_STEPS: Final = 24
FRAGMENTS: Final = 24
"""As published: a fragment for each local step, so each of them has a merge."""

OVERLAP_STEPS: Final = 2

SETTLE_STEPS: Final = 60
"""Before anything is counted: joining, first weights, first merges."""

RUN_STEPS: Final = 400
"""Local steps that are looked at, where nothing asks for more."""

LONG_STEPS: Final = 4 * RUN_STEPS
"""Where what learners hold when they leave should be little beside the whole."""

PAPER_GRACE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Driven:
    """What machines did while they were looked at; shares are in [0, 1]."""

    goodput: float
    """Of all learners' time, in local steps at full speed."""
    kept: float
    """Of the local steps that were taken, those that were merged."""
    merged: float
    """Learners in a merge, mean."""
    merge_steps: float
    """From asking to the record of a merge, mean, in local steps."""
    pace: float
    """Merges for each local step of a learner."""


class FailingSpeed(Speed):
    """Of a learner some of whose chips are away: a local step ends once all of it is done."""

    def __init__(self, step_s: float, lives: Lives, learner: int) -> None:
        """lives: of clusters whose whole capacity takes `step_s` for a local step."""
        super().__init__(SpeedModel(step_s, jitter=0.0), random.Random(0))
        begins, ends = lives.begin_s[:, learner], lives.end_s[:, learner]
        done = np.cumsum(lives.work_s[:, learner])
        before = np.concatenate([[0.0], done[:-1]])
        self._times_s = np.stack([begins, ends], axis=1).ravel()
        self._done_s = np.stack([before, done], axis=1).ravel()

    def step_s(self, now_s: float) -> float:
        """Seconds of the local step that begins now."""
        begun_s = float(np.interp(now_s, self._times_s, self._done_s))
        wanted_s = begun_s + self.model.step_s
        at = int(np.searchsorted(self._done_s, wanted_s))
        if at >= self._done_s.size:  # Behind what was drawn.
            return self.model.step_s
        rise_s = self._done_s[at] - self._done_s[at - 1]
        share = (wanted_s - self._done_s[at - 1]) / rise_s
        end_s = self._times_s[at - 1] + share * (self._times_s[at] - self._times_s[at - 1])
        return float(end_s) - now_s


class SizedWorld(World):
    """One in which payloads take as long as those of a larger model, once they are `sized`."""

    def __init__(self, seed: int, network: NetworkModel) -> None:
        super().__init__(seed, network)
        self.factor = 1.0

    def carried_bytes(self, size_bytes: int) -> int:
        return round(size_bytes * self.factor)


def rounds(quorum: int, grace: float, *, codec: CodecName = "int4") -> RoundSpec:
    """As published: any learner with a local step is asked, and nothing paces the rounds."""
    usual = RoundSpec(
        LOCAL_STEPS, OVERLAP_STEPS, quorum, grace, 0.0, 20.0, 20.0, "overwrite", codec, codec
    )
    return structs.replace(usual, eligible="step")


def swarm_of(
    speeds: Sequence[Speed],
    spec: RoundSpec,
    seed: int,
    *,
    gbps: float | None = None,
    fragments: int = FRAGMENTS,
) -> Swarm:
    """A syncer and a learner of each of these speeds, on links that do not matter, or of `gbps`."""
    bytes_per_s = 1e12 if gbps is None else gbps * 1e9 / 8
    swarm = build_swarm(
        seed,
        speeds=tuple(speed.model for speed in speeds),
        rounds=spec,
        limits=LimitSpec(10**12, max(16, len(speeds)), 10**6, 8, 3600.0, 256),
        fragments=fragments,
        tensors_of=(fragments, TENSOR_ELEMENTS),
        join_s=1.0,
        world=SizedWorld(seed, NetworkModel(0.005, 0.001, bytes_per_s)),
    )
    for learner, speed in zip(swarm.learners, speeds, strict=True):
        learner.speed = speed
    return swarm


def drive(swarm: Swarm, *, steps: int = RUN_STEPS, settle: int = SETTLE_STEPS) -> Driven:
    """Lets so many steps of the fastest learner pass, and says what became of them.

    Raises Violation where anything was merged that must not be.
    """
    step_s = min(learner.step_s for learner in swarm.learners)
    swarm.world.run(settle * step_s)
    began_s, merges = swarm.world.now_s, swarm.merges
    before = [_local_steps(swarm, at) for at in range(len(swarm.learners))]
    swarm.world.run(began_s + steps * step_s)
    taken = [_local_steps(swarm, at) - former for at, former in enumerate(before)]
    seconds = swarm.world.now_s - began_s
    worked_s = sum(
        many * learner.step_s for many, learner in zip(taken, swarm.learners, strict=True)
    )
    pushed = sum(
        part.steps for merged in swarm.ledger.merges[merges:] for part in merged.contributions
    )
    fragments = len(swarm.learners[0].layout.fragments)
    shares, waits_s = _merges_since(swarm, began_s)
    swarm.check()
    return Driven(
        goodput=min(1.0, worked_s / (seconds * len(swarm.learners))),
        kept=pushed / fragments / sum(taken),
        merged=float(np.mean(shares)),
        merge_steps=float(np.mean(waits_s)) / step_s,
        pace=len(shares) * len(swarm.learners) / sum(taken),
    )


def _local_steps(swarm: Swarm, at: int) -> int:
    trainer = swarm.learners[at].trainer
    return 0 if trainer is None else trainer.local_step


def _merges_since(swarm: Swarm, began_s: float) -> tuple[list[float], list[float]]:
    """Of each merge, the share of learners in it, and seconds since it was asked for."""
    opened: dict[int, float] = {}
    shares, waits_s = [], []
    for at_s, host, fact in swarm.world.facts:
        if host != swarm.syncer.key or at_s < began_s:
            continue
        if isinstance(fact, RoundOpened):
            opened[fact.fragment] = at_s
        elif isinstance(fact, FragmentCommitted) and fact.fragment in opened:
            shares.append(fact.participants / len(swarm.learners))
            waits_s.append(at_s - opened.pop(fact.fragment))
    return shares, waits_s


def failing(
    chips: int,
    learners: int,
    *,
    mtbi_s: float,
    costs: Costs,
    seed: int,
    quorum: int = 1,
    steps: int = RUN_STEPS,
) -> Driven:
    """A cluster of table 1, with K = `quorum`, the published grace, and local steps of a second."""
    rate = np.full(learners, chips / (learners * mtbi_s))
    horizon_s = np.full(learners, 2.0 * (SETTLE_STEPS + steps))
    lives = elastic_lives(rate, horizon_s, costs, np.random.default_rng([seed, learners, chips]))
    speeds = [FailingSpeed(1.0, lives, at) for at in range(learners)]
    return drive(swarm_of(speeds, rounds(quorum, PAPER_GRACE), seed), steps=steps)


def mixed(
    steps_s: Sequence[float], variance: float, *, quorum: int, grace: float, seed: int
) -> Driven:
    """Learners of these mean seconds for a local step, which vary by that share of it."""
    speeds = [
        Speed(SpeedModel(step_s, jitter=variance), random.Random(f"step {at} {seed}"))
        for at, step_s in enumerate(steps_s)
    ]
    return drive(swarm_of(speeds, rounds(quorum, grace), seed))


def on_links(link: Link, *, codec: CodecName, gbps: float, seed: int) -> Driven:
    """Learners on links of `gbps` each, with a model of that size.

    The syncer has as much as all of them together, as if it were cut in as many parts: what it
    needs on one line is counted in benchmarks, not here.
    """
    learners, step_s = link.learners, link.step_s
    speeds = [
        Speed(SpeedModel(step_s), random.Random(f"step {at} {seed}")) for at in range(learners)
    ]
    spec = structs.replace(
        rounds(1, PAPER_GRACE, codec=codec),
        local_steps=link.sync_every,
        overlap_steps=link.overlap,
    )
    swarm = swarm_of(speeds, spec, seed, gbps=gbps, fragments=link.fragments)
    world = swarm.world
    assert isinstance(world, SizedWorld)
    whole = learners * gbps * 1e9 / 8
    world.wires.links[swarm.syncer.key] = AccessLink(whole, whole)
    world.run(SETTLE_STEPS / 2 * step_s)
    numel = swarm.learners[0].layout.fragments[0].numel
    world.factor = link.parameters / link.fragments * _bits(codec) / 8 / payload_bytes(codec, numel)
    return drive(swarm, settle=SETTLE_STEPS)


def _bits(codec: CodecName) -> float:
    """Of a parameter on the wire, in a fragment of a large model."""
    return payload_bytes(codec, 1 << 20) * 8 / (1 << 20)


def borrowed(base: int, extra: int, share: float, *, seed: int, steps: int = LONG_STEPS) -> float:
    """Seconds in which so many tokens are merged as `base` learners have in `steps` steps, with
    `extra` more until that share of them is."""
    speeds = [
        Speed(SpeedModel(1.0), random.Random(f"step {at} {seed}")) for at in range(base + extra)
    ]
    swarm = swarm_of(speeds, rounds(1, PAPER_GRACE), seed)
    world, state = swarm.world, swarm.syncer.syncer.state
    world.run(SETTLE_STEPS)
    begun_s, begun = world.now_s, state.tokens_merged
    tiny = swarm.learners[0].tiny
    step_tokens = tiny.charter.inner.batch_sequences * tiny.genesis.data.sequence_tokens
    budget = base * steps * step_tokens

    def until(part: float) -> None:
        limit_s = world.now_s + 10 * steps
        world.run(limit_s, stop=lambda: state.tokens_merged - begun >= part * budget)
        if state.tokens_merged - begun < part * budget:
            raise InternalError(f"after {world.now_s:.0f} virtual seconds the swarm is stuck")

    until(share)
    for learner in swarm.learners[base:]:
        learner.take(Note(FinishAsked()))
    until(1.0)
    swarm.check()
    return world.now_s - begun_s
