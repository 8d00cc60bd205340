"""What is done to the swarm, scenario by scenario, without a special right on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shoal.chaos.faults import LOOK_S, NETWORK_ENGINE, disk_full, engine_held
from shoal.chaos.project import EVALUATOR, LEARNERS
from shoal.chaos.storm import storm
from shoal.chaos.swarm import ChaosSwarm
from shoal.local_swarm.processes import SwarmFailed

AWAY_S: Final = 3.0
"""What was killed is started again after this."""

HELD_S: Final = 20.0
"""How long a fault that is held lasts."""

TAKEOVER_S: Final = 40.0
"""Another syncer must lead and merge by then."""

FLAPS: Final = 5
FLAP_S: Final = 5.0
SLOW_ON_S: Final = 0.15
SLOW_OFF_S: Final = 0.35


class Scenario(NamedTuple):
    """One fault."""

    name: str
    what: str
    """In a sentence, honest about how it is done."""
    act: Callable[[ChaosSwarm], None]
    survivors: Sequence[str] = LEARNERS
    """The learners that are not touched: their local steps must go on."""
    needs_takeover: bool = False
    """Whether another syncer must have led."""


# The leader.


def _leader(swarm: ChaosSwarm) -> str:
    found = swarm.leader()
    if found is None:
        raise SwarmFailed("Nobody leads, so the leader cannot be disturbed.")
    return found[0]


def _other_merges(swarm: ChaosSwarm, former: str) -> bool:
    found = swarm.leader()
    return found is not None and found[0] != former and found[1].merges_here > 0


def _kill_leader(swarm: ChaosSwarm) -> None:
    _kill_leader_once(swarm)
    swarm.await_well(TAKEOVER_S)
    _kill_leader_once(swarm)


def _kill_leader_once(swarm: ChaosSwarm) -> None:
    former = _leader(swarm)
    swarm.kill(former)
    swarm.keep_in_mind(former)
    swarm.within(TAKEOVER_S, lambda: _other_merges(swarm, former), "another leader")
    swarm.start_syncer(former)


def _stop_leader(swarm: ChaosSwarm) -> None:
    name = _leader(swarm)
    process = swarm.process(name)
    swarm.screen.tell(f"$ kill -STOP {process.pid}    ({swarm.called(name)})", style="bold red")
    swarm.stopped.add(name)
    swarm.cut.add(name)
    try:
        process.suspend()
        swarm.keep_in_mind(name)
        swarm.go_on(HELD_S)
    finally:
        swarm.screen.tell(f"$ kill -CONT {process.pid}", style="bold")
        process.resume()
        swarm.stopped.discard(name)
    # It learns within a moment that its term is over.
    swarm.go_on(1.0)
    swarm.cut.discard(name)


def _partition(swarm: ChaosSwarm) -> None:
    name = _leader(swarm)
    swarm.screen.tell(f"cutting off {swarm.called(name)}: its network engine is stopped")
    swarm.cut.add(name)
    with engine_held(swarm.process(name), on_s=0.0, off_s=LOOK_S):
        swarm.go_on(HELD_S)
    swarm.screen.tell("the network engine goes on", style="bold")
    swarm.go_on(1.0)
    swarm.cut.discard(name)


def _fill_disk(swarm: ChaosSwarm) -> None:
    name = _leader(swarm)
    process = swarm.process(name)
    swarm.screen.tell(
        f"{swarm.called(name)}, may write no file beyond its first byte: "
        f"prlimit --fsize=1: --pid {process.pid}",
        style="bold red",
    )
    with disk_full(process):
        swarm.go_on(HELD_S)
    swarm.screen.tell("the limit is lifted", style="bold")


def _merger(swarm: ChaosSwarm) -> str:
    """A syncer that merges for the leader."""
    found = swarm.leader()
    rows = found[1].seat.voters if found is not None and found[1].seat is not None else []
    merging = {row.name for row in rows if row.fragments and not row.is_leader}
    name = next((name for name in swarm.syncers if swarm.instance(name, "syncer") in merging), None)
    if name is None:
        raise SwarmFailed("No standby merges a fragment, so no merger can be killed.")
    return name


def _kill_merger(swarm: ChaosSwarm) -> None:
    for _ in range(2):
        name = _merger(swarm)
        swarm.kill(name)
        swarm.go_on(AWAY_S)
        swarm.start_syncer(name)
        swarm.await_well(TAKEOVER_S)


# Learners.


def _kill_learners(swarm: ChaosSwarm) -> None:
    victims = [name for name in LEARNERS if name != EVALUATOR]
    for name in victims:
        swarm.kill(name)
    swarm.go_on(AWAY_S)
    for name in victims:
        swarm.start_rested(name)


def _flap(swarm: ChaosSwarm) -> None:
    name = LEARNERS[-1]
    for _ in range(FLAPS):
        swarm.kill(name)
        swarm.go_on(1.0)
        swarm.start_rested(name)
        swarm.go_on(FLAP_S)


def _slow_link(swarm: ChaosSwarm) -> None:
    name = LEARNERS[-1]
    swarm.screen.tell(
        f"the network engine of {name} runs {SLOW_ON_S * 1e3:.0f} ms and rests "
        f"{SLOW_OFF_S * 1e3:.0f} ms, again and again",
        style="bold red",
    )
    with engine_held(swarm.process(name), on_s=SLOW_ON_S, off_s=SLOW_OFF_S):
        swarm.go_on(HELD_S)
    swarm.screen.tell("the network engine runs all the time again", style="bold")


SCENARIOS: Final = (
    Scenario(
        "kill-leader",
        "the leading syncer is ended with SIGKILL, and so is its successor once all is well",
        _kill_leader,
        needs_takeover=True,
    ),
    Scenario(
        "kill-merger",
        f"a standby that merges fragments is ended with SIGKILL twice, and started again after "
        f"{AWAY_S:g} s",
        _kill_merger,
    ),
    Scenario(
        "kill-learners",
        "all learners but one are ended with SIGKILL at once, and started again after "
        f"{AWAY_S:g} s",
        _kill_learners,
        survivors=(EVALUATOR,),
    ),
    Scenario(
        "stop-leader",
        f"the leading syncer is frozen with SIGSTOP for {HELD_S:g} s",
        _stop_leader,
        needs_takeover=True,
    ),
    Scenario(
        "partition",
        "the leading syncer is cut off from everybody: its network engine, the process "
        f"{NETWORK_ENGINE}, is frozen for {HELD_S:g} s while the daemon itself lives",
        _partition,
        needs_takeover=True,
    ),
    Scenario(
        "slow-link",
        f"a learner's network engine is frozen {SLOW_OFF_S * 1e3:.0f} of every "
        f"{(SLOW_OFF_S + SLOW_ON_S) * 1e3:.0f} ms for {HELD_S:g} s: all that it sends and "
        "receives comes late",
        _slow_link,
    ),
    Scenario(
        "flapping-node",
        f"a learner is ended with SIGKILL {FLAPS} times, each time {FLAP_S:g} s after its start",
        _flap,
        survivors=LEARNERS[:-1],
    ),
    Scenario(
        "disk-full",
        f"the leading syncer can write no file for {HELD_S:g} s: a limit on the length of its "
        "files stands for the full disk",
        _fill_disk,
    ),
)
NAMES: Final = tuple(one.name for one in SCENARIOS)
STORM: Final = "storm"


def stormy(seed: int) -> Scenario:
    """Everything at once and at random, for as long as the demo may take."""
    return Scenario(
        STORM,
        "every process but one learner is killed, frozen, cut off, slowed down, and its disk "
        f"filled or damaged, at random (seed {seed})",
        lambda swarm: storm(swarm, seed),
        survivors=(EVALUATOR,),
    )
