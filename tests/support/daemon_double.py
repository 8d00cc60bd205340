"""A daemon as the command meets it: a control socket, and a status that says it trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from host.control.server import ControlServer
from host.join_link import JoinLink, format_link
from protocol.status import DaemonStatus, NetworkStatus, NodeStatus, ProjectStatus, SwarmStatus

PEER = "12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"
LINK = format_link(JoinLink(bytes(32), 100, "tiny", (f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER}",)))
SENTENCE = "Training at 4,100 tokens/s."

STATUS = NodeStatus(
    key="n",
    name="osprey",
    pid=5,
    version="0.1.0",
    uptime_s=65.0,
    state="training",
    sentence=SENTENCE,
    link="connected",
    link_detail="",
    heard_s=0.4,
    trainer="running",
    trainer_detail="",
    trainer_pid=6,
    device="cpu",
    micro_batch=8,
    project=ProjectStatus(
        id="00" * 32,
        name="tiny",
        fragments=8,
        parameters=1,
        token_budget=100,
        local_steps=16,
        quorum=1,
    ),
    swarm=SwarmStatus(tokens=41),
    network=NetworkStatus(),
)


def _said(answer: dict[str, object], fields: dict[str, object]) -> dict[str, object]:
    return answer


class FakeDaemon:
    """A control socket that answers `status` and stops, on an event loop of its own."""

    def __init__(
        self,
        path: Path,
        status: DaemonStatus = STATUS,
        *,
        answers: Mapping[str, dict[str, object]] | None = None,
    ) -> None:
        """answers: to further verbs."""
        self._path = path
        self._answers = dict(answers or {})
        self.said = status
        self.asked: list[str] = []
        """Verbs that were asked, but for status."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        further = {verb: partial(_said, answer) for verb, answer in self._answers.items()}
        server = ControlServer(
            self._path,
            {"status": self._status, "stop": self._stop, "finish": self._finish, **further},
        )
        await server.start()
        self._ready.set()
        await self._stopping.wait()
        await server.close()

    def _status(self, fields: dict[str, object]) -> dict[str, object]:
        return {"status": msgspec.to_builtins(self.said)}

    def _stop(self, fields: dict[str, object]) -> dict[str, object]:
        return self.end("stop")

    def _finish(self, fields: dict[str, object]) -> dict[str, object]:
        return self.end("finish")

    def end(self, verb: str) -> dict[str, object]:
        self.asked.append(verb)
        self._loop.call_later(0.05, self._stopping.set)
        return {}

    def close(self) -> None:
        """End it, unless it has been stopped already."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(60)
