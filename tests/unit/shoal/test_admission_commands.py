"""An owner says who takes part: allow, ban and their opposites, invites, and the rule itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from host.files import keystore
from host.files.home import Home
from host.files.signed_project import read_signed
from host.join_link import format_link, parse_link
from protocol import limits
from protocol.invites import open_invite
from protocol.signing import verify_ed25519
from protocol.status import ContributorRow, PeerRow, SyncerStatus
from shoal.__main__ import main
from shoal.project import file_commands
from shoal.project.charters import LISTED_MAX, differences
from syncer_node.storage.ledger import Ledger
from tests.support.daemon_double import LINK, STATUS, FakeDaemon
from tests.support.owned_project import owned_project

ADA, BOB, EVE = "ada0" * 16, "b0b0" * 16, "ada0" * 4 + "00" * 24
DAY_S = 86_400


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def target(home, tmp_path) -> Path:
    path = owned_project(home, tmp_path)
    file_commands.keep_copy(path, home)
    return path


@pytest.fixture
def syncer(home, target):
    """Starts a syncer that knows these learners, and whom invites brought."""
    running: list[FakeDaemon] = []

    def start(*peers: tuple[str, str], gave=(), brought=None) -> FakeDaemon:
        project = read_signed(target).id
        link = msgspec.structs.replace(parse_link(LINK), project=project)
        status = SyncerStatus(
            key="s",
            name="syncer default",
            pid=7,
            version="0.1.0",
            uptime_s=1.0,
            phase="training",
            sentence="All is well.",
            join_link=format_link(link),
            project=msgspec.structs.replace(STATUS.project, id=project.hex()),
            swarm=STATUS.swarm,
            network=STATUS.network,
            peers=[
                PeerRow(key=key, name=name, device="cpu", state="training", heard_s=0.0)
                for name, key in peers
            ],
        )
        ledger = Ledger(
            project=project.hex(),
            project_name="tiny",
            epoch=0,
            log_index=9,
            head="",
            at_s=0.0,
            fragments=4,
            merges=0,
            fragment_tokens=0,
            refused=0,
            contributors=[
                ContributorRow(key=key, name=name, tokens=4100, merges=3) for name, key in gave
            ],
            invites=brought or {},
        )
        answers = {"ledger": {"ledger": msgspec.to_builtins(ledger)}}
        running.append(FakeDaemon(home.socket("syncer"), status, answers=answers))
        return running[-1]

    yield start
    for one in running:
        one.close()


def charter_at(path: Path):
    return read_signed(path).charter


def keys(*texts: str) -> tuple[bytes, ...]:
    return tuple(map(bytes.fromhex, texts))


def token_of(text: str, target: Path):
    """The invite in a link, proven to be the owner's."""
    project = read_signed(target)
    return open_invite(
        parse_link(text).invite,
        project=project.id,
        owner=project.genesis.owner,
        verify=verify_ed25519,
    )


# Names.


@pytest.mark.parametrize("word", ["ada", "ada0ada0", "ADA0ADA0AD", "ada0ada0…", ADA])
def test_a_learner_is_banned_by_its_name_or_its_key(syncer, target, word, capsys):
    syncer(("ada", ADA), ("bob", BOB))
    assert main(["project", "ban", word, str(target)]) == 0
    assert charter_at(target).banned == keys(ADA)
    assert "banned ada0ada0" in capsys.readouterr().out


def test_one_that_left_is_known_by_the_name_that_the_log_has(syncer, target):
    syncer(gave=[("bob", BOB)])
    assert main(["project", "ban", "bob", str(target)]) == 0
    assert charter_at(target).banned == keys(BOB)
    assert main(["project", "unban", "bob", str(target)]) == 0
    assert charter_at(target).banned == ()


@pytest.mark.parametrize("word", ["ada", "ada0ada0"])
def test_where_several_fit_they_are_listed_and_nothing_is_done(syncer, target, word, capsys):
    syncer(("ada", ADA), ("bob", BOB), gave=[("ada", EVE)])
    assert main(["project", "ban", word, str(target)]) == 2
    said = capsys.readouterr().err
    assert f"ada {ADA[:16]}… (0 tokens, here now)" in said
    assert f"ada {EVE[:16]}… (4,100 tokens, not here now)" in said
    assert "bob" not in said
    assert charter_at(target).revision == 1


def test_a_name_that_nobody_has_is_answered_with_those_that_are_known(syncer, target, capsys):
    syncer(("ada", ADA))
    assert main(["project", "ban", "carl", str(target)]) == 2
    said = capsys.readouterr().err
    assert '"carl" is neither a name nor the first 8 digits' in said
    assert "Known are: ada" in said


def test_a_name_that_is_nearly_one_is_answered_with_the_nearest(syncer, target, capsys):
    syncer(("heron", ADA), ("osprey", BOB))
    assert main(["project", "reinstate", "Herron", str(target)]) == 2
    said = capsys.readouterr().err
    assert f"Nearest: heron {ADA[:16]}…" in said
    assert "osprey" not in said


# Allowed keys, and the rule.


def test_a_key_is_allowed_and_taken_off_the_list_again(target, capsys):
    assert main(["project", "allow", ADA, str(target)]) == 0
    said = capsys.readouterr().out
    assert "allowed ada0ada0" in said
    assert "everybody takes part in this project" in said
    assert f'[admission]\nallowed = ["{ADA}"]' in said
    assert charter_at(target).allowed == keys(ADA)
    assert main(["project", "allow", ADA, str(target)]) == 0
    assert "is allowed already" in capsys.readouterr().out
    assert main(["project", "disallow", ADA[:8], str(target)]) == 0
    assert "not allowed any more: ada0ada0" in capsys.readouterr().out
    assert charter_at(target).allowed == ()


def test_of_a_long_list_what_changes_is_said_and_not_all_of_it(target, capsys):
    strangers = [f"{at:02x}" * 32 for at in range(LISTED_MAX + 1)]
    for one in strangers:
        assert main(["project", "ban", one, str(target)]) == 0
    assert f'# add to banned: "{strangers[-1]}",' in capsys.readouterr().out.splitlines()
    assert main(["project", "ban", ADA, str(target)]) == 0
    said = capsys.readouterr().out
    assert ADA in said
    assert strangers[0] not in said
    assert main(["project", "unban", ADA, str(target)]) == 0
    assert f'# take out of banned: "{ADA}",' in capsys.readouterr().out.splitlines()
    assert charter_at(target).banned == keys(*strangers)


def test_of_many_banned_at_once_some_are_named(target):
    former = charter_at(target)
    banned = tuple(bytes([at]) * 32 for at in range(LISTED_MAX + 3))
    said = [*differences(former, msgspec.structs.replace(former, banned=banned))]
    assert said == [*(f"banned {one.hex()[:8]}" for one in banned[:LISTED_MAX]), "banned 3 more"]


def test_a_suspension_is_lifted_as_often_as_it_is_needed(syncer, target, capsys):
    syncer(("ada", ADA), ("bob", BOB))
    assert main(["project", "reinstate", "ada", str(target)]) == 0
    assert "ada0ada0 is suspended no more" in capsys.readouterr().out
    assert main(["project", "reinstate", BOB[:8], str(target)]) == 0
    assert main(["project", "reinstate", "ada", str(target)]) == 0
    lifted = {one.learner: one.revision for one in charter_at(target).reinstated}
    assert lifted == {bytes.fromhex(ADA): 4, bytes.fromhex(BOB): 3}
    assert charter_at(target).revision == 4


@pytest.mark.parametrize("name", ["admission", "admission.rule"])
def test_the_rule_is_set_like_any_other(target, name, capsys):
    assert main(["project", "set", str(target), f"{name}=list"]) == 0
    said = capsys.readouterr().out
    assert 'admission.rule = "list", was "open"' in said
    assert '[admission]\nrule = "list"' in said
    assert charter_at(target).admission == "list"
    assert main(["project", "set", str(target), f"{name}=friends"]) == 2
    assert 'must be one of "invite", "list", "open"' in capsys.readouterr().err


@pytest.mark.parametrize(("rule", "leaving"), [("invite", ["carl"]), ("list", ["bob", "carl"])])
def test_a_rule_that_puts_learners_out_names_them_first(syncer, target, rule, leaving, capsys):
    peers = {"ada": ADA, "bob": BOB, "carl": "ca" * 32}
    assert main(["project", "allow", ADA, str(target)]) == 0
    syncer(*peers.items(), brought={"77" * 16: [BOB]})
    assert main(["project", "set", str(target), f"admission={rule}"]) == 2
    said = capsys.readouterr().err
    assert [name for name, key in peers.items() if key[:16] in said] == leaving
    assert "Nothing was changed" in said
    assert charter_at(target).admission == "open"
    assert main(["project", "set", str(target), f"admission={rule}", "--yes"]) == 0
    assert charter_at(target).admission == rule


def test_a_list_is_bounded(home, target, capsys, monkeypatch):
    monkeypatch.setattr(limits, "ALLOWED_MAX", 1)
    assert main(["project", "allow", ADA, str(target)]) == 0
    assert main(["project", "allow", BOB, str(target)]) == 2
    assert "1 allowed keys at most" in capsys.readouterr().err
    assert charter_at(target).allowed == keys(ADA)


# Invites.


def test_a_link_carries_an_invite_where_the_project_asks_for_one(syncer, target, capsys):
    assert main(["project", "set", str(target), "admission=invite"]) == 0
    syncer()
    capsys.readouterr()
    assert main(["project", "invite"]) == 0
    out, err = capsys.readouterr()
    found = token_of(out.strip(), target)
    assert (found.name, found.uses, found.key) == ("invite-1", 1, None)
    assert abs(found.expires_s - time.time() - 7 * DAY_S) < 600
    assert "invite invite-1: for 1 machine" in err
    assert main(["project", "invite"]) == 0
    second = token_of(capsys.readouterr().out.strip(), target)
    assert (second.name, second.id == found.id) == ("invite-2", False)


def test_flags_say_what_an_invite_holds_in_an_open_project_too(syncer, target, capsys):
    syncer()
    words = ["--uses", "20", "--days", "0.5", "--name", "class 7b", "--key", ADA]
    assert main(["project", "invite", str(target), *words]) == 0
    found = token_of(capsys.readouterr().out.strip(), target)
    assert (found.name, found.uses, found.key) == ("class 7b", 20, bytes.fromhex(ADA))
    assert abs(found.expires_s - time.time() - DAY_S / 2) < 600
    assert main(["project", "invite", str(target), "--name", "class 7b"]) == 2
    assert "There is an invite class 7b already" in capsys.readouterr().err


def test_without_flags_the_link_of_an_open_project_carries_none(syncer, target, capsys):
    syncer()
    assert main(["project", "invite"]) == 0
    out, err = capsys.readouterr()
    assert parse_link(out.strip()).invite is None
    assert err == ""


@pytest.mark.parametrize("words", [["--uses", "0"], ["--uses", "1025"], ["--days", "0"]])
def test_an_invite_out_of_bounds_is_not_made(syncer, target, words, capsys):
    syncer()
    assert main(["project", "invite", *words]) == 2
    assert capsys.readouterr().out == ""


def test_a_host_without_the_owners_key_is_told_so(home, syncer, target, capsys):
    assert main(["project", "set", str(target), "admission=invite"]) == 0
    syncer()
    home.identity("owner").rename(home.root / "elsewhere.key")
    capsys.readouterr()
    assert main(["project", "invite"]) == 0
    out, err = capsys.readouterr()
    assert parse_link(out.strip()).invite is None
    assert "carries no invite" in err
    assert main(["project", "invite", "--uses", "2"]) == 2
    assert "Only the owner makes invites" in capsys.readouterr().err
    keystore.load_or_create(home.identity("owner"))
    assert main(["project", "invite", "--uses", "2"]) == 2, "another owner's key is none"


def test_a_list_alone_needs_no_invites(syncer, target, capsys):
    assert main(["project", "set", str(target), "admission=list"]) == 0
    syncer()
    capsys.readouterr()
    assert main(["project", "invite"]) == 0
    out, err = capsys.readouterr()
    assert parse_link(out.strip()).invite is None
    assert "only keys listed" in err
    assert main(["project", "invite", "--uses", "2"]) == 2
    assert "an invite would bring nobody" in capsys.readouterr().err


def made(target, capsys, *words) -> str:
    """The id of a new invite."""
    assert main(["project", "invite", *words]) == 0
    return token_of(capsys.readouterr().out.splitlines()[-1], target).id.hex()


def test_invites_are_listed_with_whom_they_brought(syncer, target, capsys):
    first = syncer()
    friends = made(target, capsys, "--uses", "3", "--name", "friends")
    made(target, capsys, "--name", "work")
    first.close()
    syncer(gave=[("ada", ADA)], brought={friends: [ADA, BOB], "77" * 16: [EVE]})
    assert main(["project", "invites", str(target)]) == 0
    said = capsys.readouterr().out
    assert "friends: 1 of 3 uses left, until 20" in said
    assert "    brought: ada ada0ada0, b0b0b0b0" in said
    assert "work: 1 of 1 uses left" in said
    assert "77777777: made elsewhere" in said
    assert main(["project", "invites", str(target), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["friends"]["brought"] == [ADA, BOB]
    assert rows["work"]["state"] == "open"


def test_an_invite_is_revoked_by_its_name_and_said_to_be(syncer, target, capsys):
    syncer()
    friends = made(target, capsys, "--name", "friends")
    assert main(["project", "invites", str(target), "--revoke", "friends"]) == 0
    said = capsys.readouterr().out
    assert f"revoked invite {friends[:8]}" in said
    assert "whom it brought stays" in said
    assert charter_at(target).revoked == (bytes.fromhex(friends),)
    assert main(["project", "invites", str(target)]) == 0
    assert "friends: revoked, 1 of 1 uses left" in capsys.readouterr().out
    assert main(["project", "invites", str(target), "--revoke", "friends"]) == 0
    assert "revoked already" in capsys.readouterr().out
    assert charter_at(target).revision == 2


def test_an_invite_that_is_not_there_is_said_to_be_so(syncer, target, capsys):
    assert main(["project", "invites", str(target)]) == 0
    assert "no invite yet" in capsys.readouterr().out
    syncer()
    made(target, capsys, "--name", "friends")
    assert main(["project", "invites", str(target), "--revoke", "fiends"]) == 2
    assert "There is no invite 'fiends'. Invites: friends." in capsys.readouterr().err


def test_one_made_elsewhere_is_revoked_by_how_its_id_begins(syncer, target):
    syncer(brought={"77" * 16: [EVE]})
    assert main(["project", "invites", str(target), "--revoke", "77777777"]) == 0
    assert charter_at(target).revoked == (bytes.fromhex("77" * 16),)


def test_what_has_expired_leaves_the_charter_with_the_next_that_is_revoked(syncer, target, capsys):
    syncer()
    old = made(target, capsys, "--name", "old")
    assert main(["project", "invites", str(target), "--revoke", "old"]) == 0
    assert charter_at(target).revoked == keys(old)
    new = made(target, capsys, "--name", "new")
    file = Home().project(read_signed(target).id) / "invites.json"
    rows = json.loads(file.read_text())
    rows[0]["expires_s"] = 1
    file.write_text(json.dumps(rows))
    assert main(["project", "invites", str(target), "--revoke", "new"]) == 0
    assert charter_at(target).revoked == keys(new)
