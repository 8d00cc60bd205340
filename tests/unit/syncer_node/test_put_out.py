"""A ban stops a key everywhere at once: its session, its leases, its pulls, its unmerged pushes."""

from __future__ import annotations

import msgspec
import pytest

from protocol.log.records import BlocksLeased, BlocksReturned, FragmentMerged, read_record
from protocol.machine import PeerDown
from protocol.messages import CharterOffer, Committed, LeaseRequest, Pull, Refused, Settled, Welcome
from protocol.trace import RoundAbandoned
from syncer_node.daemon.status import peer_rows
from syncer_node.machine.jobs import FetchPush, Forget, Merge, PushFetched
from syncer_node.machine.rounds import PUT_OUT
from syncer_node.raft.jobs import Append
from tests.support.builders import (
    ONE,
    STRANGER,
    THREE,
    TWO,
    SyncerBench,
    actions,
    disconnected,
    facts,
    project,
    rounds,
    sealed_charter,
)

DUO = project(rounds(quorum=2))
SOLO = project(rounds(quorum=1))


def bodies(bench, kind, peer=TWO.key):
    """Bodies of this kind that the other learner was told."""
    entries = [entry for said in bench.all(peer, Committed) for entry in said.entries]
    found = [read_record(entry.record).body for entry in entries]
    return [body for body in found if isinstance(body, kind)]


def merged_parts(bench):
    return [[part.learner for part in body.contributions] for body in bodies(bench, FragmentMerged)]


def ban(bench, *learners, revision=2):
    """The owner's revision is in force."""
    charter = msgspec.structs.replace(
        bench.tiny.charter, revision=revision, banned=tuple(one.key for one in learners)
    )
    bench.now_s += 0.1
    return bench.say(STRANGER.key, CharterOffer(sealed_charter(charter, bench.tiny)))


def in_round(tiny=DUO, *learners):
    """Learners that were just asked for fragment 0."""
    who = learners or (ONE, TWO)
    bench = SyncerBench(tiny).start(*who)
    pulls = bench.train(*who)
    assert set(pulls) == {one.key for one in who}
    return bench, pulls


def hand_in(bench, learner, pulls, **changes):
    return bench.push(learner, pulls[learner.key], project=bench.tiny.project, **changes)


def with_grace(bench):
    """Rounds wait about twenty seconds after their quorum, as with learners that are that slow."""
    window = bench.seat.rounds.window
    for kind, seconds in ((window.opening, 30.0), (window.quorum, 0.1), (window.sync, 0.1)):
        kind.observe(seconds)
    for session in bench.seat.members.sessions.values():
        session.merged_rate_per_s = session.rate_per_s = 0.05


def test_its_session_ends_at_once_and_its_text_goes_back():
    bench, _ = in_round()
    held = [key for key in bench.machine.state.leases.held if key[0] == ONE.key]
    assert held
    effects = ban(bench, ONE)
    assert bench.last(ONE.key, Refused).reason == "banned"
    assert disconnected(effects) == [ONE.key]
    assert bodies(bench, BlocksReturned) == [BlocksReturned(*held[0])]
    assert not any(key[0] == ONE.key for key in bench.machine.state.leases.held)


def test_it_is_no_loss_to_anybody():
    bench, _ = in_round()
    ban(bench, ONE)
    rows = {row.key: row for row in peer_rows(bench.seat, [0] * 4, bench.now_s)}
    row = rows[ONE.key.hex()]
    assert (row.state, row.left) == ("left", "put out: banned")


def test_a_round_that_waited_for_it_waits_no_longer():
    bench, pulls = in_round(SOLO)
    with_grace(bench)
    hand_in(bench, TWO, pulls)
    bench.wait(1.0)
    assert merged_parts(bench) == []
    ban(bench, ONE)
    bench.wait(0.05)
    assert merged_parts(bench) == [[TWO.key]]


def test_a_push_that_is_here_and_not_merged_yet_is_not_merged():
    bench, pulls = in_round()
    hand_in(bench, ONE, pulls)
    effects = ban(bench, ONE)
    (forgotten,) = actions(effects, Forget)
    assert [push[0] for push in forgotten.pushes] == [ONE.key]
    assert (bench.last(ONE.key, Settled).outcome, bench.last(ONE.key, Settled).reason) == (
        "abandoned",
        PUT_OUT,
    )
    hand_in(bench, TWO, pulls)
    bench.wait(25.0)
    assert merged_parts(bench) == [[TWO.key]]


def test_a_payload_that_is_being_fetched_counts_for_nothing():
    bench, pulls = in_round()
    bench.hold = {FetchPush}
    hand_in(bench, ONE, pulls)
    ban(bench, ONE)
    effects = bench.done(FetchPush, PushFetched())
    assert [push[0] for action in actions(effects, Forget) for push in action.pushes] == [ONE.key]
    bench.hold = set()
    hand_in(bench, TWO, pulls)
    bench.wait(25.0)
    assert merged_parts(bench) == [[TWO.key]]


def test_a_merge_that_has_it_is_done_again_without_it():
    bench, pulls = in_round()
    bench.hold = {Merge}
    hand_in(bench, ONE, pulls)
    hand_in(bench, TWO, pulls)
    (tainted,) = bench.jobs(Merge)
    ban(bench, ONE)
    bench.done(Merge, bench.answer(tainted))
    assert merged_parts(bench) == []
    (again,) = bench.jobs(Merge)
    assert [part.learner for part in again.parts] == [TWO.key]
    assert (again.round, again.fragment, again.version) == (
        tainted.round,
        tainted.fragment,
        tainted.version,
    )
    bench.done(Merge, bench.answer(again))
    assert merged_parts(bench) == [[TWO.key]]
    assert ONE.key not in bench.machine.state.accounts


def test_a_merge_of_it_alone_is_abandoned_and_merging_goes_on():
    bench, pulls = in_round(SOLO)
    bench.hold = {Merge}
    bench.now_s += 1.0
    hand_in(bench, ONE, pulls)
    bench.wait(21.0)
    (tainted,) = bench.jobs(Merge)
    effects = [*ban(bench, ONE), *bench.done(Merge, bench.answer(tainted))]
    assert [fact.reason for fact in facts(effects, RoundAbandoned)] == [PUT_OUT]
    bench.hold = set()
    bench.beat(TWO, steps=(16,) * 4, local_step=16, tokens=16 * 32)
    bench.wait(0.05)
    pull = bench.last(TWO.key, Pull)
    bench.push(TWO, pull, project=SOLO.project, sequence=9, local_step=16)
    bench.wait(25.0)
    assert merged_parts(bench) == [[TWO.key]]


def test_a_grace_window_with_nothing_else_in_it_ends_and_leaves_others_their_turn():
    bench, pulls = in_round(SOLO, ONE, TWO, THREE)
    current = bench.seat.rounds.rounds[1]
    with_grace(bench)
    hand_in(bench, ONE, pulls)
    bench.wait(0.05)
    assert (current.state.value, current.number in bench.seat.rounds.rounds) == ("grace", True)
    effects = ban(bench, ONE)
    assert RoundAbandoned(1, 0, PUT_OUT) in facts(effects, RoundAbandoned)
    hand_in(bench, TWO, pulls)
    hand_in(bench, THREE, pulls)
    for learner in (TWO, THREE):
        bench.beat(learner, steps=(8, 16, 16, 16), local_step=16, tokens=16 * 32)
    bench.wait(0.05)
    bench.wait(25.0)
    assert [sorted(parts) for parts in merged_parts(bench)] == [sorted((TWO.key, THREE.key))]


def test_a_push_that_came_too_late_for_its_round_is_not_in_the_next():
    bench, pulls = in_round(SOLO)
    bench.hold = {FetchPush}
    hand_in(bench, ONE, pulls)
    bench.hold = set()
    hand_in(bench, TWO, pulls)
    bench.wait(25.0)
    before = merged_parts(bench)
    ban(bench, ONE)
    assert bench.seat.rounds.stragglers == {}
    bench.done(FetchPush, PushFetched())
    bench.beat(TWO, steps=(0, 16, 16, 16), versions=(1, 0, 0, 0), local_step=24, tokens=24 * 32)
    bench.wait(25.0)
    assert all(ONE.key not in parts for parts in merged_parts(bench))
    assert before == [[TWO.key]]


def test_one_that_is_gone_leaves_nothing_either():
    bench, pulls = in_round()
    hand_in(bench, ONE, pulls)
    bench.feed(PeerDown(ONE.key, "connection reset"))
    effects = ban(bench, ONE)
    assert disconnected(effects) == []
    assert len(bodies(bench, BlocksReturned)) == 1
    hand_in(bench, TWO, pulls)
    bench.wait(25.0)
    assert merged_parts(bench) == [[TWO.key]]


def test_text_that_was_on_its_way_to_it_goes_back():
    bench = SyncerBench(DUO).start(ONE, TWO)
    bench.hold = {Append}
    ban(bench, ONE)  # It is being stored while the lease is proposed.
    bench.say(ONE.key, LeaseRequest(8))
    bench.hold = set()
    while bench.jobs(Append):
        bench.store()
    assert [body.learner for body in bodies(bench, BlocksLeased)] == [ONE.key]
    assert [body.learner for body in bodies(bench, BlocksReturned)] == [ONE.key]


def test_whoever_is_let_in_again_counts_again():
    bench, pulls = in_round()
    hand_in(bench, ONE, pulls)
    ban(bench, ONE)
    ban(bench, revision=3)
    bench.join(ONE, incarnation=2)
    assert len(bench.all(ONE.key, Welcome)) == 2
    assert bench.seat.rounds.barred == set()


@pytest.mark.parametrize("rule", ["invite", "list"])
def test_a_rule_that_does_not_admit_it_puts_a_learner_out_in_the_same_way(rule):
    bench, pulls = in_round()
    hand_in(bench, ONE, pulls)
    charter = msgspec.structs.replace(DUO.charter, revision=2, admission=rule, allowed=(TWO.key,))
    bench.say(STRANGER.key, CharterOffer(sealed_charter(charter, DUO)))
    hand_in(bench, TWO, pulls)
    bench.wait(25.0)
    assert merged_parts(bench) == [[TWO.key]]
