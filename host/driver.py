"""Runs one machine on asyncio: streams in, effects out, one timer, jobs as owned tasks.

The loop is deliberately dull: feed an event, carry out the effects, repeat. Everything clever is
in the machine, which the simulator runs unchanged.

Between two messages of one peer everybody else has a turn, however many came at once; and a peer
that opened its stream to us and has no vote takes a bounded share of the loop's time
(`host.network.message_pace`).

An exception in the machine, or while its effects are carried out, leaves it half applied. Whichever
way the event came, the driver then handles nothing more and `run` raises InternalError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from host import addresses
from host.network.message_pace import MessagePace
from host.network.streams import ControlStream
from host.transport import Transport
from protocol import errors, machine, wire
from protocol.ids import short
from protocol.messages import Message
from protocol.trace import Fact

FAREWELL_S = 0.2
"""How long what was said last has to leave before the streams end."""

log = logging.getLogger("shoal.driver")


class DrivenMachine(Protocol):
    """A machine that can also be told of an offence found while reading a peer's bytes."""

    def handle(self, event: machine.Event, now_s: float) -> list[machine.Effect]: ...

    def fault(self, peer: bytes, error: errors.RemoteError) -> list[machine.Effect]: ...


class Driver:
    """One machine and the world around it."""

    def __init__(
        self,
        driven: DrivenMachine,
        transport: Transport,
        *,
        run_job: Callable[[machine.Job], Awaitable[machine.JobResult]],
        act: Callable[[object], None],
        on_fact: Callable[[Fact], None],
        has_vote: Callable[[bytes], bool] = lambda _peer: False,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """cpu_s: what this thread has taken of the processor so far."""
        self.machine = driven
        self._has_vote = has_vote
        self._cpu_s = cpu_s
        self._pace = MessagePace()
        self._transport = transport
        self._run_job = run_job
        self._act = act
        self._on_fact = on_fact
        self._streams: dict[bytes, ControlStream] = {}
        self._encoded: tuple[Message, bytes] | None = None
        """The last message that was sent: a record goes to hundreds of peers."""
        self._events: deque[machine.Event] = deque()
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake_s = self._rings_s = 0.0
        """When the machine wants to be woken, and when the timer runs out: no later."""
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: asyncio.Future[machine.Stop] | None = None
        self._failure: errors.InternalError | None = None
        transport.serve_control(self._accepted)

    async def run(self) -> machine.Stop:
        """Drive until the machine asks to stop; then end what is under way and say why.

        Raises InternalError once the machine has failed.
        """
        if self._failure is not None:
            raise self._failure  # A request came before the start.
        stopped: asyncio.Future[machine.Stop] = asyncio.get_running_loop().create_future()
        self._stopped = stopped
        try:
            async with asyncio.TaskGroup() as self._group:
                self.take(machine.Started())
                await asyncio.wait({stopped})
                # What was said last, such as a goodbye, still leaves.
                for stream in self._streams.values():
                    stream.close()
                await asyncio.sleep(FAREWELL_S)
                for task in self._tasks:
                    task.cancel()
            return stopped.result()
        finally:
            stopped.cancel()  # Where a task of ours failed: nothing more is handled then, either.
            if self._timer is not None:
                self._timer.cancel()

    def take(self, event: machine.Event) -> None:
        """Feed an event; effects of one event are carried out before the next is looked at."""
        self._events.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._events and not self._is_over:
                event = self._events.popleft()
                self._apply(event, partial(self.machine.handle, event))
        finally:
            self._is_draining = False

    def _apply(
        self, event: machine.Event | str, step: Callable[[float], list[machine.Effect]]
    ) -> None:
        try:
            self._carry_out_all(step(time.monotonic()))
        except Exception as error:
            # Root of every event: whatever it is, the machine is half applied and must not go on.
            self._fail(event if isinstance(event, str) else _name_of(event), error)

    def ask(self, question: Callable[[float], list[machine.Effect]]) -> None:
        """Ask the machine something outside of `handle`, such as its owner's wish.

        Raises what the machine answers to the asker, a RemoteError or UserError; TransientError
        once nothing is driven any more; InternalError if the machine fails over it.
        """
        if self._stopped is not None and self._stopped.done():
            raise errors.TransientError("the daemon is stopping")
        try:
            self._carry_out_all(question(time.monotonic()))
        except (errors.RemoteError, errors.UserError):
            raise  # Refused before anything changed.
        except Exception as error:
            # Root of every question, as of every event.
            raise self._fail("a request of its owner", error) from error

    def fault(self, peer: bytes, error: errors.RemoteError) -> None:
        """Tell the machine of an offence that was found while reading a peer's bytes."""
        if not self._is_over:
            self._apply(
                f"an offence of host {short(peer)}", lambda _: self.machine.fault(peer, error)
            )

    def _fail(self, what: str, error: Exception) -> errors.InternalError:
        """Handle nothing from now on, and let `run` say why."""
        failure = errors.InternalError(f"{type(error).__name__} over {what}: {error}")
        failure.__cause__ = error
        self._events.clear()
        self._failure = failure
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(failure)
        return failure

    def send(self, peer: bytes, message: Message) -> None:
        """Queue a message that no machine asked for, such as a report; lost without a stream."""
        stream = self._streams.get(peer)
        if stream is not None:
            self._send(stream, message)

    @property
    def _is_over(self) -> bool:
        return self._stopped is None or self._stopped.done()

    def _carry_out_all(self, effects: list[machine.Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Send(peer, message):
                self.send(peer, message)
            case machine.Emit(fact):
                self._on_fact(fact)
            case machine.Do(action):
                self._act(action)
            case machine.Start():
                self._spawn(self._job(effect))
            case machine.WakeAt(at_s):
                self._arm(at_s)
            case machine.Connect(peer):
                self._spawn(self._dial(peer))
            case machine.Disconnect(peer, reason):
                stream = self._streams.get(peer)
                if stream is not None:
                    log.debug("closing the stream to %s: %s", short(peer), reason)
                    stream.close()
            case machine.Stop():
                if self._stopped is not None and not self._stopped.done():
                    self._stopped.set_result(effect)

    def _send(self, stream: ControlStream, message: Message) -> None:
        try:
            if self._encoded is None or self._encoded[0] is not message:
                self._encoded = (message, wire.encode(message))
            stream.send(self._encoded[1])
        except errors.LimitExceeded as error:
            # Ours, not the peer's: the stream has lost its order, a fresh one starts over.
            log.error("not sent to %s: %s", short(stream.peer), error)
            stream.abort(str(error))
        except errors.TransientError as error:
            log.debug("not sent to %s: %s", short(stream.peer), error)

    def _arm(self, at_s: float) -> None:
        """Wake the machine then, and not when it said before. Mostly that is later than what it
        said before, and the timer is left to run out: it looks then."""
        self._wake_s = at_s
        if self._timer is None or at_s < self._rings_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = self._wake_s
        delay_s = max(0.0, self._wake_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._rings_s < self._wake_s:
            self._set_timer()
        else:
            self.take(machine.Woke())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None, "effects are carried out while the driver runs"
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _job(self, start: machine.Start) -> None:
        result: machine.JobResult
        try:
            result = await self._run_job(start.job)
        except errors.ShoalError as error:
            result = machine.Failed(str(error))
        except Exception as error:
            # Root of the task: one job's bug is that job's failure, not the daemon's end.
            log.exception("%s failed in an unforeseen way", type(start.job).__name__)
            result = machine.Failed(f"{type(error).__name__}: {error}")
        self.take(machine.JobDone(start.id, result))

    # Streams.

    async def _dial(self, peer: bytes) -> None:
        try:
            stream = await self._transport.open_control(peer)
        except errors.ShoalError as error:
            self.take(machine.PeerDown(peer, str(error)))
            return
        await self._converse(stream, is_paced=False)

    async def _accepted(self, stream: ControlStream) -> None:
        if self._is_over:
            stream.close()
            return
        await self._converse(stream, is_paced=not self._has_vote(stream.peer))

    async def _converse(self, stream: ControlStream, *, is_paced: bool) -> None:
        """Read a stream until it ends; a newer stream of the same peer takes its place."""
        former = self._streams.get(stream.peer)
        if former is not None:
            former.abort("replaced by a newer stream")
            self.take(machine.PeerDown(stream.peer, "replaced by a newer stream"))
        self._streams[stream.peer] = stream
        reason = "reading failed"
        try:
            self.take(machine.PeerUp(stream.peer, addresses.network_of(stream.address)))
            reason = await self._read(stream, is_paced=is_paced)
        finally:
            # However reading ended: the machine must not take a dead stream for a live one.
            if self._streams.get(stream.peer) is stream:
                del self._streams[stream.peer]
                self.take(machine.PeerDown(stream.peer, reason))

    async def _read(self, stream: ControlStream, *, is_paced: bool) -> str:
        """Feed what a peer says to the machine; the reason why it ended."""
        while True:
            try:
                frame = await stream.recv()
                begun_s = self._cpu_s()
                message = wire.decode_message(frame)
            except errors.RemoteError as error:
                if self._streams.get(stream.peer) is stream:
                    self.fault(stream.peer, error)
                stream.abort(str(error))
                return str(error)
            except errors.TransientError as error:
                return str(error)
            if self._streams.get(stream.peer) is not stream:
                return "replaced"
            self.take(machine.Received(stream.peer, message))
            spent_s = self._cpu_s() - begun_s
            paused_s = (
                self._pace.pause_s(stream.peer, spent_s, time.monotonic()) if is_paced else 0.0
            )
            # Without this nobody would have a turn as long as there are frames in memory.
            if paused_s or stream.has_frame:
                await asyncio.sleep(paused_s)


def _name_of(event: machine.Event) -> str:
    """What happened, for people."""
    match event:
        case machine.Received(peer, message):
            return f"{type(message).__name__} from host {short(peer)}"
        case machine.JobDone(_, result):
            return f"the result {type(result).__name__}"
        case machine.Note(value):
            return f"{type(value).__name__} of this host"
    return type(event).__name__
