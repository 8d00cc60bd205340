"""Questions and answers over real sockets, on the loopback of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import socket
import sys

import pytest

from host.files import keystore
from host.join_link import format_link, parse_link
from host.nearby import lan_sockets, searching
from host.nearby.answering import NearbyAnswerer
from protocol.errors import TransientError, UserError
from protocol.peers import nearby
from protocol.peers.nearby import NearbyNotice
from protocol.peers.project_code import code_of
from shoal.machine.nearby import chosen_link

pytestmark = pytest.mark.net

PROJECTS = (bytes([1]) * 32, bytes([2]) * 32)


def notice(nonce, **changes):
    told = {
        "name": "My project",
        "addresses": ("/dns4/no name/tcp/1/p2p/x", "nonsense"),
        "port": 4100,
        "learners": 2,
        "admission": "open",
        **changes,
    }
    return NearbyNotice(
        nonce,
        4321,
        told["name"],
        told["addresses"],
        told["port"],
        "syncer",
        "text",
        800_000,
        told["learners"],
        told["admission"],
    )


@contextlib.asynccontextmanager
async def answering(*answerers):
    """While they run and listen."""
    tasks = [asyncio.create_task(one.run()) for one in answerers]
    try:
        while not all(one.interfaces for one in answerers):  # noqa: ASYNC110  # Sockets tell nobody.
            await asyncio.sleep(0.01)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def own_port(monkeypatch):
    """Other daemons of this machine answer as well."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(lan_sockets, "PORT", free.getsockname()[1])


@pytest.fixture
def keys(tmp_path):
    return [keystore.load_or_create(tmp_path / f"{number}.key") for number in range(2)]


def host(key, project, listen_host="127.0.0.1", **changes):
    changed = {"is_wanted": changes.pop("is_wanted")} if "is_wanted" in changes else {}
    return NearbyAnswerer(
        project, key, listen_host, lambda nonce: notice(nonce, **changes), **changed
    )


def test_two_daemons_of_one_machine_are_both_found(keys):
    async def look():
        made = [host(key, project) for key, project in zip(keys, PROJECTS, strict=True)]
        async with answering(*made):
            return await searching.search(only_loopback=True)

    found = asyncio.run(look())
    assert {one.project for one in found} == set(PROJECTS)
    for one, key in zip(sorted(found, key=lambda one: one.project), keys, strict=True):
        link = searching.link_to(one)
        assert link.addresses == (f"/ip4/127.0.0.1/tcp/4100/p2p/{keystore.peer_id(key.key)}",)
        assert parse_link(format_link(link)) == link
    assert found.refused == 0


def test_a_daemon_for_this_machine_alone_listens_on_no_other_network(keys):
    async def look():
        made = host(keys[0], PROJECTS[0])
        async with answering(made):
            return made.interfaces

    assert asyncio.run(look()) == {"lo"}


def test_a_port_is_told_only_where_somebody_listens_on_it(keys):
    """On one address of several, or in another family, an answer may come from elsewhere."""

    async def look(listen_host):
        async with answering(host(keys[0], PROJECTS[0], listen_host)):
            search = await searching.search(
                lambda project: project == PROJECTS[0], only_loopback=True
            )
        return search.found[PROJECTS[0]]

    assert searching.link_to(asyncio.run(look("192.0.2.200"))) is None
    assert searching.link_to(asyncio.run(look("::"))) is None, "it was asked over IPv4"
    assert searching.link_to(asyncio.run(look("0.0.0.0"))) is not None
    assert searching.link_to(asyncio.run(look("all"))) is not None


@pytest.mark.parametrize(("typed", "is_joined"), [("y", True), ("", False), ("no", False)])
def test_at_a_terminal_one_project_is_asked_about(keys, monkeypatch, typed, is_joined):
    async def look():
        async with answering(host(keys[0], PROJECTS[0])):
            return await asyncio.to_thread(chosen_link, None, listen_host="127.0.0.1")

    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal, "r+b", buffering=0) as raw, os.fdopen(keyboard, "wb") as typist:
        typist.write(f"{typed}\n".encode())
        typist.flush()
        screen = io.TextIOWrapper(raw, write_through=True)
        monkeypatch.setattr(sys, "stdin", screen)
        monkeypatch.setattr(sys, "stdout", screen)
        link = asyncio.run(look())
        monkeypatch.undo()
        screen.detach()
    assert (link is not None) == is_joined


def test_who_does_not_want_it_hears_nothing(keys):
    async def look():
        silent = host(keys[0], PROJECTS[0], is_wanted=lambda: False)
        task = asyncio.create_task(silent.run())
        try:
            async with answering(host(keys[1], PROJECTS[1])):
                await searching.search(lambda project: project == PROJECTS[1], only_loopback=True)
                return silent.interfaces
        finally:
            task.cancel()

    assert asyncio.run(look()) == set()


def test_what_is_sent_to_this_host_alone_is_not_heard(keys):
    """It may come from anywhere, with a sender's address of somebody else."""

    async def is_answered(place):
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.setblocking(False)
            asker.bind(("127.0.0.1", 0))
            loopback = socket.inet_aton("127.0.0.1")
            asker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
            try:
                await loop.sock_sendto(asker, nearby.question(bytes(16)), place)
                async with asyncio.timeout(2.0):
                    return bool(await loop.sock_recv(asker, 2000))
            except (TimeoutError, ConnectionRefusedError):
                return False

    async def look():
        async with answering(host(keys[0], PROJECTS[0])):
            alone = await is_answered(("127.0.0.1", lan_sockets.PORT))
            return alone, await is_answered((lan_sockets.GROUP_4, lan_sockets.PORT))

    assert asyncio.run(look()) == (False, True)


def test_the_command_takes_the_project_of_the_code(keys, capsys):
    async def look(code):
        made = [
            host(keys[0], PROJECTS[0], name="Open one"),
            host(keys[1], PROJECTS[1], name="Closed one", admission="invite"),
        ]
        async with answering(*made):
            return await asyncio.to_thread(chosen_link, code, listen_host="127.0.0.1")

    link = parse_link(asyncio.run(look(code_of(PROJECTS[1]))))
    assert link.project == PROJECTS[1]
    assert link.invite is None
    assert "by invitation" in capsys.readouterr().out
    assert asyncio.run(look(None)) is None
    printed = capsys.readouterr().out
    assert all(code_of(project) in printed for project in PROJECTS)
    with pytest.raises(UserError, match="Found instead"):
        asyncio.run(look("otter-lamp-river-stone"))


def test_where_nobody_answers_the_command_says_what_may_be_wrong():
    with pytest.raises(TransientError, match="Nothing was found on this network"):
        chosen_link(None, listen_host="127.0.0.1")
