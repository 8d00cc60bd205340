"""Whom a leader tells which record: a few learners all of them, the others what concerns them."""

from __future__ import annotations

import pytest

from protocol.limits import ALIVE_EVERY_S
from protocol.log.accounts import ChosenName, Refusal
from protocol.log.records import (
    AccountsNoted,
    BlocksLeased,
    BlocksReturned,
    FragmentMerged,
    InviteUsed,
    PushProbed,
    RunEnding,
    SeatTaken,
    Span,
    TokensGivenBack,
    TokensTakenBack,
    is_in_brief,
    read_record,
    told_in_brief,
)
from protocol.machine import PeerDown
from protocol.messages import Alive, Committed, Gain, IndexPart, LeaseRequest, Receipt, Welcome
from protocol.snapshots.manifest import Marker
from simulator.stand_ins.tiny import SimSigner
from syncer_node.machine.jobs import WriteSnapshot
from syncer_node.machine.telling import followers
from syncer_node.machine.telling.followers import SETTLED_S, WHOLE_LOGS, WHOLE_LOGS_MAX, concerned
from tests.support.builders import (
    ONE,
    SYNCER,
    THREE,
    TWO,
    Log,
    SyncerBench,
    contribution,
    digest_of,
    heartbeat,
    merged,
    project,
    rounds,
    weights,
)

ALL = [SimSigner(f"learner {at}") for at in range(WHOLE_LOGS_MAX + 2)]


@pytest.fixture
def one_whole(monkeypatch):
    """Only one learner is told everything."""
    monkeypatch.setattr(followers, "WHOLE_LOGS", 1)
    monkeypatch.setattr(followers, "WHOLE_LOGS_MAX", 2)


def trio():
    """ONE is told everything, TWO and THREE are told in brief."""
    return SyncerBench(project(rounds(quorum=1))).start(ONE, TWO, THREE)


def heard(bench, learner):
    """Records told to a learner since it was welcomed, and whether they were told in brief."""
    entries = [entry for one in bench.all(learner.key, Committed) for entry in one.entries]
    found = [read_record(entry.record, may_be_brief=True) for entry in entries]
    return [
        (record.index, type(record.body), is_in_brief(entry.record))
        for record, entry in zip(found, entries, strict=True)
    ]


def kinds(bench, learner):
    return [kind for _, kind, _ in heard(bench, learner)]


def is_brief(bench, learner):
    return bench.seat.members.sessions[learner.key].is_brief


# What concerns whom


@pytest.mark.parametrize(
    ("body", "whom"),
    [
        (SeatTaken(SYNCER.key), None),
        (merged(), None),
        (RunEnding("owner"), None),
        (BlocksReturned(ONE.key, 1), None),
        (TokensTakenBack(ONE.key, 5), {ONE.key}),
        (TokensGivenBack(ONE.key), {ONE.key}),
        (InviteUsed(bytes(16), ONE.key), {ONE.key}),
        (
            PushProbed(
                ONE.key, 1, 1, 0, TWO.key, Gain(2.0, 0.1, 0.1, 4), Gain(2.0, 0.1, 0.1, 4), 0.5
            ),
            {ONE.key},
        ),
        (
            AccountsNoted((ChosenName(ONE.key, "one"),), (Refusal(TWO.key, "late", 1),)),
            {ONE.key, TWO.key},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_concerns_all_or_those_whom_it_is_about(body, whom):
    found = concerned(body, Log().state.leases, 4)
    assert (None if found is None else set(found)) == whom


def test_that_somebody_came_concerns_all_and_more_text_of_its_own_itself():
    log = Log(SeatTaken(SYNCER.key), weights())
    for span, whom in ((Span(0, 4, 0), None), (Span(4, 8, 0), (ONE.key,))):
        body = BlocksLeased(ONE.key, 1, (span,))
        log.add(body)
        assert concerned(body, log.state.leases, log.state.block_sequences) == whom
    log.add(BlocksReturned(ONE.key, 1))
    body = BlocksLeased(ONE.key, 1, (Span(8, 9, 0),))
    log.add(body)
    assert concerned(body, log.state.leases, log.state.block_sequences) is None


# Who is told what


def test_a_few_learners_are_told_everything_and_further_ones_in_brief():
    bench = SyncerBench().start(*ALL)
    assert [is_brief(bench, one) for one in ALL] == [at >= WHOLE_LOGS for at in range(len(ALL))]
    assert [bench.last(one.key, Welcome).is_brief for one in ALL] == [
        at >= WHOLE_LOGS for at in range(len(ALL))
    ]


@pytest.mark.usefixtures("one_whole")
def test_contributors_are_told_the_whole_merge_and_others_that_it_was():
    bench = trio()
    bench.push(TWO, bench.train(TWO)[TWO.key])
    bench.wait(0.1)
    merges = {
        one.key: [brief for _, kind, brief in heard(bench, one) if kind is FragmentMerged]
        for one in (ONE, TWO, THREE)
    }
    assert merges == {ONE.key: [False], TWO.key: [False], THREE.key: [True]}


@pytest.mark.usefixtures("one_whole")
def test_more_text_for_somebody_is_told_to_itself_and_to_whole_logs():
    bench = trio()
    bench.lease(TWO)
    assert [kinds(bench, one) for one in (ONE, TWO, THREE)] == [[BlocksLeased]] * 3
    bench.say(TWO.key, LeaseRequest(8))
    assert kinds(bench, ONE) == kinds(bench, TWO) == [BlocksLeased] * 2
    assert kinds(bench, THREE) == [BlocksLeased]


@pytest.mark.usefixtures("one_whole")
def test_that_somebody_is_gone_is_told_to_all():
    bench = trio()
    bench.lease(TWO)
    bench.feed(PeerDown(TWO.key, "gone"))
    for _ in range(int(bench.tiny.charter.limits.lease_s) + 2):
        bench.beat(ONE)
        bench.beat(THREE)
        bench.wait(1.0)
    assert kinds(bench, ONE)[-1] is BlocksReturned
    assert kinds(bench, THREE)[-1] is BlocksReturned


@pytest.mark.usefixtures("one_whole")
def test_who_is_told_nothing_of_what_concerns_others_hears_that_the_leader_lives():
    bench = trio()
    bench.lease(TWO)
    bench.wait(ALIVE_EVERY_S)
    heard_alive = len(bench.all(THREE.key, Alive))
    for _ in range(8):
        bench.wait(ALIVE_EVERY_S / 2)
        bench.say(TWO.key, LeaseRequest(1))
    assert kinds(bench, THREE) == [BlocksLeased]
    assert kinds(bench, TWO).count(BlocksLeased) > 4
    assert len(bench.all(THREE.key, Alive)) >= heard_alive + 3


# Where their logs must stand


@pytest.mark.usefixtures("one_whole")
def test_before_a_receipt_means_anything_the_record_it_is_about_is_told():
    bench = trio()
    bench.push(TWO, bench.train(TWO)[TWO.key])
    bench.wait(0.1)
    bench.say(ONE.key, LeaseRequest(8))
    bench.say(ONE.key, LeaseRequest(8))
    newest = bench.machine.state.index
    assert heard(bench, TWO)[-1][0] < newest == heard(bench, ONE)[-1][0]
    bench.say(TWO.key, heartbeat(state="finishing"))
    assert bench.last(TWO.key, Receipt) is not None
    assert heard(bench, TWO)[-1] == (newest, BlocksLeased, False)
    bench.beat(TWO, state="finishing")
    assert [index for index, _, _ in heard(bench, TWO)].count(newest) == 1


@pytest.mark.usefixtures("one_whole")
def test_a_snapshot_is_cut_at_the_same_record_everywhere():
    bench = trio()
    bench.hold.add(WriteSnapshot)
    bench.lease(ONE)
    bench.say(ONE.key, LeaseRequest(8))
    newest = bench.machine.state.index
    assert heard(bench, THREE)[-1][0] < newest
    bench.seat.snapshots.begin(bench.now_s)
    bench.wait(0.1)
    said = bench.sent[THREE.key]
    marker = next(at for at, one in enumerate(said) if isinstance(one, Marker))
    assert said[marker].clock.log_index == newest
    assert read_record(said[marker - 1].entries[0].record).index == newest


# Who comes back


def came_back(bench, learner, follows, head):
    """It says hello again, at this record of the log."""
    bench.feed(PeerDown(learner.key, "lost"))
    entry = bench.machine.raft.log.entries[head - 1]
    bench.sent[learner.key] = []
    bench.join(learner, head_index=head, head=entry.digest, follows=follows)
    return bench.last(learner.key, Welcome)


@pytest.mark.usefixtures("one_whole")
def test_who_comes_back_in_brief_is_told_what_it_missed_so():
    bench = trio()
    bench.push(TWO, bench.train(TWO)[TWO.key])
    bench.wait(0.1)
    head = next(at for at, kind, _ in heard(bench, ONE) if kind is FragmentMerged) - 1
    welcome = came_back(bench, THREE, "brief", head)
    assert (welcome.index, welcome.is_brief) == (None, True)
    assert (head + 1, FragmentMerged, True) in heard(bench, THREE)
    welcome = came_back(bench, TWO, "brief", head)
    assert (head + 1, FragmentMerged, False) in heard(bench, TWO)
    assert [at for at, _, _ in heard(bench, TWO)] == list(
        range(head + 1, bench.machine.state.index + 1)
    )


@pytest.mark.usefixtures("one_whole")
def test_who_has_a_whole_log_goes_on_with_it_while_there_is_room():
    bench = trio()
    head = bench.machine.state.index
    assert not came_back(bench, TWO, "whole", head).is_brief
    assert came_back(bench, THREE, "whole", head).is_brief  # ONE and TWO are as many as may.
    assert not came_back(bench, ONE, "whole", head).is_brief


@pytest.mark.usefixtures("one_whole")
def test_where_whole_logs_are_few_one_begins_but_not_before_they_had_time_to_come_back():
    bench = trio()
    head = bench.machine.state.index
    bench.feed(PeerDown(ONE.key, "gone"))
    welcome = came_back(bench, TWO, "brief", head)
    assert (welcome.index, welcome.is_brief) == (None, True)
    bench.now_s += SETTLED_S
    welcome = came_back(bench, TWO, "brief", head)
    assert welcome.index is not None
    assert not welcome.is_brief
    assert came_back(bench, THREE, "brief", head).is_brief


def test_a_host_that_knows_nothing_of_it_is_told_everything(monkeypatch):
    monkeypatch.setattr(followers, "WHOLE_LOGS", 0)
    bench = SyncerBench().start(ONE)
    bench.join(TWO, follows=None)
    assert is_brief(bench, ONE)
    assert not is_brief(bench, TWO)
    assert not bench.last(TWO.key, Welcome).is_brief


def test_who_joins_gets_proofs_in_brief():
    parts = tuple(contribution(learner=digest_of(str(at))) for at in range(64))
    log = Log(SeatTaken(SYNCER.key), weights())
    log.add(merged(contributions=parts))
    bench = SyncerBench(recovered=log.recovered()).start(ONE)
    told = [entry.record for one in bench.all(ONE.key, IndexPart) for entry in one.entries]
    bodies = [read_record(one, may_be_brief=True).body for one in told]
    assert [type(one) for one in bodies].count(FragmentMerged) == 1
    assert max(map(len, told)) < 1000


def test_a_log_that_begins_with_a_record_in_brief_is_no_continuation():
    log = Log(SeatTaken(SYNCER.key), weights())
    log.add(merged())
    recovered = log.recovered()
    recovered.recent = [told_in_brief(recovered.recent[-1])]
    bench = SyncerBench(recovered=recovered).start()
    head = dict(head_index=2, head=log.records[2].previous)
    bench.feed(PeerDown(ONE.key, "none"))
    bench.join(ONE, **head, follows="whole")
    assert bench.last(ONE.key, Welcome).index is not None
