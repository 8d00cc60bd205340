"""A learner of two ranks in a swarm of real processes: merges, a rank's death, a pause, the end."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from host.control import client
from host.files.home import Home
from shoal.project import file_commands
from tests.net.test_swarm_processes import (
    Processes,
    free_port,
    is_gone,
    start_learner,
    start_syncer,
    status,
    until,
    write_project,
)
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(400)]

GONE_S = 2.0
START_S = 120.0


class Pair:
    """A learner of two ranks beside one of one rank."""

    def __init__(self, home, processes):
        self.home, self.processes = home, processes

    def look(self):
        self.processes.check("syncer", "ada", "bob")
        return status(self.home, "learner", "ada")

    def until(self, is_so, what):
        return until(
            lambda: (now := self.look()) and is_so(now) and now, timeout_s=START_S, what=what
        )

    def ranks(self):
        """Process ids of ada's ranks, while it trains."""
        now = self.until(lambda now: now.state == "training" and now.ranks == 2, "two ranks")
        rank_0 = psutil.Process(now.trainer_pid)
        return [rank_0.pid, *(one.pid for one in rank_0.children())]

    def until_gone(self, pids):
        """Within the time that a pause may take."""
        until(lambda: all(map(is_gone, pids)), timeout_s=GONE_S, what=f"the end of {pids}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    home = Home(folder / "home")
    write_text(folder / "text.txt", chars=400_000)
    path = write_project(folder, 10**9)
    file_commands.sign(path, home, instance="default")
    processes = Processes(folder, home)
    try:
        start_syncer(processes, path, free_port())
        ready = until(
            lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
            timeout_s=START_S,
            what="a syncer with weights",
        )
        start_learner(processes, ready.join_link, "ada", "--ranks", "2")
        start_learner(processes, ready.join_link, "bob")
        yield Pair(home, processes)
    finally:
        processes.clean_up()


def test_two_ranks_are_one_learner_whose_pushes_are_merged(pair):
    assert len(pair.ranks()) == 2
    now = pair.until(lambda now: now.merged >= 6, "merged pushes")
    assert (now.ranks, now.device, now.trainer_restarts) == (2, "cpu", 0)
    syncer = status(pair.home, "syncer")
    (ada,) = [peer for peer in syncer.peers if peer.name == "ada"]
    assert ada.merges
    # A local step has as many tokens as with one rank: two sequences of 32.
    assert now.tokens == now.local_step * 2 * 32


def test_a_pause_ends_both_ranks_in_time_and_loses_nothing(pair):
    pids = pair.ranks()
    before = pair.look()
    client.call(pair.home.socket("learner", "ada"), "pause")
    pair.until_gone(pids)
    paused = pair.until(lambda now: now.guest.is_suspended, "a suspended trainer")
    client.call(pair.home.socket("learner", "ada"), "resume")
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
    pair.processes.kill("ada")
    started = time.monotonic()
    pair.until_gone(pids)
    assert time.monotonic() - started < GONE_S
