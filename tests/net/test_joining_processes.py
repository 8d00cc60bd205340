"""Real processes on loopback: a machine that is too small is told so before it joins."""

from __future__ import annotations

import pytest

from tests.net.swarms import begin, swarm_in
from tests.net.test_swarm_processes import start_learner, status, until

pytestmark = [pytest.mark.net, pytest.mark.timeout(150)]


def test_a_machine_that_is_too_small_does_not_join_unless_its_owner_insists(tmp_path, monkeypatch):
    with swarm_in(tmp_path, ("syncer", "ada")) as (home, processes):
        link = begin(processes, home, tmp_path, {}).join_link
        monkeypatch.setenv("SHOAL_LIMITS_RAM_BYTES_MAX", "100 KiB")
        start_learner(processes, link, "ada")
        assert processes.running["ada"].wait(60) == 2
        said = processes.output("ada")
        assert "This machine does not suit tiny: 18,560 parameters do not fit" in said
        assert "--anyway" in said
        assert status(home, "syncer").peers == []

        start_learner(processes, link, "ada", "--anyway")
        until(lambda: status(home, "syncer").peers, timeout_s=60, what="a learner that insists")
