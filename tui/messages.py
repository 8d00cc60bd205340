"""What travels inside the screen. Messages that can pile up replace each other: newest wins."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message


class FrameCame(Message):
    """There is something newer to draw; what it is, the app already holds."""

    def can_replace(self, message: Message) -> bool:
        """However many frames came while the screen was busy, it draws once."""
        return isinstance(message, FrameCame)


@dataclass
class ViewWanted(Message):
    """Another view was asked for, with the mouse."""

    view: str


@dataclass
class Sought(Message):
    """A place of the recording was asked for, with the mouse."""

    share: float


@dataclass
class Entered(Message):
    """The line at the bottom changed, was accepted, or was given up."""

    kind: str
    """filter or command."""
    text: str
    is_final: bool
