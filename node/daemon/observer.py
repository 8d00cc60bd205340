"""Looking on without taking part: what `shoal tui --link` starts.

Joins the swarm under a throw-away identity, asks the syncer for reports, and serves the newest one
on a control socket like any daemon, so that the same screens work. It holds no weights, trains
nothing, and stops with the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from host.control.event_log import EventLog
from host.control.server import ControlServer
from host.files import keystore
from host.join_link import JoinLink, parse_link
from host.network.foreign_errors import TransportState
from host.network.leader_discovery import learners_topic, seat_topic
from host.options import BulkAt
from host.runtime.lifecycle import Stopper, live, tidying
from host.runtime.parent_death import end_with_parent
from host.transport import Transport
from node.daemon import report_diff
from node.download.locator import Locator, fetch_genesis
from protocol import decoders, limits, wire
from protocol.errors import MalformedMessage, RemoteError, TransientError, UserError
from protocol.messages import Goodbye, Refused, Report, Watch
from protocol.status import SyncerStatus

RETRY_S = 2.0
NEWS_PER_REPORT_MAX = 200
log = logging.getLogger("shoal.observer")


class Observer:
    """The newest report, and why there is none."""

    def __init__(self, link: JoinLink, transport: Transport) -> None:
        self.link = link
        self.transport = transport
        self.trouble = "connecting to the swarm"
        self.status: SyncerStatus | None = None
        self.feed = EventLog()
        self._is_in_swarm = False

    async def follow(self) -> None:
        """Enter the swarm, then keep asking, for ever."""
        await self.transport.start_with_retry(self._tell_attempt)
        genesis = await fetch_genesis(self.transport, self.link, self._tell_attempt)
        locator = Locator.of(self.transport, self.link, genesis)
        self._is_in_swarm, self.trouble = True, "looking for the syncer"
        self.transport.knocking.missed = lambda: locator.named if self.trouble else ()
        while True:
            try:
                seat = await locator.find_seat(None)
                stream = await self.transport.open_control(seat.leader)
                stream.send(wire.encode(Watch(limits.WIRE_VERSION, self.link.project)))
                while True:
                    async with asyncio.timeout(limits.GONE_AFTER_S):
                        self._take(await stream.recv())
            except TimeoutError:
                self._lose(f"the syncer was not heard for {limits.GONE_AFTER_S:.0f} s")
            except (TransientError, RemoteError) as error:
                self._lose(str(error))
            await asyncio.sleep(RETRY_S)

    def _tell_attempt(self, reason: str, _: float) -> None:
        self.trouble = reason

    def _lose(self, trouble: str) -> None:
        if self.status is not None and not self.trouble:
            self.feed.keep("LinkChanged", f"no reports: {trouble}", "warning", is_fault=True)
        self.trouble = trouble

    def _take(self, frame: bytes) -> None:
        message = wire.decode_message(frame)
        match message:
            case Report(status):
                try:
                    self._tell(read_report(status))
                except MalformedMessage as error:
                    self.trouble = str(error)
            case Refused(_, text, _) | Goodbye(text):
                raise TransientError(f"the syncer said: {text}")
            case _:
                pass  # What members are told is not for lookers-on.

    def _tell(self, status: SyncerStatus) -> None:
        for one in report_diff.between(self.status, status)[:NEWS_PER_REPORT_MAX]:
            self.feed.keep(one.kind, one.text, one.level, is_fault=one.is_fault)
        self.status, self.trouble = status, ""

    def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """The control verb `status`. TransientError while there is nothing to show."""
        if not self._is_in_swarm:
            raise TransientError(f"Not in the swarm yet: {self.trouble}.")
        if self.status is None or self.trouble:
            raise TransientError(f"No news from the swarm: {self.trouble}.")
        return {"status": msgspec.to_builtins(self.status)}


def read_report(content: bytes) -> SyncerStatus:
    """How the swarm is, as a syncer says. Raises MalformedMessage.

    What this version does not know is left out: the syncer may be newer.
    """
    try:
        return decoders.msgpack_decoder(SyncerStatus).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        words = str(error)[:160]
        raise MalformedMessage(f"the syncer's report cannot be read: {words}") from None


async def _main(link: JoinLink, socket: Path, stopper: Stopper) -> int:
    with tempfile.TemporaryDirectory(prefix="shoal-observer-") as folder:
        identity = keystore.load_or_create(Path(folder) / "observer.key")
        transport = Transport(
            identity,
            port=0,
            bootstrap=link.addresses,
            topics=(seat_topic(link.project), learners_topic(link.project)),
            on_state=_tell,
            bulk=BulkAt(is_on=False),
        )
        observer = Observer(link, transport)
        verbs = {"status": observer.answer, "events": observer.feed.answer}
        control = ControlServer(socket, verbs)
        await control.start()
        try:
            await observer.follow()
        finally:
            with tidying("the observer"):
                await control.close()
                await transport.close()
    return 0


def _tell(state: TransportState) -> None:
    log.info("network engine %s", "up" if state.is_up else f"down: {state.reason}")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="node.daemon.observer", description=__doc__)
    parser.add_argument("link")
    parser.add_argument("socket", type=Path)
    given = parser.parse_args(arguments)
    end_with_parent(signal.SIGTERM)
    try:
        link = parse_link(given.link)
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return live(lambda stopper: _main(link, given.socket, stopper))


if __name__ == "__main__":
    sys.exit(main())
