"""What `shoal status` says below the page: codes to compare, and what a router did."""

from __future__ import annotations

import json

import msgspec

from host.files.home import Home
from protocol.peers.project_code import code_of
from protocol.status import NetworkStatus
from shoal.__main__ import main
from tests.support.daemon_double import STATUS, FakeDaemon

ROUTER = "Its router (192.168.1.1) forwards TCP port 4200 (PCP)."


def test_status_shows_the_code_and_what_the_router_did(tmp_path, capsys):
    network = NetworkStatus(router=ROUTER)
    daemon = FakeDaemon(
        Home(tmp_path).socket("learner"), msgspec.structs.replace(STATUS, network=network)
    )
    try:
        assert main(["--home", str(tmp_path), "status"]) == 0
        printed = capsys.readouterr().out
        assert main(["--home", str(tmp_path), "status", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
    finally:
        daemon.close()
    assert f"\nthe code of tiny: {code_of(bytes(32))}\n" in printed
    assert f"\n{ROUTER}\n" in printed
    assert told["network"]["router"] == ROUTER


def test_where_no_router_was_asked_nothing_is_said_of_one(tmp_path, capsys):
    daemon = FakeDaemon(Home(tmp_path).socket("learner"))
    try:
        assert main(["--home", str(tmp_path), "status"]) == 0
    finally:
        daemon.close()
    assert "router" not in capsys.readouterr().out
