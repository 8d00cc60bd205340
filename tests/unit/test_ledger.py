"""The syncer's ledger: what counted by the log, what did not and why, across restarts."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.host.home import Home
from protocol.errors import UserError
from protocol.records import SeatTaken
from protocol.state import Account
from protocol.status import ContributorRow
from protocol.trace import PeerMisbehaved, PushSettled, SessionClosed, SessionOpened
from shoal import accounting
from shoal.exit_codes import ExitCode
from syncer_node.ledger import (
    GUESTS_MAX,
    KINDS_MAX,
    Ledger,
    StoredLedger,
    read_ledger,
    write_ledger,
)
from tests.builders import FRAGMENTS, ONE, SYNCER, TWO, Log, contribution, merged, weights


def settled(outcome, reason="", learner=ONE):
    return PushSettled(1, learner.key, 1, 1, outcome, reason)


def rows_of(ledger, log):
    return {row.key: row for row in ledger.rows(log.state)}


@pytest.fixture
def log():
    """Two merges: one of both, one of the second alone, and that one clipped."""
    parts = (contribution(), contribution(learner=TWO.key))
    clipped = contribution(learner=TWO.key, sequence=2, scale=0.5)
    return Log(
        SeatTaken(SYNCER.key),
        weights(),
        merged(contributions=parts),
        merged(version=2, global_step=2, contributions=(clipped,)),
    )


def test_totals_are_the_logs_and_the_rest_is_noted_by_outcome_and_reason(log):
    ledger = Ledger()
    accounts = log.state.accounts
    for fact in (
        SessionOpened(ONE.key, "ada", False),
        settled("merged"),
        settled("late", "the round is closed"),
        settled("late", "the round is closed"),
        settled("rejected", "not-finite"),
        PeerMisbehaved(ONE.key, "malformed", "no message"),
    ):
        ledger.tell(fact, 1.7e9, accounts)
    first, second = ledger.rows(log.state)
    assert (second.key, second.name, second.is_here) == (ONE.key.hex(), "ada", True)
    assert (second.merges, second.tokens, second.clipped) == (1, 256 // FRAGMENTS, 0)
    assert second.not_counted == {
        "late: the round is closed": 2,
        "rejected: not-finite": 1,
        "fault: malformed": 1,
    }
    assert (first.key, first.name) == (TWO.key.hex(), TWO.key[:4].hex())
    assert (first.merges, first.tokens, first.clipped) == (2, 512 // FRAGMENTS, 1)
    ledger.tell(SessionClosed(ONE.key, "ada", "stopped", True), 1.7e9, accounts)
    assert not rows_of(ledger, log)[ONE.key.hex()].is_here


def test_a_restart_keeps_notes_and_takes_totals_from_the_log(log, tmp_path):
    ledger = Ledger()
    ledger.tell(SessionOpened(ONE.key, "ada", False), 1.7e9, log.state.accounts)
    ledger.tell(settled("late"), 1.7e9, log.state.accounts)
    stored = StoredLedger(
        project="00", project_name="p", log_index=4, at_s=1.7e9, contributors=ledger.rows(log.state)
    )
    write_ledger(tmp_path / "ledger.json", stored)
    again = Ledger()
    again.restore(read_ledger(tmp_path / "ledger.json").contributors)
    log.add(merged(version=3, global_step=3))
    row = rows_of(again, log)[ONE.key.hex()]
    assert (row.name, row.merges, row.not_counted) == ("ada", 2, {"late": 1})
    assert not row.is_here


def test_strangers_can_fill_neither_the_notes_nor_the_screen(log):
    ledger, accounts = Ledger(), log.state.accounts
    ledger.tell(SessionOpened(ONE.key, "a\x1b[2Jb\n", False), 1.0, accounts)
    assert ledger.notes[ONE.key].name == "a?[2Jb?"
    for number in range(2 * GUESTS_MAX):
        key = number.to_bytes(32, "big")
        ledger.tell(SessionOpened(key, "x", False), 2.0 + number, accounts)
    assert len(ledger.notes) <= GUESTS_MAX + 2
    assert ONE.key in ledger.notes  # The log counts something for it.
    for number in range(2 * KINDS_MAX):
        ledger.tell(settled("rejected", f"reason {number}"), 3.0, accounts)
    counts = ledger.notes[ONE.key].not_counted
    assert len(counts) == KINDS_MAX + 1
    assert sum(counts.values()) == 2 * KINDS_MAX
    assert counts["other"] == KINDS_MAX


def test_a_fault_of_a_host_that_never_said_hello_is_not_noted():
    ledger = Ledger()
    ledger.tell(PeerMisbehaved(ONE.key, "malformed", "x"), 1.0, {})
    assert ledger.notes == {}


outcomes = st.sampled_from(["merged", "clipped", "late", "stale", "rejected", "abandoned"])


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), outcomes, st.booleans())))
def test_every_push_is_in_the_ledger_once_whatever_happens_and_however_often_it_restarts(history):
    ledger, accounts = Ledger(), {}
    expected: dict[str, list[int]] = {}
    state = Log(SeatTaken(SYNCER.key), weights()).state
    state.accounts = accounts
    for learner, outcome, restarts in history:
        counts = expected.setdefault(learner.key.hex(), [0, 0])
        if outcome in ("merged", "clipped"):
            account = accounts.setdefault(learner.key, Account())
            account.merges += 1
            counts[0] += 1
        else:
            counts[1] += 1
        ledger.tell(settled(outcome, learner=learner), 5.0, accounts)
        if restarts:
            rows = ledger.rows(state)
            ledger = Ledger()
            ledger.restore(rows)
    found = {
        row.key: [row.merges, sum(row.not_counted.values())]
        for row in ledger.rows(state)
        if row.merges or row.not_counted
    }
    assert found == expected


# The verb


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "home")
    rows = [
        ContributorRow(
            key="ab" * 32, name="=cmd()", tokens=9000, merges=7, not_counted={"late": 2},
            seen_at_s=1.7e9,
        ),
        ContributorRow(key="cd" * 32, name="bob\x1b", tokens=10, merges=1),
    ]  # fmt: skip
    stored = StoredLedger(
        project="ef" * 32, project_name="demo", log_index=42, at_s=1.7e9, contributors=rows
    )
    write_ledger(home.syncer_store(b"\xef" * 32) / "ledger.json", stored)
    return home


def test_the_table_tells_everything_without_a_daemon(home, capsys):
    code = accounting.ledger(home, instance="default", as_json=False, csv_path=None)
    told = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert "demo efefefef" in told
    assert "2 contributors, up to record 42, as of 2023-11-14 22:13 UTC" in told
    assert "9,000" in told
    assert "2 late" in told
    assert "\x1b" not in told


def test_json_and_csv_hold_every_contributor(home, tmp_path, capsys):
    path = tmp_path / "ledger.csv"
    accounting.ledger(home, instance="default", as_json=False, csv_path=path)
    assert capsys.readouterr().out.startswith("wrote 2 contributors to")
    with path.open(newline="") as handle:
        first, _ = csv.DictReader(handle)
    assert first["name"] == "'=cmd()"
    assert (first["tokens"], first["not counted"]) == ("9000", "2 late")
    accounting.ledger(home, instance="default", as_json=True, csv_path=None)
    (told,) = json.loads(capsys.readouterr().out)
    assert [row["merges"] for row in told["contributors"]] == [7, 1]


def test_without_a_ledger_or_with_a_damaged_one_it_says_so(home, tmp_path):
    with pytest.raises(UserError, match="No syncer called 'other'"):
        accounting.ledger(home, instance="other", as_json=False, csv_path=None)
    (path,) = home.ledgers()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="is not a ledger"):
        accounting.ledger(home, instance="default", as_json=False, csv_path=None)
