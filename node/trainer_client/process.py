"""The daemon's side of one trainer: starts it, talks to it, notices its end, always within bounds.

One `TrainerProcess` is one process; a restart is a new object, with new counters and new slots.
Everything happens in callbacks of the running event loop: the socket and a descriptor of the
child's end are registered as readers, so there is no task and nothing to leak when the child dies
at any moment.

It decides nothing: whether to restart, and with what micro-batch, is the caller's business. torch
is never imported here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from host.runtime import fork_server
from host.runtime.fork_server import Started
from host.runtime.process_end import descriptor_of_end
from host.runtime.python_path import python_path
from node.trainer.link import messages
from node.trainer.link.shared_memory import Slot
from protocol.errors import InternalError, TransientError

TERMINATE_WAIT_S: Final = 2.0
"""Between SIGTERM and SIGKILL. The trainer has nothing to save, so this is only courtesy."""

KILL_WAIT_S: Final = 10.0
"""The kernel may need this long to free an accelerator; after that nobody waits any more."""

SILENT_WAIT_S: Final = 10.0
"""A trainer that closed the link but still lives after this is killed."""

LOG_BYTES_MAX: Final = 4 << 20
"""A longer log is started anew when the next trainer starts."""

FREE_SLOTS_MAX: Final = 4
"""Unused slots kept for each size: as many as fragments are in flight, and a few more."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a trainer ended."""

    code: int | None
    """Exit code, None if a signal ended it."""
    signal: int | None
    kind: messages.FailureKind | None
    """What the trainer itself said, None if it could not or had no reason to."""
    message: str
    """One sentence for people."""
    was_asked: bool
    """Whether `stop` had been called."""

    @property
    def oom(self) -> bool:
        """Whether a smaller micro-batch might help."""
        return self.kind == "oom" or self.code == messages.EXIT_OOM


@dataclass(eq=False, kw_only=True)
class TrainerProcess:
    """A child process that trains.

    `on_event` and `on_exit` are called on the loop that `start` ran on; `on_exit` exactly once,
    after the last event. The child's stderr is appended to `log_path`.
    """

    log_path: Path
    on_event: Callable[[messages.Event], None]
    on_exit: Callable[[ExitReason], None]
    reason: ExitReason | None = None
    """Set when the trainer has ended."""
    _process: Started | None = None
    _end: socket.socket | None = None
    _end_of_it: int = -1
    """Readable once the child has ended."""
    _reader: messages.FrameReader = field(default_factory=messages.FrameReader)
    _outbox: deque[tuple[memoryview, int]] = field(default_factory=deque)
    """Bytes to send, and the descriptor to send with them or -1."""
    _free: dict[int, list[Slot]] = field(default_factory=dict)
    _slots: dict[int, Slot] = field(default_factory=dict)
    _slot_numbers: Iterator[int] = field(default_factory=count)
    _failed: messages.Failed | None = None
    _trouble: str = ""
    _was_asked: bool = False
    _gone: asyncio.Event = field(default_factory=asyncio.Event)
    _killer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The child's process id, 0 before `start`."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self.reason is None

    async def start(self, configure: messages.Configure) -> None:
        """Starts the child and sends `configure`; `Ready` or an exit follows.

        Must be called on the daemon's main thread: the child dies when the thread that started it
        does. InternalError if the operating system refuses to start it.
        """
        assert self._process is None, "one TrainerProcess is one process"
        loop = asyncio.get_running_loop()
        self._end = self._spawn()
        loop.add_reader(self._end, self._on_readable)
        loop.add_reader(self._end_of_it, self._on_death)
        self.send(configure)

    def send(self, command: messages.Command) -> bool:
        """Queues a command and returns at once; False if the trainer is gone.

        A command may still be lost with a trainer that dies; `on_exit` then says so.
        """
        return self._queue(command, -1)

    def slot(self, numel: int) -> Slot:
        """A slot that the trainer has or will have been offered before any later command.

        Its content is undefined. TransientError if the trainer is gone, MemoryError if there is no
        memory for it.
        """
        if not self.is_running:
            raise TransientError("the trainer is gone; its slots went with it")
        free = self._free.get(numel)
        if free:
            return free.pop()
        slot = Slot.create(next(self._slot_numbers), numel)
        self._slots[slot.identity] = slot
        self._offer(slot)
        return slot

    def lend(self, slot: Slot) -> Slot:
        """Offers a slot that stays the caller's, who closes it once no command names it any more.

        Returns the same memory under the number by which commands name it.
        """
        lent = Slot(next(self._slot_numbers), slot.numel, os.dup(slot.descriptor))
        self._slots[lent.identity] = lent
        self._offer(lent)
        return lent

    def release(self, slot: Slot) -> None:
        """Gives a slot back. No command that names it may be unanswered, no view be in use."""
        if self._slots.get(slot.identity) is not slot:
            return  # Of a trainer that ended meanwhile.
        free = self._free.setdefault(slot.numel, [])
        if len(free) < FREE_SLOTS_MAX:
            free.append(slot)
            return
        self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """As `release`, for a slot that nobody will need again."""
        if self._slots.get(slot.identity) is not slot:
            return  # Of a trainer that ended meanwhile.
        del self._slots[slot.identity]
        slot.close()
        self.send(messages.DropSlot(slot.identity))

    def expect_end(self) -> None:
        """The trainer was told to end by itself: its end is no news."""
        self._was_asked = True

    async def stop(self, grace_s: float = 5.0) -> ExitReason | None:
        """Ends the trainer: `Quit`, then SIGTERM, then SIGKILL.

        Returns after at most grace_s + TERMINATE_WAIT_S + KILL_WAIT_S; None if it was never started
        or if even SIGKILL did not end it by then (a hung driver), in which case `on_exit` may come
        later.
        """
        if self._process is None:
            return None
        self._was_asked = True
        self.send(messages.Quit())
        steps = ((None, grace_s), (signal.SIGTERM, TERMINATE_WAIT_S), (signal.SIGKILL, KILL_WAIT_S))
        for number, wait_s in steps:
            if number is not None:
                self._signal(number)
            try:
                async with asyncio.timeout(wait_s):
                    await self._gone.wait()
            except TimeoutError:
                continue
            break
        return self.reason

    # ------------------------------------------------------------------------------- internals

    def _spawn(self) -> socket.socket:
        """Starts the child; returns our end of the link."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ours.setblocking(False)
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            size = self.log_path.stat().st_size if self.log_path.exists() else 0
            with self.log_path.open("ab" if size < LOG_BYTES_MAX else "wb") as log:
                self._process = fork_server.start(
                    "node.trainer.main",
                    ["--fd", str(theirs.fileno())],
                    environment=child_environment(),
                    output=log.fileno(),
                    errors=log.fileno(),
                    keep=(theirs.fileno(),),
                )
            self._end_of_it = descriptor_of_end(self._process)
        except OSError as error:
            ours.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            raise InternalError(f"the trainer process cannot be started: {error}") from error
        finally:
            theirs.close()
        return ours

    def _offer(self, slot: Slot) -> None:
        # A copy, because the slot may be dropped before the queue has moved.
        self._queue(messages.OfferSlot(slot.identity, slot.numel), os.dup(slot.descriptor))

    def _queue(self, command: messages.Command, descriptor: int) -> bool:
        if self._end is None:
            if descriptor >= 0:
                os.close(descriptor)
            return False
        was_empty = not self._outbox
        self._outbox.append((memoryview(messages.frame(command)), descriptor))
        if was_empty:
            self._flush()
        return self._end is not None

    def _flush(self) -> None:
        """Sends what the socket takes; the rest goes when it is writable."""
        end = self._end
        assert end is not None
        loop = asyncio.get_running_loop()
        while self._outbox:
            piece, descriptor = self._outbox[0]
            try:
                if descriptor >= 0:
                    sent = socket.send_fds(end, [piece], [descriptor])
                else:
                    sent = end.send(piece)
            except BlockingIOError:
                loop.add_writer(end, self._flush)
                return
            except (BrokenPipeError, ConnectionResetError):
                self._empty_outbox()  # The end of the process is about to be noticed.
                break
            if descriptor >= 0:
                os.close(descriptor)
            self._outbox[0] = (piece[sent:], -1)
            if sent == len(piece):
                self._outbox.popleft()
        loop.remove_writer(end)

    def _empty_outbox(self) -> None:
        while self._outbox:
            _, descriptor = self._outbox.popleft()
            if descriptor >= 0:
                os.close(descriptor)

    def _on_readable(self) -> None:
        if self._end is None:
            return
        if self._read():
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._end)
        self._killer = loop.call_later(SILENT_WAIT_S, self._signal, signal.SIGKILL)

    def _read(self) -> bool:
        """Delivers every event that is waiting; False at end of file or after nonsense."""
        assert self._end is not None
        is_open = True
        try:
            while is_open:
                try:
                    is_open = messages.read_into(self._reader, self._end)
                except BlockingIOError:
                    break
            while (body := self._reader.next_frame()) is not None:
                event: messages.Event = messages.decode(messages.EVENTS, body)
                if isinstance(event, messages.Failed):
                    self._failed = event
                self.on_event(event)
        except InternalError as error:
            self._trouble = str(error)
            self._signal(signal.SIGKILL)
            return False
        return is_open

    def _signal(self, number: signal.Signals) -> None:
        # Both kinds of child see to it that a reused process id is never hit.
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def _on_death(self) -> None:
        assert self._process is not None
        try:
            if self._end is not None and not self._trouble:
                self._read()  # Events sent just before the end, `Failed` above all.
        finally:
            self._close(asyncio.get_running_loop())
            # The descriptor said that the process has ended, so this does not wait.
            self.reason = self._exit_reason(self._process.wait())
            self._gone.set()
            self.on_exit(self.reason)

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Frees every descriptor; values of slots stay readable for those who hold them."""
        if self._killer is not None:
            self._killer.cancel()
        if self._end is not None:
            loop.remove_reader(self._end)
            loop.remove_writer(self._end)
            self._end.close()
            self._end = None
        loop.remove_reader(self._end_of_it)
        os.close(self._end_of_it)
        self._empty_outbox()
        self._reader.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._free.clear()

    def _exit_reason(self, status: int) -> ExitReason:
        if self._failed is not None:
            message = self._failed.message
        elif self._trouble:
            message = f"The trainer was killed: {self._trouble}."
        elif status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            hint = " (the kernel does this when the machine is out of memory)"
            message = f"The trainer was ended by {name}{hint if name == 'SIGKILL' else ''}."
        elif status == messages.EXIT_OK:
            message = "The trainer stopped."
        else:
            message = f"The trainer ended with exit code {status}; see {self.log_path}."
        return ExitReason(
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            kind=self._failed.kind if self._failed else None,
            message=message,
            was_asked=self._was_asked,
        )


CHILD_ENVIRONMENT: Final = {
    # Threads that wait for others must not spin: the cores are somebody's, and often shared.
    "OMP_WAIT_POLICY": "PASSIVE",
    # What torch frees and takes again in every local step is cleared by the kernel each time: in
    # large pages, where it has them, for a third less. Other C libraries do not read this.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Unless the owner's environment says otherwise."""


def child_environment() -> dict[str, str]:
    """Our own environment, our packages first, and settings that a trainer is faster with."""
    return {**CHILD_ENVIRONMENT, **os.environ, "PYTHONPATH": python_path()}
