"""The optional HTTP port for machines that watch machines: metrics, health, status. Read-only.

    GET /metrics         for Prometheus
    GET /healthz         200 while the daemon's event loop answers, 503 otherwise
    GET /api/v1/status   what `shoal status --json` says of this daemon

It listens on this machine only, unless its owner names another address. Requests are served one by
one on a thread of its own, and the daemon's loop is asked for one value each, so that a scraper can
neither slow the daemon nor hang on it. On this machine only, names in the Host header are refused:
a page in a browser could otherwise read this by having its own name point here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from host.control.metrics import StatusCollector
from host.options import MonitorAt
from protocol.errors import ShoalError, TransientError, UserError

ANSWER_S: Final = 2.0
"""The loop of a daemon that lives answers within milliseconds."""

CLIENT_S: Final = 5.0

Status = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
Response = tuple[str, str, bytes]
"""HTTP status, content type, body."""


class Monitor:
    """The HTTP port of one daemon, from `start` until `close`."""

    def __init__(self, place: MonitorAt, status: Status) -> None:
        """status: the fields of an answer to the control verb `status`, on the daemon's loop."""
        self._place = place
        self._status = status
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(self._told))
        ProcessCollector(namespace="shoal", registry=self._registry)

    @property
    def port(self) -> int:
        """Where it listens, known once started."""
        return 0 if self._server is None else self._server.server_port

    def start(self) -> None:
        """Begins to answer; call it on the daemon's loop. UserError where the port is taken."""
        self._loop = asyncio.get_running_loop()
        place = self._place
        try:
            self._server = make_server(
                place.host,
                place.port,
                self._serve,
                server_class=_Server6 if ":" in place.host else WSGIServer,
                handler_class=_Handler,
            )
        except OSError as error:
            raise UserError(
                f"The monitor cannot listen on {place.host} port {place.port} "
                f"({error.strerror}). Choose another with --monitor."
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="shoal-monitor"
        )
        self._thread.daemon = True
        self._thread.start()

    async def close(self) -> None:
        """Answers no more; returns once the thread has ended."""
        if self._server is None:
            return
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._server = None

    def _told(self) -> dict[str, Any]:
        """The daemon's status, asked on its loop. TransientError if the loop does not answer."""
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(self._status(), self._loop)
        try:
            return asked.result(ANSWER_S)
        except NoAnswer as error:
            asked.cancel()
            raise TransientError(f"the daemon did not answer within {ANSWER_S:g} s") from error

    def _serve(
        self, environ: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        status, kind, body = self._answer(environ)
        start(
            status,
            [
                ("Content-Type", kind),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: dict[str, Any]) -> Response:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _json("405 Method Not Allowed", {"error": "only GET and HEAD are answered"})
        is_private = ipaddress.ip_address(self._place.host).is_loopback
        if is_private and not _is_address(environ.get("HTTP_HOST", "")):
            return _json("403 Forbidden", {"error": "name this host localhost or by its address"})
        try:
            match environ["PATH_INFO"]:
                case "/metrics":
                    encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
                    return "200 OK", kind, encode(self._registry)
                case "/healthz":
                    told = self._told()
                    return _json("200 OK", {"status": "ok", "says": told.get("sentence", "")})
                case "/api/v1/status":
                    return _json("200 OK", self._told())
        except ShoalError as error:
            return _json("503 Service Unavailable", {"status": "silent", "error": str(error)})
        known = ["/metrics", "/healthz", "/api/v1/status"]
        return _json("404 Not Found", {"error": "there is nothing here", "known": known})


class _Handler(WSGIRequestHandler):
    """Says nothing on the terminal, and does not wait for ever."""

    timeout = CLIENT_S

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


class _Server6(WSGIServer):
    """The same over IPv6."""

    address_family = socket.AF_INET6


def _json(status: str, content: object) -> Response:
    return status, "application/json", msgspec.json.encode(content) + b"\n"


def _is_address(host: str) -> bool:
    """Whether the Host header is an address or localhost, with or without a port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]")
    if name in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
