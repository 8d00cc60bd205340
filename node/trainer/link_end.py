"""The trainer's end of the link: blocking, single-threaded."""

from __future__ import annotations

import select
import socket
from collections import deque

from node.trainer.link import (
    COMMANDS,
    Command,
    Event,
    FrameReader,
    LinkClosed,
    decode,
    frame,
    read_into,
)


class TrainerEnd:
    """Sends events, receives commands in the order in which they were sent."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._ahead: deque[Command] = deque()
        """Seen before their turn."""

    def send(self, event: Event) -> None:
        """Returns once the event is handed to the kernel. LinkClosed if the daemon is gone."""
        try:
            self._end.sendall(frame(event))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LinkClosed("the daemon closed the link") from error

    def receive(self, timeout_s: float | None) -> Command | None:
        """The next command, waiting up to `timeout_s` (None: for ever); None if none came.

        LinkClosed at end of file.
        """
        return self._ahead.popleft() if self._ahead else self._next(timeout_s)

    def glance(self, timeout_s: float) -> Command | None:
        """The next command not seen before, left for its turn; None if none came in time.

        LinkClosed at end of file.
        """
        command = self._next(timeout_s)
        if command is not None:
            self._ahead.append(command)
        return command

    def _next(self, timeout_s: float | None) -> Command | None:
        while True:
            body = self._reader.next_frame()
            if body is not None:
                command: Command = decode(COMMANDS, body)
                return command
            if not self._poll.poll(None if timeout_s is None else timeout_s * 1000.0):
                return None
            try:
                if not read_into(self._reader, self._end):
                    raise LinkClosed("the daemon closed the link")
            except BlockingIOError:
                continue  # Woken for nothing.

    def take_descriptor(self) -> int:
        """The descriptor that came with the `OfferSlot` just received."""
        return self._reader.take_descriptor()

    def close(self) -> None:
        """Closes the socket and every descriptor not taken."""
        self._reader.close()
        self._end.close()
