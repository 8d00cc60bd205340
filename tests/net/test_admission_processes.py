"""Real processes on loopback: a stranger reads what to ask for, whoever has an invite trains."""

from __future__ import annotations

import pytest

from shoal.common.exit_codes import ExitCode
from tests.net.swarms import TinySwarm, shoal

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]


def test_a_stranger_is_refused_and_whom_the_owner_invites_trains_until_it_is_banned(tmp_path):
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(admission__rule="invite")
        swarm.begin()
        plain = swarm.link
        swarm.start_learner("eve")
        assert swarm.ended("eve") == ExitCode.REFUSED
        assert "this project takes part by invitation" in swarm.output("eve")
        assert "`shoal invite`" in swarm.output("eve")
        assert swarm.syncer().peers == []

        made = shoal(swarm.home, "project", "invite", "--name", "friends")
        assert made.returncode == 0, made.stderr
        swarm.link = made.stdout.strip()
        swarm.start_learner("ada")
        swarm.all_merge("ada")
        swarm.start_learner("eve")
        assert swarm.ended("eve") == ExitCode.REFUSED
        assert "the invite friends has brought all 1" in swarm.output("eve")
        told = shoal(swarm.home, "project", "invites", str(swarm.signed))
        assert "friends: used up, 0 of 1 uses left" in told.stdout, told.stderr
        assert "brought: ada" in told.stdout

        # Its key is known by now: it needs no invite to come back.
        swarm.kill("ada")
        swarm.link, before = plain, swarm.merge_counts()["ada"]
        swarm.start_learner("ada")
        swarm.until(lambda: swarm.merge_counts().get("ada", 0) > before, "ada in merges again")

        banned = shoal(swarm.home, "project", "ban", "ada", str(swarm.signed))
        assert banned.returncode == 0, banned.stderr
        assert swarm.ended("ada") == ExitCode.REFUSED
        assert "the project's owner has banned this key" in swarm.output("ada")
