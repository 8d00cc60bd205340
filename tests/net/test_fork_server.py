"""Processes that are forked from one that has imported everything already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from host.runtime import fork_server
from host.runtime.fork_server import VARIABLE, Forked, ForkServer
from host.runtime.python_path import python_path

pytestmark = [pytest.mark.net, pytest.mark.bare]

LIMIT_S = 120.0


def until(look):
    ends_s = time.monotonic() + LIMIT_S
    while not (found := look()) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert found
    return found


def environment_of(socket_path):
    return {**os.environ, "PYTHONPATH": python_path(), VARIABLE: str(socket_path)}


def serving(folder, log):
    environment = {**os.environ, "PYTHONPATH": python_path()}
    return ForkServer(folder, ["tests.support.imported_once"], environment, log)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fork-server")
    made = serving(folder, folder / "log")
    until(lambda: made.is_ready or not made.is_running)
    yield made
    made.close()
    assert not made.path.exists()


@pytest.fixture
def environment(server):
    return environment_of(server.path)


class Program:
    """`tests.support.forked` with what it printed."""

    def __init__(self, folder: Path, environment, *words, keep=(), place=None):
        self.path = folder / "said"
        with self.path.open("wb") as said:
            self.process = fork_server.start(
                "tests.support.forked",
                words,
                environment=environment,
                output=said.fileno(),
                errors=said.fileno(),
                keep=keep,
                folder=place,
            )

    def ended(self):
        return self.process.wait(LIMIT_S)

    def said(self):
        return self.path.read_text()


def test_it_has_what_was_imported(tmp_path, environment):
    program = Program(tmp_path, environment, "is-forked")
    assert program.ended() == 0
    assert program.said() == "True\n"
    assert isinstance(program.process, Forked)


def test_without_a_server_an_interpreter_starts(tmp_path, environment):
    del environment[VARIABLE]
    program = Program(tmp_path, environment, "is-forked")
    assert program.ended() == 0
    assert program.said() == "False\n"


@pytest.mark.parametrize("is_forked", [True, False])
def test_arguments_environment_and_folder_arrive(tmp_path, environment, is_forked):
    if not is_forked:
        del environment[VARIABLE]
    place = tmp_path / "place"
    place.mkdir()
    words = ["tell", "a b", "--c"]
    program = Program(tmp_path, environment | {"WORD": "heron"}, *words, place=place)
    assert program.ended() == 0
    assert program.said() == f"['a b', '--c']|heron|{place}|{is_forked}\n"


def test_descriptors_keep_their_numbers(tmp_path, environment):
    reading, writing = os.pipe()
    program = Program(tmp_path, environment, "write", str(writing), keep=(writing,))
    os.close(writing)
    assert program.ended() == 0
    assert os.read(reading, 100) == b"through the descriptor"
    assert os.read(reading, 100) == b"", "the server kept the other end open"
    os.close(reading)


@pytest.mark.parametrize(("words", "code"), [(("leave", "17"), 17), (("fail",), 1)])
def test_the_exit_code_is_told(tmp_path, environment, words, code):
    program = Program(tmp_path, environment, *words)
    assert program.ended() == code
    assert program.process.poll() == program.process.returncode == code
    assert ("on purpose" in program.said()) == (words == ("fail",))


def test_a_signal_ends_it_and_is_told(tmp_path, environment):
    program = Program(tmp_path, environment, "stay")
    until(program.said)
    assert program.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.process.wait(0.01)
    program.process.send_signal(signal.SIGTERM)
    assert program.ended() == -signal.SIGTERM
    program.process.kill()  # Of one that has ended: nothing happens.


ASKING = """
import os, sys, time
from host.runtime import fork_server
process = fork_server.start(
    "tests.support.forked", ["stay"], environment=os.environ, output=1, errors=2
)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_who_asked_for_it(environment):
    asking = subprocess.Popen(
        [sys.executable, "-P", "-c", ASKING], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert asking.stdout is not None
    words = {asking.stdout.readline().strip() for _ in range(2)}
    (pid,) = words - {"staying"}
    child = psutil.Process(int(pid))
    asking.kill()
    asking.wait()
    until(lambda: not child.is_running())
    asking.stdout.close()


def test_it_ends_with_its_server(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    server = serving(folder, tmp_path / "log")
    until(lambda: server.is_ready)
    environment = environment_of(server.path)
    program = Program(tmp_path, environment, "stay")
    until(program.said)
    server.close()
    assert program.ended() == -signal.SIGKILL
    again = Program(tmp_path, environment, "is-forked")
    assert again.ended() == 0
    assert again.said() == "False\n", "an interpreter serves when the server is gone"


def test_what_libraries_read_while_imported_cannot_be_changed(tmp_path, environment):
    program = Program(tmp_path, environment | {"HF_HOME": str(tmp_path)}, "is-forked")
    assert program.ended() == 0
    assert program.said() == "False\n"


def test_its_folder_is_closed_to_others(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    log = tmp_path / "log"
    server = serving(folder, log)
    until(lambda: not server.is_running)
    assert "closed to others" in log.read_text()
    server.close()


def test_nonsense_is_refused_and_the_next_is_served(tmp_path, server, environment):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(str(server.path))
        link.send(b"\x81nonsense")
        assert link.recv(100) == b""
    program = Program(tmp_path, environment, "is-forked")
    assert program.ended() == 0
    assert program.said() == "True\n"


def test_a_process_runs_to_its_end_within_its_time(environment):
    code, said = fork_server.run(
        "tests.support.forked", ["fail"], environment=environment, timeout_s=LIMIT_S
    )
    assert code == 1
    assert said.splitlines()[-1] == "RuntimeError: on purpose"
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run("tests.support.forked", ["stay"], environment=environment, timeout_s=0.2)
