"""Three honest learners and one that hands in what was merged last, as real processes."""

from __future__ import annotations

import pytest

from protocol.log.records import PushProbed
from tests.net.lying_shoal import spawning
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

HONEST = ("ada", "bob", "eve")
COPIER = "mallory"
PUSHES_MAX = 8
PROBES = 6


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("copier"), spawn=spawning({COPIER: "copy"})) as made:
        made.prepare(rounds__local_steps=12, outer__probes_frac=4.0)
        made.begin()
        for name in (*HONEST, COPIER):
            made.start_learner(name, "--duty", "0.5")
        yield made


def rows(status):
    return {peer.name: peer for peer in status.peers}


def test_the_copier_is_named_and_does_not_count(swarm):
    def named():
        now = swarm.syncer()
        row = rows(now).get(COPIER) if now else None
        return now if row is not None and row.trust == 0.0 else None

    seen = swarm.until(named, "the copier's name")
    key = rows(seen)[COPIER].key
    words = "Not counted, because their pushes only repeat what was merged"
    assert f"{words}: {COPIER} ({key[:8]})." in seen.sentence
    parts = [
        part
        for merge in swarm.merges(swarm.syncers[0])
        for part in merge.contributions
        if part.learner == bytes.fromhex(key)
    ]
    trusts = [part.trust for part in parts]
    assert trusts.index(0.0) < PUSHES_MAX, trusts
    assert all(part.trust == 0.0 for part in parts if part.echo > 0.999)


def test_honest_daemons_measure_its_pushes_and_each_other_s(swarm):
    def probed():
        found = swarm.bodies(swarm.syncers[0], PushProbed)
        probers = {one.prober for one in found}
        return found if len(probers) >= len(HONEST) and len(found) >= PROBES else None

    found = swarm.until(probed, "probes by every honest learner")
    now = swarm.syncer()
    by_key = {bytes.fromhex(row.key): row.name for row in now.peers}
    assert {by_key[one.prober] for one in found} <= {*HONEST, COPIER}
    assert len({one.learner for one in found}) > 1
    for one in found:
        assert one.prober != one.learner
        assert one.own.sequences == one.other.sequences >= 16
        assert 0.0 < one.own.loss < 20.0
    assert sum(row.probes for row in now.peers) >= len(found)


def test_it_is_suspended_and_nobody_else(swarm):
    def suspended():
        now = swarm.syncer()
        row = rows(now).get(COPIER) if now else None
        return now if row is not None and row.standing == "suspended" else None

    seen = swarm.until(suspended, "the copier suspended")
    row = rows(seen)[COPIER]
    assert seen.sentence.startswith(f"Suspended: {COPIER} ({row.key[:8]}), because ")

    def recorded():
        found = swarm.bodies(swarm.syncers[0], PushProbed)
        return [one for one in found if one.suspends]

    # A certificate reaches the disk a moment after the leader acts on what it certifies.
    (last,) = swarm.until(recorded, "the suspension on the leader's disk")
    assert last.learner == bytes.fromhex(row.key)
    assert f"Suspended: {COPIER}" in swarm.run("status")
    assert not any(rows(seen)[name].standing == "suspended" for name in HONEST)


def test_its_owner_lets_it_take_part_again(swarm):
    def taken_back():
        now = swarm.syncer()
        row = rows(now).get(COPIER) if now else None
        return now if row is not None and row.standing != "suspended" else None

    swarm.run("project", "reinstate", COPIER, str(swarm.signed))
    seen = swarm.until(taken_back, "the copier back")
    assert "Suspended" not in seen.sentence
    assert rows(seen)[COPIER].state in ("training", "starved")
