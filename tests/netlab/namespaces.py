"""Network namespaces and their TUN devices, by system calls alone: no `ip`, nothing to install.

A namespace here has no name. It lives as long as a descriptor or a process of it does, so that the
kernel removes it after any end, also after a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

DEVICE: Final = b"lab0"
OWNER_VARIABLE: Final = "SHOAL_NETLAB"
"""In the environment of every process of a lab: whose it is."""

TX_PACKETS: Final = 10_000
"""Room for packets that the relay has not fetched yet: a busy moment must not look like loss."""

# From linux/sched.h, linux/mount.h, linux/prctl.h, linux/if_tun.h, linux/if.h and linux/sockios.h.
_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_BIND: Final = 0x1000
_MS_REC_PRIVATE: Final = 0x4000 | 0x40000
_PR_SET_PDEATHSIG: Final = 1
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_IFF_UP_RUNNING: Final = 0x41
_SIOCSIFFLAGS: Final = 0x8914
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
_SIOCSIFMTU: Final = 0x8922
_SIOCSIFTXQLEN: Final = 0x8943

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """What this machine lacks for a lab, as a sentence; None if nothing."""
    try:
        namespace, tun = create("10.77.0.1", mtu_bytes=1500)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return f"no network lab without root (CAP_NET_ADMIN, CAP_SYS_ADMIN): {error}"
        return f"no network lab on this machine: {error}"
    os.close(tun)
    os.close(namespace)
    return None


def create(address: str, *, mtu_bytes: int) -> tuple[int, int]:
    """Descriptors of a new namespace and of the TUN device in it. OSError if refused."""
    return in_thread(lambda: _create_here(address, mtu_bytes))


def in_thread(function: Callable[[], T]) -> T:
    """The result of `function` in a thread of its own, which may change its namespace."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # Raised again where it is waited for.
            failures.append(error)

    thread = threading.Thread(target=run, name="netlab")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def enter(namespace: int) -> None:
    """Moves the calling thread into a namespace; sockets that it opens stay there."""
    _checked(_libc.setns(namespace, _CLONE_NEWNET), "setns")


def name_hosts_by(file: Path) -> None:
    """For a child before its program starts: it finds the addresses of names in this file first.

    What is written into the file later counts too; to replace it would change nothing.
    """
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "mount")
    _checked(_libc.mount(bytes(file), b"/etc/hosts", None, _MS_BIND, None), "mount")


def move(address: str) -> None:
    """Gives the lab's device in the calling thread's namespace another address, and no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _set_address(any_socket, address)


def die_with(parent: int) -> None:
    """For a child before its program starts: it is killed when its parent ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)  # It ended before we asked to be told.


def processes_in(inodes: set[int]) -> list[int]:
    """Pids of all processes in namespaces with these inode numbers."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                found.append(pid)
    return found


def owner() -> str:
    """This process, told apart from a later one with the same pid."""
    return f"{os.getpid()}.{_started(os.getpid())}"


def kill_strays() -> list[int]:
    """Kills what processes of labs left behind whose test process is gone; their pids.

    Children of a lab die with it, but not what they had started themselves.
    """
    killed = []
    mark = f"{OWNER_VARIABLE}=".encode()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            marked = [one for one in settings if one.startswith(mark)]
            if marked and not _is_alive(marked[0].removeprefix(mark).decode()):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def _is_alive(owner: str) -> bool:
    pid, _, started = owner.partition(".")
    try:
        return _started(int(pid)) == int(started)
    except OSError:
        return False


def _started(pid: int) -> int:
    """When a process started, in clock ticks since the machine did. OSError if there is none."""
    text = Path(f"/proc/{pid}/stat").read_text()
    state, *fields = text.rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[18])


def _pids() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _create_here(address: str, mtu_bytes: int) -> tuple[int, int]:
    _checked(_libc.unshare(_CLONE_NEWNET), "unshare")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _configure(tun, address, mtu_bytes)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), tun
    except BaseException:
        os.close(tun)
        raise


def _configure(tun: int, address: str, mtu_bytes: int) -> None:
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE, _IFF_TUN_NO_PI))
    with contextlib.suppress(OSError):  # A kernel without IPv6 has nothing to be quiet about.
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _set_address(any_socket, address)
        for request, number in ((_SIOCSIFMTU, mtu_bytes), (_SIOCSIFTXQLEN, TX_PACKETS)):
            fcntl.ioctl(any_socket, request, struct.pack("16si20x", DEVICE, number))
        for device in (b"lo", DEVICE):
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", device, _IFF_UP_RUNNING))


def _set_address(any_socket: socket.socket, address: str) -> None:
    for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
        value = struct.pack("16sH2x4s16x", DEVICE, socket.AF_INET, socket.inet_aton(text))
        fcntl.ioctl(any_socket, request, value)


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
