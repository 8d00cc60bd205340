"""A trainer's end of a link: blocking. One thread receives; others may send."""

from __future__ import annotations

import select
import socket
from collections import deque
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from node.trainer.link import messages

M = TypeVar("M")


class BlockingEnd(Generic[M]):
    """Sends messages, receives those of type M in the order in which they were sent."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._end = end
        self._decoder = decoder
        self._sending = Lock()
        self._reader = messages.FrameReader()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._ahead: deque[M] = deque()
        """Seen before their turn."""

    def send(self, message: messages.Framed) -> None:
        """Returns once the message is handed to the kernel. LinkClosed if the other end is gone."""
        try:
            with self._sending:
                self._end.sendall(messages.frame(message))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise messages.LinkClosed("the other end closed the link") from error

    def receive(self, timeout_s: float | None) -> M | None:
        """The next message, waiting up to `timeout_s` (None: for ever); None if none came.

        LinkClosed at end of file.
        """
        return self._ahead.popleft() if self._ahead else self._next(timeout_s)

    def glance(self, timeout_s: float) -> M | None:
        """The next message not seen before, left for its turn; None if none came in time.

        LinkClosed at end of file.
        """
        command = self._next(timeout_s)
        if command is not None:
            self._ahead.append(command)
        return command

    def peek(self) -> M | None:
        """The message whose turn is next, left for its turn; None if none has come.

        LinkClosed at end of file.
        """
        return self._ahead[0] if self._ahead else self.glance(0.0)

    def _next(self, timeout_s: float | None) -> M | None:
        while True:
            body = self._reader.next_frame()
            if body is not None:
                return messages.decode(self._decoder, body)
            if not self._poll.poll(None if timeout_s is None else timeout_s * 1000.0):
                return None
            try:
                if not messages.read_into(self._reader, self._end):
                    raise messages.LinkClosed("the other end closed the link")
            except BlockingIOError:
                continue  # Woken for nothing.

    def seen(self) -> tuple[M, ...]:
        """The messages that were seen before their turn, in their order."""
        return tuple(self._ahead)

    def take_descriptor(self) -> int:
        """The descriptor that came with the `OfferSlot` just received."""
        return self._reader.take_descriptor()

    @property
    def descriptor(self) -> int:
        """Readable when something came or the other end is gone."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes the socket and every descriptor not taken."""
        self._reader.close()
        self._end.close()


class TrainerEnd(BlockingEnd[messages.Command]):
    """Sends events to the daemon, receives its commands."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, messages.COMMANDS)
