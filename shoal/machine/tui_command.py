"""The `tui` verb: which daemons to look at, or which recording, and where to show it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from host.control import client
from host.files.home import Home
from host.runtime.garbage import seldom_sought
from host.runtime.parent_death import end_with_parent
from protocol.errors import UserError
from shoal.common.choices import HomeHere, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.common.looking_on import observer
from shoal.common.plain_terminal import is_plain

if TYPE_CHECKING:
    from tui.sources.live import Endpoint, Source

WEB_DRIVER = "TEXTUAL_DRIVER"
"""Set by the server of `--serve` for the processes that it starts."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuiOptions:
    """What to show, and how."""

    host: Annotated[tuple[str, ...], option("An instance or a control socket; repeatable.")] = ()
    link: Annotated[str | None, option("Watch a swarm by its join link.")] = None
    replay: Annotated[Path | None, option("Show a recording.")] = None
    record: Annotated[Path | None, option("Also write what is shown to a recording.")] = None
    serve: Annotated[bool, switch("Show it in a browser on this machine, read-only.")] = False
    port: Annotated[int, option("Port for --serve.")] = 8000
    once: Annotated[bool, switch("Print one screen as text.")] = False
    readonly: Annotated[bool, switch("Refuse commands to daemons.")] = False
    ascii: Annotated[bool, switch("Use plain characters only.")] = False


AS_USUAL = TuiOptions()


def show(*, options: TuiOptions = AS_USUAL, home: HomeHere) -> int:
    """Shows the swarm in this terminal or in a browser; the exit code."""
    return _serve(home, options) if options.serve else _look(home, options)


def _look(home: Home, options: TuiOptions) -> int:
    """Shows the swarm until the viewer leaves, or once."""
    if sum(bool(one) for one in (options.host, options.link, options.replay)) > 1:
        raise UserError("Use only one of --host, --link and --replay.")
    with contextlib.ExitStack() as stack:
        source = _source(home, options, stack)
        if options.once:
            from tui import once

            width = shutil.get_terminal_size((100, 40)).columns
            frame = once.frame_of(source)
            print(once.text(frame, width, is_ascii=options.ascii or is_plain()))
            return ExitCode.DONE if frame.statuses else ExitCode.NOT_REACHABLE
        # In a browser the page is the terminal, and this process only has pipes.
        if not sys.stdout.isatty() and WEB_DRIVER not in os.environ:
            raise UserError(
                "The terminal UI needs a terminal. For a script: shoal tui --once, or "
                "shoal status --json."
            )
        if WEB_DRIVER in os.environ:
            end_with_parent(signal.SIGTERM)
        with seldom_sought():
            from tui import app

        is_readonly = options.readonly or options.link is not None
        return app.run(source, is_readonly=is_readonly, is_ascii=options.ascii or is_plain())


def _serve(home: Home, options: TuiOptions) -> int:
    """Shows the same in a browser on this machine, read-only, until Ctrl-C."""
    from textual_serve.server import Server

    words = [sys.executable, "-m", "shoal", "--home", str(home.root), "tui", "--readonly"]
    for host in options.host:
        words += ["--host", host]
    if options.link:
        words += ["--link", options.link]
    if options.replay:
        words += ["--replay", str(options.replay)]
    print(f"open http://localhost:{options.port} in a browser; Ctrl-C ends it")
    # It starts a shell for each browser: ours must be the server's own child, to end with it.
    command = f"exec {shlex.join(words)}"
    Server(command, host="localhost", port=options.port, title="Shoal").serve()
    return ExitCode.DONE


def _source(home: Home, options: TuiOptions, stack: contextlib.ExitStack) -> Source:
    from tui.sources.live import Endpoint, LiveSource

    if options.replay is not None:
        from tui.sources.playback import PlaybackSource

        return PlaybackSource(options.replay)
    if options.link is not None:
        socket = stack.enter_context(observer(options.link))
        find = partial(list[Endpoint], [Endpoint("syncer", "by link", socket)])
    else:
        find = partial(_daemons, home, options.host)
    source: Source = LiveSource(find, client.Connection)
    if options.record is None:
        return source
    from tui.sources.recording import RecordingSource

    return RecordingSource(source, options.record)


def _daemons(home: Home, hosts: Sequence[str]) -> list[Endpoint]:
    """The daemons of this home, or those given as sockets or as instances."""
    from tui.sources.live import Endpoint

    here = [Endpoint(*daemon) for daemon in home.daemons()]
    if not hosts:
        return here
    found = []
    for host in hosts:
        if host.endswith(".sock"):
            path = Path(host).expanduser()
            role, _, instance = path.stem.partition("-")
            found.append(Endpoint(role, instance or path.stem, path))
            continue
        fitting = [one for one in here if one.instance == host]
        # One that does not run yet is asked all the same, and shown as not answering.
        found += fitting or [Endpoint("learner", host, home.socket("learner", host))]
    return found
