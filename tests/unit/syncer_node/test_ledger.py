"""The ledger: read off the log, the same whoever reads it; what a leader notes; the verb."""

from __future__ import annotations

import csv
import json

import msgspec
import pytest

from protocol import limits, wire
from protocol.errors import CorruptState, UserError
from protocol.log.account_book import AccountBook
from protocol.log.accounts import (
    GUESTS_MAX,
    KINDS_MAX,
    NAME_CHARS_MAX,
    NOTES_MAX,
    OTHER,
    Account,
    ChosenName,
    Refusal,
    printable,
)
from protocol.log.leases import UNKNOWN
from protocol.log.records import (
    AccountsNoted,
    BlocksLeased,
    CharterAdopted,
    Record,
    RunEnding,
    SeatTaken,
    Span,
)
from protocol.log.state import SwarmSummary
from protocol.machine import Start
from protocol.messages import AccountsPart, Decline, IndexPart, StateOffer
from protocol.peers.membership import Membership
from shoal.common.exit_codes import ExitCode
from shoal.machine import ledger_command
from syncer_node.machine.contributor_notes import EVERY_S, FIRST_S, ContributorNotes
from syncer_node.machine.jobs import InstallState
from syncer_node.storage.ledger import SHOWN_MAX, leading_rows, ledger_of, read_state
from syncer_node.storage.store import Checkpoint, Store
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    TWO,
    Log,
    SyncerBench,
    contribution,
    digest_of,
    founded,
    hello,
    merged,
    project,
    rounds,
    sealed_charter,
    weights,
)
from tests.support.hosted_logs import hosted_log

BODIES = (
    SeatTaken(SYNCER.key),
    weights(),
    merged(contributions=(contribution(), contribution(learner=TWO.key))),
    AccountsNoted(
        (ChosenName(TWO.key, "=cmd()"),),
        (Refusal(ONE.key, "late: the round is closed", 2), Refusal(ONE.key, "stale", 1)),
    ),
    merged(
        version=2,
        global_step=2,
        contributions=(contribution(learner=TWO.key, sequence=2, scale=0.5),),
    ),
)
"""Two merges: one of both learners, one of the second alone, and that one clipped."""


# What the log says.


def test_the_rows_are_the_logs_accounts():
    first, second = leading_rows(Log(*BODIES).state, {ONE.key})
    assert (first.key, first.name, first.is_here) == (TWO.key.hex(), "=cmd()", False)
    assert (first.merges, first.tokens, first.clipped) == (2, 512 // FRAGMENTS, 1)
    assert (second.key, second.name, second.is_here) == (ONE.key.hex(), ONE.key[:4].hex(), True)
    assert (second.merges, second.fragment_tokens, second.clipped) == (1, 256, 0)
    assert second.refused == {"late: the round is closed": 2, "stale": 1}
    assert second.merged_at_s == 1.7e9
    assert second.first_at_s == 1.7e9


def test_an_account_knows_since_when_it_gives():
    one = Account()
    for at_s in (5.0, 7.0, 9.0):
        one.merged(10, is_clipped=False, at_s=at_s)
    assert (one.first_at_s, one.merged_at_s) == (5.0, 9.0)
    of_before = Account(merges=3, tokens=30)
    of_before.merged(10, is_clipped=False, at_s=9.0)
    assert of_before.first_at_s == 0.0, "nobody knows"
    former = msgspec.msgpack.encode(msgspec.msgpack.decode(wire.encode(of_before))[:-1])
    assert wire.decode(former, Account) == of_before


def test_a_status_has_those_that_gave_most_and_whoever_is_here():
    log = Log(SeatTaken(SYNCER.key), weights())
    keys = [bytes([number]) * 32 for number in range(SHOWN_MAX + 20)]
    for number, key in enumerate(keys):
        part = contribution(learner=key, tokens=1000 - number)
        log.add(merged(version=number + 1, global_step=number + 1, contributions=(part,)))
    rows = leading_rows(log.state, {keys[-1], b"\xff" * 32})
    assert [row.key for row in rows] == [key.hex() for key in (*keys[:SHOWN_MAX], keys[-1])]


def test_a_name_counts_only_for_who_gave_something():
    held = AccountBook({ONE.key: Account(merges=1)})
    held.note((ChosenName(ONE.key, "ada"), ChosenName(TWO.key, "eve")), ())
    assert {key: one.name for key, one in held.items()} == {ONE.key: "ada"}


def test_strangers_cannot_fill_the_accounts():
    held = AccountBook({ONE.key: Account(merges=1)})
    for number in range(2 * GUESTS_MAX):
        held.note((), (Refusal(number.to_bytes(32, "big"), "stale", number + 1),))
    assert len(held) == GUESTS_MAX + 1
    assert ONE.key in held
    for number in range(2 * KINDS_MAX):
        held.note((), (Refusal(ONE.key, f"reason {number}", 1),))
    assert len(held[ONE.key].refused) == KINDS_MAX + 1
    assert held[ONE.key].refused[OTHER] == KINDS_MAX
    assert held[ONE.key].refusals == 2 * KINDS_MAX


def test_nothing_of_a_strangers_name_moves_a_cursor():
    assert printable("a\x1b[2Jb\n\u202e") == "a?[2Jb??"
    assert len(printable("x" * 500)) == NAME_CHARS_MAX


# What a leader notes.


class Leader:
    """The part of a seat that notes, over a log that a test writes."""

    def __init__(self):
        self.log = Log(SeatTaken(SYNCER.key), weights())
        self.members, self.proposed = Membership(), []
        self.part = ContributorNotes(self.log.state, self.members, self.proposed.append)

    def merge(self, learner):
        number = self.log.state.fragments[0].version + 1
        body = merged(
            version=number,
            global_step=number,
            contributions=(contribution(learner=learner.key, sequence=number),),
        )
        self.log.add(body)
        self.part.on_merged(body)

    def write(self):
        for body in self.proposed:
            self.log.add(body)
        self.proposed.clear()


def test_names_and_refusals_wait_and_are_noted_together_once():
    leader = Leader()
    leader.members.open(ONE.key, hello(name="bob"), 0.0)
    leader.merge(ONE)
    leader.part.flush()
    leader.write()
    leader.members.open(ONE.key, hello(incarnation=2, name="ada\x1b"), 0.0)
    leader.merge(ONE)
    leader.part.on_refused(ONE.key, "late", "the round is closed")
    leader.part.on_refused(ONE.key, "stale", "stale")
    leader.part.look(5.0)
    assert leader.proposed == []
    assert leader.part.deadline_s() == 5.0 + EVERY_S
    leader.part.look(5.0 + EVERY_S)
    (noted,) = leader.proposed
    assert noted == AccountsNoted(
        (ChosenName(ONE.key, "ada?"),),
        (Refusal(ONE.key, "late: the round is closed", 1), Refusal(ONE.key, "stale", 1)),
    )
    leader.write()
    leader.merge(ONE)
    leader.part.look(90.0)
    assert leader.proposed == []
    assert leader.part.deadline_s() is None


def test_the_first_name_of_a_key_waits_for_a_moment_only_and_once():
    leader = Leader()
    for learner, name in ((ONE, "ada"), (TWO, "bob")):
        leader.members.open(learner.key, hello(name=name), 0.0)
    leader.merge(ONE)
    leader.part.look(5.0)
    leader.merge(TWO)
    leader.part.look(5.9)
    assert leader.proposed == []
    assert leader.part.deadline_s() == 5.0 + FIRST_S
    leader.part.look(5.0 + FIRST_S)
    (noted,) = leader.proposed
    assert sorted(one.name for one in noted.names) == ["ada", "bob"]
    leader.write()
    leader.part.on_refused(ONE.key, "stale", "stale")
    leader.part.look(7.0)
    assert leader.part.deadline_s() == 7.0 + EVERY_S


def test_a_learner_that_is_gone_at_once_has_its_name_in_the_log():
    leader = Leader()
    leader.members.open(ONE.key, hello(name="ada"), 0.0)
    leader.merge(ONE)
    leader.members.close(ONE.key, "lost")
    leader.part.look(5.0)
    leader.part.look(5.0 + FIRST_S)
    leader.write()
    assert leader.log.state.accounts[ONE.key].name == "ada"


def test_a_name_that_changed_is_noted_again():
    leader = Leader()
    for incarnation, name in enumerate(("ada", "ada", "countess"), start=1):
        leader.members.open(ONE.key, hello(incarnation=incarnation, name=name), 0.0)
        leader.merge(ONE)
        leader.part.flush()
        leader.write()
    noted = [r.body.names for r in leader.log.records if isinstance(r.body, AccountsNoted)]
    assert [one.name for (one,) in noted] == ["ada", "countess"]


def test_no_record_holds_more_than_its_limit():
    leader = Leader()
    for number in range(NOTES_MAX + 1):
        leader.part.on_refused(number.to_bytes(32, "big"), "late", "x")
    leader.part.flush()
    assert [len(body.refusals) for body in leader.proposed] == [NOTES_MAX, 1]
    for body in leader.proposed:
        wire.decode(wire.encode(replace_body(body)), Record)


def replace_body(body):
    return Record(project().project, 0, 1, 1, bytes(32), 1.7e9, body)


def test_a_leader_writes_what_it_refused_into_the_log_and_again_before_the_end():
    bench = SyncerBench(project(rounds(quorum=1))).start(ONE)
    pull = bench.train(ONE)[ONE.key]
    bench.push(ONE, pull, tokens=10**9)
    bench.wait(0.1)
    assert bench.machine.state.accounts == {}
    bench.wait(EVERY_S)
    bench.say(ONE.key, Decline(0, 0, ""))
    assert bench.machine.state.accounts[ONE.key].refused == {"rejected: false-claim": 1}
    bench.push(ONE, pull, sequence=2)
    bench.seat._propose(RunEnding("owner"))
    bench.wait(0.1)
    bench.wait(0.1)
    state = bench.machine.state
    assert state.ended is not None
    assert state.accounts[ONE.key].refusals == 2


def revised(tiny, revision, **changes):
    return msgspec.structs.replace(tiny.charter, revision=revision, **changes)


def told(leader):
    """All that a standby is told of the state."""
    return leader.machine.state_to_tell(TWO.key).take(99)


def test_a_voter_that_is_handed_the_state_is_handed_the_accounts():
    log = founded(*BODIES[1:])
    leader = SyncerBench(recovered=log.recovered())
    leader.machine.recent.add(log.records[-1], log.entries[-1])
    *origins, part, offer = told(leader)
    assert {type(one) for one in origins} == {IndexPart}
    assert isinstance(part, AccountsPart)
    assert isinstance(offer, StateOffer)
    assert wire.decode(offer.summary, SwarmSummary).accounts == {}
    standby = SyncerBench()
    charters = [one for piece in origins for one in piece.charters]
    standby.machine.on_state_offer(offer, [], charters, part.accounts)
    (start,) = [one for one in standby.machine.effects.drain() if isinstance(one, Start)]
    assert isinstance(start.job, InstallState)
    assert start.job.summary == log.state.summary()


def test_what_is_merged_afterwards_is_not_in_the_accounts_that_are_handed_on():
    log = founded(*BODIES[1:])
    leader = SyncerBench(recovered=log.recovered())
    leader.machine.recent.add(log.records[-1], log.entries[-1])
    state = leader.machine.state
    counts = {key: one.counts for key, one in state.accounts.items()}
    telling = leader.machine.state_to_tell(TWO.key)
    state.accounts.merged(ONE.key, 64, is_clipped=False, at_s=1.0)
    (part,) = [one for one in telling.take(9) if isinstance(one, AccountsPart)]
    assert {key: one.counts for key, one in part.accounts.items()} == counts


def test_a_state_that_would_not_fit_is_handed_on_without_what_sessions_can_claim(monkeypatch):
    log = founded(*BODIES[1:], BlocksLeased(ONE.key, 1, (Span(0, 8, 0),)))
    leader = SyncerBench(recovered=log.recovered())
    leader.machine.recent.add(log.records[-1], log.entries[-1])
    for most, granted in ((limits.ENTRIES_BYTES_MAX, 32), (100, UNKNOWN)):
        monkeypatch.setattr(limits, "ENTRIES_BYTES_MAX", most)
        offer = told(leader)[-1]
        (entry,) = wire.decode(offer.summary, SwarmSummary).held
        assert entry.granted == granted


def test_a_voter_is_handed_charters_that_are_longer_than_a_message():
    """Two of 340 kB, as the weights were made under the first of them."""
    banned = tuple(digest_of(f"stranger {at}") for at in range(limits.BANNED_MAX))
    tiny = project()
    first, second = (
        CharterAdopted(sealed_charter(revised(tiny, revision, banned=banned[revision:])))
        for revision in (2, 3)
    )
    log = founded(first, *BODIES[1:], second)
    leader = SyncerBench(recovered=log.recovered(), charter=revised(tiny, 3, banned=banned[3:]))
    leader.machine.recent.add(log.records[-1], log.entries[-1])
    pieces = [wire.decode_message(wire.encode(one)) for one in told(leader)]
    assert len([one for one in pieces if isinstance(one, IndexPart)]) == 2
    standby = SyncerBench()
    charters = [one for part in pieces[:-2] for one in part.charters]
    standby.machine.on_state_offer(pieces[-1], [], charters, pieces[-2].accounts)
    (start,) = [one for one in standby.machine.effects.drain() if isinstance(one, Start)]
    assert start.job.summary == log.state.summary()


# The disk.


@pytest.fixture
def hosted(tmp_path):
    """A home with a project of real keys, its store, and a log of this project."""
    return hosted_log(tmp_path, ((1.7e9, body) for body in BODIES))


def test_without_a_daemon_the_log_on_the_disk_says_the_same(hosted):
    _, root, opened, log = hosted
    assert read_state(root, opened) == log.state
    read = ledger_of(opened, read_state(root, opened), (), 5.0)
    assert read == ledger_of(opened, log.state, (), 5.0)
    assert (read.merges, read.fragment_tokens, read.refused) == (3, 768, 3)
    assert read.fragment_tokens == sum(log.state.tokens_by_fragment)


def test_a_checkpoint_of_this_log_saves_the_way_and_one_of_another_is_left_alone(hosted, caplog):
    _, root, opened, log = hosted
    here, other = Log(*BODIES[:4], tiny=log.tiny), Log(*BODIES[:3], tiny=log.tiny)
    other.state.accounts[ONE.key].merges = 99
    for made, head in ((here.state, here.state.head), (other.state, bytes(32))):
        summary = msgspec.structs.replace(made.summary(), head=head)
        Store(root).write_checkpoint(Checkpoint(made.index, [], [], [], summary))
    (root / "checkpoints" / "5").mkdir()
    assert read_state(root, opened) == log.state


def test_a_log_that_breaks_is_said_to_be_broken(hosted):
    home, root, _, log = hosted
    store = Store(root)
    store.voter.append(1, log.encoded[2:])
    store.close()
    with pytest.raises(UserError, match="breaks at record 2"):
        ledger_command.read_ledgers(home, "default")
    with pytest.raises(CorruptState, match="breaks at record 2"):
        read_state(root, hosted[2])


# The verb


def test_the_table_tells_everything_without_a_daemon(hosted, capsys):
    home, _, opened, log = hosted
    code = ledger_command.ledger(home=home, instance="default")
    told = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert f"{opened.genesis.name} {opened.id.hex()[:8]}" in told
    assert "2 contributors: 192 tokens in 3 merges, 3 pushes not counted" in told
    assert f"epoch 0, up to record 5 ({log.state.head.hex()[:8]})" in told
    assert "2 late: the round is closed" in told
    assert all(len(line) <= 100 for line in told.splitlines())


def test_json_and_csv_hold_every_contributor(hosted, tmp_path, capsys):
    home = hosted[0]
    path = tmp_path / "ledger.csv"
    ledger_command.ledger(home=home, instance="default", csv_path=path)
    assert capsys.readouterr().out.startswith("wrote 2 contributors to")
    with path.open(newline="") as handle:
        first, second = csv.DictReader(handle)
    assert first["name"] == "'=cmd()"
    assert (first["tokens"], first["fragment tokens"], first["record"]) == ("128", "512", "5")
    assert (second["refused"], second["last merged"]) == ("3", "2023-11-14 22:13 UTC")
    ledger_command.ledger(home=home, instance="default", json=True, csv_path=path)
    (told,) = json.loads(capsys.readouterr().out)
    assert [row["merges"] for row in told["contributors"]] == [2, 1]


def test_without_a_log_or_where_a_file_cannot_be_written_it_says_so(hosted, tmp_path):
    home = hosted[0]
    with pytest.raises(UserError, match="No syncer called 'other'"):
        ledger_command.ledger(home=home, instance="other")
    with pytest.raises(UserError, match="cannot be written"):
        ledger_command.ledger(home=home, instance="default", csv_path=tmp_path)
