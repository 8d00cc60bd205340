"""Whatever a learner, a standby or a leader says, nobody else falls over, and merging goes on."""

from __future__ import annotations

from random import Random

import pytest

from protocol.messages import Heartbeat, Push
from protocol.project import OuterSpec, RoundSpec
from simulator.scenarios.swarm import build_swarm
from tests.support.altered_messages import Garbled
from tests.support.choices import first, spread

FROM_S, UNTIL_S, ENDS_S = 40.0, 100.0, 150.0
HONEST_S, LIARS_S = 0.3, 0.35
MERGES_MIN = 25
"""In fifty seconds; undisturbed there are more than fifty."""


def garbled(seed, liars, syncers):
    """A drawn swarm, not begun; its honest learners come first."""
    draw = Random(seed)
    rounds = RoundSpec(
        8,
        draw.choice((2, 4)),
        1,
        0.9,
        draw.choice((0.0, 0.5)),
        20.0,
        20.0,
        draw.choice(("overwrite", "blend", "rebase")),
        "int4",
        "int4",
        eligible=draw.choice(("cycle", "step")),
        participants_max=draw.choice((0, 2, 3)),
        mergers_max=draw.choice((0, 1)),
    )
    outer = OuterSpec(
        0.7,
        0.5,
        3.0,
        trust=draw.choice(("all", "earned")),
        probes_frac=draw.choice((0.0, 0.05)),
    )
    world = Garbled(seed, draw.choice((0.1, 0.5, 1.0)))
    world.from_s, world.until_s = FROM_S, UNTIL_S
    steps_s = (HONEST_S,) * draw.choice((2, 3)) + (LIARS_S,) * liars
    return build_swarm(
        seed, syncers=syncers, steps_s=steps_s, rounds=rounds, outer=outer, world=world
    )


def merges_in(swarm, from_s, until_s):
    swarm.world.run(from_s)
    before = swarm.merges
    swarm.world.run(until_s)
    return swarm.merges - before


def come_and_go(swarm, host, until_s):
    """So that it says again who it is."""
    world = swarm.world

    def go():
        if world.now_s < until_s:
            host.crash()
            world.after(2.0, host.revive)
            world.after(17.0, go)

    world.at(FROM_S + 5.0, go)


@pytest.mark.parametrize("seed", first(2, range(12)))
def test_learners_whose_messages_are_garbled_stop_nobody(seed):
    liars = 1 + seed % 3
    swarm = garbled(seed, liars, syncers=1 + 2 * (seed % 2))
    lying = swarm.learners[-liars:]
    swarm.world.senders = frozenset(one.key for one in lying)
    come_and_go(swarm, lying[0], UNTIL_S)
    said = []
    swarm.world.taps.append(lambda what, host, peer, message: said.append((what, message)))
    assert merges_in(swarm, FROM_S + 10.0, FROM_S + 60.0) > MERGES_MIN
    kinds = {type(message) for what, message in said if what == "came"}
    assert {Heartbeat, Push} <= kinds
    for honest in swarm.learners[:-liars]:
        assert honest.trainer.local_step > 0.9 * (FROM_S + 40.0) / HONEST_S


@pytest.mark.parametrize("seed", first(2, range(12)))
def test_who_heard_a_garbled_standby_merges_on(seed):
    swarm = garbled(seed, 0, syncers=3)
    host = swarm.syncers[1 + seed % 2]
    swarm.world.senders = frozenset({host.key})
    come_and_go(swarm, host, UNTIL_S)
    assert merges_in(swarm, UNTIL_S, ENDS_S) > MERGES_MIN
    swarm.check()


@pytest.mark.parametrize("seed", spread(3, range(12)))
def test_learners_that_heard_a_garbled_leader_are_merged_once_it_tells_the_truth(seed):
    """It may stop them for as long as it lies; a daemon that ended would not come back."""
    swarm = garbled(seed, 0, syncers=1)
    leader, (returning, beginning, *_) = swarm.syncer, swarm.learners
    swarm.world.senders = frozenset({leader.key})
    come_and_go(swarm, beginning, UNTIL_S)
    for at_s in range(int(FROM_S), int(UNTIL_S), 6):
        swarm.world.at(
            float(at_s), lambda: swarm.world.partition(returning.key, leader.key, for_s=1.0)
        )
    assert merges_in(swarm, UNTIL_S + 20.0, ENDS_S + 20.0) > MERGES_MIN
