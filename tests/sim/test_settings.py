"""Every setting of the algorithm, by a swarm that trains with it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from protocol.project import LimitSpec, OuterSpec
from protocol.trace import CheckpointScored, FragmentApplied, FragmentCommitted
from simulator.scenarios.swarm import build_swarm
from simulator.virtual.network import NetworkModel
from syncer_node.machine.jobs import FetchPush
from tests.support.builders import rounds
from tests.support.choices import first, spread

BITS_PER_PARAMETER = {
    "f32": 32,
    "bf16": 16,
    "int8": 8.125,
    "int4": 4.125,
    "int2": 2.125,
    "int1": 1.125,
}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "outer",
    [OuterSpec(0.7, 0.5, 3.0), OuterSpec(0.7, 0.5, 3.0, False), OuterSpec(0.7, 0.0, 3.0, False)],
    ids=["nesterov", "plain", "none"],
)
def test_a_swarm_trains_with_each_outer_step(outer):
    swarm = trained(outer=outer)
    assert {merged.nesterov for merged in swarm.ledger.merges} == {outer.nesterov}


def test_a_swarm_trains_where_trust_is_earned():
    swarm = trained(outer=OuterSpec(0.7, 0.5, 3.0, trust="earned"))
    parts = [part for merged in swarm.ledger.merges for part in merged.contributions]
    assert min(part.trust for part in parts) > 0.5
    assert sum(part.cosine != 0.0 for part in parts) > len(parts) / 2


@pytest.mark.parametrize("weights", first(1, ["tokens", "quality", "equal"]))
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


@pytest.mark.slow
@pytest.mark.parametrize("alpha", first(1, [0.25, 0.0, 0.9]))
def test_a_swarm_trains_with_each_share_that_a_blend_keeps(alpha):
    trained(rounds=rounds(apply="blend", alpha=alpha))


@pytest.mark.slow
@pytest.mark.parametrize("codec", spread(2, BITS_PER_PARAMETER))
@pytest.mark.parametrize("way", ["up_codec", "down_codec"])
def test_a_swarm_trains_with_each_codec_each_way(way, codec):
    number = [*BITS_PER_PARAMETER].index(codec) + (way == "up_codec")
    apply = ("overwrite", "rebase")[number % 2]
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
    assert seen == {(at, size * BITS_PER_PARAMETER[codec]) for at, size in enumerate(sizes)}


@pytest.mark.slow
def test_a_swarm_trains_with_one_bit_both_ways():
    trained(rounds=rounds(up_codec="int1", down_codec="int1"))


@pytest.mark.parametrize("strategy", first(1, ["tensor", "balanced", "layer"]))
def test_a_swarm_trains_with_each_way_to_cut_a_model(strategy):
    trained(strategy=strategy)


@pytest.mark.slow
@pytest.mark.parametrize("steps_s", [(0.2, 0.6), (0.3, 0.3, 0.3)])
def test_the_published_eligibility_merges_one_fragment_for_each_step_of_the_fastest(steps_s):
    spec = rounds(local_steps=4, eligible="step", pace_share=0.0, overlap_steps=2)
    swarm = trained(120.0, rounds=spec, steps_s=steps_s)
    merges, steps = swarm.merges, swarm.learners[0].trainer.local_step
    swarm.world.run(240.0)
    done = swarm.learners[0].trainer.local_step - steps
    assert 0.75 <= (swarm.merges - merges) / done <= 1.15


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    first(
        1,
        [
            NetworkModel(0.08, 0.04, 1e6, 0.02),
            NetworkModel(0.0001, 0.0, 1e9),
            NetworkModel(0.03, 0.01, 2e6),
        ],
    ),
    ids=["lossy lines", "one host", "homes"],
)
@pytest.mark.parametrize("local_steps", first(1, [8, 32]))
def test_the_measured_h_is_the_configured_h_on_any_network(network, local_steps):
    spec = rounds(local_steps=local_steps)
    swarm = build_swarm(2, steps_s=(0.3, 0.3, 0.4), rounds=spec, network=network)
    swarm.world.run(60.0 + 15.0 * local_steps)
    told = [
        fact.mean_steps
        for _, key, fact in swarm.world.facts
        if key == swarm.syncer.key and isinstance(fact, FragmentCommitted)
    ]
    late = told[len(told) // 3 :]
    assert 0.9 * local_steps <= sum(late) / len(late) <= 1.2 * local_steps


@pytest.mark.slow
def test_when_the_fastest_learner_leaves_the_others_go_on_within_a_cycle():
    swarm = build_swarm(3, steps_s=(0.05, 1.0))
    swarm.world.run(120.0)
    swarm.learners[0].crash()
    swarm.world.run(160.0)
    before = swarm.merges
    swarm.world.run(200.0)
    swarm.check()
    assert swarm.merges - before >= 10


@pytest.mark.slow
def test_a_learner_whose_trainer_is_replaced_is_soon_ready_again():
    """Its new trainer counts local steps from 0; the quorum needs it."""
    swarm = build_swarm(3, steps_s=(0.3, 0.3), rounds=rounds(quorum=2))
    swarm.world.run(200.0)
    before = swarm.merges
    swarm.learners[0].lose_trainer()
    swarm.world.run(230.0)
    swarm.check()
    assert swarm.learners[0].trainer.local_step < 100 < swarm.learners[1].trainer.local_step
    assert swarm.merges - before >= 10


def slow_uplink(swarm, learner, seconds):
    """Whatever the syncer fetches from this learner takes so much longer."""
    honest = swarm.syncer.run_job

    def run_job(start, answer):
        if isinstance(start.job, FetchPush) and start.job.peer == learner.key:
            swarm.world.after(seconds, lambda: honest(start, answer))
        else:
            honest(start, answer)

    swarm.syncer.run_job = run_job


@pytest.mark.slow
@pytest.mark.parametrize("apply", first(1, ["rebase", "blend", "overwrite"]))
@pytest.mark.parametrize("seconds", first(1, [1.5, 4.0]))
def test_a_slow_uplink_takes_part_with_every_fragment_and_each_push_counts_once(apply, seconds):
    swarm = build_swarm(2, steps_s=(0.3, 0.3, 0.3), rounds=rounds(apply=apply))
    slow = swarm.learners[2]
    slow_uplink(swarm, slow, seconds)
    swarm.world.run(240.0)
    swarm.check()
    scored = losses(swarm)
    assert scored[-1] < scored[0] / 20
    shares = Counter()
    lags = Counter()
    for merged in swarm.ledger.merges:
        for part in merged.contributions:
            if part.learner == slow.key:
                shares[merged.fragment] += 1
                lags[merged.version - 1 - part.base_version] += 1
    assert set(shares) == set(range(4))
    assert max(shares.values()) <= 2 * min(shares.values())
    assert set(lags) <= {0, 1, 2}
    assert lags[1] + lags[2] > 0
    for learner in swarm.learners:
        check_every_local_step_is_accounted_for(swarm, learner)


def check_every_local_step_is_accounted_for(swarm, learner):
    """Merged, discarded, on its way, or still to be handed in: each in just one of them."""
    shared, fragment_sync = learner.learner.context, learner.learner.fragment_sync
    done = shared.stepped.local_step
    for track in fragment_sync.local_fragments:
        known = shared.state.fragments[track.index].version
        merged = sum(
            part.steps
            for one in swarm.ledger.merges
            if one.fragment == track.index and one.version <= known
            for part in one.contributions
            if part.learner == learner.key
        )
        is_out = track.push is not None and track.push.message is not None
        out = track.push.local_step if is_out else 0
        used = max(track.marked_step, track.handed_step)
        on_its_way = max(0, out - used) + (track.push.overwritten_steps if is_out else 0)
        rest = done - max(used, out)
        assert merged + track.discarded_steps + on_its_way + rest == done


@pytest.mark.slow
@pytest.mark.parametrize("apply", first(1, ["rebase", "blend", "overwrite"]))
def test_a_learner_that_was_away_comes_back_with_the_weight_of_all_it_did_once(apply):
    swarm = build_swarm(4, steps_s=(0.3, 0.3, 0.3), rounds=rounds(apply=apply))
    away = swarm.learners[1]
    swarm.world.at(60.0, lambda: swarm.world.partition(away.key, swarm.syncer.key, for_s=12.0))
    swarm.world.run(150.0)
    swarm.check()
    applied = {}
    for _, key, fact in swarm.world.facts:
        if key == away.key and isinstance(fact, FragmentApplied):
            applied[fact.fragment, fact.version] = fact.local_step
    handed = dict.fromkeys(range(4), 0)
    largest = 0
    for merged in swarm.ledger.merges:
        for part in merged.contributions:
            if part.learner != away.key:
                continue
            _, local_step = away.captures[part.incarnation, part.sequence]
            if apply == "rebase":
                since = handed[merged.fragment]
            else:
                since = applied[merged.fragment, part.base_version]
            handed[merged.fragment] = local_step
            assert part.steps == local_step - since
            assert part.tokens == part.steps * away.trainer.tokens_per_step
            lag = merged.version - 1 - part.base_version
            assert part.weight == part.tokens**2 / part.steps / (1 + lag)
            largest = max(largest, part.steps)
    # With rebase nothing of the time away is lost; else what came meanwhile replaced it.
    assert (largest >= 12.0 / 0.33 / 2) is (apply == "rebase")


def test_the_learning_rate_follows_the_committed_tokens_and_never_goes_back():
    budget = LimitSpec(60_000, 256, 20, 8, 60.0, 64)
    swarm = build_swarm(6, limits=budget)
    learner = swarm.learners[0]
    swarm.world.at(40.0, learner.lose_trainer)
    swarm.world.run(70.0)
    machine = learner.learner
    told = list(learner.progress)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(machine.context.state.tokens / 60_000, abs=0.02)
    # The owner doubles the budget, and the trainer is replaced: the schedule stays where it was.
    raised = msgspec.structs.replace(budget, tokens=120_000)
    machine.context.charter = msgspec.structs.replace(machine.context.charter, limits=raised)
    learner.lose_trainer()
    swarm.world.run(90.0)
    again = learner.progress[len(told) :]
    assert again
    assert [*told, *again] == sorted([*told, *again])


@pytest.mark.parametrize(
    ("learners", "most"), [(12, 4), pytest.param(24, 8, marks=pytest.mark.slow)]
)
def test_rounds_that_ask_some_wait_for_none_whom_they_cannot_ask(learners, most):
    """Before all are established, what most of them hand in makes no quorum."""
    spec = rounds(participants_max=most, quorum=most, patience_s=300.0)
    earned = OuterSpec(0.7, 0.5, 3.0, trust="earned")
    swarm = build_swarm(1, rounds=spec, steps_s=(0.3,) * learners, outer=earned)
    swarm.world.run(60.0)
    swarm.check()
    assert swarm.merges > 60


def test_a_round_asks_no_more_than_it_may_and_everybody_in_turn():
    spec = rounds(participants_max=4, quorum=4)
    swarm = trained(160.0, rounds=spec, steps_s=(0.3,) * 8 + (0.5,) * 4)
    merges = swarm.ledger.merges
    parts = [len(merged.contributions) for merged in merges]
    assert sum(parts) / len(parts) > 3.5
    times = Counter(part.learner for merged in merges for part in merged.contributions)
    assert len(times) == 12
    assert max(times.values()) <= 1.5 * min(times.values())
    steps = [part.steps for merged in merges[-24:] for part in merged.contributions]
    assert sum(steps) / len(steps) > 2 * spec.local_steps, "they hand in what they kept"
