"""An owner who changes the rules again and again, whatever else happens: the run goes on."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from node.machine.syncer_link import Link
from node.machine.trainer_states import TrainerState
from simulator.scenarios.scenarios import FAULT_KINDS
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.tiny import LIMITS, charter_envelope
from tests.support.choices import first
from tests.support.sets_of_steps import set_swarm
from tests.support.swarm_faults import afflict

HEALED_S = 90.0
"""Until everybody is back, and as long again until each of them counts."""


@pytest.mark.parametrize("at_s", [20.0, 20.4, 21.2, 22.8])
@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("overwrite", {"apply": "rebase"}),
        ("rebase", {"apply": "overwrite"}),
        ("overwrite", {"participants_max": 2}),
        ("rebase", {"participants_max": 2}),
    ],
    ids=("to rebase", "to overwrite", "to turns", "rebased, to turns"),
)
def test_where_local_steps_outlive_merges_in_another_way_none_counts_twice(before, change, at_s):
    """Pushes and merges are on their way then, and 15 s later, when the rule is as it was."""
    swarm = set_swarm(3, apply=before)
    former = swarm.syncer.tiny.charter.rounds
    for time_s, rounds in ((at_s, structs.replace(former, **change)), (at_s + 15.0, former)):
        swarm.world.at(time_s, lambda rounds=rounds: swarm.revise(rounds=rounds))
    swarm.world.run(at_s + 40.0)
    swarm.check()
    assert swarm.sets.compared > 50
    assert swarm.syncer.syncer.state.charter_revision == 3


class Owner:
    """Signs revisions, and hands each to some voter that is up."""

    def __init__(self, swarm, chance):
        self.swarm, self.chance = swarm, chance
        self.tiny = swarm.syncers[0].tiny
        self.charter = self.tiny.charter

    def revise(self, **changes):
        revision = self.charter.revision + 1
        self.charter = structs.replace(self.charter, revision=revision, **changes)
        self.hand_over()

    def hand_over(self):
        voters = [one for one in (*self.swarm.syncers, *self.swarm.witnesses) if one.is_up]
        if voters:
            self.chance.choice(voters).take_charter(charter_envelope(self.tiny, self.charter))

    def change_something(self):
        chance, charter = self.chance, self.charter
        learners = len(self.swarm.learners)
        rounds = {
            "local_steps": (8, 24),
            "overlap_steps": (1, 2, 4),
            "quorum": range(1, learners + 1),
            "grace_safety": (0.0, 0.9),
            "pace_share": (0.0, 0.5, 0.9),
            "patience_s": (10.0, 30.0),
            "apply": ("overwrite", "rebase"),
            "up_codec": ("int4", "bf16"),
            "down_codec": ("int4", "bf16"),
            "weights": ("quality", "tokens"),
            "eligible": ("cycle", "step"),
            "participants_max": (0, 2),
            "mergers_max": (0, 1),
        }
        what = chance.choice(
            ("rounds", "rounds", "banned", "paused", "inner", "durability", "list")
        )
        if what == "rounds":
            name = chance.choice([*rounds])
            value = chance.choice(rounds[name])
            self.revise(rounds=structs.replace(charter.rounds, **{name: value}))
        elif what == "banned":
            strangers = tuple(chance.randbytes(32) for _ in range(chance.choice((0, 1, 300))))
            self.revise(banned=strangers)
        elif what == "paused":
            self.revise(paused_at_s=1.7e9 if charter.paused_at_s is None else None)
        elif what == "inner":
            rate = charter.inner.learning_rate * chance.choice((0.5, 2.0))
            self.revise(inner=structs.replace(charter.inner, learning_rate=rate))
        elif what == "batch":
            sequences = chance.choice((1, 2, 4))
            self.revise(inner=structs.replace(charter.inner, batch_sequences=sequences))
        elif what == "limits":
            lease_s, blocks = chance.choice((20.0, 120.0)), chance.choice((16, 64, 1024))
            self.revise(
                limits=structs.replace(charter.limits, lease_s=lease_s, lease_blocks=blocks)
            )
        elif what == "outer":
            outer = {"trust": ("all", "earned"), "momentum": (0.0, 0.5), "probes_frac": (0.0, 2.0)}
            name = chance.choice([*outer])
            self.revise(outer=structs.replace(charter.outer, **{name: chance.choice(outer[name])}))
        elif what == "guard":
            self.revise(guard=chance.choice(("off", "pause")))
        elif what == "durability":
            self.revise(durability=chance.choice(("leader", "standby", "majority")))
        else:
            keys = tuple(one.key for one in self.swarm.learners)
            self.revise(admission=chance.choice(("open", "list")), allowed=keys)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", first(1, [1, 0, *range(2, 22), 51, 66]))
def test_whatever_the_owner_changes_all_train_and_count_in_the_end(seed):
    chance = random.Random(f"revisions {seed}")
    syncers = chance.choice((1, 2, 3))
    swarm = build_swarm(
        seed,
        syncers=syncers,
        witnesses=chance.choice((0, 1)) if syncers < 3 else 0,
        steps_s=tuple(chance.choice((0.3, 0.4)) for _ in range(chance.choice((1, 2, 4)))),
        limits=structs.replace(LIMITS, tokens=10**12, lease_blocks=chance.choice((64, 1024))),
        moments=chance.choice(("fresh", "peer")),
        shard_blocks=chance.choice((0, 64)),
    )
    owner = Owner(swarm, chance)
    until_s = 200.0
    at_s = 15.0
    while at_s < until_s:
        swarm.world.at(at_s, owner.change_something)
        at_s += chance.choice((0.3, 5.0, 20.0))
    kinds = tuple(kind for kind in FAULT_KINDS if kind != "out-of-memory")
    if chance.random() < 0.7:
        afflict(swarm, seed, until_s=until_s, kinds=kinds)
    swarm.world.at(until_s + 1.0, lambda: owner.revise(paused_at_s=None))
    for again_s in (10.0, 20.0, 40.0):
        swarm.world.at(until_s + again_s, owner.hand_over)
    swarm.world.run(until_s + HEALED_S)
    before = len(swarm.ledger.merges)
    swarm.world.run(until_s + 2 * HEALED_S)
    swarm.check()
    assert swarm.syncer.syncer.state.charter_revision == owner.charter.revision
    counted = {part.learner for one in swarm.ledger.merges[before:] for part in one.contributions}
    for one in swarm.learners:
        assert one.learner.link is Link.FOLLOWING, one.name
        assert one.learner.trainer_control.trainer is TrainerState.STEPPING, one.name
        assert one.key in counted, one.name
