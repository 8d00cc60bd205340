"""Learners that are told to stop keep what they have, and go on from it at the next start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from node.machine.bookmark import decoded, encoded, prove_bookmark
from node.machine.syncer_link import Link
from node.machine.trainer_states import TrainerState
from protocol.errors import CorruptState, RemoteError
from protocol.machine import StopAsked
from protocol.project import RoundSpec
from protocol.trace import BookmarkRead, FragmentAdvanced, WeightsReady
from simulator.scenarios.scenarios import FAULT_KINDS
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.tiny import sim_verify
from syncer_node.machine.telling import recent_entries
from tests.support.choices import first
from tests.support.swarm_faults import afflict

AWAY_S = 6.0
FROM_DISK = "from this disk"


def rounds_of(apply):
    return RoundSpec(8, 2, 1, 0.9, 0.5, 10.0, 10.0, apply, "int4", "int4")


def told_to_stop(swarm, one, *, away_s=AWAY_S):
    """It stops, and is started again some time later."""
    one.take(StopAsked("its owner"))
    swarm.world.after(away_s, one.revive)


def since(swarm, kind, key, at_s):
    return [
        fact
        for when_s, host, fact in swarm.world.facts
        if when_s >= at_s and host == key and type(fact) is kind
    ]


@pytest.mark.parametrize("apply", ["overwrite", "rebase"])
def test_who_was_away_for_a_moment_fetches_what_was_merged_meanwhile_and_nothing_else(apply):
    swarm = build_swarm(1, steps_s=(0.3, 0.3, 0.4), rounds=rounds_of(apply))
    swarm.world.run(40.0)
    one = swarm.learners[0]
    before = one.learner.context.state.index
    told_to_stop(swarm, one)
    swarm.world.run(100.0)
    swarm.check()
    (read,) = since(swarm, BookmarkRead, one.key, 40.0)
    assert read.index <= before
    assert read.index > before - 4, "weights that are on their way count from the state before"
    assert one.left is None, "what was kept is gone once it is taken up"
    (ready,) = since(swarm, WeightsReady, one.key, 40.0)
    assert (ready.from_peers, ready.from_syncer, ready.sources) == (0, 0, ())
    fragments = len(swarm.syncer.layout.fragments)
    came = since(swarm, FragmentAdvanced, one.key, 40.0 + AWAY_S)[:fragments]
    assert [fact.source for fact in came] == [FROM_DISK] * fragments
    assert one.learner.link is Link.FOLLOWING
    assert one.learner.trainer_control.trainer is TrainerState.STEPPING
    newest = [fragment.version for fragment in swarm.syncer.syncer.state.fragments]
    assert sum(newest) - sum(one.learner.fragment_sync.held) <= 2
    counted = {part.learner for merge in swarm.ledger.merges[-10:] for part in merge.contributions}
    assert one.key in counted


def test_who_was_killed_kept_nothing():
    swarm = build_swarm(1, steps_s=(0.3, 0.3, 0.4))
    swarm.world.run(40.0)
    one = swarm.learners[0]
    one.crash()
    swarm.world.after(AWAY_S, one.boot)
    swarm.world.run(100.0)
    assert since(swarm, BookmarkRead, one.key, 0.0) == []
    (ready,) = since(swarm, WeightsReady, one.key, 40.0)
    assert ready.sources


def test_who_was_away_for_so_long_that_the_log_is_not_told_begins_from_an_index(monkeypatch):
    monkeypatch.setattr(recent_entries, "RECENT_RECORDS", 40)
    swarm = build_swarm(1, steps_s=(0.3, 0.3, 0.4))
    swarm.world.run(40.0)
    one = swarm.learners[0]
    told_to_stop(swarm, one, away_s=300.0)
    swarm.world.run(400.0)
    swarm.check()
    assert one.learner.link is Link.FOLLOWING
    assert one.learner.trainer_control.trainer is TrainerState.STEPPING


def test_a_swarm_that_was_switched_off_can_prove_what_it_holds():
    """Everybody stops, the syncer's disk is lost, and learners are started again: what they kept
    is what the owner can go on from."""
    swarm = build_swarm(1, steps_s=(0.3, 0.3, 0.4))
    swarm.world.run(40.0)
    versions = [one.learner.fragment_sync.held for one in swarm.learners]
    for one in swarm.learners:
        one.take(StopAsked("its owner"))
    swarm.world.run(42.0)
    swarm.syncer.crash()
    swarm.syncer.wipe()
    for one in swarm.learners:
        one.boot()
    swarm.world.run(60.0)
    for one, before in zip(swarm.learners, versions, strict=True):
        machine = one.learner
        told = machine.context.proofs.newest_held(machine.context.state, machine.fragment_sync.held)
        assert told is not None
        assert machine.fragment_sync.held == tuple(f.version for f in told.summary.fragments)
        assert all(
            now >= then for now, then in zip(machine.fragment_sync.held, before, strict=True)
        )


def a_bookmark(swarm):
    bookmark = swarm.learners[0].learner.bookmark(swarm.learners[0].bank.versions)
    assert bookmark is not None
    return decoded(encoded(bookmark))


@pytest.mark.parametrize("what", ["index", "head", "fragment", "origins", "project", "charters"])
def test_a_bookmark_that_is_not_proven_is_refused(what):
    swarm = build_swarm(1, steps_s=(0.3, 0.3))
    swarm.world.run(30.0)
    tiny, good = swarm.syncer.tiny, a_bookmark(swarm)
    project, summary = tiny.project, good.summary

    def proven(bookmark, project=project):
        return prove_bookmark(bookmark, project=project, genesis=tiny.genesis, verify=sim_verify)

    assert proven(good).index == summary.index
    match what:
        case "index":
            summary = structs.replace(summary, index=summary.index + 1)
        case "head":
            summary = structs.replace(summary, head=bytes(32))
        case "fragment":
            newer = structs.replace(summary.fragments[0], version=summary.fragments[0].version + 1)
            summary = structs.replace(summary, fragments=(newer, *summary.fragments[1:]))
        case "origins":
            good = structs.replace(good, origins=good.origins[1:])
        case "project":
            project = bytes(32)
        case "charters":
            summary = structs.replace(summary, charters=())
    with pytest.raises(RemoteError):
        proven(structs.replace(good, summary=summary), project)


def test_who_finds_a_bookmark_that_is_not_proven_begins_anew():
    swarm = build_swarm(1, steps_s=(0.3, 0.3))
    swarm.world.run(30.0)
    one = swarm.learners[0]
    one.take(StopAsked("its owner"))
    swarm.world.run(31.0)
    good = one.left.read()
    summary = structs.replace(good.summary, index=good.summary.index + 1, fragments=())
    one.left = replace(
        one.left, bookmark=encoded(structs.replace(good, summary=summary)), arrays={}
    )
    one.boot()
    swarm.world.run(70.0)
    swarm.check()
    (read,) = since(swarm, BookmarkRead, one.key, 31.0)
    assert (read.index, read.text.split(";")[0]) == (0, "this daemon begins anew")
    (ready,) = since(swarm, WeightsReady, one.key, 31.0)
    assert ready.sources
    assert one.learner.link is Link.FOLLOWING


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01\x02\x03", bytes(1000)])
def test_a_file_that_is_no_bookmark_is_refused(content):
    with pytest.raises(CorruptState):
        decoded(content)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", first(1, (1, 0, *range(2, 24))))
def test_polite_stops_among_all_faults_lose_nothing(seed):
    chance = random.Random(f"bookmarks {seed}")
    swarm = build_swarm(
        seed,
        syncers=chance.choice((1, 3)),
        steps_s=tuple(chance.choice((0.3, 0.4)) for _ in range(chance.choice((2, 3, 4)))),
        rounds=rounds_of(chance.choice(("overwrite", "rebase"))),
    )
    afflict(swarm, seed, until_s=240.0, every_s=30.0, away_s=(5.0, 40.0), kinds=FAULT_KINDS)
    for _ in range(chance.choice((3, 8))):
        one = chance.choice(swarm.learners)
        away_s = chance.choice((0.5, 3.0, 20.0, 60.0))
        swarm.world.at(
            chance.uniform(10.0, 230.0),
            lambda one=one, away_s=away_s: one.is_up and told_to_stop(swarm, one, away_s=away_s),
        )
    swarm.world.run(330.0)
    before = len(swarm.ledger.merges)
    swarm.world.run(420.0)
    swarm.check()
    counted = {part.learner for one in swarm.ledger.merges[before:] for part in one.contributions}
    for one in swarm.learners:
        assert one.learner.link is Link.FOLLOWING, one.name
        assert one.key in counted, one.name
    assert any(isinstance(fact, BookmarkRead) for _, _, fact in swarm.world.facts)
