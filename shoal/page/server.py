"""Serves the page over HTTP to strangers: GET and HEAD, bounded in every way.

    GET /             the page
    GET /page.json    the same for programs
    GET /events       what changes on the page, as server-sent events
    GET /preview.png  the picture that chats show beside a link
    GET /icon.svg     the small picture of a tab

A connection carries one request and has a time limit, so that none is held open for nothing; only
streams of news stay, and those are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from protocol.errors import ShoalError, TransientError
from shoal.page import facts, render
from shoal.page.gate import CONNECTIONS_MAX, Gate, forwarded
from shoal.page.watch import PERIOD_S, Seen, Watch

REQUEST_S: Final = 10.0
"""By then a request must have come, and its answer must have gone."""

STREAM_S: Final = 3600.0
"""After so long a stream ends; browsers open the next one by themselves."""

SEND_S: Final = 10.0
"""Whoever takes longer to receive news is let go."""

LINE_BYTES_MAX: Final = 4096
HEADERS_MAX: Final = 64
BUFFER_BYTES: Final = 16 << 10
PICTURE_S: Final = 60.0
"""How long others may keep the picture."""

_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?\Z"
)

_http_log = logging.getLogger("shoal.page.http")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether something is wrong here, and not with what a stranger sent."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_http_log.addFilter(_is_ours)


@dataclass(frozen=True, slots=True)
class Outside:
    """How the page is reached from outside."""

    url: str = ""
    """Its address, with a slash at the end; empty: whatever the asker called it."""
    is_behind_proxy: bool = False
    """A reverse proxy asks for everybody, and names them in X-Forwarded-For."""


class _Connections(web.Server):
    """aiohttp's server, with the gate's bounds and a time limit on each connection."""

    def __init__(self, handler: Handler, gate: Gate, outside: Outside) -> None:
        super().__init__(
            handler,
            access_log=None,
            logger=_http_log,
            keepalive_timeout=REQUEST_S,
            lingering_time=0.0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            read_bufsize=BUFFER_BYTES,
        )
        self._gate = gate
        self._is_behind_proxy = outside.is_behind_proxy
        self._open: dict[Any, tuple[str, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        """Takes the connection, or cuts it off."""
        super().connection_made(handler, transport)
        address = _peer(transport)
        if not self._gate.connect(address, is_proxy=self._is_behind_proxy):
            transport.abort()
            return
        timer = asyncio.get_running_loop().call_later(REQUEST_S, transport.abort)
        self._open[handler] = address, timer

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Counts it no more."""
        super().connection_lost(handler, exc)
        if (known := self._open.pop(handler, None)) is not None:
            address, timer = known
            timer.cancel()
            self._gate.disconnect(address)

    def may_stay(self, handler: Any) -> None:
        """This connection is a stream, which has a time limit of its own."""
        if handler in self._open:
            self._open[handler][1].cancel()


class PageServer:
    """The page of one syncer, from `serve` until that is cancelled."""

    def __init__(self, watch: Watch, outside: Outside) -> None:
        self.gate = Gate()
        self._watch = watch
        self._outside = outside
        self._connections: _Connections | None = None
        self._picture = (0, b"")
        self._picture_lock = asyncio.Lock()
        self._routes: Mapping[str, Handler] = {
            "/": self._page,
            "/page.json": self._json,
            "/events": self._events,
            "/preview.png": self._preview,
            "/icon.svg": self._icon,
        }

    async def serve(self, listener: socket.socket) -> None:
        """Answers on this socket, for ever."""
        self._connections = _Connections(self._answer, self.gate, self._outside)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connections, sock=listener, backlog=CONNECTIONS_MAX)
        try:
            await server.serve_forever()
        finally:
            server.close()
            await self._connections.shutdown(1.0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._chosen(request)
        except TransientError as error:
            answer = _refusal(503, str(error), {"Retry-After": "5", "Refresh": "5"})
        except ShoalError:  # Told in the log where it was found.
            answer = _refusal(503, "This page cannot be drawn now.", {"Retry-After": "60"})
        if not answer.prepared:
            answer.headers.update(_headers())
        return answer

    async def _chosen(self, request: web.BaseRequest) -> web.StreamResponse:
        wait_s = self.gate.ask(self._asker(request), asyncio.get_running_loop().time())
        if wait_s:
            return _refusal(429, "Too many requests.", {"Retry-After": str(1 + int(wait_s))})
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, "Only GET and HEAD are answered.", {"Allow": "GET, HEAD"})
        if request.body_exists or request.content_length:
            return _refusal(413, "Requests have no body here.")
        handler = self._routes.get(request.path)
        if handler is None:
            return _refusal(404, "There is nothing here. The page is at /.")
        return await handler(request)

    def _asker(self, request: web.BaseRequest) -> str:
        peer = _peer(request.transport)
        if not self._outside.is_behind_proxy:
            return peer
        return forwarded(",".join(request.headers.getall("X-Forwarded-For", [])), peer)

    def _address(self, request: web.BaseRequest) -> str:
        if self._outside.url:
            return self._outside.url
        host = request.headers.get("Host", "")
        return f"http://{host}/" if _HOST.match(host) else ""

    async def _page(self, request: web.BaseRequest) -> web.StreamResponse:
        drawn = (await self._watch.seen()).drawn
        return _fresh(drawn.whole(self._address(request)).encode(), "text/html")

    async def _json(self, request: web.BaseRequest) -> web.StreamResponse:
        drawn = (await self._watch.seen()).drawn
        answer = _fresh(msgspec.json.encode(drawn.facts), "application/json")
        answer.headers["Access-Control-Allow-Origin"] = "*"
        return answer

    async def _icon(self, request: web.BaseRequest) -> web.StreamResponse:
        return _kept(render.icon().encode(), "image/svg+xml")

    async def _preview(self, request: web.BaseRequest) -> web.StreamResponse:
        async with self._picture_lock:
            seen = await self._watch.seen()
            number, content = self._picture
            if not content or (seen.number - number) * PERIOD_S >= PICTURE_S:
                content = await asyncio.to_thread(_drawn_picture, seen.drawn.facts)
                self._picture = seen.number, content
        return _kept(content, "image/png")

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        asker = self._asker(request)
        if not self.gate.open_stream(asker):
            return _refusal(503, "Too many watch already.", {"Retry-After": "60"})
        try:
            return await self._stream(request)
        finally:
            self.gate.close_stream(asker)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """News for one viewer: first all parts of the page, then those that changed."""
        seen = await self._watch.seen()
        answer = web.StreamResponse(
            headers={
                **_headers(),
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        assert self._connections is not None
        self._connections.may_stay(request.protocol)
        # The viewer is gone, or stuck; or the page cannot be drawn, and the next request hears why.
        with contextlib.suppress(ConnectionError, TimeoutError, ShoalError):
            await self._tell(answer, seen)
        return answer

    async def _tell(self, answer: web.StreamResponse, seen: Seen) -> None:
        """Writes what is new, look after look, until the stream's time is over."""
        loop, told = asyncio.get_running_loop(), dict[str, str]()
        ends_s = loop.time() + STREAM_S
        while loop.time() < ends_s:
            news = {name: text for name, text in seen.drawn.parts.items() if told.get(name) != text}
            if news:
                told.update(news)
                event = b"event: parts\ndata: " + msgspec.json.encode(news) + b"\n\n"
                async with asyncio.timeout(SEND_S):
                    await answer.write(event)
            await asyncio.sleep(PERIOD_S)
            seen = await self._watch.seen()


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": f"{render.policy()}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Connection": "close",
        "Server": "Shoal",
    }


def _fresh(content: bytes, kind: str) -> web.Response:
    answer = web.Response(
        body=content, content_type=kind, charset="utf-8", headers={"Cache-Control": "no-cache"}
    )
    answer.enable_compression()
    return answer


def _kept(content: bytes, kind: str) -> web.Response:
    return web.Response(
        body=content,
        content_type=kind,
        headers={"Cache-Control": f"public, max-age={PICTURE_S:.0f}"},
    )


def _refusal(status: int, words: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{words}\n", headers=headers)


def _drawn_picture(now: facts.PageFacts) -> bytes:
    from shoal.page import picture

    return picture.png(now)


def _peer(transport: asyncio.BaseTransport | None) -> str:
    """Who is at the other end, as an address."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if name else "unknown"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. OSError where that is taken or no address of this machine."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(CONNECTIONS_MAX)  # Who comes before the process is up waits.
    except OSError:
        listener.close()
        raise
    return listener
