"""Three honest learners and one that hands in everything backwards, as real processes."""

from __future__ import annotations

import json

import pytest

from protocol.standing import DOUBTED_BELOW
from shoal.demo.liar import spawning
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

HONEST = ("ada", "bob", "eve")
LIAR = "mallory"
PUSHES_MAX = 20
MERGES_MORE = 30


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("trust"), spawn=spawning(LIAR)) as made:
        made.prepare(rounds__quorum=1, rounds__local_steps=12)
        made.begin()
        for name in (*HONEST, LIAR):
            made.start_learner(name, "--duty", "0.5", "--no-evaluate")
        yield made


def rows(status):
    return {peer.name: peer for peer in status.peers}


def test_the_liar_is_named_and_does_not_count(swarm):
    def named():
        now = swarm.syncer()
        row = rows(now).get(LIAR) if now else None
        return now if row is not None and row.trust == 0.0 else None

    seen = swarm.until(named, "the liar's name")
    row = rows(seen)[LIAR]
    assert row.direction < 0.0
    key = row.key[:8]
    assert f"Not counted, because their pushes point elsewhere: {LIAR} ({key})." in seen.sentence
    assert "All is well" not in seen.sentence


def test_whoever_asks_for_json_is_told_as_well(swarm):
    def trusts():
        told = json.loads(swarm.run("status", "--json"))
        (syncer,) = [one for one in told if one["type"] == "syncer"]
        return {peer["name"]: peer["trust"] for peer in syncer["peers"]}

    # In the first merges nobody may be there to compare a push with: what is said may change.
    swarm.until(lambda: trusts()[LIAR] == 0.0, "the liar's name as JSON")


def test_few_of_its_pushes_went_by_before(swarm):
    liar = bytes.fromhex(rows(swarm.syncer())[LIAR].key)
    pushes = [
        part.trust
        for merge in swarm.merges(swarm.syncers[0])
        for part in merge.contributions
        if part.learner == liar
    ]
    named_after = next(at for at, trust in enumerate(pushes, 1) if trust < DOUBTED_BELOW)
    assert named_after <= PUSHES_MAX, pushes
    assert pushes[-1] < DOUBTED_BELOW


def test_the_others_train_on_and_learn(swarm):
    def went_on():
        now = swarm.syncer()
        return (
            now if now and now.swarm.global_step >= before.swarm.global_step + MERGES_MORE else None
        )

    before = swarm.syncer()
    first = {name: rows(before)[name].loss for name in HONEST}
    after = swarm.until(went_on, "more merges")
    for name in HONEST:
        assert rows(after)[name].trust > 0.5
        assert rows(after)[name].loss < first[name] + 0.5
    assert rows(after)[LIAR].trust == 0.0
