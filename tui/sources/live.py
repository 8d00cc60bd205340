"""Where frames come from while the swarm lives: the control sockets of daemons on this machine.

Everything that may block happens in threads, one for each daemon, so that a daemon that hangs
delays neither the screen nor the news of the others. Each thread keeps one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from protocol.errors import RemoteError, ShoalError, UserError
from protocol.status import DaemonStatus, NodeStatus, StatusAnswer, SwarmSeen, SyncerStatus
from tui.frames.frame import Attached, Frame, Told
from tui.text import fmt
from tui.text.election import leads

# Only those who look at a recording need it, and it takes as long as all else here.
if TYPE_CHECKING:
    from tui.sources.playback import Playback

PERIOD_S = 0.5
ASKING_SHARE_MAX = 0.004
"""Of a core, for asking one daemon: what a thousand learners do takes milliseconds to read."""

PERIOD_S_MAX = 1.0
STATUS_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 5.0
ENDED_SHOWN_S = 300.0
"""A daemon that ended in good order leaves the screen after this, if others are there."""

EVENTS_HELD_MAX = 5000
"""Events that wait for the screen; a suspended terminal must not fill the memory."""

LEADING = "leading syncer"
"""Label of what a learner was told of the swarm, where no syncer that leads is attached."""

COMMANDS = {
    "pause": "pauses",
    "resume": "resumes",
    "finish": "pushes what it has and then leaves",
    "stop": "is stopping",
}
"""What a daemon may be told, and the words that confirm it."""


class Endpoint(NamedTuple):
    """A daemon that left a control socket; whether it answers is another question."""

    role: str
    """syncer, witness or learner."""
    instance: str
    """Its name on this machine."""
    socket: Path


Answer = TypeVar("Answer")


class Connection(Protocol):
    """A standing connection to one daemon, for one thread at a time."""

    def ask(self, verb: str, wanted: type[Answer], timeout_s: float = ..., **fields: Any) -> Answer:
        """The daemon's answer as `wanted`; raises ShoalError when there is none."""

    def close(self) -> None:
        """Hangs up."""


Connect = Callable[[Path], Connection]


class _EventsAnswer(Struct, kw_only=True):
    events: list[Told] = []
    last: int = 0


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
    """Daemons of this machine, asked once or twice a second for as long as `frames` is read."""

    playback: Playback | None = None

    def __init__(self, find: Callable[[], Sequence[Endpoint]], connect: Connect) -> None:
        self._find = find
        self._connect = connect
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
        answer = await asyncio.to_thread(self._send, watch.endpoint.socket, verb, fields)
        return str(answer.get("text") or f"{target} {COMMANDS[verb]}")

    def _send(self, path: Path, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        with contextlib.closing(self._connect(path)) as connection:
            return connection.ask(verb, dict[str, Any], COMMAND_TIMEOUT_S, **fields)

    def _look_out(self) -> None:
        """Thread: finds daemons, and starts a thread for each that is new."""
        while not self._ends.is_set():
            try:
                found = self._find()
                trouble = "" if found else "No daemon runs on this machine yet; still looking."
            except (ShoalError, OSError) as error:
                found, trouble = [], f"{error} Still looking."
            for endpoint in found:
                self._attach(endpoint)
            self._mark_ended({_label(endpoint) for endpoint in found})
            with self._lock:
                self._trouble = "" if self._watches else trouble
            self._ends.wait(PERIOD_S)

    def _attach(self, endpoint: Endpoint) -> None:
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
        path = watch.endpoint.socket
        connection = self._connect(path)
        while not self._ends.is_set() and not watch.is_forgotten:
            if watch.endpoint.socket != path:
                connection.close()
                path = watch.endpoint.socket
                connection = self._connect(path)
            began_s = time.thread_time()
            try:
                status = connection.ask("status", StatusAnswer, STATUS_TIMEOUT_S).status
                events = self._ask_events(connection, watch, status.pid)
            except ShoalError as error:
                with self._lock:
                    watch.attached = msgspec.structs.replace(watch.attached, trouble=str(error))
            else:
                with self._lock:
                    watch.take(status, events, time.time())
                self._ask_swarm(connection, watch)
            took_s = time.thread_time() - began_s
            self._ends.wait(max(PERIOD_S, min(took_s / ASKING_SHARE_MAX, PERIOD_S_MAX)))
        connection.close()

    def _ask_events(self, connection: Connection, watch: _Watch, pid: int) -> list[Told]:
        """What it told since the last time; from the beginning if it is another process."""
        if watch.status is not None and watch.status.pid != pid:
            watch.last_event = 0
        try:
            answer = connection.ask(
                "events", _EventsAnswer, STATUS_TIMEOUT_S, since=watch.last_event
            )
        except (UserError, RemoteError):
            return []  # a daemon that tells none still has a status
        watch.last_event = answer.events[-1].number if answer.events else answer.last
        return answer.events

    def _ask_swarm(self, connection: Connection, watch: _Watch) -> None:
        """What a learner hears of the swarm, where nobody here knows that better."""
        node = watch.status
        if not isinstance(node, NodeStatus) or not watch.knows_swarm:
            return
        with self._lock:
            others = list(self._watches.values())
        if any(_leads_for(node, other) for other in others):
            return
        try:
            seen = connection.ask("swarm", SwarmSeen, STATUS_TIMEOUT_S, seen=watch.seen_number)
        except (UserError, RemoteError):
            watch.knows_swarm = False  # A daemon of before there was this.
        except ShoalError:
            pass  # It has heard nothing yet, and is asked again.
        else:
            with self._lock:
                watch.see(seen, time.time())

    def _frame(self) -> Frame:
        now_s = time.time()
        with self._lock:
            watches = [self._watches[label] for label in sorted(self._watches, key=_rank)]
            statuses = [watch.status for watch in watches if watch.status is not None]
            events = sorted(
                (event for watch in watches for event in watch.events), key=lambda one: one.at_s
            )
            for watch in watches:
                watch.events = []
            attached = [watch.attached for watch in watches]
            for led, seen in _leaders(watches):
                statuses.append(led)
                attached.append(seen)
            trouble = "" if self._watches else self._trouble
        return Frame(
            at_s=now_s,
            statuses=tuple(statuses),
            events=tuple(events),
            trouble=trouble,
            daemons=tuple(attached),
        )


def _label(endpoint: Endpoint) -> str:
    return f"{endpoint.role} {endpoint.instance}"


def _rank(label: str) -> tuple[bool, str]:
    """Syncers first: they see the whole swarm."""
    return (not label.startswith("syncer"), label)


class _Watch:
    """What is known of one daemon. Shared between threads, under the source's lock."""

    def __init__(self, label: str, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.status: DaemonStatus | None = None
        self.events: list[Told] = []
        self.last_event = 0
        self.is_forgotten = False
        self.knows_swarm = True
        self.led: SyncerStatus | None = None
        """What the leader told this learner of the swarm."""
        self.seen_number = 0
        self.led_s = 0.0
        self.led_period_s = 0.0
        self.attached = Attached(label=fmt.clean(label), since_s=time.time())

    def take(self, status: DaemonStatus, events: list[Told], now_s: float) -> None:
        """The daemon answered at `now_s`."""
        if self.status is not None and self.status.pid != status.pid:
            self.seen_number = 0  # Another process counts anew.
        self.status = status
        for event in events:
            event.daemon = self.attached.label
        self.events = (self.events + events)[-EVENTS_HELD_MAX:]
        self.attached = msgspec.structs.replace(
            self.attached, key=status.key, answered_s=now_s, trouble="", has_ended=False
        )

    def see(self, seen: SwarmSeen, now_s: float) -> None:
        """What the learner was told of the swarm, as it says at `now_s`."""
        self.led = seen.status or self.led
        self.seen_number = seen.number
        self.led_s, self.led_period_s = now_s - seen.age_s, seen.period_s


def _leads_for(node: DaemonStatus, other: _Watch) -> bool:
    """Whether this is a syncer that leads the same project, and answers."""
    status = other.status
    if not isinstance(status, SyncerStatus) or other.attached.trouble:
        return False
    return status.project.id == node.project.id and leads(status)


def _leaders(watches: Sequence[_Watch]) -> list[tuple[SyncerStatus, Attached]]:
    """The leaders that learners here were told of, and that are not attached: one a project."""
    found: dict[str, tuple[SyncerStatus, Attached]] = {}
    here = {watch.status.key for watch in watches if watch.status is not None}
    for watch in sorted(watches, key=lambda one: -one.led_s):
        led, node = watch.led, watch.status
        if led is None or node is None or led.key in here or led.project.id in found:
            continue
        if any(_leads_for(node, other) for other in watches):
            continue  # It was elected since.
        label = f"{LEADING} of {led.project.name}" if found else LEADING
        seen = Attached(
            label=fmt.clean(label),
            key=led.key,
            since_s=watch.led_s,
            answered_s=watch.led_s,
            period_s=watch.led_period_s,
        )
        found[led.project.id] = (led, seen)
    return list(found.values())
