"""The daemons of one home, asked over their control sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from host.control import client
from host.files.home import Daemon, DaemonRole, Home
from protocol.errors import RemoteError, ShoalError, TransientError, UserError
from protocol.status import DaemonStatus, NodeStatus, StatusAnswer, SwarmSeen, SyncerStatus

POLL_S = 0.1
ANSWER_S: Final = 2.0

STARTS: Final[dict[DaemonRole | None, str]] = {
    None: "`shoal join LINK` or `shoal syncer run PROJECT`",
    "learner": "`shoal join LINK` or `shoal run`",
    "syncer": "`shoal syncer run PROJECT`",
    "witness": "`shoal witness run PROJECT`",
}


def find_daemons(
    home: Home, *, role: DaemonRole | None = None, instance: str | None = None
) -> list[Daemon]:
    """The daemons of this home that fit. Raises TransientError when there are none."""
    found = fitting(home, role, instance)
    if not found:
        wanted = " ".join(word for word in (role or "Shoal", "daemon") if word)
        called = f" called {instance}" if instance is not None else ""
        start = STARTS[role]
        raise TransientError(
            f"No {wanted}{called} runs in {home.root}. Start one with {start}, or name another "
            "place with --home."
        )
    return found


def fitting(home: Home, role: DaemonRole | None, instance: str | None) -> list[Daemon]:
    """The same of this moment, which may be none: some may have come and others gone."""
    return [
        daemon
        for daemon in home.daemons()
        if role in (None, daemon.role) and instance in (None, daemon.instance)
    ]


def ask_status(daemon: Daemon, *, timeout_s: float = 2.0) -> DaemonStatus:
    """What the daemon says about itself. Raises what `Connection.ask` raises."""
    with contextlib.closing(client.Connection(daemon.socket)) as connection:
        return connection.ask("status", StatusAnswer, timeout_s).status


def ask_all(
    daemons: Sequence[Daemon], *, swarm_wait_s: float | None = None
) -> tuple[list[DaemonStatus], list[str]]:
    """The status of each daemon that answers, and a line for each one that does not.

    In the order of `daemons`. All are asked at once, so that one that hangs delays nobody's answer
    and the whole by no more than what it is waited for. swarm_wait_s: a learner beside which no
    syncer leads is asked for the swarm too, and may take so long to hear of it; None: it is not.
    """
    answers: list[DaemonStatus | ShoalError | None] = [None] * len(daemons)

    def ask(at: int) -> None:
        try:
            answers[at] = ask_status(daemons[at])
        except ShoalError as error:
            answers[at] = error

    threads = [threading.Thread(target=ask, args=(at,), daemon=True) for at in range(len(daemons))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses: list[DaemonStatus] = []
    silent: list[str] = []
    if swarm_wait_s is not None:
        _add_swarms(daemons, answers, swarm_wait_s)
    for daemon, answer in zip(daemons, answers, strict=True):
        match answer:
            case TransientError():
                silent.append(f"{daemon.role} {daemon.instance}: {answer}")
            case ShoalError():
                raise answer
            case _:
                assert answer is not None, "a thread has answered or raised"
                statuses.append(answer)
    return statuses, silent


def _add_swarms(
    daemons: Sequence[Daemon], answers: Sequence[DaemonStatus | ShoalError | None], wait_s: float
) -> None:
    """What the leader says of each swarm, added to one learner of it."""
    from tui.text.election import leads  # What only asks for statuses does without.

    told = {one.project.id for one in answers if isinstance(one, SyncerStatus) and leads(one)}
    for daemon, status in zip(daemons, answers, strict=True):
        if not isinstance(status, NodeStatus) or status.project.id in told:
            continue
        told.add(status.project.id)
        with (
            contextlib.suppress(TransientError, UserError, RemoteError),
            contextlib.closing(client.Connection(daemon.socket)) as connection,
        ):
            # Otherwise it was told nothing yet, or is a daemon of another version.
            status.swarm_seen = connection.ask("swarm", SwarmSeen, wait_s + ANSWER_S, wait_s=wait_s)


def statuses_of(daemon: Daemon, *, timeout_s: float) -> Iterator[DaemonStatus]:
    """What the daemon says about itself, again and again until the time is over."""
    for _ in again(timeout_s):
        with contextlib.suppress(TransientError):
            yield ask_status(daemon)


def again(timeout_s: float) -> Iterator[None]:
    """Time to look again, and again, until the time is over."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        time.sleep(POLL_S)
        yield


def stop_and_wait(daemon: Daemon, *, timeout_s: float) -> bool:
    """Asks the daemon to stop; whether it was gone within `timeout_s`.

    Raises TransientError when nobody answers in the first place.
    """
    client.call(daemon.socket, "stop")
    return wait_until_gone(daemon, timeout_s=timeout_s)


def wait_until_gone(daemon: Daemon, *, timeout_s: float) -> bool:
    """Whether the daemon, asked to end, was gone within `timeout_s`."""
    for _ in again(timeout_s):
        try:
            client.call(daemon.socket, "status", timeout_s=POLL_S)
        except TransientError:
            # Busy with stopping, or gone: the socket file is removed at the very end.
            if not daemon.socket.exists() or is_dead(daemon):
                return True
    return False


def is_dead(daemon: Daemon) -> bool:
    """Whether nobody holds the socket: the daemon was killed and left it behind."""
    with client.reachable(daemon.socket) as address, socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False
