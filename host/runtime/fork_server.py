"""A process that has imported what is slow to import, and forks itself for others on this machine.

Importing the libraries of a trainer takes seconds of a core, and a swarm on one machine starts many
trainers. Who starts such a swarm starts one fork server first, and names its socket to its children
in `VARIABLE`. Where none is named, or it cannot serve, `start` runs an interpreter as always.

A forked process has the environment, the folder and the descriptors of who asked for it, a session
of its own, and calls the same `main`. It lives no longer than who asked (its end of the connection
closes) and than the server. It cannot have settings that libraries read while they are imported:
such requests are refused. Nothing computes in the server itself, so no thread and no accelerator is
copied by a fork.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from host.runtime import garbage, stand_ins
from host.runtime.parent_death import end_with_parent
from protocol import decoders

VARIABLE: Final = "SHOAL_FORK_SERVER"
"""Environment: the socket of a fork server. Only for a swarm whose starter made that server."""

READ_WHILE_IMPORTED: Final = (
    "ACCELERATE_",
    "CUDA_",
    "HF_",
    "LD_",
    "PYTHONPATH",
    "PYTORCH_",
    "TORCH",
    "TRANSFORMERS_",
    "XLA_",
)
"""Beginnings of variables that libraries look at once; a change of them comes too late."""

REQUEST_BYTES_MAX: Final = 1 << 17
DESCRIPTORS_MAX: Final = 16
ANSWER_S: Final = 20.0
"""A fork takes milliseconds. Who does not answer by then is given up, and what it may have forked
since ends with the connection."""

STATUS: Final = struct.Struct("!ii")
"""Process id and exit code as `subprocess` counts it; the code means nothing before the end."""

REFUSED: Final = 0
"""In place of a process id, which nobody is told: the connection closes."""

COPIES_FROM: Final = 256
"""Where descriptors wait until their numbers are free."""


class Request(msgspec.Struct, frozen=True):
    """What to run, sent with the descriptors that it shall have."""

    module: str
    """Its `main()` is called, which reads `sys.argv`."""
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    numbers: list[int]
    """Of the descriptors in the new process, 0, 1 and 2 first."""


class Started(Protocol):
    """A child process, forked by a server or started by `subprocess`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def is_available() -> bool:
    """Whether this system has what a fork server needs; stand-ins are not worth their while."""
    return stand_ins.uses("pidfd") and stand_ins.uses("seqpacket")


class Refused(Exception):
    """The server cannot serve this request."""


# --------------------------------------------------------------------------------- asking for one


@dataclass(eq=False)
class Forked:
    """A process that a fork server made for us; it ends with this object's connection."""

    pid: int
    returncode: int | None = None
    _link: socket.socket | None = None
    _pidfd: int = -1

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, minus the number of the signal if one ended it.

        TimeoutExpired after `timeout` seconds.
        """
        if self.returncode is None:
            assert self._link is not None
            self._link.settimeout(timeout)
            try:
                answer = self._link.recv(STATUS.size)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from error
            except ConnectionResetError:
                answer = b""
            # A server that ends takes its children with it.
            self.returncode = STATUS.unpack(answer)[1] if answer else -signal.SIGKILL
            self._link.close()
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Never hits another process, nor fails when this one has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: int,
    errors: int,
    keep: Sequence[int] = (),
    folder: Path | None = None,
) -> Started:
    """Runs `main` of a module in a process that reads nothing; OSError if none can be started.

    output and errors are descriptors, and those in `keep` have the same numbers there. folder:
    where it runs, unless here.
    """
    place = folder or Path.cwd()
    path = environment.get(VARIABLE)
    if path is not None and is_available():
        with contextlib.suppress(Refused, OSError):
            numbers = [0, 1, 2, *keep]
            request = Request(module, list(arguments), dict(environment), str(place), numbers)
            return _ask(path, request, [output, errors, *keep])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        pass_fds=tuple(keep),
        cwd=place,
    )


def run(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """As `start`, to its end: exit code, and what it wrote to stderr.

    What it prints elsewhere is nobody's. subprocess.TimeoutExpired when it is ended for its time.
    """
    with tempfile.TemporaryFile() as errors, open(os.devnull, "wb") as nothing:
        process = start(
            module,
            arguments,
            environment=environment,
            output=nothing.fileno(),
            errors=errors.fileno(),
        )
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()  # Nothing happens to one that has ended.
            process.wait()
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def _ask(path: str, request: Request, descriptors: Sequence[int]) -> Forked:
    """Raises Refused, or OSError if nobody listens. descriptors: all but the first of `numbers`."""
    with contextlib.ExitStack() as held:
        link = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        nothing = held.enter_context(open(os.devnull, "rb"))
        link.settimeout(ANSWER_S)
        link.connect(path)
        numbers = [nothing.fileno(), *descriptors]
        socket.send_fds(link, [msgspec.msgpack.encode(request)], numbers)
        # The server's own: this process may have ended and been collected by now.
        answer, pidfds, _, _ = socket.recv_fds(link, STATUS.size, 1)
        if not pidfds:
            raise Refused(request.module)
        held.pop_all()
        nothing.close()
        return Forked(STATUS.unpack(answer)[0], _link=link, _pidfd=pidfds[0])


class ForkServer:
    """A server that was started here, and ends with us or when it is closed."""

    def __init__(
        self, folder: Path, modules: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Starts importing `modules`. The socket lies in `folder`, which only we may enter."""
        self.path = folder / "fork-server"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "host.runtime.fork_server"),
                    *("--socket", str(self.path), *modules),
                ],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything."""
        return self.path.exists()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it, and whatever it forked that still runs."""
        self._process.kill()
        self._process.wait()
        self.path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------- the server


class Wanted(NamedTuple):
    """A request, and its descriptors as they arrived."""

    request: Request
    descriptors: list[int]


@dataclass(eq=False)
class _Server:
    """Forks until its parent ends. Everything it has open is known, to be closed in children."""

    listener: socket.socket
    settings: dict[str, str]
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    children: dict[socket.socket, tuple[int, int]] = field(default_factory=dict)
    """Process id and pidfd, by the connection that asked."""

    def serve(self) -> Wanted:
        """Returns in children only: what this process is to be."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    link, _ = self.listener.accept()
                    self.selector.register(link, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    wanted = self._on_link(key.fileobj)
                    if wanted is not None:
                        return wanted
                else:
                    self._on_end(key.data)

    def _on_link(self, link: socket.socket) -> Wanted | None:
        if link in self.children:
            # Whoever asked has ended, or wants no more of it.
            signal.pidfd_send_signal(self.children[link][1], signal.SIGKILL)
            self.selector.unregister(link)
            return None
        descriptors: list[int] = []
        try:
            frame, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
            request = decoders.msgpack_decoder(Request).decode(frame)
            self._check(request, descriptors)
            pid = os.fork()
        except (OSError, msgspec.MsgspecError, Refused) as error:
            print(f"refused: {error}", file=sys.stderr)
            pid = REFUSED
        else:
            if pid == 0:
                self._forget()
                return Wanted(request, descriptors)
        for number in descriptors:
            os.close(number)
        if pid == REFUSED:
            self.selector.unregister(link)
            link.close()
            return None
        pidfd = os.pidfd_open(pid)
        self.children[link] = pid, pidfd
        self.selector.register(pidfd, selectors.EVENT_READ, data=link)
        with contextlib.suppress(OSError):  # Its end is noticed the next time.
            socket.send_fds(link, [STATUS.pack(pid, 0)], [pidfd])
        return None

    def _check(self, request: Request, descriptors: list[int]) -> None:
        if len(descriptors) != len(request.numbers):
            raise Refused("descriptors are missing")
        if read_while_imported(request.environment) != self.settings:
            raise Refused("settings differ that are read while libraries are imported")

    def _on_end(self, link: socket.socket) -> None:
        """Of a child: tells who asked for it."""
        pid, pidfd = self.children.pop(link)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.selector.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(KeyError):
            self.selector.unregister(link)
        with contextlib.suppress(OSError):
            link.send(STATUS.pack(pid, code))
        link.close()

    def _forget(self) -> None:
        """Closes in a child what belongs to the server."""
        self.selector.close()
        self.listener.close()
        for link, (_, pidfd) in self.children.items():
            link.close()
            os.close(pidfd)


def read_while_imported(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a fork cannot change."""
    return {
        name: value for name, value in environment.items() if name.startswith(READ_WHILE_IMPORTED)
    }


def _become(wanted: Wanted, server: int) -> int:
    """Makes this process what was asked for; its exit code."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        return 1  # It ended before the kernel knew.
    os.setsid()
    request = wanted.request
    waiting = [_moved(number) for number in wanted.descriptors]
    for number, at in zip(request.numbers, waiting, strict=True):
        os.dup2(at, number)
        os.close(at)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.argv[:] = [request.module, *request.arguments]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return int(importlib.import_module(request.module).main() or 0)


def _leave(wanted: Wanted, server: int) -> NoReturn:
    """Lives the life of a child, and ends it as a trainer ends: worker threads of the libraries
    can make an orderly exit hang."""
    code = 1
    try:
        code = _become(wanted, server)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except Exception:  # Root of a process.
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _moved(number: int) -> int:
    """The same descriptor above all numbers that somebody may have asked for."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, COPIES_FROM)
    os.close(number)
    return moved


def _listen(path: Path) -> socket.socket:
    """A listener in a folder that nobody else may enter; OSError if it is not such a folder."""
    found = path.parent.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path.parent} must belong to this user and be closed to others")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Under its name only once it listens: whoever sees it may connect.
    early = path.with_suffix(".new")
    listener.bind(str(early))
    listener.listen(64)
    early.rename(path)
    return listener


def main() -> NoReturn:
    """Imports, and forks until its parent ends."""
    end_with_parent(signal.SIGKILL)
    parser = argparse.ArgumentParser(prog="host.runtime.fork_server", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("modules", nargs="+", help="what to import")
    given = parser.parse_args()
    settings = read_while_imported(os.environ)
    with garbage.seldom_sought():
        for name in given.modules:
            importlib.import_module(name)
        gc.collect()
    own = os.getpid()
    _leave(_Server(_listen(given.socket), settings).serve(), own)


if __name__ == "__main__":
    main()
