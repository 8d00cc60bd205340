"""Who takes part, in virtual time: invites through a change of leader, and bans."""

from __future__ import annotations

import pytest

from node.machine.syncer_link import Link
from protocol.invites import Invite, seal_invite
from protocol.log.records import CharterAdopted, FragmentMerged
from protocol.project import RoundSpec
from protocol.rounds import RoundState
from simulator.hosts import syncer
from simulator.hosts.tape import SwarmTape
from simulator.replay.replay import replay
from simulator.scenarios.swarm import build_swarm
from tests.support.choices import first

IN_2100_S = 4_102_444_800


def invited(seed, *, uses, bearers, **changes):
    """A swarm that takes in by invite; these learners have the same one."""
    swarm = build_swarm(seed, admission="invite", **changes)
    tiny = swarm.syncer.tiny
    token = seal_invite(Invite(tiny.project, bytes(16), "friends", uses, IN_2100_S), tiny.owner)
    for at in bearers:
        swarm.learners[at].invite = token
    return swarm, token


def contributors(swarm):
    return {part.learner for body in swarm.ledger.merges for part in body.contributions}


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(8)))
def test_invited_learners_train_through_a_change_of_leader_and_a_stranger_never_does(seed):
    swarm, token = invited(seed, uses=2, bearers=(0, 1), syncers=3)
    ada, bob, eve = swarm.learners
    swarm.world.run(40.0)
    assert eve.stopped.exit_code == 4
    assert "takes part by invitation" in eve.stopped.reason
    assert contributors(swarm) == {ada.key, bob.key}
    # The leader dies, and with it whatever it knew by itself. One comes back without its invite,
    # and the stranger finds the used one.
    former, merges = swarm.syncer, swarm.merges
    former.crash()
    ada.crash()
    ada.invite, eve.invite = None, token
    swarm.world.run(50.0)
    assert swarm.syncer is not former
    ada.boot()
    eve.crash()
    eve.boot()
    swarm.world.run(90.0)
    swarm.check()
    assert ada.learner.link is Link.FOLLOWING
    assert eve.stopped.exit_code == 4
    assert "has brought all 2" in eve.stopped.reason
    since = swarm.ledger.merges[merges:]
    assert {part.learner for body in since for part in body.contributions} == {ada.key, bob.key}


def test_a_project_that_closes_puts_out_whom_nobody_invited():
    swarm = build_swarm(1)
    ada, bob, eve = swarm.learners
    swarm.world.run(30.0)
    assert swarm.merges > 5
    swarm.revise(admission="list", allowed=(ada.key, bob.key))
    swarm.world.run(35.0)
    assert eve.stopped.exit_code == 4
    assert eve.key.hex() in eve.stopped.reason
    merges = swarm.merges
    swarm.world.run(70.0)
    swarm.check()
    since = swarm.ledger.merges[merges:]
    assert {part.learner for body in since for part in body.contributions} == {ada.key, bob.key}


@pytest.mark.parametrize("seed", first(1, range(8)))
def test_nothing_of_a_banned_key_is_merged_and_the_others_go_on(seed):
    swarm = build_swarm(seed, syncers=3)
    ada, bob, eve = swarm.learners
    swarm.world.run(30.0 + 0.7 * seed)
    swarm.revise(banned=(eve.key,))
    swarm.world.run(swarm.world.now_s + 3.0)
    adopted = next(
        record.index
        for record in swarm.ledger.records
        if isinstance(record.body, CharterAdopted) and record.index > 5
    )
    assert eve.stopped.exit_code == 4
    assert "banned" in eve.stopped.reason
    state = swarm.syncer.syncer.state
    assert not any(learner == eve.key for learner, _ in state.leases.held)
    swarm.syncer.crash()
    swarm.world.run(swarm.world.now_s + 40.0)
    swarm.check()
    since = [
        record.body
        for record in swarm.ledger.records
        if isinstance(record.body, FragmentMerged) and record.index > adopted + 2
    ]
    assert len(since) > 10
    assert {part.learner for body in since for part in body.contributions} == {ada.key, bob.key}


@pytest.mark.parametrize("seed", first(1, range(6, 10)))
def test_a_merge_with_a_banned_push_is_done_again_and_its_tape_replays(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(syncer, "MERGE_S", 1.5)
    tape = SwarmTape(tmp_path, mib_max=64)
    # Pushes of two rounds come mixed, and so they lie on the tape.
    rounds = RoundSpec(8, 2, 3, 0.9, 0.0, 10.0, 10.0, "overwrite", "int4", "int4")
    steps_s = (0.3, 0.31, 0.5, 0.52, 0.8, 0.9)
    swarm = build_swarm(seed, tape=tape.of, rounds=rounds, steps_s=steps_s)
    eve = swarm.learners[seed % len(swarm.learners)]

    def tainted():
        """Rounds whose merge, with a push of hers, is being computed."""
        leadership = swarm.syncer.syncer.leadership
        rounds = leadership.rounds.rounds.values() if leadership is not None else ()
        merging = [one for one in rounds if one.state is RoundState.MERGING]
        return [one.number for one in merging if any(eve.key == peer for peer, _ in one.arrived)]

    swarm.world.run(20.0 + seed % 7)
    swarm.world.run(60.0, stop=lambda: bool(tainted()))
    (number, *_) = tainted()
    swarm.revise(banned=(eve.key,))
    swarm.world.run(swarm.world.now_s + 30.0)
    swarm.check()
    assert not tape.close()
    (merged,) = [body for body in swarm.ledger.merges if body.round == number]
    assert eve.key not in {part.learner for part in merged.contributions}
    report = replay(tmp_path, tmp_path)
    assert report.merged == set(report.rounds)
    part = report.round_history(number).parts[eve.key]
    assert (part.fate, part.weight) == ("abandoned", None)
