"""Every setting of the algorithm, by a swarm that trains with it."""

from __future__ import annotations

import pytest

from protocol.project import OuterSpec
from protocol.trace import CheckpointScored
from simulator.scenario import build_swarm
from tests.builders import rounds


def losses(swarm):
    told = [f for _, key, f in swarm.world.facts if key == swarm.syncer.key]
    return [fact.loss for fact in told if isinstance(fact, CheckpointScored)]


def trained(until_s=90.0, **settings):
    """A swarm that ran, was safe, and learned."""
    swarm = build_swarm(1, **settings)
    swarm.world.run(until_s)
    swarm.check()
    scored = losses(swarm)
    assert scored[-1] < scored[0] / 20
    return swarm


@pytest.mark.parametrize(
    "outer",
    [OuterSpec(0.7, 0.5, 3.0), OuterSpec(0.7, 0.5, 3.0, False), OuterSpec(0.7, 0.0, 3.0, False)],
    ids=["nesterov", "plain", "none"],
)
def test_a_swarm_trains_with_each_outer_step(outer):
    swarm = trained(outer=outer)
    assert {merged.nesterov for merged in swarm.ledger.merges} == {outer.nesterov}


@pytest.mark.parametrize("weights", ["quality", "tokens", "equal"])
def test_a_swarm_trains_with_each_rule_of_weights(weights):
    swarm = trained(rounds=rounds(weights=weights))
    parts = [part for merged in swarm.ledger.merges for part in merged.contributions]
    expected = {
        "quality": lambda part: part.tokens**2 / part.steps,
        "tokens": lambda part: part.tokens,
        "equal": lambda part: 1.0,
    }[weights]
    current = [
        part
        for merged in swarm.ledger.merges
        for part in merged.contributions
        if part.base_version == merged.version - 1
    ]
    assert len(current) > len(parts) / 2
    assert all(part.weight == expected(part) for part in current)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.9])
def test_a_swarm_trains_with_each_share_that_a_blend_keeps(alpha):
    trained(rounds=rounds(apply="blend", alpha=alpha))


@pytest.mark.parametrize(
    ("codec", "bits_per_parameter"),
    [("f32", 32), ("bf16", 16), ("int8", 8.125), ("int4", 4.125), ("int2", 2.125), ("int1", 1.125)],
)
@pytest.mark.parametrize("apply", ["overwrite", "rebase"])
@pytest.mark.parametrize("way", ["up_codec", "down_codec"])
def test_a_swarm_trains_with_each_codec_each_way(apply, way, codec, bits_per_parameter):
    swarm = trained(rounds=rounds(apply=apply, **{way: codec}))
    sizes = [fragment.numel for fragment in swarm.learners[0].layout.fragments]
    if way == "down_codec":
        seen = {(one.fragment, 8 * one.payload_bytes) for one in swarm.ledger.merges}
    else:
        seen = {
            (fragment, 8 * pushed)
            for learner in swarm.learners
            for fragment, pushed in learner.pushed
        }
    assert seen == {(at, size * bits_per_parameter) for at, size in enumerate(sizes)}


def test_a_swarm_trains_with_one_bit_both_ways():
    trained(rounds=rounds(up_codec="int1", down_codec="int1"))


@pytest.mark.parametrize("strategy", ["balanced", "tensor", "layer"])
def test_a_swarm_trains_with_each_way_to_cut_a_model(strategy):
    trained(strategy=strategy)


@pytest.mark.parametrize("steps_s", [(0.3, 0.3, 0.3), (0.2, 0.6)])
def test_the_published_eligibility_merges_one_fragment_for_each_step_of_the_fastest(steps_s):
    spec = rounds(local_steps=4, eligible="step", pace_share=0.0, overlap_steps=2)
    swarm = trained(120.0, rounds=spec, steps_s=steps_s)
    merges, steps = swarm.merges, swarm.learners[0].trainer.local_step
    swarm.world.run(240.0)
    done = swarm.learners[0].trainer.local_step - steps
    assert 0.75 <= (swarm.merges - merges) / done <= 1.15


def test_when_the_fastest_learner_leaves_the_others_go_on_within_a_cycle():
    swarm = build_swarm(3, steps_s=(0.05, 1.0))
    swarm.world.run(120.0)
    swarm.learners[0].crash()
    swarm.world.run(160.0)
    before = swarm.merges
    swarm.world.run(200.0)
    swarm.check()
    assert swarm.merges - before >= 10
