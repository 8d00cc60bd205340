"""Real processes on loopback: a machine that is too small is told so before it joins."""

from __future__ import annotations

import pytest

from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]


def test_a_machine_that_is_too_small_does_not_join_unless_its_owner_insists(tmp_path):
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare()
        swarm.begin()
        swarm.processes.environment["SHOAL_LIMITS_RAM_BYTES_MAX"] = "100 KiB"
        swarm.start_learner("ada")
        assert swarm.ended("ada") == 2
        said = swarm.output("ada")
        assert "This machine does not suit tiny: 18,560 parameters do not fit" in said
        assert "--anyway" in said
        assert swarm.syncer().peers == []

        swarm.start_learner("ada", "--anyway")
        swarm.until(lambda: swarm.syncer().peers, "a learner that insists")
