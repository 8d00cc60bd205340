"""Three syncers over bad links: killed, frozen, restarted in every order, wiped, cloned.

One swarm of real processes goes through all of it. Every test waits until all is well, breaks
something, and looks; none needs another one before it. The last ones cost a voter its disk and get
it back.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time

import pytest

from shoal.common.exit_codes import ExitCode
from tests.net.lab_voters import LEARNERS, Voters
from tests.net.swarms import shoal
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1500), needs_lab]

SYNCERS = ("s0", "s1", "s2")
CLONE = "s9"
NODES = (*SYNCERS, CLONE, *LEARNERS)
LINK = Link(latency_s=0.025, jitter_s=0.005, loss_frac=0.001)
FROZEN_S = 8.0
HELD_S = 6.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voters")
    with Lab(NODES, link=LINK, seed=4) as lab, Voters(lab, folder, syncers=SYNCERS) as voters:
        voters.open()
        yield voters
        voters.check_outputs()


@pytest.fixture
def well(swarm):
    """The swarm while all is well; afterwards nothing may be missing."""
    swarm.wait_well()
    swarm.keep_in_mind()
    yield swarm
    swarm.unheard.clear()
    swarm.wait_well()
    swarm.check_kept()


def test_a_killed_leader_is_followed_by_another_and_comes_back(well):
    former, before = well.leader()
    well.kill(former)
    well.keep_in_mind(former)
    _, node, status = well.wait_takeover(former)
    assert status.swarm.term > before.swarm.term
    well.start_again(former)
    leader, now = well.wait_well()
    assert (leader, now.swarm.term) == (node, status.swarm.term), "it took the seat back"


def test_a_frozen_leader_wakes_up_as_a_standby(well):
    former, before = well.leader()
    well.stop(former)
    well.unheard.add(former)
    well.keep_in_mind(former)
    alone = max(well.certified(former))
    _, node, status = well.wait_takeover(former)
    assert status.swarm.term > before.swarm.term
    well.watch(FROZEN_S)
    well.keep_in_mind(node)
    well.stop(former, signal.SIGCONT)
    well.unheard.clear()
    leader, _ = well.wait_well()
    assert leader != former
    held = well.certified(former)
    assert max(held) > alone
    well.keep_in_mind(former)  # Two different records of one index would show here.


@pytest.mark.parametrize("order", [*itertools.permutations(SYNCERS)][::3], ids="".join)
def test_all_down_and_up_in_any_order(well, order):
    for node in reversed(order):
        well.kill(node)
    well.keep_in_mind()
    newest = max(well.kept)
    before = well.local_steps()
    for node in order:
        well.start_again(node)
        time.sleep(1.0)
    _, status = well.wait_well()
    assert status.swarm.log_index > newest
    well.check_steps(before)


def readmit(swarm, key):
    toml = swarm.project
    done = shoal(swarm.home, "project", "readmit", key, str(toml))
    assert done.returncode == ExitCode.DONE, done.stderr


def test_a_wiped_disk_is_turned_away_until_the_owner_readmits_it(well):
    leader, _ = well.leader()
    victim = next(node for node in reversed(SYNCERS) if node != leader)
    key = well.syncer(victim).key
    well.kill(victim)
    well.keep_in_mind(victim)
    store = well.store(victim)
    shutil.rmtree(store)
    well.start_again(victim)

    def turned_away():
        found = well.leader()
        rows = found[1].seat.voters if found else ()
        return next((row.trouble for row in rows if row.key == key and row.trouble), None)

    words = well.until(turned_away, "a word against the new disk")
    assert "another disk" in words
    assert "readmit" in words
    before = well.leader()[1]
    well.watch(HELD_S)
    well.wait_merge(before)
    assert not any(well.certified(victim)), "it was given records"
    readmit(well, key)
    well.wait_well()


def test_a_cloned_key_is_turned_away(well):
    """The key and the disk of a standby, copied while it runs, and started on another host."""
    leader, before = well.leader()
    original = next(node for node in SYNCERS if node != leader)
    well.clone(original, CLONE)
    well.start_again(CLONE)
    well.running[CLONE].is_stray = True  # It may end as it likes.
    told = well.syncer(original).key

    def clear_words():
        for node in (leader, *SYNCERS):
            rows = well.syncer(node).seat.voters if well.syncer(node) else ()
            for row in rows:
                if row.key == told and row.trouble:
                    return row.trouble
        return "two hosts" in well.output(CLONE) and well.output(CLONE)

    words = well.until(clear_words, "a word against the clone")
    print(words[-300:])
    assert "two hosts" in words or "old copy" in words
    well.watch(HELD_S)
    well.wait_merge(before)
    # What the clone promised nobody knows: neither disk may vote again.
    well.kill(CLONE)
    well.kill(original)
    well.keep_in_mind(original)
    shutil.rmtree(well.store(original))
    well.start_again(original)
    readmit(well, told)
