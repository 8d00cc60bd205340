"""The `tui` verb: which daemons to look at, or which recording, and where to show it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from host.control import client
from host.files.home import Home
from host.join_link import parse_link
from host.runtime.parent_death import end_with_parent
from host.runtime.python_path import python_path
from protocol.errors import UserError
from shoal.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from tui.sources.live import DaemonEndpoint, Source

OBSERVER_STOP_S = 10.0
WEB_DRIVER = "TEXTUAL_DRIVER"
"""Set by the server of `--serve` for the processes that it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuiOptions:
    """What to show, and how."""

    hosts: tuple[str, ...] = ()
    link: str | None = None
    replay: Path | None = None
    record: Path | None = None
    is_once: bool = False
    is_readonly: bool = False
    is_ascii: bool = False


def look(home: Home, options: TuiOptions) -> int:
    """Shows the swarm until the viewer leaves, or once; the exit code."""
    if sum(bool(one) for one in (options.hosts, options.link, options.replay)) > 1:
        raise UserError("Use only one of --host, --link and --replay.")
    with contextlib.ExitStack() as stack:
        source = _source(home, options, stack)
        if options.is_once:
            from tui import once

            width = shutil.get_terminal_size((100, 40)).columns
            frame = once.frame_of(source)
            print(once.text(frame, width, is_ascii=options.is_ascii))
            return ExitCode.DONE if frame.statuses else ExitCode.NOT_REACHABLE
        # In a browser the page is the terminal, and this process only has pipes.
        if not sys.stdout.isatty() and WEB_DRIVER not in os.environ:
            raise UserError(
                "The terminal UI needs a terminal. For a script: shoal tui --once, or "
                "shoal status --json."
            )
        if WEB_DRIVER in os.environ:
            end_with_parent(signal.SIGTERM)
        from tui import app

        is_readonly = options.is_readonly or options.link is not None
        return app.run(source, is_readonly=is_readonly, is_ascii=options.is_ascii)


def serve(home: Home, options: TuiOptions, *, port: int) -> int:
    """Shows the same in a browser on this machine, read-only, until Ctrl-C."""
    from textual_serve.server import Server

    words = [sys.executable, "-m", "shoal", "--home", str(home.root), "tui", "--readonly"]
    for host in options.hosts:
        words += ["--host", host]
    if options.link:
        words += ["--link", options.link]
    if options.replay:
        words += ["--replay", str(options.replay)]
    print(f"open http://localhost:{port} in a browser; Ctrl-C ends it")
    # It starts a shell for each browser: ours must be the server's own child, to end with it.
    command = f"exec {shlex.join(words)}"
    Server(command, host="localhost", port=port, title="Shoal").serve()
    return ExitCode.DONE


def _source(home: Home, options: TuiOptions, stack: contextlib.ExitStack) -> Source:
    from tui.sources.live import LiveSource, RecordingSource
    from tui.sources.playback import PlaybackSource

    if options.replay is not None:
        return PlaybackSource(options.replay)
    if options.link is not None:
        find = _observed(stack.enter_context(_observer(options.link)))
    elif options.hosts:
        find = _named(home, options.hosts)
    else:
        find = home.daemons
    source: Source = LiveSource(find, client.Connection)
    return source if options.record is None else RecordingSource(source, options.record)


def _named(home: Home, hosts: Sequence[str]) -> Callable[[], Sequence[DaemonEndpoint]]:
    """Daemons given as sockets, or as instances of this home."""
    from tui.sources.live import Endpoint

    def find() -> list[DaemonEndpoint]:
        here = home.daemons()
        found: list[DaemonEndpoint] = []
        for host in hosts:
            if host.endswith(".sock"):
                path = Path(host).expanduser()
                role, _, instance = path.stem.partition("-")
                found.append(Endpoint(role, instance or path.stem, path))
                continue
            fitting: list[DaemonEndpoint] = [one for one in here if one.instance == host]
            # One that does not run yet is asked all the same, and shown as not answering.
            found += fitting or [Endpoint("learner", host, home.socket("learner", host))]
        return found

    return find


def _observed(socket: Path) -> Callable[[], Sequence[DaemonEndpoint]]:
    from tui.sources.live import Endpoint

    return lambda: [Endpoint("syncer", "by link", socket)]


@contextlib.contextmanager
def _observer(link: str) -> Iterator[Path]:
    """The control socket of a process that options on in the swarm; it ends with the block."""
    parse_link(link)
    with tempfile.TemporaryDirectory(prefix="shoal-tui-") as folder:
        socket = Path(folder) / "run" / "observer.sock"
        socket.parent.mkdir(mode=0o700)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "node.daemon.observer", link, str(socket)],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield socket
        finally:
            process.terminate()
            try:
                process.wait(OBSERVER_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
