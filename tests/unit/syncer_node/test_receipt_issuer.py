"""Receipts: when a leader hands them out, what a learner takes from it, what a file proves."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from host.files import keystore
from host.files.receipts_file import Contributions, read_book
from node.machine.jobs import KeepReceipt
from node.machine.syncer_link import Link
from protocol import wire
from protocol.effect_queue import EffectQueue
from protocol.errors import FalseReceipt, RemoteError
from protocol.log.receipts import (
    DAY_S,
    RECEIPTS_MAX,
    Credit,
    Proven,
    check_growth,
    encode_book,
    make_book,
    open_book,
    sign_credit,
    thinned,
)
from protocol.log.records import FragmentMerged, RunEnded, RunEnding, SeatTaken, read_record
from protocol.machine import Send
from protocol.messages import Committed, Receipt
from protocol.peers.membership import Membership
from protocol.project import Voter, encode, project_id
from protocol.signing import seal, verify_ed25519
from protocol.trace import PeerMisbehaved, ReceiptTaken
from simulator.stand_ins.tiny import tiny_project
from syncer_node.machine.telling.receipt_issuer import EVERY_S, Receipts
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    TWO,
    LearnerBench,
    Log,
    SyncerBench,
    actions,
    contribution,
    disconnected,
    facts,
    heartbeat,
    hello,
    merged,
    project,
    rounds,
    weights,
)


def credit_of(receipt):
    return wire.decode(receipt.credit.payload, Credit)


# The leader


def test_the_first_merge_is_receipted_before_its_record_is_told():
    bench = SyncerBench(project(rounds(quorum=1))).start(ONE)
    bench.push(ONE, bench.train(ONE)[ONE.key])
    bench.wait(0.1)
    receipt = bench.last(ONE.key, Receipt)
    credit, state = credit_of(receipt), bench.machine.state
    assert credit.counts == state.accounts[ONE.key].counts
    assert credit.merges == 1
    assert (credit.learner, credit.name) == (ONE.key, bench.seat.members.sessions[ONE.key].name)
    said = bench.sent[ONE.key]
    after = said[said.index(receipt) + 1]
    assert isinstance(after, Committed)
    record = read_record(after.entries[0].record)
    assert record.index == credit.index
    assert isinstance(record.body, FragmentMerged)


class Leader:
    """The part of a seat that hands out receipts, over a log that a test writes."""

    def __init__(self, *learners):
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.effects, self.members = EffectQueue(), Membership()
        self.setup = SyncerBench().machine.setup
        self.part = Receipts(self.effects, self.log.state, self.members, lambda session: None)
        self.now_s = 100.0
        for learner in learners:
            self.join(learner)

    def join(self, learner, **changes):
        opened = self.members.open(learner.key, hello(**changes), self.now_s)
        self.part.on_welcome(opened, self.setup, self.now_s)

    def merge(self, *learners):
        """The next merge, with a push of each."""
        number = self.log.state.fragments[0].version + 1
        parts = tuple(contribution(learner=one.key, sequence=number) for one in learners)
        body = merged(version=number, global_step=number, contributions=parts)
        self.log.add(body)
        self.part.on_merged(body, self.setup, self.now_s)

    def told(self, learner):
        """Merges in each receipt that went out."""
        sent = [e for e in self.effects.out if isinstance(e, Send) and e.peer == learner.key]
        return [credit_of(one.message).merges for one in sent]


def test_further_merges_are_receipted_now_and_then():
    leader = Leader(ONE, TWO)
    leader.merge(ONE)
    leader.merge(ONE, TWO)
    leader.now_s += EVERY_S
    leader.merge(TWO, ONE)
    assert leader.told(ONE) == [1, 3]
    assert leader.told(TWO) == [1, 2]


def test_a_learner_that_finishes_has_a_receipt_for_each_merge():
    leader = Leader(ONE)
    leader.merge(ONE)
    leader.members.sessions[ONE.key].hear(heartbeat(state="finishing"), leader.now_s)
    leader.merge(ONE)
    leader.merge(ONE)
    assert leader.told(ONE) == [1, 2, 3]


def test_who_comes_back_hears_what_was_counted_meanwhile_and_who_is_away_nothing():
    leader = Leader(ONE)
    leader.merge(ONE)
    leader.members.close(ONE.key, "stopped", has_left=True)
    leader.merge(ONE)
    leader.join(ONE, incarnation=2)
    leader.join(TWO)
    assert leader.told(ONE) == [1, 2]
    assert leader.told(TWO) == []


def test_at_the_end_whoever_was_not_told_of_everything_is():
    leader = Leader(ONE, TWO)
    leader.merge(ONE)
    leader.merge(TWO)
    leader.merge(TWO)
    leader.part.on_ended(leader.setup, leader.now_s)
    assert leader.told(ONE) == [1]
    assert leader.told(TWO) == [1, 2]


# The learner


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), weights())


@pytest.fixture
def bench(log):
    return LearnerBench().follow(log)


def credit_for(log, learner=ONE, **changes):
    """What a true leader says where this log stands."""
    account = log.state.accounts.get(learner.key)
    usual = Credit(
        project=log.tiny.project,
        epoch=0,
        term=1,
        index=log.state.index,
        head=log.state.head,
        revision=log.tiny.charter.revision,
        learner=learner.key,
        name="somebody",
        merges=account.merges if account else 0,
        tokens=account.tokens if account else 0,
        clipped=account.clipped if account else 0,
        at_s=1.7e9,
    )
    return msgspec.structs.replace(usual, **changes)


def receipt_for(log, signer=SYNCER, **changes):
    return Receipt(sign_credit(credit_for(log, **changes), signer))


def kept(effects):
    return [wire.decode(one.receipt.payload, Credit) for one in actions(effects, KeepReceipt)]


def merge(log, number):
    """Another merge of the same fragment, with a part of this learner."""
    return log.add(
        merged(version=number, global_step=number, contributions=(contribution(sequence=number),))
    )


def test_a_receipt_waits_for_its_record_and_is_kept_with_the_charter_that_proves_it(bench, log):
    entry = merge(log, 1)
    assert kept(bench.say(SYNCER.key, receipt_for(log))) == []
    effects = bench.commit(entry)
    assert kept(effects) == [credit_for(log)]
    (action,) = actions(effects, KeepReceipt)
    assert action.charter == bench.charter
    assert facts(effects, ReceiptTaken)[0].merges == 1
    assert bench.machine.context.tally.faults == {}


def test_what_was_counted_before_the_log_that_is_held_is_taken_once(bench, log):
    entry = merge(log, 1)
    bench.say(SYNCER.key, receipt_for(log, merges=8, tokens=4096))
    assert [one.merges for one in kept(bench.commit(entry))] == [8]
    entry = merge(log, 2)
    bench.say(SYNCER.key, receipt_for(log, merges=9, tokens=4096 + 256))
    assert [one.merges for one in kept(bench.commit(entry))] == [9]
    entry = merge(log, 3)
    bench.say(SYNCER.key, receipt_for(log, merges=11, tokens=4096 + 512))
    assert kept(bench.commit(entry)) == []
    assert bench.machine.context.tally.faults == {"false-receipt": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signer": STRANGER}, "false-receipt"),
        ({"learner": TWO}, "false-receipt"),
        ({"revision": 7}, "false-receipt"),
        ({"index": 9}, "false-receipt"),
        ({"head": bytes(32)}, "false-receipt"),
        ({"merges": 0}, "false-receipt"),
        ({"tokens": 255}, "false-receipt"),
        ({"project": bytes(32)}, "bad-signature"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else value,
)
def test_a_false_receipt_is_told_and_not_kept_and_training_goes_on(bench, log, changes, reason):
    entry = merge(log, 1)
    effects = bench.say(SYNCER.key, receipt_for(log, **changes))
    effects = [*effects, *bench.commit(entry)]
    assert kept(effects) == []
    assert bench.machine.context.tally.faults == {reason: 1}
    assert facts(effects, PeerMisbehaved)[0].peer == SYNCER.key
    assert disconnected(effects) == []
    assert bench.machine.link is Link.FOLLOWING


def test_a_receipt_that_was_changed_on_its_way_is_not_kept(bench, log):
    entry = merge(log, 1)
    receipt = receipt_for(log).credit
    payload = wire.encode(credit_for(log, merges=100, tokens=100_000))
    bench.say(SYNCER.key, Receipt(msgspec.structs.replace(receipt, payload=payload)))
    assert kept(bench.commit(entry)) == []
    assert bench.machine.context.tally.faults == {"bad-signature": 1}


def test_at_the_end_the_last_receipt_is_kept_before_the_learner_leaves(bench, log):
    bench.commit(merge(log, 1), log.add(RunEnding("token-budget")))
    end = log.add(RunEnded(1, 64, 2, None))
    bench.say(SYNCER.key, receipt_for(log))
    effects = bench.commit(end)
    assert [one.merges for one in kept(effects)] == [1]


# Growth and thinning


def credit_at(index, *, day=0, epoch=0, merges=None, **changes):
    log = Log(SeatTaken(SYNCER.key))
    return credit_for(
        log,
        index=index,
        epoch=epoch,
        merges=index if merges is None else merges,
        tokens=index,
        at_s=day * DAY_S + 1.0,
        **changes,
    )


def test_counts_only_grow_but_for_a_new_epoch():
    check_growth(credit_at(5), credit_at(7))
    check_growth(credit_at(5), credit_at(5))
    check_growth(credit_at(9), credit_at(7, epoch=1))
    with pytest.raises(FalseReceipt, match="merges: 5 up to record 5, 4 up to 7"):
        check_growth(credit_at(5), credit_at(7, merges=4))
    with pytest.raises(FalseReceipt):
        check_growth(credit_at(5), credit_at(5, merges=6))
    with pytest.raises(FalseReceipt, match="different records 5"):
        check_growth(credit_at(5), credit_at(5, head=bytes(32)))


def test_one_receipt_a_day_is_kept_and_the_newest_always():
    def proven(credit):
        return Proven(credit, SYNCER.key, sign_credit(credit, SYNCER))

    two_a_day = [proven(credit_at(at, day=at // 2)) for at in range(2, 2000)]
    left = thinned(two_a_day)
    assert len(left) == RECEIPTS_MAX
    assert left[-1].credit.index == 1999
    assert {one.credit.index % 2 for one in left} == {1}


# The file


@pytest.fixture
def signed(tmp_path):
    """A project of real keys: its genesis, charter and keys."""
    names = ("owner", "syncer", "witness", "learner")
    keys = {name: keystore.load_or_create(tmp_path / f"{name}.key") for name in names}
    voters = (
        Voter(keys["syncer"].key, "syncer", 50),
        Voter(keys["witness"].key, "witness", 0),
    )
    tiny = tiny_project(keys["syncer"].key, voters=voters)
    genesis = msgspec.structs.replace(tiny.genesis, owner=keys["owner"].key)
    content = encode(genesis)
    charter = msgspec.structs.replace(tiny.charter, project=project_id(content))
    envelope = seal("charter", charter.project, encode(charter), keys["owner"])
    return content, charter, envelope, keys


def real_credit(charter, keys, index, **changes):
    usual = credit_at(index, revision=charter.revision)
    return msgspec.structs.replace(
        usual, project=charter.project, learner=keys["learner"].key, **changes
    )


@pytest.fixture
def book(signed, tmp_path):
    """The file of a learner that got two receipts, on two days."""
    content, charter, envelope, keys = signed
    (tmp_path / "contributions").mkdir()
    book = Contributions(tmp_path / "contributions", content, charter.project, keys["learner"])
    for index in (5, 9):
        credit = real_credit(charter, keys, index, at_s=index * DAY_S)
        book.keep(sign_credit(credit, keys["syncer"]), envelope)
    return book


def test_a_file_proves_itself_and_is_gone_on_with_after_a_restart(book, signed):
    content, charter, envelope, keys = signed
    opened = read_book(book.path)
    assert [one.credit.merges for one in opened.proven] == [5, 9]
    assert {one.signer for one in opened.proven} == {keys["syncer"].key}
    again = Contributions(book.path.parent, content, charter.project, keys["learner"])
    assert again.newest == opened.newest
    credit = real_credit(charter, keys, 12, at_s=12 * DAY_S)
    again.keep(sign_credit(credit, keys["syncer"]), envelope)
    assert [one.credit.merges for one in read_book(book.path).proven] == [5, 9, 12]


def test_no_byte_of_the_file_can_be_changed_and_none_left_out(book):
    content = book.path.read_bytes()
    for at in range(0, len(content), 7):
        changed = bytearray(content)
        changed[at] ^= 1
        with pytest.raises(RemoteError):
            open_book(bytes(changed), verify_ed25519)
    for length in range(0, len(content), 101):
        with pytest.raises(RemoteError):
            open_book(content[:length], verify_ed25519)
    with pytest.raises(RemoteError):
        open_book(content + b" ", verify_ed25519)


def test_a_contributor_cannot_make_receipts_for_itself(signed):
    content, charter, envelope, keys = signed
    for who in ("learner", "witness", "owner"):
        credit = real_credit(charter, keys, 5)
        forged = Proven(credit, keys[who].key, sign_credit(credit, keys[who]))
        book = make_book(content, (envelope,), (forged,), keys["learner"])
        with pytest.raises(RemoteError, match="no syncer of the charter"):
            open_book(encode_book(book), verify_ed25519)


def test_a_charter_or_project_of_the_contributors_own_making_is_refused(signed):
    content, charter, _envelope, keys = signed
    voters = (Voter(keys["learner"].key, "syncer", 50),)
    own = msgspec.structs.replace(charter, voters=voters)
    sealed = seal("charter", own.project, encode(own), keys["learner"])
    credit = real_credit(charter, keys, 5)
    forged = Proven(credit, keys["learner"].key, sign_credit(credit, keys["learner"]))
    book = make_book(content, (sealed,), (forged,), keys["learner"])
    with pytest.raises(RemoteError, match="charter signed by another key"):
        open_book(encode_book(book), verify_ed25519)
    stolen = msgspec.structs.replace(book, project=bytes(32))
    with pytest.raises(RemoteError, match="the genesis is not that of the project"):
        open_book(encode_book(stolen), verify_ed25519)


def test_receipts_that_fall_are_not_proven_by_anybody(signed):
    content, charter, envelope, keys = signed
    credits = [
        real_credit(charter, keys, 5, at_s=5 * DAY_S),
        real_credit(charter, keys, 9, merges=4, at_s=9 * DAY_S),
    ]
    proven = [Proven(one, b"", sign_credit(one, keys["syncer"])) for one in credits]
    book = make_book(content, (envelope,), proven, keys["learner"])
    with pytest.raises(FalseReceipt, match="merges: 5 up to record 5, 4 up to 9"):
        open_book(encode_book(book), verify_ed25519)


def test_a_damaged_file_is_put_aside_and_begun_anew(book, signed):
    content, charter, envelope, keys = signed
    book.path.write_bytes(book.path.read_bytes()[:100])
    again = Contributions(book.path.parent, content, charter.project, keys["learner"])
    assert again.newest is None
    assert book.path.with_suffix(".damaged").is_file()
    credit = real_credit(charter, keys, 12)
    again.keep(sign_credit(credit, keys["syncer"]), envelope)
    assert read_book(book.path).newest == credit


def test_all_receipts_are_written_again_where_somebody_removed_them(book, signed):
    _, charter, envelope, keys = signed
    shutil.rmtree(book.path.parent)
    credit = real_credit(charter, keys, 12, at_s=12 * DAY_S)
    book.keep(sign_credit(credit, keys["syncer"]), envelope)
    assert [one.credit.merges for one in read_book(book.path).proven] == [5, 9, 12]


def test_the_file_is_readable_json(book):
    told = json.loads(book.path.read_text())
    assert told["format"] == "shoal-contributions"
    assert len(told["receipts"]) == 2
