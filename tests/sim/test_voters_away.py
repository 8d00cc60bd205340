"""What a leader says of itself while other voters are away."""

from __future__ import annotations

from simulator.scenarios.swarm import build_swarm
from syncer_node.daemon.status import sentence


def test_no_leader_says_that_all_is_well_while_a_voter_is_away():
    swarm = build_swarm(1, syncers=3)
    swarm.world.run(30.0)
    leader = swarm.syncer
    others = [one for one in swarm.syncers if one is not leader]
    assert sentence(leader.syncer, swarm.world.now_s).startswith("All is well. ")
    others[0].crash()
    swarm.world.run(swarm.world.now_s + 5.5)
    said = sentence(leader.syncer, swarm.world.now_s)
    assert "All is well" not in said
    assert "learners training. Not here: syncer " in said
    others[1].crash()
    swarm.world.run(swarm.world.now_s + 5.5)
    assert "All is well" not in sentence(leader.syncer, swarm.world.now_s)
