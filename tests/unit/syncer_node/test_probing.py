"""Which push the leader has probed, by whom, and what becomes of the answer."""

from __future__ import annotations

import msgspec
import pytest

from protocol import probes, wire
from protocol.ids import short
from protocol.log.accounts import Account
from protocol.log.state import SwarmState, SwarmSummary
from protocol.machine import PeerDown, StopAsked
from protocol.messages import (
    CharterOffer,
    Cursor,
    Gain,
    LeaseRequest,
    Probe,
    Probed,
    ProbeDeclined,
    Pull,
    Settled,
)
from protocol.novelty import UNHEARD, Novelty
from protocol.probes import ProbedBy
from protocol.project import OuterSpec, Reinstated
from protocol.standing import ESTABLISHED_MIN, Standing
from protocol.trace import LearnerSuspended, ProbeUnanswered
from syncer_node.daemon.status import peer_row, peer_rows, sentence
from syncer_node.machine.jobs import Merge, OfferPush, RetractPush
from syncer_node.machine.text_supply import Supply
from syncer_node.machine.trust import probing
from syncer_node.machine.trust.probing import ANSWER_TIMEOUT_S
from syncer_node.raft.jobs import Append
from tests.support.builders import (
    LEARNERS,
    ONE,
    STRANGER,
    THREE,
    TWO,
    SyncerBench,
    actions,
    facts,
    project,
    rounds,
    sealed_charter,
)

ALL = (ONE, TWO, THREE, STRANGER)
GAIN, LESS = Gain(3.0, 0.02, 0.01, 16), Gain(3.0, 0.01, 0.01, 16)


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(probing, "WISH", 1.1)
    monkeypatch.setattr(probing, "WISH_LESS", 1.1)


class Swarm(SyncerBench):
    """Four learners that evaluate and have merges, and were asked for a fragment."""

    def __init__(self, *, frac=0.5, evaluating=ALL):
        outer = OuterSpec(0.7, 0.5, 3.0, trust="earned", probes_frac=frac)
        super().__init__(project(rounds(quorum=4), outer=outer))
        self.start()
        for learner in ALL:
            self.join(learner, evaluates=learner in evaluating)
            self.accounts.put(learner.key, Account(merges=3, tokens=400))
        self.seat.probing.saved = 100.0
        self.pulls = self.train(*ALL)
        self.leased = {key: spans[0] for (key, _), spans in self.state.leases.held.items()}

    @property
    def state(self):
        return self.machine.state

    @property
    def accounts(self):
        return self.state.accounts

    def hand_in(self, learner, **changes):
        cursor = Cursor(self.leased[learner.key].start + 3, 4)
        return self.push(learner, self.pulls[learner.key], cursor=cursor, **changes)

    def probe(self):
        """The newest probe that somebody was asked for, and by whom."""
        asked = [(self.last(one.key, Probe), one) for one in ALL if self.last(one.key, Probe)]
        return max(asked, key=lambda pair: pair[0].probe, default=(None, None))

    def answer_probe(self, own=GAIN, other=LESS):
        asked, prober = self.probe()
        return self.say(prober.key, Probed(asked.probe, own, other, 1.0))

    def answer_probe_of(self, learner, own, other):
        """The same of a probe of this learner's push."""
        (asked,) = [one for one in self.seat.probing.asked.values() if one.learner == learner.key]
        return self.say(asked.prober, Probed(asked.number, own, other, 1.0))

    def against(self, learner):
        """One more probe like those before suspends it."""
        others = [one for one in ALL if one is not learner][:2]
        self.accounts[learner.key].findings = tuple(
            ProbedBy(one.key, 8, 0.1, 5.0, -0.7 * probes.AGAINST) for one in others
        )
        for one in others:
            said = (ProbedBy(learner.key, 8, 2.0, 5.0, 3.0),)
            self.accounts[one.key].findings = said
        last = next(one for one in ALL if one is not learner and one not in others)
        self.accounts[last.key].findings = (ProbedBy(learner.key, 8, 2.0, 5.0, 3.0),)

    def suspend(self, learner):
        self.against(learner)
        self.accounts[learner.key].findings = tuple(
            ProbedBy(one.prober, 8, 0.1, 5.0, -2 * probes.AGAINST)
            for one in self.accounts[learner.key].findings
        )
        self.hand_in(learner)
        return self.answer_probe(LESS, LESS)


def test_another_learner_is_asked_for_what_the_push_read_and_what_nobody_did():
    swarm = Swarm()
    effects = swarm.hand_in(ONE)
    asked, prober = swarm.probe()
    assert prober is not ONE
    assert (asked.fragment, asked.version) == (swarm.pulls[ONE.key].fragment, 0)
    span = swarm.leased[ONE.key]
    assert len(asked.own) == 16, "eight steps of two sequences"
    assert {one.position for one in asked.own} == set(range(span.start, span.start + 4))
    assert all(one.position >= swarm.state.leases.next_position for one in asked.other)
    assert len(asked.other) == len(asked.own)
    (offered,) = actions(effects, OfferPush)
    assert (offered.push[0], offered.payload) == (ONE.key, asked.payload)
    assert swarm.seat.probing.saved < 100.0


def test_who_reads_other_text_is_not_probed_and_stays_new():
    swarm = Swarm()
    for one in ALL:
        swarm.judge(one, standing=Standing(0.9, 20, ESTABLISHED_MIN))
    assert swarm.seat.rounds.judge.new() == set()
    swarm.beat(ONE, has_other_text=True)
    assert swarm.seat.rounds.judge.new() == {ONE.key}
    assert [row.standing for row in peer_rows(swarm.seat, [0], 0.0) if row.is_new] == ["other text"]
    swarm.hand_in(ONE)
    assert swarm.probe() == (None, None)
    swarm.hand_in(TWO)
    assert swarm.probe() != (None, None)


def test_who_reads_other_text_may_repeat_itself_further():
    swarm = Swarm()
    for one in ALL:
        repeats = 0.4 if one is ONE else 0.0
        its = Standing(0.9, 20, ESTABLISHED_MIN, repeats=repeats, compared=20)
        swarm.judge(one, standing=its)
    assert swarm.seat.rounds.judge.trusts()[ONE.key] == 0.0
    swarm.beat(ONE, has_other_text=True)
    assert swarm.seat.rounds.judge.trusts()[ONE.key] == 1.0


def test_of_one_learner_one_at_a_time_and_the_answer_is_a_record():
    swarm = Swarm()
    swarm.hand_in(ONE)
    first, prober = swarm.probe()
    swarm.push(ONE, swarm.pulls[ONE.key], sequence=2)
    assert swarm.probe() == (first, prober)
    effects = swarm.answer_probe()
    assert actions(effects, RetractPush) == [RetractPush(first.payload)]
    account = swarm.accounts[ONE.key]
    assert account.probes == 1
    (said,) = account.findings
    assert (said.prober, said.probes, said.evidence) == (prober.key, 1, 0.0)
    assert said.contrast == pytest.approx(probes.contrast(GAIN, LESS))
    swarm.hand_in(THREE)
    assert swarm.probe()[0].probe == 2


def test_an_answer_of_somebody_else_or_to_another_probe_is_not_heard():
    swarm = Swarm()
    swarm.hand_in(ONE)
    asked, prober = swarm.probe()
    other = next(one for one in ALL if one not in (ONE, prober))
    for who, number in ((ONE, asked.probe), (other, asked.probe), (prober, asked.probe + 1)):
        swarm.say(who.key, Probed(number, GAIN, LESS, 1.0))
    assert not swarm.accounts[ONE.key].findings
    swarm.answer_probe()
    swarm.answer_probe()
    assert swarm.accounts[ONE.key].probes == 1


def test_a_prober_that_declines_leaves_or_is_late_rests_and_costs_nothing_more():
    swarm = Swarm()
    swarm.hand_in(ONE)
    asked, first = swarm.probe()
    effects = swarm.say(first.key, ProbeDeclined(asked.probe, "busy"))
    assert facts(effects, ProbeUnanswered)[0].reason == "it declined: busy"
    assert actions(effects, RetractPush) == [RetractPush(asked.payload)]
    left = [one for one in ALL if one not in (ONE, first)]
    swarm.hand_in(left[0])
    _, second = swarm.probe()
    assert second not in (first, left[0])
    effects = swarm.feed(PeerDown(second.key, "gone"))
    effects += swarm.wait(1.0)
    assert facts(effects, ProbeUnanswered)[0].prober == second.key
    assert swarm.seat.probing.resting.keys() == {first.key, second.key}
    assert not swarm.seat.probing.asked


def test_nobody_is_asked_for_two_at_once():
    swarm = Swarm()
    for one in ALL[:3]:
        swarm.hand_in(one)
    out = swarm.seat.probing.asked.values()
    assert len(out) >= 2
    assert len({one.prober for one in out}) == len({one.learner for one in out}) == len(out)
    assert all(one.prober != one.learner for one in out)


def test_who_does_not_answer_in_time_is_passed_over():
    swarm = Swarm()
    swarm.hand_in(ONE)
    _, prober = swarm.probe()
    assert swarm.seat.probing.deadline_s() == swarm.now_s + ANSWER_TIMEOUT_S
    for _ in range(20):
        for one in ALL:
            swarm.beat(one)
        swarm.wait(ANSWER_TIMEOUT_S / 20)
    assert not swarm.seat.probing.asked
    assert prober.key in swarm.seat.probing.resting
    assert swarm.seat.members.sessions[prober.key].is_connected


@pytest.mark.parametrize("why", ["off", "saved", "short", "prober", "doubted"])
def test_when_nobody_is_asked(why):
    swarm = Swarm(frac=0.0 if why == "off" else 0.5, evaluating=(ONE,) if why == "prober" else ALL)
    if why == "saved":
        swarm.seat.probing.saved = 5.0
    if why == "doubted":
        for one, direction in zip(ALL, (0.9, -0.9, 0.9, 0.9), strict=True):
            swarm.judge(one, standing=Standing(direction, 9))
        for one in (THREE, STRANGER):
            swarm.accounts[one.key].merges = 0
        swarm.state.judgements += 1
    swarm.hand_in(ONE, steps=2 if why == "short" else 8)
    assert swarm.probe() == (None, None)


def test_a_share_of_what_is_merged_is_saved_for_probes():
    swarm = Swarm(frac=0.5)
    swarm.seat.probing.saved = 0.0
    for one in ALL:
        swarm.hand_in(one)
    assert len(swarm.state.accounts[ONE.key].findings) == 0
    merged = 4 * 256 / 16 / 4
    assert swarm.seat.probing.saved == pytest.approx(0.5 * merged)


def settle(swarm):
    """Enough is known of everybody, and it is good."""
    for one in ALL:
        others = [other for other in ALL if other is not one]
        said = tuple(ProbedBy(other.key, 8, 2.0, 5.0, 3.0) for other in others)
        swarm.accounts[one.key].findings = said
        swarm.judge(one, standing=Standing(0.9, 9), novelty=Novelty(0.9, 9))


@pytest.mark.parametrize(
    ("why", "is_odd"),
    [
        ({}, False),
        ({"standing": Standing(0.3, 9)}, True),
        ({"novelty": Novelty(0.2, 9)}, True),
        ({"novelty": Novelty(0.9, 9, echoes=1)}, True),
        ({"novelty": UNHEARD}, True),
    ],
)
def test_who_counts_less_or_was_never_compared_is_probed_however_good_the_probes_were(
    monkeypatch, why, is_odd
):
    monkeypatch.setattr(probing, "WISH", -1.0)
    monkeypatch.setattr(probing, "WISH_LESS", -1.0)
    monkeypatch.setattr(probing, "WISH_ODD", 1.1)
    swarm = Swarm()
    settle(swarm)
    swarm.judge(ONE, **why)
    assert swarm.seat.rounds.judge.odd() == ({ONE.key} if is_odd else set())
    swarm.hand_in(ONE)
    asked, _ = swarm.probe()
    assert (asked is not None) == is_odd


def test_while_somebody_is_odd_two_probes_are_left_for_it():
    swarm = Swarm()
    settle(swarm)
    swarm.judge(ONE, novelty=Novelty(0.2, 9))
    swarm.seat.probing.saved = 2.5 * probing.COST * 16
    swarm.hand_in(TWO)
    assert swarm.probe() == (None, None)
    swarm.hand_in(ONE)
    assert swarm.probe() != (None, None)


def test_tokens_of_merges_that_are_on_their_way_are_withdrawn_as_well():
    swarm = Swarm()
    swarm.against(THREE)
    swarm.accounts[THREE.key].findings = tuple(
        ProbedBy(one.prober, 8, 0.1, 5.0, -2 * probes.AGAINST)
        for one in swarm.accounts[THREE.key].findings
    )
    for one in (THREE, ONE, TWO):
        swarm.hand_in(one)
    before = swarm.accounts[THREE.key].tokens
    swarm.hold.add(Append)
    swarm.hand_in(STRANGER)  # The merge is proposed, and its record not stored yet.
    swarm.answer_probe_of(THREE, LESS, LESS)
    assert not swarm.state.is_suspended(THREE.key)
    while swarm.jobs(Append):
        swarm.store()
    account = swarm.accounts[THREE.key]
    assert account.is_suspended
    assert account.tokens > before
    assert swarm.state.taken_back[THREE.key] == account.tokens


def test_where_much_speaks_against_a_learner_the_next_probe_suspends_it():
    swarm = Swarm()
    before = swarm.state.tokens
    effects = swarm.suspend(THREE)
    assert swarm.state.is_suspended(THREE.key)
    assert facts(effects, LearnerSuspended)[0].learner == THREE.key
    told = swarm.last(THREE.key, Settled)
    assert told.outcome == "abandoned"
    assert "suspended" in told.reason
    assert swarm.state.tokens <= before
    assert not any(THREE.key in known for known in swarm.state.norms)


def test_a_suspended_learner_is_here_and_takes_no_part():
    swarm = Swarm()
    swarm.suspend(THREE)
    asked = len(swarm.all(THREE.key, Pull))
    leased = swarm.state.leases.next_position
    session = swarm.seat.members.sessions[THREE.key]
    assert session.is_connected
    assert not session.is_training
    for _ in range(5):
        for one in ALL:
            swarm.beat(one, local_step=64, steps=(16,) * 4)
        swarm.wait(2.0)
        swarm.say(THREE.key, LeaseRequest(8))
    assert len(swarm.all(THREE.key, Pull)) == asked
    assert swarm.state.leases.next_position == leased
    assert swarm.seat.rounds.judge.doubted() == set()
    swarm.feed(PeerDown(THREE.key, "gone"))
    swarm.join(THREE, incarnation=2)
    assert swarm.seat.members.sessions[THREE.key].is_suspended


def held(swarm, learner):
    return [key for key in swarm.state.leases.held if key[0] == learner.key]


def test_what_a_suspended_learner_was_leased_is_leased_to_others():
    swarm = Swarm()
    lost = swarm.leased[THREE.key]
    swarm.suspend(THREE)
    assert held(swarm, THREE) == []
    assert swarm.state.leases.returned == [lost]
    others = [(one, held(swarm, one)) for one in (ONE, TWO, STRANGER)]
    assert all(still for _, still in others)
    swarm.say(ONE.key, LeaseRequest(1))
    swarm.wait(700.0)
    assert any(span.start == lost.start for span in swarm.state.leases.held[held(swarm, ONE)[0]])


def test_text_that_it_asked_for_before_does_not_come_after():
    swarm = Swarm()
    supply = swarm.seat.leasing.supply
    for one in ALL:
        supply.supplies[one.key] = Supply(level=0.0, filled_s=swarm.now_s, speed=1.0)
        supply.proved(one.key, 1, 0, swarm.now_s)
    swarm.say(THREE.key, LeaseRequest(8))
    assert swarm.seat.leasing.deadline_s() is not None  # It waits.
    swarm.suspend(THREE)
    changes = swarm.state.leases.changes
    for _ in range(6):
        for one in ALL:
            swarm.beat(one)
        swarm.wait(20.0)
    assert swarm.seat.leasing.deadline_s() is None
    assert swarm.state.leases.changes == changes


def test_a_merge_that_has_a_push_of_it_already_is_done_again():
    swarm = Swarm()
    swarm.hold.add(Merge)
    swarm.seat.probing.saved = 25.0
    swarm.against(THREE)
    swarm.accounts[THREE.key].findings = tuple(
        ProbedBy(one.prober, 8, 0.1, 5.0, -2 * probes.AGAINST)
        for one in swarm.accounts[THREE.key].findings
    )
    swarm.hand_in(THREE)
    for one in (ONE, TWO, STRANGER):
        swarm.hand_in(one)
    (job,) = swarm.jobs(Merge)
    assert len(job.parts) == 4
    swarm.answer_probe(LESS, LESS)
    swarm.done(Merge, swarm.answer(job))
    (again,) = swarm.jobs(Merge)
    assert {part.learner for part in again.parts} == {ONE.key, TWO.key, STRANGER.key}


def test_a_joiner_that_is_suspended_learns_it_from_the_index():
    swarm = Swarm()
    swarm.suspend(THREE)
    for one in ALL:
        index = swarm.machine.recent.index(one.key)
        told = SwarmState.restore(wire.decode(index.summary, SwarmSummary), 4)
        assert told.is_suspended(one.key) == (one is THREE)
        assert told.accounts.get(THREE.key, Account()).tokens == 0


def test_the_owner_lifts_it_and_old_evidence_with_it():
    swarm = Swarm()
    swarm.suspend(THREE)
    lifted = msgspec.structs.replace(
        swarm.tiny.charter, revision=2, reinstated=(Reinstated(THREE.key, 2),)
    )
    swarm.say(LEARNERS[5].key, CharterOffer(sealed_charter(lifted, swarm.tiny)))
    swarm.wait(0.1)
    assert not swarm.state.is_suspended(THREE.key)
    assert swarm.accounts[THREE.key].findings == ()
    assert swarm.seat.members.sessions[THREE.key].is_training
    assert THREE.key not in swarm.seat.rounds.barred


def test_nothing_stays_offered_when_the_term_ends():
    swarm = Swarm()
    swarm.hand_in(ONE)
    asked, _ = swarm.probe()
    effects = swarm.feed(StopAsked("it is told to"))
    assert RetractPush(asked.payload) in actions(effects, RetractPush)


def test_who_is_suspended_is_named_in_the_sentence_and_in_its_row():
    swarm = Swarm()
    swarm.suspend(THREE)
    swarm.accounts[THREE.key].heard(1.0, None, is_late=False)  # It is not named for that as well.
    said = sentence(swarm.machine, swarm.now_s)
    name = f"somebody ({short(THREE.key)})"
    assert said.startswith(f"Suspended: {name}, because 2 of ")
    assert said.endswith("3 learners training.")
    session = swarm.seat.members.sessions[THREE.key]
    row = peer_row(session, [0] * 4, (32, 32), swarm.now_s, account=swarm.accounts[THREE.key])
    assert (row.standing, row.state, row.trust) == ("suspended", "suspended", 0.0)
    assert row.probes == 1
    assert row.evidence < -probes.AGAINST
    assert "do no more for the text" in row.suspended
    good = swarm.seat.members.sessions[ONE.key]
    row = peer_row(good, [0] * 4, (32, 32), swarm.now_s, is_judged=True, account=Account(merges=1))
    assert (row.standing, row.suspended, row.evidence) == ("new", "", None)
