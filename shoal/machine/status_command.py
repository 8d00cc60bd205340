"""The `status` verb: once, as JSON, or again every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter

from host.files.home import Daemon, DaemonRole
from protocol.peers.project_code import code_of
from protocol.status import DaemonStatus
from shoal.common import daemons, failures, writing
from shoal.common.choices import HomeHere, OnlyInstance, option, switch
from shoal.common.exit_codes import ExitCode

Look = Callable[[], list[Daemon]]

AsJson = Annotated[bool, switch("Print one JSON list; with --watch one per line.")]
Watch = Annotated[bool, switch("Look again every second.")]

PERIOD_S = 1.0
SWARM_WAIT_S = 1.5
"""How long a learner may take to hear how the swarm is: leaders send reports by the second."""


def status(
    *,
    json: AsJson = False,
    watch: Watch = False,
    instance: OnlyInstance = None,
    role: Annotated[DaemonRole | None, Parameter(parse=False)] = None,
    home: HomeHere,
) -> int:
    """Prints what the daemons of this home say; NOT_REACHABLE if none of them answers."""
    found = daemons.find_daemons(home, role=role, instance=instance)
    if watch:
        look = partial(daemons.fitting, home, role, instance)
        return _watch(look, as_json=json)
    statuses, silent = daemons.ask_all(found, swarm_wait_s=SWARM_WAIT_S)
    if json:
        print(_as_json(statuses, silent))
    elif statuses:
        from tui.text.status_view import invitations, render

        console = writing.console()
        said = _words(statuses, silent)
        console.print(render(statuses, width=console.width, verdicts=said))
        print("".join(f"\nothers join with:\n{line}\n" for line in invitations(statuses)), end="")
        print(_below(statuses), end="")
    for line in silent:
        failures.complain(line)
    return ExitCode.DONE if statuses else ExitCode.NOT_REACHABLE


def _below(statuses: list[DaemonStatus]) -> str:
    """The codes of what runs here, which others compare with what they find on this network, and
    what routers did."""
    from tui.text.fmt import clean

    projects = {bytes.fromhex(one.project.id): clean(one.project.name) for one in statuses}
    lines = [f"\nthe code of {name}: {code_of(key)}\n" for key, name in projects.items()]
    routers = dict.fromkeys(one.network.router for one in statuses if one.network.router)
    return "".join([*lines, *(f"\n{clean(words, 400)}\n" for words in routers)])


def of_syncers(
    *,
    json: AsJson = False,
    watch: Watch = False,
    instance: Annotated[str | None, option("Only the syncer with this name.")] = None,
    home: HomeHere,
) -> int:
    """The same of its syncers alone."""
    return status(json=json, watch=watch, instance=instance, role="syncer", home=home)


def pause() -> None:
    """Waits until it is time to look again."""
    time.sleep(PERIOD_S)


def _watch(look: Look, *, as_json: bool) -> int:
    try:
        if as_json:
            while True:
                print(_as_json(*daemons.ask_all(look(), swarm_wait_s=0.0)), flush=True)
                pause()
        _watch_screen(look)
    except KeyboardInterrupt:
        pass  # the way to end watching
    return ExitCode.DONE


def _watch_screen(look: Look) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from tui.frames.rates import Rates
    from tui.text.status_view import render

    console = Console()
    rates = Rates()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            statuses, silent = daemons.ask_all(look(), swarm_wait_s=0.0)
            rates.observe(statuses, time.monotonic())
            lines = (
                silent if statuses or silent else ["No daemon runs here any more; still looking."]
            )
            view = render(
                statuses,
                width=console.width,
                rates=rates.tokens_per_s,
                verdicts=_words(statuses, silent),
            )
            live.update(Group(view, *(Text(line) for line in lines)), refresh=True)
            pause()


def _words(statuses: list[DaemonStatus], silent: list[str]) -> dict[str, str]:
    from shoal.common.verdicts import verdicts

    return {key: one.text for key, one in verdicts(statuses, silent).items()}


def _as_json(statuses: list[DaemonStatus], silent: list[str]) -> str:
    from shoal.common.verdicts import verdicts

    said = verdicts(statuses, silent)
    told = [{**msgspec.to_builtins(one), "verdict": said[one.key]._asdict()} for one in statuses]
    return msgspec.json.encode(told).decode()
