"""Two syncers and a witness over bad links, and a leader that is cut off in every way.

One swarm of real processes goes through all of it. Every test waits until all is well, breaks
something, and looks; none needs another one before it.
"""

from __future__ import annotations

import time

import pytest

from tests.net.lab_voters import LEARNERS, Voters
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1500), needs_lab]

NODES = ("s0", "s1", "w0", *LEARNERS)
LINK = Link(latency_s=0.025, jitter_s=0.005, loss_frac=0.002)
QUIET_S = 1.0
"""What was on its way at a cut is read by then."""

HELD_S = 6.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leader")
    with Lab(NODES, link=LINK, seed=3) as lab, Voters(lab, folder) as voters:
        voters.open()
        yield voters
        voters.check_outputs()


@pytest.fixture
def well(swarm):
    """The swarm while all is well; afterwards every link is whole and nothing may be missing."""
    swarm.wait_well()
    swarm.keep_in_mind()
    yield swarm
    swarm.lab.heal()
    swarm.lab.shape_all(LINK)
    swarm.unheard.clear()
    swarm.wait_well()
    swarm.check_kept()


def cut_off(swarm, cut):
    """Cut the leader off with `cut(leader, others)`; all that has to follow."""
    former, before = swarm.leader()
    others = [node for node in NODES if node != former]
    cut_s = time.monotonic()
    cut(former, others)
    swarm.unheard.add(former)
    time.sleep(QUIET_S)
    swarm.keep_in_mind(former)
    alone = swarm.own_words(former).swarm.log_index
    _, node, status = swarm.wait_takeover(former, cut_s)
    assert status.swarm.term > before.swarm.term
    swarm.watch(HELD_S)
    assert swarm.wait_merge(status)[0] == node
    told = swarm.own_words(former)
    assert told.swarm.log_index == alone, "the old leader certified something by itself"
    assert told.phase != "training", "the old leader still serves"
    swarm.keep_in_mind(node)
    swarm.lab.heal()
    swarm.unheard.clear()
    _, leading = swarm.wait_well()
    assert leading.swarm.term >= status.swarm.term
    for index, digest in swarm.certified(former).items():
        assert swarm.kept.setdefault(index, digest) == digest


def test_a_leader_that_is_cut_off_is_followed_by_another(well):
    cut_off(well, lambda leader, others: well.lab.partition({leader}, others))


def test_a_leader_that_can_send_but_not_hear(well):
    def deafen(leader, others):
        for other in others:
            well.lab.cut_one_way(other, leader)

    cut_off(well, deafen)


def test_a_leader_that_can_hear_but_not_send(well):
    def mute(leader, others):
        for other in others:
            well.lab.cut_one_way(leader, other)

    cut_off(well, mute)


def test_a_leader_that_reaches_learners_but_no_voter(well):
    def divide(leader, others):
        well.lab.partition({leader}, set(others) - set(LEARNERS))

    cut_off(well, divide)


def test_links_that_lose_a_tenth_one_way_stop_nobody(well):
    leader, before = well.leader()
    for other in set(NODES) - {leader}:
        well.lab.shape_one_way(leader, other, Link(latency_s=0.05, loss_frac=0.1))
    well.watch(12.0)
    lost = sum(well.lab.counts(leader, other).lost for other in set(NODES) - {leader})
    assert lost > 0
    node, now = well.wait_merge(before)
    print(
        f"{lost} packets lost; {leader} led, then {node}; "
        f"{now.swarm.global_step - before.swarm.global_step} merges in 12 s"
    )


def test_a_lost_witness_stops_nobody(well):
    leader, before = well.leader()
    well.lab.silence("w0")
    well.watch(8.0)
    node, now = well.wait_merge(before)
    assert (node, now.swarm.term) == (leader, before.swarm.term)
