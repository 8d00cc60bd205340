"""A swarm most of whose learners are behind a NAT, cut in two, and then without its entrance.

A syncer and a learner that can be dialled, two learners that cannot; each in a network of its own,
and the join link names the learner alone. It happens once; the tests look at what was seen.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec import structs

from host.join_link import format_link, parse_link
from node.daemon.swarm_trial_facts import SwarmAnswer, SwarmWish
from shoal.doctor import diagnosis
from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(2400), needs_lab]

SYNCER, DOOR, HIDDEN, LATE, SPARE = NODES = ("syncer", "door", "bob", "cyd", "dan")
LINK = Link(latency_s=0.01)
SLOW_GIVER = ("--donate-mbps", "1")
"""Else the door gives everything before a hidden learner has been dialled."""


@dataclass
class Seen:
    """What was seen on the way."""

    hidden: Any = None
    """The first hidden learner's status when a merge had it in."""
    late: Any = None
    """The other one's, when it trained."""
    late_merges: int = 0
    advice: dict[str, Any] = field(default_factory=dict)
    """What `shoal doctor` finds on reachability in a node, before anything runs there."""
    carried_bytes: int = 0
    between: int = 0
    """Bytes from one hidden learner's network straight into the other's."""
    rows: dict[str, Any] = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    healed: dict[str, str] = field(default_factory=dict)
    merged_after_split: dict[str, int] = field(default_factory=dict)
    again: Any = None
    """The first hidden learner's status, started again without the host that its link names."""
    outputs: dict[str, str] = field(default_factory=dict)


def go_through_it(seen, swarm):
    swarm.prepare()
    swarm.begin()
    swarm.start_learner(DOOR, "--no-evaluate", "--duty", "0.3", "--port", "4200", *SLOW_GIVER)
    door = swarm.until(
        lambda: (n := swarm.learner(DOOR)) and n.network.reach == "direct" and n,
        "an entrance that others can dial",
    )
    addresses = tuple(door.network.addresses)[:1]
    link = format_link(structs.replace(parse_link(swarm.link), addresses=addresses))
    see_hidden_ones(seen, swarm, link)
    see_the_split(seen, swarm)
    see_the_entrance_gone(seen, swarm, link)
    seen.outputs = {node: swarm.output(node) for node in (SYNCER, DOOR, HIDDEN, LATE)}


def see_hidden_ones(seen, swarm, link):
    join(swarm, HIDDEN, link)
    wait_for_merge(swarm, HIDDEN)
    seen.hidden = swarm.until(
        lambda: (n := swarm.learner(HIDDEN)) and n.network.reach == "relayed" and n,
        "a hidden learner that knows it",
    )
    # The entrance keeps its weights to itself, so that the newcomer needs the hidden one.
    swarm.lab.cut(DOOR, LATE)
    late_link = link_to(swarm, link)
    seen.advice = {node: advice(swarm, node, late_link) for node in (LATE, SPARE)}
    join(swarm, LATE, late_link)
    seen.late = swarm.until(
        lambda: (n := swarm.learner(LATE)) and n.state == "training" and n,
        "a hidden joiner that trains",
    )
    seen.late_merges = wait_for_merge(swarm, LATE)
    seen.between = swarm.lab.counts(HIDDEN, LATE).forwarded_bytes
    now = swarm.syncer()
    seen.carried_bytes = now.network.carried_bytes
    seen.rows = {row.name: row for row in now.peers}
    swarm.lab.heal()


def see_the_split(seen, swarm):
    others = {DOOR, HIDDEN, LATE}
    swarm.lab.partition({SYNCER}, others)

    def all_say_so():
        told = {node: swarm.learner(node).network.split for node in others}
        return told if all(told.values()) else None

    seen.split = swarm.until(all_say_so, "three learners that miss the syncer")
    swarm.lab.heal()

    def nobody_says_so():
        told = {node: swarm.learner(node).network.split for node in others}
        return told if not any(told.values()) else None

    seen.healed = swarm.until(nobody_says_so, "a swarm that is whole")
    before = swarm.merge_counts()

    def merges_again():
        now = swarm.merge_counts()
        news = {node: now.get(node, 0) - before.get(node, 0) for node in others}
        return news if any(count > 0 for count in news.values()) else None

    # Work on blocks that others were given meanwhile is refused first, which takes its time.
    seen.merged_after_split = swarm.until(merges_again, "merges again")


def see_the_entrance_gone(seen, swarm, link):
    swarm.kill(DOOR)
    swarm.kill(HIDDEN)
    join(swarm, HIDDEN, link)
    swarm.until(
        lambda: (n := swarm.learner(HIDDEN)) and n.merged > 0,
        "the hidden learner in a merge, without the host that its link names",
    )
    seen.again = swarm.learner(HIDDEN)


def join(swarm, node, link):
    swarm.link = link
    swarm.start_learner(node, "--no-evaluate", "--duty", "0.3")


def link_to(swarm, link):
    """The same link with the syncer's address: the newcomer must find somebody."""
    addresses = tuple(swarm.syncer().network.addresses)[:1]
    return format_link(structs.replace(parse_link(link), addresses=addresses))


def advice(swarm, node, link):
    """What the trial of the network finds in a node, as `shoal doctor` puts it."""
    process = swarm.lab.run(
        node,
        [sys.executable, "-m", "node.daemon.swarm_trial"],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    wish = SwarmWish(link=link, listen_host=swarm.lab.address(node), port=4300)
    out, _ = process.communicate(msgspec.json.encode(wish), timeout=120)
    return diagnosis.reach(msgspec.json.decode(out, type=SwarmAnswer))


def wait_for_merge(swarm, node):
    def merged():
        return swarm.merge_counts().get(node)

    return swarm.until(merged, f"{node} in a merge")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden")
    seen = Seen()
    with Lab(NODES, link=LINK, seed=7) as lab, LabSwarm(lab, folder) as swarm:
        lab.put_behind_nat(HIDDEN, LATE)
        go_through_it(seen, swarm)
    return seen


def test_a_learner_behind_a_nat_is_merged(seen):
    assert seen.rows[HIDDEN].merges > 0
    assert seen.rows[HIDDEN].path == "direct", "it dialled the syncer itself"
    assert "Nobody outside can dial this host" in seen.hidden.network.reach_detail


def test_doctor_says_how_others_reach_this_host(seen):
    hidden, open_ = seen.advice[LATE], seen.advice[SPARE]
    assert (hidden.verdict, open_.verdict) == ("care", "good")
    assert hidden.says.startswith("relayed; 1 of 1 hosts of the link answer directly")
    assert "orward TCP port 4300" in hidden.remedy
    assert open_.says.startswith("direct; ")


def test_a_hidden_joiner_gets_weights_from_a_hidden_learner(seen):
    assert seen.late_merges > 0
    assert seen.late.weights_sources.get(seen.hidden.key, 0) > 0, seen.late.weights_sources
    assert seen.carried_bytes >= seen.late.weights_sources[seen.hidden.key]
    assert seen.between < 10_000, "nothing but attempts to connect"


def test_a_split_is_said_and_heals_by_itself(seen):
    for node, told in seen.split.items():
        assert "split" in told or "No other host" in told, node
    assert any("The swarm is split" in told for told in seen.split.values())
    assert not any(seen.healed.values())
    assert any(count > 0 for count in seen.merged_after_split.values())


def test_a_learner_finds_the_swarm_without_the_host_that_its_link_names(seen):
    assert seen.again.merged > 0


def test_nobody_prints_a_traceback(seen):
    for node, output in seen.outputs.items():
        assert "Traceback" not in output, node
