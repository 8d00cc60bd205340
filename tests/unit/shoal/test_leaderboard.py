"""Who gave what, by share, and teams by their names; from a log, and from what a leader tells."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.home import Home
from protocol.log.accounts import ChosenName
from protocol.log.records import AccountsNoted, SeatTaken
from protocol.status import ContributorRow, SwarmSeen, SyncerStatus
from shoal.__main__ import main
from shoal.machine.leaderboard import ROWS_MAX, TEAMS_MAX, board, shares, split_name
from tests.support.builders import ONE, SYNCER, TWO, contribution, merged, weights
from tests.support.daemon_double import STATUS, FakeDaemon
from tests.support.hosted_logs import hosted_log

GAVE = (
    SeatTaken(SYNCER.key),
    weights(),
    merged(contributions=(contribution(), contribution(learner=TWO.key))),
    AccountsNoted(
        (ChosenName(ONE.key, "rowers/ada"), ChosenName(TWO.key, "rowers/\x1b[2Jeve")),
        (),
    ),
    merged(version=2, global_step=2, contributions=(contribution(learner=TWO.key, sequence=2),)),
)


def row(number, name="", tokens=0, merges=1, first_at_s=0.0):
    return ContributorRow(
        key=f"{number:064x}", name=name, tokens=tokens, merges=merges, first_at_s=first_at_s
    )


def made(rows, *, more=0, more_tokens=0, more_merges=0):
    return board(
        "ab" * 32,
        "tiny",
        "leader",
        rows,
        all_contributors=len(rows) + more,
        all_tokens=sum(one.tokens for one in rows) + more_tokens,
        all_merges=sum(one.merges for one in rows) + more_merges,
    )


@given(st.lists(st.integers(0, 2**60), max_size=60))
def test_shares_add_up_to_a_hundred_and_keep_their_order(tokens):
    found = shares(tokens)
    tenths = [round(share * 10) for share in found]
    assert sum(tenths) == (1000 if sum(tokens) else 0)
    assert all(abs(share - tenth / 10) < 1e-9 for share, tenth in zip(found, tenths, strict=True))
    for count, tenth in zip(tokens, tenths, strict=True):
        assert abs(tenth - 1000 * count / max(1, sum(tokens))) <= 1.0


@pytest.mark.parametrize(
    ("name", "team", "rest"),
    [
        ("rowers/ada", "rowers", "ada"),
        (" rowers / ada ", "rowers", "ada"),
        ("a/b/c", "a", "b/c"),
        ("ada", "", "ada"),
        ("/ada", "", "/ada"),
        ("ada/", "", "ada/"),
        (" / ", "", " / "),
    ],
)
def test_a_team_stands_in_front_of_a_slash(name, team, rest):
    assert split_name(name) == (team, rest)


def test_teams_add_up_their_members():
    told = made(
        [
            row(1, "ada", 10),
            row(2, "rowers/bob", 20, 2, 50.0),
            row(3, "rowers/cyd", 30, 3, 40.0),
            row(4, "divers/dan", 40, first_at_s=60.0),
            row(5, "idle/eve", 0, 0),
        ]
    )
    assert [one.name for one in told.contributors] == ["dan", "cyd", "bob", "ada"]
    assert [(one.team, one.share, one.tokens, one.merges, one.members) for one in told.teams] == [
        ("rowers", 50.0, 50, 5, 2),
        ("divers", 40.0, 40, 1, 1),
    ]
    assert told.teams[0].since_s == 40.0
    assert (told.tokens, told.merges) == (100, 7)


def test_those_that_a_leader_does_not_tell_one_by_one_are_counted_together():
    told = made([row(1, "ada", 60), row(2, "bob", 20)], more=5, more_tokens=20, more_merges=9)
    assert [one.share for one in told.contributors] == [60.0, 20.0]
    assert (told.others.contributors, told.others.share, told.others.merges) == (5, 20.0, 9)
    assert told.tokens == 100


def test_names_of_strangers_cannot_fill_the_list_of_teams():
    told = made([row(number, f"{number}/x", 1) for number in range(TEAMS_MAX + 50)])
    assert len(told.teams) == TEAMS_MAX
    assert len(told.contributors) == TEAMS_MAX + 50


def test_a_log_on_the_disk_tells_everybody(tmp_path, capsys):
    hosted = hosted_log(tmp_path, [(1.7e9 + at, body) for at, body in enumerate(GAVE)])
    assert main(["--home", str(hosted.home.root), "contributions", "--all", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    first, second = told["contributors"]
    assert (first["name"], first["team"]) == ("?[2Jeve", "rowers")
    assert (first["merges"], first["since_s"], first["merged_at_s"]) == (2, 1.7e9 + 2, 1.7e9 + 4)
    assert round(10 * (first["share"] + second["share"])) == 1000
    assert told["teams"][0]["members"] == 2
    assert main(["--home", str(hosted.home.root), "contributions", "--all"]) == 0
    printed = capsys.readouterr().out
    assert "2 contributors" in printed
    assert "rowers" in printed
    assert "\x1b[2J" not in printed


def test_a_learner_tells_what_it_heard_from_the_leader(tmp_path, capsys):
    rows = [row(number, f"learner {number}", 1000 - number) for number in range(ROWS_MAX + 20)]
    leader = SyncerStatus(
        key="s",
        name="default",
        pid=0,
        version="0.1.0",
        uptime_s=1.0,
        phase="training",
        sentence="All is well.",
        join_link="",
        project=STATUS.project,
        swarm=STATUS.swarm,
        network=STATUS.network,
        contributors=rows,
        contributors_all=len(rows) + 3,
        contributor_fragment_tokens=(sum(one.tokens for one in rows) + 300)
        * STATUS.project.fragments,
        contributor_merges=200,
    )
    seen = SwarmSeen(number=1, age_s=0.1, period_s=1.0, status=leader)
    status = msgspec.structs.replace(STATUS, swarm_seen=seen)
    daemon = FakeDaemon(Home(tmp_path).socket("learner"), status)
    try:
        assert main(["--home", str(tmp_path), "contributions", "--all"]) == 0
        printed = capsys.readouterr().out
        assert main(["--home", str(tmp_path), "contributions", "--all", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
    finally:
        daemon.close()
    assert f"{ROWS_MAX + 23} contributors" in printed
    assert "23 others" in printed
    assert told["told_by"] == "leader"
    assert len(told["contributors"]) == ROWS_MAX + 20
    tenths = [round(10 * one["share"]) for one in told["contributors"]]
    assert sum(tenths) + round(10 * told["others"]["share"]) == 1000


def test_where_nobody_knows_that_is_said(tmp_path, capsys):
    assert main(["--home", str(tmp_path), "contributions", "--all"]) == 2
    assert "Nobody here knows who gave what" in capsys.readouterr().err
