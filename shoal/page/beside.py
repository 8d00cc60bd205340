"""Keeps the process of a page running beside a voter, for as long as that runs in this one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

from host.files.home import Home
from host.files.local_settings import PageSettings
from host.options import MonitorAt
from host.runtime import parent_death
from host.runtime.python_path import python_path
from protocol.errors import UserError
from shoal.common import choices

STOP_S: Final = 5.0
AGAIN_S: Final = (1.0, 5.0, 15.0, 60.0)
"""After a page's process ended by itself the next one is started so much later."""

log = logging.getLogger("shoal.page")


def page_at(flag: str | None, settings: PageSettings) -> MonitorAt | None:
    """Where the page is to be served, by the flag or else the settings; None for nowhere.

    UserError for what is no address of a machine and no port.
    """
    text = settings.at if flag is None else flag
    if text is None or text == "off":
        return None
    return choices.address_and_port(text, "the page", "8080")


def listen_at(place: MonitorAt) -> socket.socket:
    """A socket there. UserError where that is taken, or where aiohttp is missing."""
    from shoal.page import server

    try:
        return server.listen(place.host, place.port)
    except OSError as error:
        raise UserError(
            f"The page cannot be served on {place.host} port {place.port} ({error.strerror}). "
            "Choose another with --page, or none: --page off."
        ) from error


def address_of(listener: socket.socket, settings: PageSettings) -> str:
    """The page's address as people type it, as far as this machine knows it."""
    if settings.url:
        return url_of(settings)
    host, port, *_ = listener.getsockname()
    if host in ("0.0.0.0", "::"):
        return f"http://ADDRESS-OF-THIS-MACHINE:{port}/"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def url_of(settings: PageSettings) -> str:
    """The address that the owner of this machine gave, with a slash at the end, or nothing.

    UserError if it is not one.
    """
    from urllib.parse import urlsplit

    if not settings.url:
        return ""
    try:
        parts = urlsplit(settings.url)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_sound = is_sound and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        is_sound = False
    if not is_sound or not settings.url.isprintable() or " " in settings.url:
        raise UserError(
            f"page.url is {settings.url!r}, which is no address of a page. Write it as in "
            "https://example.org/shoal/"
        )
    return settings.url.rstrip("/") + "/"


@contextlib.contextmanager
def beside(
    flag: str | None, home: Home, instance: str, settings: PageSettings, link: str | None = None
) -> Iterator[None]:
    """Inside, another process serves the page of the syncer that runs in this one, if one is
    wanted; with a link, of the project that this leads to. UserError, before anything starts,
    where it could not."""
    place = page_at(flag, settings)
    if place is None:
        yield
        return
    url = url_of(settings)
    with contextlib.closing(listen_at(place)) as listener:
        print(f"the project's page: {address_of(listener, settings)}", flush=True)
        command = [sys.executable, "-P", "-m", "shoal.page.process", "--fd", str(listener.fileno())]
        command += ["--home", str(home.root), "--instance", instance, "--url", url]
        command += ["--behind-proxy"] if settings.behind_proxy else []
        command += ["--link", link] if link is not None else []
        keeper = _Keeper(command, listener.fileno())
        keeper.start()
        try:
            yield
        finally:
            keeper.end()


class _Keeper(threading.Thread):
    """Starts the process, and starts it again where it ends by itself."""

    def __init__(self, command: list[str], fd: int) -> None:
        super().__init__(name="shoal-page")
        self._command = command
        self._fd = fd
        self._is_over = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until `end`. The process is bound to this thread, which starts it."""
        for wait_s in _waits():
            with self._lock:
                if self._is_over.is_set():
                    return
                self._child = self._spawned()
            code = self._child.wait()
            if self._is_over.wait(0):
                return
            log.warning("the page's process ended (%d); another one starts in %.0f s", code, wait_s)
            if self._is_over.wait(wait_s):
                return

    def _spawned(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env={**os.environ, "PYTHONPATH": python_path()},
            pass_fds=(self._fd,),
            stdin=subprocess.DEVNULL,
            preexec_fn=parent_death.before_exec(signal.SIGTERM),
            start_new_session=True,
        )

    def end(self) -> None:
        """Ends the process and the thread."""
        with self._lock:
            self._is_over.set()
            child = self._child
        if child is not None:
            child.terminate()
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
        self.join()


def _waits() -> Iterator[float]:
    yield from AGAIN_S
    while True:
        yield AGAIN_S[-1]
