"""Where frames come from while the swarm lives: the control sockets of daemons on this machine.

Everything that may block happens in threads, one for each daemon, so that a daemon that hangs
delays neither the screen nor the news of the others. Recorded frames: see `tui.recording.playback`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from protocol.errors import ShoalError, UserError
from protocol.status import DaemonStatus, EventRow
from tui.frames.frame import Attached, Frame, Told
from tui.recording.playback import Playback, PlaybackSource
from tui.text import fmt

__all__ = ["DaemonEndpoint", "Endpoint", "Frame", "LiveSource", "PlaybackSource", "Source"]

PERIOD_S = 0.5
STATUS_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 5.0
ENDED_SHOWN_S = 300.0
"""A daemon that ended in good order leaves the screen after this, if others are there."""

EVENTS_HELD_MAX = 5000
"""Events that wait for the screen; a suspended terminal must not fill the memory."""

COMMANDS = {
    "pause": "pauses",
    "resume": "resumes",
    "finish": "hands in what it has and then leaves",
    "stop": "is stopping",
}
"""What a daemon may be told, and the words that confirm it."""


class DaemonEndpoint(Protocol):
    """A daemon that left a control socket; whether it answers is another question."""

    @property
    def role(self) -> str:
        """syncer, witness or learner."""

    @property
    def instance(self) -> str:
        """Its name on this machine."""

    @property
    def socket(self) -> Path:
        """Its control socket."""


class Endpoint(NamedTuple):
    """The plain form of `DaemonEndpoint`."""

    role: str
    instance: str
    socket: Path


class Call(Protocol):
    """Asks a daemon and waits for its answer; raises ShoalError when there is none."""

    def __call__(
        self, path: Path, verb: str, timeout_s: float = ..., **fields: Any
    ) -> dict[str, Any]:
        """The answer's fields."""


class Source(Protocol):
    """What the screen reads from and sends commands to."""

    @property
    def playback(self) -> Playback | None:
        """The controls of a recording; None for what is live."""

    def frames(self) -> AsyncIterator[Frame]:
        """Frames as they come; ends only when there can be no more."""

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        """Tells the daemon labelled `target`; what came of it in words. Raises ShoalError."""


class LiveSource:
    """Daemons of this machine, asked twice a second for as long as `frames` is read."""

    playback: Playback | None = None

    def __init__(self, find: Callable[[], Sequence[DaemonEndpoint]], call: Call) -> None:
        self._find = find
        self._call = call
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._trouble = ""
        self._ends = threading.Event()

    async def frames(self) -> AsyncIterator[Frame]:
        """A frame each half second, whether daemons answer or not."""
        self._ends.clear()
        threading.Thread(target=self._look_out, name="tui-find", daemon=True).start()
        started_s = time.monotonic()
        try:
            while True:
                # The first answers come within milliseconds: the first screens need not wait.
                is_young = time.monotonic() - started_s < PERIOD_S
                await asyncio.sleep(PERIOD_S / 10 if is_young else PERIOD_S)
                yield self._frame()
        finally:
            self._ends.set()

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        """Sends `verb` in a thread. Raises ShoalError when the daemon refuses or is not there."""
        with self._lock:
            watch = self._watches.get(target)
        if verb not in COMMANDS:
            raise UserError(f"There is no command {verb}. There are {', '.join(COMMANDS)}.")
        if watch is None:
            raise UserError(f"No daemon called {target} is known here.")
        path = watch.endpoint.socket
        answer = await asyncio.to_thread(
            self._call, path, verb, timeout_s=COMMAND_TIMEOUT_S, **fields
        )
        return str(answer.get("text") or f"{target} {COMMANDS[verb]}")

    def _look_out(self) -> None:
        """Thread: finds daemons, and starts a thread for each that is new."""
        while not self._ends.is_set():
            try:
                found = self._find()
                trouble = "" if found else "No daemon runs on this machine; looking on."
            except (ShoalError, OSError) as error:
                found, trouble = [], f"{error} Looking on."
            for endpoint in found:
                self._attach(endpoint)
            self._mark_ended({_label(endpoint) for endpoint in found})
            with self._lock:
                self._trouble = "" if self._watches else trouble
            self._ends.wait(PERIOD_S)

    def _attach(self, endpoint: DaemonEndpoint) -> None:
        label = _label(endpoint)
        with self._lock:
            known = self._watches.get(label)
            if known is not None:
                known.endpoint = endpoint
                return
            watch = self._watches[label] = _Watch(label, endpoint)
        threading.Thread(
            target=self._watch, args=(watch,), name=f"tui-{label}", daemon=True
        ).start()

    def _mark_ended(self, found: set[str]) -> None:
        """Daemons whose sockets are gone have ended; those long gone are forgotten."""
        now_s = time.time()
        with self._lock:
            for label, watch in list(self._watches.items()):
                ended = label not in found and bool(watch.attached.trouble)
                watch.attached = msgspec.structs.replace(watch.attached, has_ended=ended)
                quiet_s = watch.attached.silent_s(now_s) or 0.0
                if ended and quiet_s > ENDED_SHOWN_S and len(self._watches) > 1:
                    watch.is_forgotten = True
                    del self._watches[label]

    def _watch(self, watch: _Watch) -> None:
        """Thread: asks one daemon again and again."""
        while not self._ends.is_set() and not watch.is_forgotten:
            try:
                status = self._ask_status(watch.endpoint.socket)
                events = self._ask_events(watch, status.pid)
            except ShoalError as error:
                with self._lock:
                    watch.attached = msgspec.structs.replace(watch.attached, trouble=str(error))
            else:
                with self._lock:
                    watch.take(status, events, time.time())
            self._ends.wait(PERIOD_S)

    def _ask_status(self, path: Path) -> DaemonStatus:
        answer = self._call(path, "status", timeout_s=STATUS_TIMEOUT_S)
        try:
            return msgspec.convert(answer.get("status"), DaemonStatus)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise UserError(f"It is of another version of Shoal ({error}); restart it.") from error

    def _ask_events(self, watch: _Watch, pid: int) -> list[EventRow]:
        """What it told since the last time; from the beginning if it is another process."""
        if watch.status is not None and watch.status.pid != pid:
            watch.last_event = 0
        try:
            answer = self._call(
                watch.endpoint.socket, "events", timeout_s=STATUS_TIMEOUT_S, since=watch.last_event
            )
            events = msgspec.convert(answer.get("events", []), list[EventRow])
        except (UserError, msgspec.ValidationError):
            return []  # a daemon that tells none still has a status
        last = answer.get("last", 0)
        watch.last_event = events[-1].number if events else last if isinstance(last, int) else 0
        return events

    def _frame(self) -> Frame:
        now_s = time.time()
        with self._lock:
            watches = [self._watches[label] for label in sorted(self._watches, key=_rank)]
            statuses = tuple(watch.status for watch in watches if watch.status is not None)
            events = sorted(
                (event for watch in watches for event in watch.events), key=lambda one: one.at_s
            )
            for watch in watches:
                watch.events = []
            attached = tuple(watch.attached for watch in watches)
            trouble = "" if self._watches else self._trouble
        return Frame(
            at_s=now_s,
            statuses=statuses,
            events=tuple(events),
            trouble=trouble,
            daemons=attached,
        )


def _label(endpoint: DaemonEndpoint) -> str:
    return f"{endpoint.role} {endpoint.instance}"


def _rank(label: str) -> tuple[bool, str]:
    """Syncers first: they see the whole swarm."""
    return (not label.startswith("syncer"), label)


class _Watch:
    """What is known of one daemon. Shared between threads, under the source's lock."""

    def __init__(self, label: str, endpoint: DaemonEndpoint) -> None:
        self.endpoint = endpoint
        self.status: DaemonStatus | None = None
        self.events: list[Told] = []
        self.last_event = 0
        self.is_forgotten = False
        self.attached = Attached(label=fmt.clean(label), since_s=time.time())

    def take(self, status: DaemonStatus, events: list[EventRow], now_s: float) -> None:
        """The daemon answered at `now_s`."""
        self.status = status
        label = self.attached.label
        told = [Told(**msgspec.structs.asdict(event), daemon=label) for event in events]
        self.events = (self.events + told)[-EVENTS_HELD_MAX:]
        self.attached = msgspec.structs.replace(
            self.attached, key=status.key, answered_s=now_s, trouble="", has_ended=False
        )
