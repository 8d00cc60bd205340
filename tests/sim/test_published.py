"""Swarms on published text: leases keep to shards, and all else holds as ever."""

from __future__ import annotations

from collections import defaultdict

import pytest

from protocol.log.records import BlocksLeased
from protocol.shards import order_of
from simulator.scenarios.swarm import build_swarm

SHARD = 100
"""Blocks, of 1000 in a pass."""


def leased(swarm):
    """Positions that each session was leased."""
    found = defaultdict(list)
    for record in swarm.ledger.records:
        if isinstance(record.body, BlocksLeased):
            for span in record.body.spans:
                session = record.body.learner, record.body.incarnation
                found[session].extend(range(span.start, span.stop))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_learners_of_a_swarm_read_shards_of_their_own_whoever_crashes(seed):
    swarm = build_swarm(seed, syncers=3, steps_s=(0.2, 0.4, 0.4, 1.6), shard_blocks=SHARD)
    swarm.world.run(60.0)
    swarm.learners[seed % 4].crash()
    swarm.world.run(100.0)
    swarm.syncers[0].crash()
    swarm.world.run(160.0)
    swarm.learners[seed % 4].revive()
    swarm.world.run(400.0)
    swarm.check()
    order = order_of(swarm.learners[0].tiny.genesis)
    found = leased(swarm)
    touched = sum(len({order.run(at) for at in positions}) for positions in found.values())
    assert sum(map(len, found.values())) > 800
    # Each of these sessions may leave one shard half read.
    assert SHARD * (touched - len(found)) < 1.3 * sum(map(len, found.values()))
