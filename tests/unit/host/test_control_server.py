"""The daemon's local socket and the light client that `shoal status` uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from host.control import client
from host.control.server import ControlServer
from protocol import limits
from protocol.errors import InternalError, MalformedMessage, TransientError, UserError


def run_with(path, handlers, ask):
    """Runs `ask()` in a thread while a server answers at `path`."""

    async def main():
        server = ControlServer(path, handlers)
        await server.start()
        try:
            async with asyncio.timeout(60):
                return await asyncio.to_thread(ask)
        finally:
            await server.close()

    return asyncio.run(main())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "control.sock"


def refuse(error):
    def verb(fields):
        raise error

    return verb


def test_a_verb_gets_its_fields_and_answers(path):
    def add(fields):
        return {"sum": fields["a"] + fields["b"]}

    answer = run_with(path, {"add": add}, lambda: client.call(path, "add", a=2, b=3))
    assert answer == {"sum": 5}


def test_verbs_may_be_asynchronous(path):
    async def status(fields):
        await asyncio.sleep(0)
        return {"state": "training", "digest": b"\0\1"}

    answer = run_with(path, {"status": status}, lambda: client.call(path, "status"))
    assert answer == {"state": "training", "digest": b"\0\1"}


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (UserError("no such project"), UserError),
        (TransientError("disk full"), TransientError),
        (InternalError("broken"), InternalError),
        (RuntimeError("bug"), InternalError),
    ],
)
def test_errors_reach_the_asker_with_their_blame(path, raised, seen):
    with pytest.raises(seen, match=str(raised)):
        run_with(path, {"x": refuse(raised)}, lambda: client.call(path, "x"))


def test_an_unknown_verb_is_refused_with_those_that_exist(path):
    with pytest.raises(UserError, match="it knows: pause, status"):
        run_with(
            path,
            {"status": dict, "pause": dict},
            lambda: client.call(path, "explode"),
        )


def test_a_failing_verb_leaves_the_server_alive(path):
    def ask():
        with pytest.raises(InternalError):
            client.call(path, "bug")
        return client.call(path, "fine")

    assert run_with(path, {"bug": refuse(ValueError()), "fine": lambda _: {"n": 1}}, ask) == {
        "n": 1
    }


def test_a_connection_stays_open_from_one_question_to_the_next(path):
    viewers = []

    class Server(ControlServer):
        async def _serve(self, reader, writer):
            viewers.append(writer)
            await super()._serve(reader, writer)

    async def main():
        server = Server(path, {"add": lambda fields: {"sum": fields["a"] + 1}})
        await server.start()
        connection = client.Connection(path)
        try:
            return [
                await asyncio.to_thread(connection.ask, "add", dict[str, Any], a=number)
                for number in range(3)
            ]
        finally:
            connection.close()
            await server.close()

    assert [answer["sum"] for answer in asyncio.run(main())] == [1, 2, 3]
    assert len(viewers) == 1


def test_a_connection_is_made_anew_when_the_daemon_restarted(path):
    connection = client.Connection(path)

    def ask():
        return connection.ask("who", dict[str, Any])["n"]

    assert run_with(path, {"who": lambda _: {"n": 1}}, ask) == 1
    with pytest.raises(TransientError, match="No daemon answers at"):
        ask()
    assert run_with(path, {"who": lambda _: {"n": 2}}, ask) == 2
    assert run_with(path, {"who": lambda _: {"n": 3}}, ask) == 3, "it was open and broke"
    connection.close()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(path):
    async def slow(fields):
        await asyncio.sleep(fields["for_s"])
        return {"n": fields["n"]}

    def ask():
        connection = client.Connection(path)
        with pytest.raises(TransientError, match="did not answer"):
            connection.ask("slow", dict[str, Any], 0.05, for_s=0.2, n=1)
        answer = connection.ask("slow", dict[str, Any], for_s=0.2, n=2)
        connection.close()
        return answer["n"]

    assert run_with(path, {"slow": slow}, ask) == 2


def test_an_answer_of_another_shape_is_of_another_version(path):
    class Wanted(Struct):
        state: str

    def ask():
        with contextlib.closing(client.Connection(path)) as connection:
            connection.ask("status", Wanted)

    with pytest.raises(MalformedMessage, match="another version of Shoal"):
        run_with(path, {"status": lambda _: {"state": 3}}, ask)


def test_only_the_user_gets_in(path):
    def modes():
        return [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent)]

    assert run_with(path, {}, modes) == [0o600, 0o700]


def test_an_open_directory_is_refused_with_the_command_that_closes_it(path):
    path.parent.mkdir()
    path.parent.chmod(0o755)
    with pytest.raises(UserError, match="chmod 700"):
        run_with(path, {}, lambda: None)


def test_no_daemon_is_said_in_words(path):
    with pytest.raises(TransientError, match="No daemon answers at"):
        client.call(path, "status")


def test_the_socket_of_a_killed_daemon_is_replaced(path):
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with pytest.raises(TransientError):
        client.call(path, "status")
    answer = run_with(path, {"status": lambda _: {"n": 1}}, lambda: client.call(path, "status"))
    assert answer == {"n": 1}
    assert not path.exists()


async def looked(path, *damages):
    """What `status` answers once the server has looked after each of these."""
    server = ControlServer(path, {"status": lambda _: {"state": "up"}})
    await server.start()
    try:
        for damage in damages:
            damage(path)
            await server.look()
        return await asyncio.to_thread(client.call, path, "status")
    finally:
        await server.close()


@pytest.mark.parametrize("remove", [Path.unlink, lambda path: shutil.rmtree(path.parent)])
def test_a_socket_that_somebody_removed_is_made_again(path, remove, caplog):
    assert asyncio.run(looked(path, remove)) == {"state": "up"}
    assert not path.exists(), "it is removed with its server"
    assert "made it again" in caplog.text


def test_a_socket_is_made_with_the_same_rights(path):
    seen = []
    asyncio.run(looked(path, Path.unlink, lambda path: seen.append(path.stat().st_mode)))
    assert [stat.S_IMODE(mode) for mode in seen] == [0o600]


def test_a_place_that_is_closed_to_the_socket_is_said_once(path, caplog):
    def block(path):
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")

    damages = (block, lambda _: None, lambda path: path.parent.unlink())
    assert asyncio.run(looked(path, *damages)) == {"state": "up"}
    assert caplog.text.count("cannot be made") == 1


def test_what_stands_in_the_place_of_the_socket_is_left_alone(path):
    def replace(path):
        path.unlink()
        path.write_text("mine")

    with pytest.raises(TransientError):
        asyncio.run(looked(path, replace))
    assert path.read_text() == "mine"


def test_the_socket_of_a_live_daemon_is_refused(path):
    def second():
        run_with(path, {}, lambda: None)

    with pytest.raises(UserError, match="already answers"):
        run_with(path, {}, second)


def test_a_file_in_the_way_is_left_alone(path):
    path.parent.mkdir(mode=0o700)
    path.write_text("precious")
    with pytest.raises(UserError, match="not a socket"):
        run_with(path, {}, lambda: None)
    assert path.read_text() == "precious"


def test_paths_longer_than_a_socket_address_work(tmp_path):
    path = tmp_path / ("d" * 100) / ("e" * 100) / "control.sock"
    assert len(os.fsencode(path)) > 107
    answer = run_with(path, {"status": lambda _: {"n": 1}}, lambda: client.call(path, "status"))
    assert answer == {"n": 1}


def test_a_daemon_that_hangs_is_given_up_in_time(path):
    async def hang(fields):
        await asyncio.Event().wait()

    def ask():
        with pytest.raises(TransientError, match=r"within 0\.2 s"):
            client.call(path, "hang", 0.2)

    run_with(path, {"hang": hang}, ask)


def test_an_oversize_request_ends_the_connection(path):
    def ask():
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(60)
            wire.connect(str(path))
            wire.sendall((limits.FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
            return wire.recv(1)

    assert run_with(path, {}, ask) == b""


def test_garbage_is_answered_with_a_refusal(path):
    def ask():
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(60)
            wire.connect(str(path))
            wire.sendall(b"\0\0\0\3abc")
            return wire.recv(1000)

    assert b"not a MessagePack map" in run_with(path, {}, ask)


def test_a_foreign_program_behind_the_socket_is_recognised(path):
    path.parent.mkdir(mode=0o700)

    async def main():
        async def shout(reader, writer):
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_unix_server(shout, path=str(path)):
            with pytest.raises(MalformedMessage):
                await asyncio.to_thread(client.call, path, "status")

    asyncio.run(main())


def test_the_client_starts_without_the_heavy_libraries():
    code = (
        "import sys, host.control.client; "
        "heavy = {'asyncio', 'torch', 'hivemind', 'cryptography', 'numpy'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
