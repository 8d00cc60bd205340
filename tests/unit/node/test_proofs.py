"""What a learner proves to an owner whose syncers are gone: the newest state that it can give."""

from __future__ import annotations

import pytest
from msgspec import structs

from node.machine.jobs import Advance, Advanced, FetchState, StateFetched
from protocol import limits, wire
from protocol.log.accounts import Account
from protocol.log.records import SeatTaken
from protocol.log.state import SwarmSummary
from protocol.machine import PeerDown, PeerUp
from protocol.messages import AccountsPart, AskState, IndexPart, StateHeld
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    LearnerBench,
    Log,
    contribution,
    digest_of,
    merged,
    project,
    state_digests,
    weights,
)


class Asked(LearnerBench):
    """A learner that has every fragment, and somebody who asks it."""

    def __init__(self):
        super().__init__()
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.follow(self.log)
        for _ in self.jobs(FetchState):
            self.done(FetchState, StateFetched(((SYNCER.key, 100),)))
        self._merges = 0

    def merge(self, fragment):
        """A merge is committed; its payload comes when the test says so."""
        self._merges += 1
        version = self.log.state.fragments[fragment].version + 1
        body = merged(
            fragment=fragment,
            version=version,
            global_step=self._merges,
            round=self._merges,
            payload=digest_of("payload", fragment, version),
            state=state_digests(fragment, version),
            contributions=(contribution(sequence=self._merges),),
        )
        self.commit(self.log.add(body))

    def fetched(self, fragment):
        """The payload of the oldest merge of it that is waited for is here."""
        start = next(
            one
            for one in self.held
            if isinstance(one.job, Advance) and one.job.merged.fragment == fragment
        )
        self.held.remove(start)
        self.held.insert(0, start)
        self.done(Advance, Advanced())

    def told(self):
        """Record and global step that it proves."""
        self.now_s += 10.0
        self.feed(PeerUp(STRANGER.key))
        self.say(STRANGER.key, AskState(project().project))
        held = self.last(STRANGER.key, StateHeld)
        self.feed(PeerDown(STRANGER.key, "said all"))
        summary = wire.decode(held.summary, SwarmSummary)
        assert summary.index == self.log_index(held.entry)
        origins = [one for part in self.all(STRANGER.key, IndexPart) for one in part.entries]
        assert {one.record_index for one in summary.fragments} <= {
            self.log_index(one) for one in origins
        }
        return summary.global_step

    @staticmethod
    def log_index(entry):
        return entry.certificate.index


@pytest.fixture
def asked():
    return Asked()


def test_a_merge_whose_payload_never_came_is_not_in_what_it_proves(asked):
    asked.merge(0)
    asked.fetched(0)
    assert asked.told() == 1
    asked.merge(1)
    assert asked.told() == 1
    asked.merge(2)
    assert asked.told() == 1
    asked.fetched(1)
    assert asked.told() == 2
    asked.fetched(2)
    assert asked.told() == 3


def test_where_no_state_is_whole_it_proves_the_newest(asked):
    """Others may have what is missing here."""
    asked.merge(0)
    asked.merge(1)
    asked.fetched(1)
    assert asked.told() == 2


def test_behind_the_newest_state_it_has_all_of_it_remembers_few(asked):
    asked.merge(0)
    asked.fetched(0)
    for _ in range(30):
        asked.merge(1)
    assert asked.told() == 1
    assert len(asked.machine.context.proofs.formers) <= 8


def test_who_never_had_the_weights_proves_the_log():
    bench = LearnerBench(ONE)
    log = Log(SeatTaken(SYNCER.key), weights())
    bench.follow(log)
    bench.feed(PeerUp(STRANGER.key))
    bench.commit(log.add(merged(contributions=(contribution(),))))
    bench.now_s += 10.0
    bench.say(STRANGER.key, AskState(project().project))
    held = bench.last(STRANGER.key, StateHeld)
    assert wire.decode(held.summary, SwarmSummary).global_step == 1


def test_accounts_that_are_too_many_for_one_piece_go_ahead_of_the_rest():
    bench = LearnerBench(ONE)
    log = Log(SeatTaken(SYNCER.key), weights())
    bench.follow(log)
    bench.feed(PeerUp(STRANGER.key))
    bench.commit(log.add(merged(contributions=(contribution(),))))
    accounts = bench.machine.context.state.accounts
    for number in range(25_000):
        key = number.to_bytes(32, "big")
        accounts.put(key, Account(merges=1, tokens=1, name=f"volunteer {number}"))
    bench.now_s += 10.0
    bench.say(STRANGER.key, AskState(project().project))
    assert len(bench.all(STRANGER.key, AccountsPart)) < limits.PIECES_AHEAD_MAX
    assert bench.last(STRANGER.key, StateHeld) is None
    while bench.last(STRANGER.key, StateHeld) is None:
        said = len(bench.sent[STRANGER.key])
        bench.say(STRANGER.key, AskState(project().project))
        assert len(bench.sent[STRANGER.key]) == said + 1, "a piece for each question"
    parts = bench.all(STRANGER.key, AccountsPart)
    held = bench.last(STRANGER.key, StateHeld)
    said = wire.decode(held.summary, SwarmSummary)
    assert said.accounts == {}
    assert {key: one for part in parts for key, one in part.accounts.items()} == dict(accounts)
    assert wire.decode_message(wire.encode(held)) == held, "it fits its frame"
    without = structs.replace(bench.machine.context.state.summary(), accounts={})
    assert said == without
    bench.now_s += 10.0
    bench.say(STRANGER.key, AskState(project().project))
    assert bench.all(STRANGER.key, AccountsPart) == parts, "anybody may ask, and it is much"


def test_a_former_state_is_proven_as_it_was_however_long_ago_its_summary_was_made(asked):
    for number in range(40):
        asked.merge(number % 2)
        asked.fetched(number % 2)
    expected = wire.encode(asked.log.state.summary())
    asked.merge(0)
    asked.merge(1)
    context = asked.machine.context
    told = context.proofs.newest_held(context.state, asked.machine.fragment_sync.held)
    assert told is not None
    assert wire.encode(told.summary) == expected
