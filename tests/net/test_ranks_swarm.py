"""A learner of two ranks in a swarm of real processes: merges, a rank's death, a pause, the end.

Once with the whole model on each rank, and once with a part of it.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.net.swarms import TinySwarm, is_gone

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]


class Pair:
    """A learner of two ranks beside one of one rank."""

    def __init__(self, swarm, *, is_sharded):
        self.swarm = swarm
        self.is_sharded = is_sharded

    def look(self):
        return self.swarm.learner("ada")

    def until(self, is_so, what):
        return self.swarm.until(lambda: (now := self.look()) and is_so(now) and now, what)

    def ranks(self):
        """Process ids of ada's ranks, while it trains."""
        now = self.until(lambda now: now.state == "training" and now.ranks == 2, "two ranks")
        rank_0 = psutil.Process(now.trainer_pid)
        return [rank_0.pid, *(one.pid for one in rank_0.children())]

    def until_gone(self, pids):
        self.swarm.until(lambda: all(map(is_gone, pids)), f"the end of {pids}")


@pytest.fixture(scope="module", params=[(), ("--sharded",)], ids=["each whole", "together"])
def pair(request, tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("ranks")) as swarm:
        swarm.prepare(chars=400_000)
        swarm.begin()
        swarm.start_learner("ada", "--duty", "0.5", "--ranks", "2", *request.param)
        swarm.start_learner("bob", "--duty", "0.5")
        yield Pair(swarm, is_sharded=bool(request.param))


def test_two_ranks_are_one_learner_whose_pushes_are_merged(pair):
    assert len(pair.ranks()) == 2
    now = pair.until(lambda now: now.merged >= 6, "merged pushes")
    assert (now.ranks, now.device, now.trainer_restarts) == (2, "cpu", 0)
    assert now.is_sharded is pair.is_sharded
    syncer = pair.swarm.syncer()
    (ada,) = [peer for peer in syncer.peers if peer.name == "ada"]
    assert ada.merges
    # A local step has as many tokens as with one rank: two sequences of 32.
    assert now.tokens == now.local_step * 2 * 32


def test_a_pause_ends_both_ranks_and_loses_nothing(pair):
    pids = pair.ranks()
    before = pair.look()
    pair.swarm.tell("ada", "pause")
    pair.until_gone(pids)
    paused = pair.until(lambda now: now.guest.is_suspended, "a suspended trainer")
    pair.swarm.tell("ada", "resume")
    back = pair.until(lambda now: now.local_step > paused.local_step, "the next local step")
    assert (back.lost_steps, back.trainer_restarts) == (before.lost_steps, before.trainer_restarts)
    assert not set(pair.ranks()) & set(pids)


def test_a_rank_that_is_killed_is_told_and_both_are_started_again(pair):
    pids = pair.ranks()
    before = pair.look()
    os.kill(pids[1], signal.SIGKILL)
    told = pair.until(lambda now: now.trainer_restarts > before.trainer_restarts, "the loss")
    assert "Rank 1 of the trainer was ended by SIGKILL" in told.trainer_detail
    pair.until_gone(pids)
    assert not set(pair.ranks()) & set(pids)
    merged = pair.look().merged
    pair.until(lambda now: now.merged > merged, "a merged push of the new trainer")


def test_nothing_is_left_of_a_daemon_that_is_killed(pair):
    pids = pair.ranks()
    pair.swarm.kill("ada")
    pair.until_gone(pids)
