"""Starting voters by a join link, giving the seat away, and the witness's daemon."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import msgspec
import pytest

from host.files import keystore
from host.files.home import Daemon, Home
from host.files.signed_project import read_signed, seal_project, write_signed
from host.join_link import JoinLink, format_link
from host.nat.knocking import Knocking
from host.nat.reachability import Reachability
from host.nat.relay import Relay
from host.network.rate_limit import RateLimiter
from host.options import WitnessOptions
from host.runtime.checked_files import read_checked
from host.transport import Traffic, TransportState
from protocol import wire
from protocol.errors import TransientError, UserError
from protocol.machine import Do, Started, Stop, StopAsked
from protocol.project import Voter, encode, project_id
from protocol.status import (
    NetworkStatus,
    ProjectStatus,
    SeatStatus,
    SwarmStatus,
    SyncerStatus,
)
from shoal.__main__ import main
from shoal.machine import voter_commands
from simulator.stand_ins.tiny import tiny_project
from syncer_node.daemon import syncer_daemon, witness_daemon
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.jobs import BallotSaved, SaveBallot
from tests.support.daemon_double import FakeDaemon

PEER = "12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"
ADDRESS = f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER}"
OWN, OTHER = "aa" * 32, "bb" * 32


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def target(home, tmp_path):
    """A signed project that this home's syncer and witness vote for, and a stranger."""
    owner = keystore.load_or_create(home.identity("owner"))
    voters = (
        Voter(keystore.load_or_create(home.identity("syncer")).key, "syncer", 10),
        Voter(b"\xbb" * 32, "syncer", 5),
        Voter(keystore.load_or_create(home.identity("witness")).key, "witness", 0),
    )
    tiny = tiny_project(voters[0].key, voters=voters)
    genesis = msgspec.structs.replace(tiny.genesis, owner=owner.key)
    charter = msgspec.structs.replace(tiny.charter, project=project_id(encode(genesis)))
    path = tmp_path / "tiny.shoal"
    write_signed(path, seal_project(genesis, charter, owner))
    return path


def link_to(project: bytes) -> str:
    return format_link(JoinLink(project, 100, "tiny", (ADDRESS,)))


def error_of(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("error: ")


# Starting.


@pytest.mark.parametrize(
    ("role", "module"), [("syncer", syncer_daemon), ("witness", witness_daemon)]
)
def test_a_join_links_hosts_must_answer_at_first_and_may_later(
    home, target, role, module, monkeypatch
):
    got = []
    monkeypatch.setattr(module, "run", lambda options: got.append(options) or 0)
    project = read_signed(target)
    arguments = [role, "run", str(target), "--join", link_to(project.id)]
    assert main(arguments) == 0
    (home.voter_store(project.id, role) / "ballot").touch()
    assert main(arguments) == 0
    first, later = got
    assert (first.bootstrap, first.hints) == ((ADDRESS,), ())
    assert (later.bootstrap, later.hints) == ((), (ADDRESS,))
    assert first.port == {"syncer": 4100, "witness": 4101}[role]
    assert read_signed(home.project_file(project.id)).id == project.id


def test_a_link_to_another_project_is_named(target, capsys):
    assert main(["witness", "run", str(target), "--join", link_to(bytes(32))]) == 2
    assert "This link leads to the project tiny (00000000), but" in error_of(capsys)
    assert main(["witness", "run", str(target), "--join", "http://example.org"]) == 2
    assert "A join link begins with" in error_of(capsys)


def test_a_witness_serves_a_page_only_where_it_can_follow_the_leader(target, capsys):
    assert main(["witness", "run", str(target), "--page", "127.0.0.1:0"]) == 2
    assert "give the project's join link with --join" in error_of(capsys)


def test_a_witness_that_is_no_voter_says_what_its_owner_must_do(home, target, capsys):
    key = keystore.load_or_create(home.identity("witness", "two")).key.hex()
    assert main(["witness", "run", str(target), "--instance", "two"]) == 2
    message = error_of(capsys)
    assert "is not among the witnesses of" in message
    assert f"shoal project add-witness {key} PROJECT" in message


# Draining.


def syncer(leader: str, sentence: str = "All is well.") -> SyncerStatus:
    return SyncerStatus(
        key=OWN,
        name="default",
        pid=1,
        version="0",
        uptime_s=1.0,
        phase="training",
        sentence=sentence,
        join_link="",
        project=ProjectStatus(
            id="00", name="tiny", fragments=1, parameters=1, token_budget=1, local_steps=1, quorum=1
        ),
        swarm=SwarmStatus(),
        network=NetworkStatus(),
        seat=SeatStatus(role="leading", epoch=0, term=4, leader=leader),
    )


@pytest.fixture
def drained(home, monkeypatch):
    """Lets a syncer say this on being drained, and be seen like that afterwards."""

    def stage(answer, statuses=()):
        def call(path, verb, **fields):
            assert verb == "drain"
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        found = [Daemon("syncer", "default", home.root / "socket")]
        monkeypatch.setattr(voter_commands.daemons, "find_daemons", lambda *_, **__: found)
        monkeypatch.setattr(voter_commands.client, "call", call)
        monkeypatch.setattr(voter_commands.daemons, "statuses_of", lambda *_, **__: iter(statuses))

    return stage


LEADING = {"was_leading": True, "standbys": [OTHER]}


def test_draining_waits_until_another_one_leads_and_says_who(drained, capsys):
    handing = "Handing the seat over to a standby."
    drained(LEADING, [syncer(OWN, handing), syncer(OWN, handing), syncer(""), syncer(OTHER)])
    assert main(["syncer", "drain"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0]
        == "syncer default ends the rounds in flight and hands over the lead; ready: bbbbbbbb"
    )
    assert said.count(handing) == 1
    assert said[-1].startswith("syncer bbbbbbbb leads in term 4, after ")


def test_draining_what_does_not_lead_says_so(drained, capsys):
    drained({"was_leading": False, "standbys": []})
    assert main(["syncer", "drain"]) == 0
    assert "syncer default does not lead." in capsys.readouterr().out


def test_a_drain_that_does_not_come_about_has_its_own_exit_code(drained, capsys):
    drained(LEADING, [syncer(OWN)])
    assert main(["syncer", "drain"]) == 3
    assert "No other syncer leads after 60 s" in error_of(capsys)
    drained(UserError("No standby is up to date."))
    assert main(["syncer", "drain"]) == 2
    drained(TransientError("away"))
    assert main(["syncer", "drain"]) == 3


def test_a_syncer_is_drained_by_the_name_or_key_that_status_shows(home, capsys):
    answers = {"drain": {"was_leading": False, "standbys": []}}
    with contextlib.ExitStack() as running:
        for name, key in (("default", OWN), ("second", OTHER)):
            status = msgspec.structs.replace(syncer(OWN), key=key, name=name)
            path = home.socket("syncer", name)
            running.enter_context(contextlib.closing(FakeDaemon(path, status, answers=answers)))
        for text in ("second", "syncer second", OTHER[:8], f"syncer {OTHER[:8]}"):
            assert main(["syncer", "drain", text]) == 0
            assert "syncer second does not lead." in capsys.readouterr().out
        assert main(["syncer", "drain", "third"]) == 2
    said = error_of(capsys)
    assert '"third" is no syncer that runs on this machine' in said
    assert f"syncer default ({OWN[:16]}…), syncer second ({OTHER[:16]}…)" in said


# The witness's daemon.


class StubTransport:
    """A transport that nobody calls."""

    port_outside = 4101
    shaper = RateLimiter()

    def __init__(self, identity) -> None:
        self.key, self.faults, self.traffic = identity.key, {}, Traffic()
        self.state = TransportState(is_up=True)
        self.bulk = SimpleNamespace(channels=SimpleNamespace(known=[], port=0))
        self.reachability = Reachability(self, lambda key, addresses: None, carries=lambda: False)
        self.relay = Relay(self, identity, 0, own_addresses=tuple)
        self.knocking = Knocking(lambda key: [], self.is_connected)

    def connected(self):
        return set()

    async def is_connected(self, key):
        return False

    def addresses(self):
        return []

    def peers(self):
        return []

    def serve_control(self, handler):
        pass


@pytest.fixture
def witness(home, target):
    identity = keystore.load_or_create(home.identity("witness"))
    made = witness_daemon.WitnessDaemon(
        WitnessOptions(home=home, project_path=target),
        read_signed(target),
        identity,
        StubTransport(identity),
    )
    yield made
    made.disk_pool.shutdown()
    made.files.close()


def test_a_witness_says_who_is_missing_for_the_first_election(witness):
    witness.machine.handle(Started(), time.monotonic())
    status = witness.snapshot()
    assert status.sentence.startswith("No leader: the first election needs every voter once;")
    assert (status.seat.role, status.log_index, status.stored_from) == ("following", 0, 1)
    assert [row.role for row in status.seat.voters] == ["syncer", "syncer", "witness"]


def test_a_witness_that_is_asked_to_stop_stops(witness):
    effects = witness.machine.handle(StopAsked("asked"), time.monotonic())
    assert Stop("asked") in effects


def test_a_witnesses_ballot_is_on_disk_before_it_is_said_to_be(witness):
    ballot = msgspec.structs.replace(witness.machine.raft.context.ballot, term=7)
    assert asyncio.run(witness.run_job(SaveBallot(ballot))) == BallotSaved(ballot)
    kept = msgspec.msgpack.decode(read_checked(witness.files.root / "ballot"), type=Ballot)
    assert kept.term == 7


def test_a_witness_takes_the_owners_charter_and_nobody_elses(witness, home, target):
    project = read_signed(target)
    owner = keystore.load_or_create(home.identity("owner"))
    newer = msgspec.structs.replace(project.charter, revision=5)
    sealed = seal_project(project.genesis, newer, owner).charter
    forged = msgspec.structs.replace(sealed, signature=bytes(64))
    # The driver does not run here: what the machine asks for is carried out at once.
    witness.driver.ask = lambda question: [
        witness.act(effect.action) for effect in question(0.0) if isinstance(effect, Do)
    ]
    for wrong in (wire.encode(forged).hex(), "zz", ""):
        with pytest.raises(UserError, match="The charter was rejected"):
            witness._take_charter({"envelope": wrong})
    assert witness._take_charter({"envelope": wire.encode(sealed).hex()}) == {"revision": 5}
    assert witness.files.charter() == sealed, "for the next start"
