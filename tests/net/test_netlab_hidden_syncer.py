"""Both syncers of a project are behind NATs; a witness on a public host carries their streams.

The witness is there first, the syncers dial it, and the join link names the witness alone. One
learner is behind a NAT of its own, another can be dialled. Then the leader is killed. It happens
once; the tests look at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from host.join_link import parse_link
from tests.net.lab_voters import Voters
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(2400), needs_lab]

FIRST, SECOND, WITNESS, HIDDEN, OPEN = NODES = ("s0", "s1", "w0", "ada", "bob")
LINK = Link(latency_s=0.01)


@dataclass
class Seen:
    """What was seen on the way."""

    link: str = ""
    leader: Any = None
    """The leading syncer's status once both learners were in merges."""
    carried_bytes: int = 0
    """By the witness until then."""
    successor: Any = None
    """The status of the other syncer, once it had merged with both."""
    outputs: dict[str, str] = field(default_factory=dict)


def go_through_it(seen, swarm):
    swarm.start_witness(WITNESS)
    address = swarm.until(
        lambda: (told := swarm.ask(WITNESS)) and told.network.addresses[:1],
        "a witness that listens",
    )[0]
    for node in (FIRST, SECOND):
        swarm.start_syncer(node, "--bootstrap", address)
    node, _ = swarm.until(
        lambda: (
            (found := swarm.leader())
            and found[1].phase == "training"
            and found[1].network.reach == "relayed"
            and found
        ),
        "a leader that knows how it is reached",
    )
    swarm.link = seen.link = swarm.syncer(node).join_link
    for learner in (HIDDEN, OPEN):
        swarm.start_again(learner)
    _, seen.leader = swarm.wait_well()
    seen.carried_bytes = swarm.ask(WITNESS).network.carried_bytes
    swarm.kill(node)
    _, _, seen.successor = swarm.wait_takeover(node)
    seen.outputs = {one: swarm.output(one) for one in NODES}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden-syncer")
    seen = Seen()
    with (
        Lab(NODES, link=LINK, seed=11) as lab,
        Voters(lab, folder, learners=(HIDDEN, OPEN)) as swarm,
    ):
        lab.put_behind_nat(FIRST, SECOND, HIDDEN)
        go_through_it(seen, swarm)
    return seen


def test_both_learners_are_merged_by_a_syncer_that_nobody_can_dial(seen):
    merges = {row.name: row.merges for row in seen.leader.peers}
    assert merges[HIDDEN] > 0
    assert merges[OPEN] > 0
    assert seen.carried_bytes > 0


def test_its_link_names_only_hosts_that_can_be_dialled(seen):
    assert len(parse_link(seen.link).addresses) == 1


def test_the_syncer_says_who_carries_its_streams_and_what_to_do(seen):
    said = seen.leader.network.reach_detail
    assert "Nobody outside can dial this host" in said
    assert "streams to it" in said
    assert "forward TCP port" in said


def test_the_other_hidden_syncer_goes_on_where_it_ended(seen):
    assert seen.successor.key != seen.leader.key
    assert seen.successor.swarm.global_step > seen.leader.swarm.global_step


def test_the_witness_says_how_syncers_find_it(seen):
    assert f"--bootstrap {parse_link(seen.link).addresses[0]}" in seen.outputs[WITNESS]


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
