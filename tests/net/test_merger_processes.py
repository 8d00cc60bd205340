"""Three syncers as real processes: each merges some fragments, and one that is killed costs no
merge."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

SYNCERS = ("s0", "s1", "s2")
LEARNERS = ("ada", "bob")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("mergers")) as made:
        made.prepare(
            voters=dict.fromkeys(SYNCERS, "syncer"),
            rounds__mergers_max=0,
            rounds__overlap_steps=3,
            rounds__local_steps=8,
            limits__evaluate_every=1000,
        )
        made.start_first()
        for name in SYNCERS[1:]:
            made.start_syncer(name)
        for name in LEARNERS:
            made.start_learner(name, "--duty", "0.3", "--no-evaluate")
        yield made


def key_of(swarm, name):
    """Of a syncer."""
    status = swarm.until(lambda: swarm.syncer(name), f"the status of {name}")
    return bytes.fromhex(status.key)


def mergers_since(swarm, leader, count):
    """How many of the merges behind the first `count` each syncer made, by key; None: the leader"""
    return Counter(merged.merger for merged in swarm.merges(leader)[count:])


def merged_by(swarm, leader, count, key, what):
    swarm.until(lambda: mergers_since(swarm, leader, count)[key] > 2, what)


def test_every_syncer_merges_and_a_killed_one_costs_no_merge(swarm):
    leader, _ = swarm.until(swarm.leader, "a leader")
    others = [name for name in SYNCERS if name != leader]
    keys = {name: key_of(swarm, name) for name in SYNCERS}
    for name in others:
        merged_by(swarm, leader, 0, keys[name], f"merges by {name}")
    victim, other = others
    swarm.kill(victim)
    killed = len(swarm.merges(leader))
    merged_by(swarm, leader, killed, keys[other], "merges by the other while one is away")

    def all_fragments():
        since = swarm.merges(leader)[killed:]
        return {merged.fragment for merged in since} == set(range(3))

    swarm.until(all_fragments, "merges of every fragment, also of those that the dead one had")
    assert keys[victim] not in mergers_since(swarm, leader, killed + 3)
    swarm.start_syncer(victim)
    back = len(swarm.merges(leader))
    merged_by(swarm, leader, back, keys[victim], "merges by the one that came back")
    pushes = Counter(
        (part.learner, part.incarnation, part.sequence)
        for merged in swarm.merges(leader)
        for part in merged.contributions
    )
    assert set(pushes.values()) == {1}, "no push counts twice"
    first, *others = [
        {merged.global_step: merged for merged in swarm.merges(name)} for name in SYNCERS
    ]
    for other in others:
        both = first.keys() & other.keys()
        assert len(both) > back
        assert all(first[step] == other[step] for step in both)
