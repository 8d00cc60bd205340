"""An owner changes a project that runs: what is signed, who is told, and what is said."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from host.control.server import ControlServer
from host.files import keystore
from host.files.home import Home
from host.files.signed_project import (
    OpenedProject,
    newest_of,
    open_project,
    read_signed,
    seal_project,
)
from protocol import wire
from protocol.errors import UserError
from protocol.log.records import (
    NO_RECORD,
    Record,
    RunEnding,
    SeatTaken,
    certify,
    record_hash,
    sign_record,
)
from protocol.messages import CertifiedRecord, Envelope
from protocol.project import Voter, encode, project_id
from protocol.status import NetworkStatus, ProjectStatus, SeatStatus, VoterRow, WitnessStatus
from shoal.__main__ import main
from shoal.project import charters
from syncer_node.storage.voter_files import VoterFiles
from tests.support.owned_project import owned_project

A, B, W = b"\xaa" * 32, b"\xbb" * 32, b"\xcc" * 32
LEARNER = "ab" * 32


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def target(home, tmp_path) -> Path:
    """A signed project whose only voter is this home's syncer."""
    return owned_project(home, tmp_path)


def own_key(home: Home) -> bytes:
    return keystore.load_or_create(home.identity("syncer")).key


def make_three(target: Path) -> None:
    assert main(["project", "add-syncer", B.hex(), str(target)]) == 0
    assert main(["project", "add-witness", W.hex(), "tiny.toml"]) == 0


class FakeVoter:
    """A voter's control socket: says what it is told to say, and takes charters."""

    def __init__(self, path: Path, project: bytes, *, seat: SeatStatus) -> None:
        self.taken: list[Envelope] = []
        self.status = WitnessStatus(
            key="cc" * 32,
            name="default",
            pid=7,
            version="0.1.0",
            uptime_s=65.0,
            sentence="All is well. Voting with bbbbbbbb, heard 0 s ago.",
            project=ProjectStatus(
                id=project.hex(),
                name="tiny",
                fragments=4,
                parameters=512,
                token_budget=100,
                local_steps=8,
                quorum=1,
            ),
            seat=seat,
            log_index=1234,
            stored_from=1,
            network=NetworkStatus(),
        )
        self._path, self._ready = path, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        handlers = {"status": self._status, "charter": self._charter, "stop": self._stop}
        server = ControlServer(self._path, handlers)
        await server.start()
        self._ready.set()
        await self._stopping.wait()
        await server.close()

    def _status(self, fields):
        return {"status": msgspec.to_builtins(self.status)}

    def _charter(self, fields):
        self.taken.append(wire.decode(bytes.fromhex(fields["envelope"]), Envelope))
        return {}

    def _stop(self, fields):
        self._loop.call_later(0.05, self._stopping.set)
        return {}

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(60)


def seat(*voters: bytes, revision: int = 1, here: int | None = None) -> SeatStatus:
    rows = [
        VoterRow(key=key.hex(), role="syncer", priority=1, is_here=here is None or at < here)
        for at, key in enumerate(voters)
    ]
    return SeatStatus(
        role="following", epoch=0, term=3, leader="bb" * 32, charter_revision=revision, voters=rows
    )


@pytest.fixture
def voter(home, target):
    """Starts voters of the project, by what they say about the seat."""
    running: list[FakeVoter] = []

    def start(of: SeatStatus, project: bytes | None = None) -> FakeVoter:
        made = FakeVoter(home.socket("witness"), project or read_signed(target).id, seat=of)
        running.append(made)
        return made

    yield start
    for one in running:
        one.close()


def error_of(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("error: ")


def charter_at(path: Path):
    return read_signed(path).charter


# Voters.


def test_voters_are_added_one_by_one_and_each_step_says_what_is_next(home, target, capsys):
    assert main(["project", "add-syncer", B.hex(), str(target), "--priority", "7"]) == 0
    said = capsys.readouterr().out
    assert "revision 2 of tiny" in said
    assert "added syncer bbbbbbbb" in said
    assert "takes effect when one starts with this file" in said
    assert "two voters cannot outvote each other" in said
    assert "shoal syncer run tiny.shoal --join LINK" in said
    assert "[[voters]]" not in said, "a project file with two voters is not signed"
    assert charter_at(target).voter(B) == Voter(B, "syncer", 7)

    assert main(["project", "add-witness", W.hex(), "tiny.toml"]) == 0
    said = capsys.readouterr().out
    assert "shoal witness run tiny.shoal --join LINK" in said
    assert "tiny.toml is yours, so nothing was changed in it" in said
    assert said.count("[[voters]]\n") == 3
    assert f'key = "{W.hex()}"\nrole = "witness"' in said
    charter = charter_at(target)
    assert (charter.revision, [one.role for one in charter.voters]) == (
        3,
        ["syncer", "syncer", "witness"],
    )
    assert (target.parent / "tiny.toml").read_text() == "# a person's file\n"


@pytest.mark.parametrize("verb", ["remove-voter", "remove-syncer"])
def test_a_voter_is_removed_by_the_digits_that_screens_show(home, target, verb, capsys):
    make_three(target)
    assert main(["project", verb, "bbbbbbbb", str(target)]) == 0
    assert "removed syncer bbbbbbbb" in capsys.readouterr().out
    assert [one.key for one in charter_at(target).voters] == [own_key(home), W]


def test_a_new_disk_is_admitted_by_raising_its_generation(home, target, capsys):
    make_three(target)
    assert main(["project", "readmit", "bbbbbbbb", str(target)]) == 0
    assert main(["syncer", "readmit", "bbbbbbbb", str(target)]) == 0
    assert "readmitted syncer bbbbbbbb" in capsys.readouterr().out
    assert charter_at(target).voter(B).disk == 2
    assert charter_at(target).voter(W).disk == 0
    assert main(["project", "show", str(target)]) == 0
    assert "readmitted 2 times" in capsys.readouterr().out


def test_a_voter_is_named_as_status_names_it(target, capsys):
    make_three(target)
    assert main(["project", "readmit", "syncer bbbbbbbb", str(target)]) == 0
    assert charter_at(target).voter(B).disk == 1
    assert main(["project", "readmit", "witness bbbbbbbb", str(target)]) == 2
    said = error_of(capsys)
    assert "The voters are: syncer" in said
    assert f"syncer {B.hex()[:16]}…" in said


def test_voters_of_this_machine_go_by_the_names_that_status_gives_them():
    voters = [Voter(A, "syncer", 10), Voter(B, "syncer", 5), Voter(W, "witness", 0)]
    here = {A: "syncer default", W: "witness default"}
    assert charters.find_voter("syncer default", voters, here) == A
    assert charters.find_voter("witness default", voters, here) == W
    with pytest.raises(UserError, match=r"may be any of these: syncer .*, witness"):
        charters.find_voter("default", voters, here)
    with pytest.raises(UserError, match=r"\(syncer default, here\)"):
        charters.find_voter("syncer other", voters, here)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add-syncer", "bbbb"], '"bbbb" is not a key of 64 hex digits. `shoal syncer key`'),
        (["add-witness", "x" * 64], "is not a key of 64 hex digits"),
        (["remove-voter", "12"], "Give at least 8 digits of the key. The voters are:"),
        (["remove-voter", "12345678"], "is not the key of one of them. The voters are:"),
        (["remove-voter", "wittness one"], "is not the name or the key of one of them."),
        (["unban", "12345678"], "Banned are: there is none"),
        (["ban", "12345678"], "is not a whole key of 64 hex digits"),
    ],
)
def test_a_key_that_is_none_of_them_is_said_to_be_so(target, arguments, words, capsys):
    assert main(["project", *arguments, str(target)]) == 2
    assert words in error_of(capsys)
    assert charter_at(target).revision == 1


def test_the_last_syncer_stays_and_the_only_voter_is_not_readmitted(home, target, capsys):
    own = own_key(home).hex()
    assert main(["project", "remove-voter", own, str(target)]) == 2
    assert "A project needs a syncer among its voters" in error_of(capsys)
    assert main(["project", "readmit", own, str(target)]) == 2
    assert "reset-seat" in error_of(capsys)
    assert main(["project", "add-witness", own, str(target)]) == 2
    assert "is a voter already, with priority 50" in error_of(capsys)


def test_only_the_owner_may_and_the_message_says_whose_home_it_takes(target, tmp_path, capsys):
    other = str(tmp_path / "other")
    arguments = ["project", "ban", LEARNER, str(target), "--home", other]
    assert main(arguments) == 2
    assert "there is no owner's key in" in error_of(capsys)
    keystore.load_or_create(Home(Path(other)).identity("owner"))
    assert main(arguments) == 2
    assert "is another one" in error_of(capsys)


def test_what_is_not_signed_is_signed_first(home, tmp_path, capsys):
    (tmp_path / "new.toml").touch()
    assert main(["project", "ban", LEARNER, "new.toml"]) == 2
    assert error_of(capsys).endswith("Sign it with: shoal project sign new.toml")
    assert main(["project", "ban", LEARNER, "new.txt"]) == 2
    assert "neither a signed project" in error_of(capsys)


# Bans and values.


def test_a_ban_is_made_and_lifted(target, capsys):
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    said = capsys.readouterr().out
    assert f'[admission]\nbanned = ["{LEARNER}"]' in said
    assert charter_at(target).banned == (bytes.fromhex(LEARNER),)
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    assert charter_at(target).revision == 2, "nothing changed"
    assert main(["project", "unban", LEARNER[:8], str(target)]) == 0
    assert "not banned any more: abababab" in capsys.readouterr().out
    assert charter_at(target).banned == ()


def test_values_are_set_as_the_project_file_writes_them(target, capsys):
    changes = ["rounds.quorum=2", "rounds.apply=rebase", "outer.momentum = 0", "durability=leader"]
    assert main(["project", "set", str(target), *changes]) == 0
    said = capsys.readouterr().out
    assert "rounds.quorum = 2, was 1" in said
    assert '[rounds]\nquorum = 2\napply = "rebase"\n[seat]\ndurability = "leader"' in said
    charter = charter_at(target)
    assert (charter.rounds.quorum, charter.rounds.apply) == (2, "rebase")
    assert (charter.outer.momentum, charter.durability, charter.revision) == (0.0, "leader", 2)
    assert main(["project", "set", str(target), "rounds.quorum=2"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert charter_at(target).revision == 2


def test_the_owners_words_change_during_the_run(target, capsys):
    words = "Folk tales.\n\nFor a library."
    assert main(["project", "set", str(target), f"page.about={words}"]) == 0
    assert charter_at(target).about == words
    assert '[page]\nabout = "Folk tales.' in capsys.readouterr().out
    assert main(["project", "show", str(target)]) == 0
    assert "about       Folk tales. For a library.\n" in capsys.readouterr().out
    assert main(["project", "set", str(target), "about="]) == 0
    assert charter_at(target).about is None
    assert main(["project", "set", str(target), f"page.about={2001 * 'x'}"]) == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rounds.quorm=2", "rounds.quorm is not a setting that can be changed; did you mean "),
        ("quorum=2", "did you mean rounds.quorum?"),
        ("rounds.quorum=two", 'rounds.quorum must be an integer from 1 to 1024, not "two"'),
        ("rounds.quorum=300", "rounds.quorum must be at most limits.learners (256), not 300"),
        ("limits.tokens=1", "limits.tokens must be at least 32, one local step"),
        ("model.fragments=9", "is part of the project's identity and cannot change"),
        ("durability=most", 'seat.durability must be one of "leader", "majority", "standby"'),
        ("rounds.quorum", "is not NAME=VALUE. Write, for example, rounds.quorum=2."),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_would_be_right(
    target, setting, words, capsys
):
    assert main(["project", "set", str(target), setting]) == 2
    assert words in error_of(capsys)
    assert charter_at(target).revision == 1


# Who is told, and which revision is the newest.


def test_a_running_voter_is_handed_the_charter(target, home, voter, capsys):
    running = voter(seat(own_key(home)))
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    said = capsys.readouterr().out
    assert "sent to the running witness default" in said
    assert "when revision 2 is in force (now 1)" in said
    (taken,) = running.taken
    project = read_signed(target)
    assert open_project(project.genesis_bytes, taken).charter == project.charter


def test_a_voter_of_another_project_is_left_alone(target, home, voter, capsys):
    running = voter(seat(own_key(home)), bytes(32))
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    assert "no voter of this project answers" in capsys.readouterr().out
    assert running.taken == []


def test_one_voter_is_changed_at_a_time(target, home, voter, capsys):
    voter(seat(own_key(home)))
    assert main(["project", "add-syncer", B.hex(), str(target)]) == 0
    capsys.readouterr()
    assert main(["project", "add-witness", W.hex(), str(target)]) == 3
    assert "Revision 2 is not in force yet (that is 1)" in error_of(capsys)
    assert main(["project", "remove-voter", B.hex(), str(target)]) == 0, "it is taken back"


def test_a_removal_that_could_never_be_in_force_is_refused_with_the_way_out(
    target, home, voter, capsys
):
    make_three(target)
    capsys.readouterr()
    running = voter(seat(own_key(home), B, W, revision=3))
    running.status.seat.voters[2].is_here = False
    running.status.seat.voters[2].trouble = "this voter used another disk before"
    assert main(["project", "remove-voter", "bbbbbbbb", str(target)]) == 2
    said = error_of(capsys)
    assert "1 of 2 are no majority" in said
    assert (
        f"Readmit it first (this voter used another disk before): shoal project readmit {W.hex()}"
        in said
    )
    assert charter_at(target).revision == 3
    running.status.seat.charter_revision = 2
    assert main(["project", "readmit", W.hex(), str(target)]) == 0


def test_of_two_voters_none_is_readmitted(target, capsys):
    assert main(["project", "add-syncer", B.hex(), str(target)]) == 0
    capsys.readouterr()
    assert main(["project", "readmit", B.hex(), str(target)]) == 2
    assert "the other one alone is no majority" in error_of(capsys)


def test_it_goes_on_from_the_newest_revision_that_this_machine_knows(target, home, capsys):
    old = target.read_bytes()
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    target.write_bytes(old)
    assert main(["project", "set", str(target), "rounds.quorum=2"]) == 0
    assert "it goes on from revision 2" in capsys.readouterr().out
    charter = charter_at(target)
    assert (charter.revision, charter.banned) == (3, (bytes.fromhex(LEARNER),))


def test_a_kept_charter_counts_only_if_the_owner_signed_it(target, tmp_path):
    project = read_signed(target)
    newer = msgspec.structs.replace(project.charter, revision=9)
    stranger = keystore.load_or_create(tmp_path / "stranger.key")
    forged = msgspec.structs.replace(
        seal_project(
            msgspec.structs.replace(project.genesis, owner=stranger.key),
            msgspec.structs.replace(
                newer,
                project=project_id(
                    encode(msgspec.structs.replace(project.genesis, owner=stranger.key))
                ),
            ),
            stranger,
        ).charter
    )
    assert newest_of(project, None, forged) == project


def test_edits_of_the_project_file_still_count_as_unsigned(target, tmp_path, capsys):
    (tmp_path / "tiny.toml").touch()
    os.utime(target, (5, 5))
    assert main(["project", "ban", LEARNER, str(target)]) == 0
    assert main(["syncer", "run", "tiny.toml"]) == 2
    assert "has changed since it was signed" in error_of(capsys)


# The seat.


def stored(home: Home, project: OpenedProject, records: int = 3) -> list[CertifiedRecord]:
    """What this home's syncer certified."""
    here = keystore.load_or_create(home.identity("syncer"))
    files = VoterFiles(home.syncer_store(project.id))
    files.boot()
    entries, previous = [], NO_RECORD
    for index in range(1, records + 1):
        body = SeatTaken(here.key) if index == 1 else RunEnding("owner")
        record = Record(project.id, 0, 1, index, previous, 1.7e9, body)
        encoded = wire.encode(record)
        previous = record_hash(encoded)
        files.append(index - 1, [encoded])
        certificate = certify(record, previous, [sign_record(record, previous, here)])
        files.keep_certificate(certificate)
        entries.append(CertifiedRecord(encoded, certificate))
    files.close()
    return entries


def test_a_new_epoch_is_explained_first_and_then_begins_behind_the_last_record(
    home, target, capsys
):
    make_three(target)
    entries = stored(home, read_signed(target))
    capsys.readouterr()
    assert main(["project", "reset-seat", str(target)]) == 0
    printed = capsys.readouterr()
    assert "the last certified one in this store" in printed.out
    assert "these no longer vote" in printed.out
    assert "No voter of this project runs in this home" in printed.out
    assert "repeat the command with --yes" in printed.out
    assert charter_at(target).epoch == 0

    assert main(["project", "reset-seat", str(target), "--yes"]) == 0
    assert "epoch 1 begins behind record 3" in capsys.readouterr().out
    charter = charter_at(target)
    assert charter.epoch == 1
    assert charter.origin is not None
    assert (charter.origin.index, charter.origin.head) == (3, record_hash(entries[2].record))
    assert [voter.key for voter in charter.voters] == [own_key(home)]
    assert main(["project", "add-syncer", B.hex(), str(target)]) == 0
    assert charter_at(target).epoch == 1, "a later revision stays in the epoch"


def test_voters_that_are_left_can_be_kept(home, target, capsys):
    make_three(target)
    stored(home, read_signed(target))
    capsys.readouterr()
    keep = ["project", "reset-seat", str(target), "--yes", "--keep", "cccccccc"]
    assert main(keep) == 2
    assert "--keep must also name this host's syncer" in error_of(capsys)
    assert main([*keep, "--keep", own_key(home).hex()]) == 0
    assert [voter.key for voter in charter_at(target).voters] == [own_key(home), W]


def test_nothing_is_reset_while_a_majority_is_here(home, target, voter, capsys):
    make_three(target)
    stored(home, read_signed(target))
    capsys.readouterr()
    running = voter(seat(own_key(home), B, W, revision=3, here=2))
    assert main(["project", "reset-seat", str(target), "--yes"]) == 2
    assert "A majority of the voters is here (2 of 3)" in error_of(capsys)
    running.status.seat = seat(own_key(home), B, W, revision=3, here=1)
    assert main(["project", "reset-seat", str(target), "--yes"]) == 0
    assert len(running.taken) == 1


def test_no_store_is_replaced_below_a_syncer_that_runs(home, target, voter, capsys):
    here = seat(own_key(home))
    here.voters[0].is_self = True
    voter(here)
    reset = ["project", "reset-seat", str(target), "--from-learners", "shoal:", "--yes", "--force"]
    assert main(reset) == 2
    assert "Stop it first: shoal stop --role syncer" in error_of(capsys)


def test_without_records_there_is_nothing_to_go_on_from(home, target, capsys):
    assert main(["project", "reset-seat", str(target), "--yes"]) == 2
    assert "has no store for tiny" in error_of(capsys)
    home.syncer_store(read_signed(target).id)
    assert main(["project", "reset-seat", str(target), "--yes"]) == 2
    assert "has no certified record yet" in error_of(capsys)


# A witness on screen.


def test_a_witness_is_shown_and_stopped_like_any_other_daemon(home, target, voter, capsys):
    voter(seat(own_key(home), B, W, revision=3))
    assert main(["status"]) == 0
    said = capsys.readouterr().out
    assert "witness default" in said
    assert "All is well. Voting with bbbbbbbb" in said
    assert "certified to record 1,234" in said
    assert main(["stop", "--role", "syncer"]) == 3
    assert main(["stop", "--role", "witness"]) == 0
    assert "witness default has stopped" in capsys.readouterr().out
