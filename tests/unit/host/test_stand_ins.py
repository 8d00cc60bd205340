"""Each call that only Linux has, and its stand-in: both ways do the same."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
import shutil
import socket
from pathlib import Path
from threading import Event

import psutil
import pytest

from host.control import client
from host.nearby import lan_sockets
from host.runtime import compute_pool, fork_server, parent_death, stand_ins
from host.runtime.descriptor_limit import allow_descriptors
from host.runtime.memory_files import MeetingFile, memory_file, take_room
from host.runtime.process_end import descriptor_of_end
from host.runtime.process_status import status_bytes
from host.runtime.received import receive
from host.runtime.short_paths import SOCKET_BYTES_MAX
from protocol.errors import UserError
from shoal.chaos.faults import disk_full


@pytest.fixture
def way(request, monkeypatch):
    monkeypatch.setenv(stand_ins.VARIABLE, request.param)
    return request.param


both = pytest.mark.parametrize("way", ["", "all"], indirect=True, ids=["native", "stand-in"])


@pytest.fixture
def _forced(monkeypatch):
    monkeypatch.setenv(stand_ins.VARIABLE, "all")


forced = pytest.mark.usefixtures("_forced")


def test_the_environment_forces_some_or_all():
    assert stand_ins.uses("memfd", {})
    assert not stand_ins.uses("memfd", {stand_ins.VARIABLE: "all"})
    some = {stand_ins.VARIABLE: "pidfd, memfd"}
    assert not stand_ins.uses("memfd", some)
    assert not stand_ins.uses("pidfd", some)
    assert stand_ins.uses("fallocate", some)


def test_a_call_that_there_is_not_is_named_with_those_there_are():
    with pytest.raises(UserError, match="names 'epoll', which has no stand-in") as told:
        stand_ins.uses("memfd", {stand_ins.VARIABLE: "epoll"})
    assert "affinity, descriptor-paths" in str(told.value)


def test_what_the_system_lacks_has_a_stand_in_unforced(monkeypatch):
    monkeypatch.setitem(stand_ins.AVAILABLE, "memfd", False)
    assert not stand_ins.uses("memfd", {})


@both
@pytest.mark.parametrize("size", [1, (1 << 20) + 17])
def test_a_memory_file_has_its_room_and_no_name(way, size):
    descriptor = memory_file("test", size)
    try:
        found = os.fstat(descriptor)
        assert (found.st_size, found.st_nlink) == (size, 0)
        assert found.st_blocks * 512 >= size
        with mmap.mmap(descriptor, size) as ours, mmap.mmap(descriptor, size) as theirs:
            assert ours[:] == bytes(size)
            ours[size - 1] = 7
            assert theirs[size - 1] == 7
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


@both
def test_taking_room_keeps_what_is_there(way, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"here")
    with path.open("r+b") as file:
        take_room(file.fileno(), 3)
        assert path.read_bytes() == b"here"
        take_room(file.fileno(), 3_000_000)
    assert path.read_bytes() == b"here" + bytes(3_000_000 - 4)


@both
def test_processes_meet_at_a_path(way, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    meeting = MeetingFile("test")
    Path(meeting.path).write_bytes(b"first")
    assert Path(meeting.path).read_bytes() == b"first"
    assert bool(meeting.keep) == (way == "")
    assert bool(list(tmp_path.iterdir())) == (way == "all")
    meeting.close()
    assert list(tmp_path.iterdir()) == []
    for descriptor in meeting.keep:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@forced
def test_a_meeting_whose_folder_somebody_removed_ends_in_peace():
    meeting = MeetingFile("test")
    shutil.rmtree(Path(meeting.path).parent)
    meeting.close()
    assert not Path(meeting.path).parent.exists()


class Child:
    """A process that ends when it is told to."""

    pid = 12345

    def __init__(self):
        self.ended = Event()

    def wait(self):
        assert self.ended.wait(60.0)
        return 0


@forced
def test_the_end_of_a_child_is_readable_once_it_came():
    child = Child()
    descriptor = descriptor_of_end(child)
    try:
        assert select.select([descriptor], [], [], 0.0)[0] == []
        child.ended.set()
        assert select.select([descriptor], [], [], 60.0)[0] == [descriptor]
        assert os.read(descriptor, 1) == b""
    finally:
        os.close(descriptor)


@both
def test_received_descriptors_are_for_us_alone(way):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(BlockingIOError):
            receive(ours, 100, 4)
        socket.send_fds(theirs, [b"two"], [0, 1])
        piece, descriptors = receive(ours, 100, 4)
        assert (piece, len(descriptors)) == (b"two", 2)
        assert [os.get_inheritable(one) for one in descriptors] == [False, False]
        for one in descriptors:
            os.close(one)
        theirs.close()
        assert receive(ours, 100, 4) == (b"", [])


@both
def test_a_socket_may_lie_deeper_than_an_address_is_long(way, tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    before = set(Path("/tmp").glob("shoal-*"))
    with client.reachable(deep / "socket") as address:
        assert len(address) <= SOCKET_BYTES_MAX
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            with (
                client.reachable(deep / "socket") as again,
                socket.socket(socket.AF_UNIX) as asking,
            ):
                asking.connect(again)
    assert (deep / "socket").is_socket()
    assert set(Path("/tmp").glob("shoal-*")) <= before


@both
def test_a_folder_that_is_not_there_is_an_error(way, tmp_path):
    lost = tmp_path / ("d" * 60) / ("e" * 60) / "socket"
    with pytest.raises(OSError, match=r"No such file|no folder"), client.reachable(lost):
        pass


@both
def test_memory_is_counted_in_bytes(way):
    resident = psutil.Process().memory_info().rss
    assert status_bytes("VmRSS") == pytest.approx(resident, rel=0.2)
    assert status_bytes("VmHWM") > 0.8 * resident
    assert (status_bytes("VmData") is None) == (way == "all")


@forced
def test_cores_are_those_of_the_machine_where_nobody_says_which_are_ours():
    assert compute_pool.available() == os.cpu_count()


@forced
def test_no_fork_server_is_offered():
    assert not fork_server.is_available()


def test_a_program_is_bound_before_it_runs_or_by_its_environment(monkeypatch):
    monkeypatch.setenv(stand_ins.VARIABLE, "")
    assert callable(parent_death.before_exec(15))
    assert parent_death.environment_for(15) == {}
    monkeypatch.setenv(stand_ins.VARIABLE, "parent-death")
    assert parent_death.before_exec(15) is None
    assert parent_death.environment_for(15) == {parent_death.VARIABLE: "15"}


@forced
def test_the_group_is_heard_on_an_interface_of_our_own(monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(lan_sockets, "PORT", free.getsockname()[1])
    places = [
        one for one in lan_sockets.interfaces(only_loopback=True) if one.family == socket.AF_INET
    ]
    with contextlib.ExitStack() as held:
        listening = lan_sockets.opened(places, lan_sockets.listening)
        asking = lan_sockets.opened(places, lan_sockets.asking)
        for one in (*listening.values(), *asking.values()):
            held.enter_context(one)
        (ear,), (mouth,) = listening.values(), asking.values()
        mouth.sendto(b"who is here?", places[0].group)
        assert select.select([ear], [], [], 60.0)[0] == [ear]
        assert ear.recv(100) == b"who is here?"


def test_a_signal_that_there_is_not_is_named(monkeypatch):
    monkeypatch.setenv(parent_death.VARIABLE, "TERM")
    with pytest.raises(UserError, match="is 'TERM', which is no signal's number"):
        parent_death.obey()
    assert parent_death.VARIABLE not in os.environ
    parent_death.obey()  # Nobody asked.


@pytest.mark.parametrize(
    ("soft", "hard", "ceiling", "asked", "left"),
    [
        (1024, 4096, 9999, [4096], 4096),
        (256, resource.RLIM_INFINITY, 10_240, [16_384, 8192], 8192),
        (20_000, 50_000, 99_999, [], 20_000),
        (1024, 4096, 0, [4096, 2048], 1024),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 0, [], 16_384),
    ],
)
def test_as_many_descriptors_are_allowed_as_the_system_lets_us(
    monkeypatch, soft, hard, ceiling, asked, left
):
    tried = []

    def setting(kind, limits):
        tried.append(limits[0])
        if limits[0] > ceiling:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setting)
    assert allow_descriptors(16_384) == left
    assert tried == asked


def test_a_disk_seems_full_on_linux_only():
    with pytest.raises(UserError, match="only Linux bounds the files"), disk_full(object()):
        pass
