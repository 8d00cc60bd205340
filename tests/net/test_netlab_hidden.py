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
from shoal.project import file_commands
from tests.net.lab_daemons import Daemons
from tests.net.test_swarm_processes import until, write_project
from tests.netlab import Lab, Link
from tests.netlab.lab import ROOT
from tests.netlab.marks import needs_lab
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(900), needs_lab]

SYNCER, DOOR, HIDDEN, LATE, SPARE = NODES = ("syncer", "door", "bob", "cyd", "dan")
LINK = Link(latency_s=0.01)
SPLIT_S = 240.0
"""Connections that fell silent are given up after 40 s; then it has to last. The rest is for
busy machines."""

BACK_S = 300.0


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


def go_through_it(seen, daemons):
    path = write_project(daemons.folder, 10**9)
    file_commands.sign(path, daemons.home, instance=SYNCER)
    daemons.run_syncer(SYNCER, path)
    ready = until(
        lambda: (s := daemons.syncer(SYNCER)) and s.phase == "training" and s.join_link and s,
        timeout_s=240,
        what="a syncer with weights",
    )
    daemons.join(DOOR, ready.join_link, "--no-evaluate", "--duty", "0.3", "--port", "4200")
    door = until(
        lambda: (n := daemons.learner(DOOR)) and n.network.reach == "direct" and n,
        timeout_s=180,
        what="an entrance that others can dial",
    )
    addresses = tuple(door.network.addresses)[:1]
    link = format_link(structs.replace(parse_link(ready.join_link), addresses=addresses))
    see_hidden_ones(seen, daemons, link)
    see_the_split(seen, daemons)
    see_the_entrance_gone(seen, daemons, link)
    seen.outputs = {node: daemons.output(node) for node in (SYNCER, DOOR, HIDDEN, LATE)}


def see_hidden_ones(seen, daemons, link):
    join(daemons, HIDDEN, link)
    wait_for_merge(daemons, HIDDEN)
    seen.hidden = until(
        lambda: (n := daemons.learner(HIDDEN)) and n.network.reach == "relayed" and n,
        timeout_s=60,
        what="a hidden learner that knows it",
    )
    # The entrance keeps its weights to itself, so that the newcomer needs the hidden one.
    daemons.lab.cut(DOOR, LATE)
    late_link = link_to(daemons, link)
    seen.advice = {node: advice(daemons, node, late_link) for node in (LATE, SPARE)}
    join(daemons, LATE, late_link)
    seen.late = until(
        lambda: (n := daemons.learner(LATE)) and n.state == "training" and n,
        timeout_s=240,
        what="a hidden joiner that trains",
    )
    seen.late_merges = wait_for_merge(daemons, LATE)
    seen.between = daemons.lab.counts(HIDDEN, LATE).forwarded_bytes
    now = daemons.syncer(SYNCER)
    seen.carried_bytes = now.network.carried_bytes
    seen.rows = {row.name: row for row in now.peers}
    daemons.lab.heal()


def see_the_split(seen, daemons):
    others = {DOOR, HIDDEN, LATE}
    daemons.lab.partition({SYNCER}, others)

    def all_say_so():
        told = {node: daemons.learner(node).network.split for node in others}
        return told if all(told.values()) else None

    seen.split = until(all_say_so, timeout_s=SPLIT_S, what="three learners that miss the syncer")
    daemons.lab.heal()

    def nobody_says_so():
        told = {node: daemons.learner(node).network.split for node in others}
        return told if not any(told.values()) else None

    seen.healed = until(nobody_says_so, timeout_s=BACK_S, what="a swarm that is whole")
    before = daemons.merges(SYNCER)

    def merges_again():
        now = daemons.merges(SYNCER)
        news = {node: now.get(node, 0) - before.get(node, 0) for node in others}
        return news if any(count > 0 for count in news.values()) else None

    # Work on blocks that others were given meanwhile is refused first, which takes its time.
    seen.merged_after_split = until(merges_again, timeout_s=BACK_S, what="merges again")


def see_the_entrance_gone(seen, daemons, link):
    daemons.kill(DOOR)
    daemons.kill(HIDDEN)
    join(daemons, HIDDEN, link)
    until(
        lambda: (n := daemons.learner(HIDDEN)) and n.merged > 0,
        timeout_s=240,
        what="the hidden learner in a merge, without the host that its link names",
    )
    seen.again = daemons.learner(HIDDEN)


def join(daemons, node, link):
    daemons.join(node, link, "--no-evaluate", "--duty", "0.3")


def link_to(daemons, link):
    """The same link with the syncer's address: the newcomer must find somebody."""
    addresses = tuple(daemons.syncer(SYNCER).network.addresses)[:1]
    return format_link(structs.replace(parse_link(link), addresses=addresses))


def advice(daemons, node, link):
    """What the trial of the network finds in a node, as `shoal doctor` puts it."""
    process = daemons.lab.run(
        node,
        [sys.executable, "-m", "node.daemon.swarm_trial"],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    wish = SwarmWish(link=link, listen_host=daemons.lab.address(node), port=4300)
    out, _ = process.communicate(msgspec.json.encode(wish), timeout=120)
    return diagnosis.reach(msgspec.json.decode(out, type=SwarmAnswer))


def wait_for_merge(daemons, node):
    def merged():
        daemons.check()
        return daemons.merges(SYNCER).get(node)

    return until(merged, timeout_s=240, what=f"{node} in a merge")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden")
    write_text(folder / "text.txt", chars=60_000)
    seen = Seen()
    with Lab(NODES, link=LINK, seed=7) as lab:
        lab.put_behind_nat(HIDDEN, LATE)
        daemons = Daemons(lab, folder)
        try:
            go_through_it(seen, daemons)
        except BaseException:
            daemons.print_ends()
            raise
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
