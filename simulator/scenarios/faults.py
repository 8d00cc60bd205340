"""Faults and churn of a scenario, drawn from the seed and scheduled; all of them heal in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from node.machine.jobs import FinishAsked
from protocol.machine import Note
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer
from simulator.hosts.witness import SimWitness
from simulator.scenarios.scenarios import FaultKind, Scenario
from simulator.scenarios.swarm import Swarm
from simulator.virtual.world import Host

FIRST_S = 15.0
Voting = SimSyncer | SimWitness
Tell = Callable[[float, str], None]


@dataclass(slots=True)
class FaultSchedule:
    """What happens to one swarm."""

    swarm: Swarm
    scenario: Scenario
    chance: random.Random
    until_s: float
    """By then every fault is over."""
    tell: Tell
    """Told the time, and what happens in words."""
    is_over: bool = False
    _actions: dict[str, Callable[[float], str]] = field(default_factory=dict)

    def schedule(self) -> None:
        """Plan everything."""
        world, scenario = self.swarm.world, self.scenario
        self._actions = {
            "kill-learner": lambda s: self._crash(self._learner(), s),
            "kill-syncer": lambda s: self._crash(self._leader(), s),
            "kill-witness": self._crash_witness,
            "kill-trainer": lambda s: self._lose_trainer(is_out_of_memory=False),
            "out-of-memory": lambda s: self._lose_trainer(is_out_of_memory=True),
            "leave": lambda s: self._leaving(self._learner(), s),
            "cut": self._cut,
            "cut-voters": self._cut_voters,
            "isolate": self._isolate,
            "one-way": self._one_way,
            "clog": self._clog,
            "slow-link": self._slow_link,
            "disk-full": self._disk_full,
            "clock-jump": self._clock_jump,
        }
        faults, time_s = scenario.faults, FIRST_S
        while faults.kinds and time_s < self.until_s:
            kind = self.chance.choice(faults.kinds)
            for_s = min(self.chance.uniform(*faults.away_s), self.until_s - time_s)
            world.at(time_s, partial(self._strike, kind, for_s))
            time_s += self.chance.expovariate(1.0 / faults.every_s)
        self._schedule_churn()
        if scenario.snapshots.restore_s and self.swarm.cuts is not None:
            world.at(scenario.snapshots.restore_s, self._restore)
        if scenario.is_troubled:
            world.at(self.until_s, self.heal)

    def _schedule_churn(self) -> None:
        for learner in self.swarm.learners:
            chance = random.Random(f"churn {learner.name} {self.swarm.world.seed}")
            for time_s, kind, away_s in self.scenario.churn.events(chance, self.until_s):
                away_s = min(away_s, self.until_s - time_s)
                self.swarm.world.at(time_s, partial(self.churn, learner, kind, away_s))

    def _restore(self) -> None:
        """The owner goes back to a snapshot, as soon as a leader has one."""
        swarm, cuts = self.swarm, self.swarm.cuts
        assert cuts is not None, "there are snapshots"
        leader = swarm.syncer
        here = leader.disk.snapshots if leader.is_up and leader.syncer.leadership else {}
        known = [one for one in cuts.kept if one.snapshot in here]
        if not known:
            swarm.world.after(1.0, self._restore)
            return
        manifest = self.chance.choice(known)
        charter = swarm.restore(manifest)
        self.tell(
            swarm.world.now_s,
            f"the owner goes back to record {manifest.index}: epoch {charter.epoch} begins",
        )

    def churn(self, learner: SimLearner, kind: str, away_s: float) -> None:
        """One thing that happens to a learner by itself."""
        match kind:
            case "leave":
                words = self._leaving(learner, away_s)
            case "crash":
                words = self._crash(learner, away_s)
            case _:
                learner.lose_trainer()
                words = f"the trainer of {learner.name} dies"
        self.tell(self.swarm.world.now_s, words)

    def _strike(self, kind: FaultKind, for_s: float) -> None:
        words = self._actions[kind](for_s)
        if words:
            self.tell(self.swarm.world.now_s, words)

    def heal(self) -> None:
        """Every fault is over, everybody is back."""
        world, swarm = self.swarm.world, self.swarm
        self.is_over = True
        world.heal()
        for syncer in swarm.syncers:
            syncer.disk.is_full = False
        for host in self._hosts():
            self._boot(host)
        self.tell(world.now_s, "every fault is over")

    # Whom it hits.

    def _hosts(self) -> list[Host]:
        return [*self.swarm.syncers, *self.swarm.witnesses, *self.swarm.learners]

    def _voters(self) -> list[Voting]:
        return [*self.swarm.syncers, *self.swarm.witnesses]

    def _learner(self) -> SimLearner:
        return self.chance.choice(self.swarm.learners)

    def _leader(self) -> SimSyncer:
        """Often the one that leads."""
        if self.chance.random() < 0.5:
            return self.swarm.syncer
        return self.chance.choice(self.swarm.syncers)

    def _pair(self) -> tuple[Host, Host]:
        """Two ends of a link that is used."""
        one: Host = self._leader()
        others = [host for host in self._hosts() if host is not one]
        pair = (one, self.chance.choice(others))
        return pair if self.chance.random() < 0.5 else (pair[1], pair[0])

    def _boot(self, host: Host) -> None:
        is_done = host.stopped is not None and "complete" in host.stopped.reason
        if not host.is_up and not is_done:
            host.boot()

    # What it does.

    def _crash(self, host: Host, for_s: float) -> str:
        if not host.is_up:
            return ""
        host.crash()
        self.swarm.world.after(for_s, lambda: self._boot(host))
        return f"{host.name} dies for {for_s:.1f} s"

    def _crash_witness(self, for_s: float) -> str:
        if not self.swarm.witnesses:
            return ""
        return self._crash(self.chance.choice(self.swarm.witnesses), for_s)

    def _lose_trainer(self, *, is_out_of_memory: bool) -> str:
        learner = self._learner()
        if learner.trainer is None:
            return ""
        learner.lose_trainer(is_out_of_memory=is_out_of_memory)
        how = "runs out of memory" if is_out_of_memory else "dies"
        return f"the trainer of {learner.name} {how}"

    def _leaving(self, learner: SimLearner, for_s: float) -> str:
        if not learner.is_up:
            return ""
        learner.take(Note(FinishAsked()))
        self.swarm.world.after(for_s, lambda: self._come_back(learner))
        return f"{learner.name} is asked to finish, and comes back {for_s:.1f} s later"

    def _come_back(self, learner: SimLearner) -> None:
        """As soon as it has finished."""
        learner.crash()
        self._boot(learner)

    def _cut(self, for_s: float) -> str:
        one, other = self._pair()
        self.swarm.world.partition(one.key, other.key, for_s=for_s)
        return f"{one.name} and {other.name} cannot reach each other for {for_s:.1f} s"

    def _cut_voters(self, for_s: float) -> str:
        host = self._leader()
        others = [other for other in self._voters() if other is not host]
        for other in others:
            self.swarm.world.partition(host.key, other.key, for_s=for_s)
        return f"{host.name} is cut off from the other voters for {for_s:.1f} s" if others else ""

    def _isolate(self, for_s: float) -> str:
        host = self.chance.choice(self._hosts())
        for other in self._hosts():
            if other is not host:
                self.swarm.world.partition(host.key, other.key, for_s=for_s)
        return f"{host.name} is cut off from everybody for {for_s:.1f} s"

    def _one_way(self, for_s: float) -> str:
        one, other = self._pair()
        self.swarm.world.cut_one_way(one.key, other.key, for_s=for_s)
        return f"nothing arrives from {one.name} at {other.name} for {for_s:.1f} s"

    def _clog(self, for_s: float) -> str:
        one, other = self._pair()
        self.swarm.world.clog(one.key, other.key, for_s=for_s)
        return f"the link between {one.name} and {other.name} is clogged for {for_s:.1f} s"

    def _slow_link(self, for_s: float) -> str:
        one, other = self._pair()
        slow_s = self.chance.choice((0.3, 1.0, 3.0))
        self.swarm.world.slow_down(one.key, other.key, slow_s, for_s=for_s)
        return f"{slow_s:.1f} s more between {one.name} and {other.name} for {for_s:.1f} s"

    def _disk_full(self, for_s: float) -> str:
        syncer = self._leader()
        syncer.disk.is_full = True
        self.swarm.world.after(for_s, lambda: setattr(syncer.disk, "is_full", False))
        return f"the disk of {syncer.name} is full for {for_s:.1f} s"

    def _clock_jump(self, for_s: float) -> str:
        """The wall clock; a daemon takes note when it starts, so it does."""
        host = self.chance.choice(self._voters())
        by_s = self.chance.choice((-86400.0, -300.0, 300.0, 86400.0))
        host.wall_offset_s += by_s
        self._crash(host, min(1.0, for_s))
        return f"the clock of {host.name} jumps by {by_s:.0f} s, and it restarts"
