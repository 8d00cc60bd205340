"""The process that serves a page: started beside a voter, or by `shoal page`.

It looks at the syncer from outside: over its control socket, as `shoal status` does, or by the join
link, as `shoal tui --link` does. Whatever strangers do to it takes memory, files and time of this
process, which gives way to the voter's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from host.files.home import Home
from host.runtime import lifecycle
from host.runtime.lifecycle import Stopper
from host.runtime.parent_death import end_with_parent
from shoal.common.looking_on import observer
from shoal.page.server import Outside, PageServer
from shoal.page.watch import Watch

NICE: Final = 10


def serve(
    listener: socket.socket, home: Home, instance: str, outside: Outside, link: str | None = None
) -> int:
    """Serves the page of this home's syncer of this name on a socket, until it is asked to end.

    link: of a project whose syncer is on another machine; it is looked at in place of one here.
    """
    if link is None:
        return _serve(listener, Watch(home, instance), outside)
    with observer(link) as onlooker:
        return _serve(listener, Watch(home, "leader", onlooker=onlooker), outside)


def _serve(listener: socket.socket, watch: Watch, outside: Outside) -> int:
    async def main(stopper: Stopper) -> int:
        server = PageServer(watch, outside)
        task = asyncio.create_task(server.serve(listener))

        def end(reason: str) -> None:
            task.cancel(reason)

        stopper.on_ask = end
        try:
            await task
        except asyncio.CancelledError:
            logging.getLogger("shoal.page").debug("asked to end")
        return 0

    return lifecycle.live(main)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="shoal.page.process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--behind-proxy", action="store_true")
    parser.add_argument("--link")
    given = parser.parse_args(arguments)
    end_with_parent(signal.SIGTERM)
    os.nice(NICE)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    outside = Outside(given.url, given.behind_proxy)
    listener, home = socket.socket(fileno=given.fd), Home(given.home)
    return serve(listener, home, given.instance, outside, given.link)


if __name__ == "__main__":
    sys.exit(main())
