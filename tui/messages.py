"""What travels inside the screen. Messages that can pile up replace each other: newest wins."""

from __future__ import annotations

from textual.message import Message


class FrameCame(Message):
    """There is something newer to draw; what it is, the app already holds."""

    def can_replace(self, message: Message) -> bool:
        """However many frames came while the screen was busy, it draws once."""
        return isinstance(message, FrameCame)


class ViewWanted(Message):
    """Another view was asked for, with the mouse."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.view = view


class Sought(Message):
    """A place of the recording was asked for, with the mouse."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


class Entered(Message):
    """The line at the bottom changed, was accepted, or was given up."""

    def __init__(self, kind: str, text: str, *, is_final: bool, is_cancelled: bool = False) -> None:
        super().__init__()
        self.kind = kind
        """filter or command."""
        self.text = text
        self.is_final = is_final
        self.is_cancelled = is_cancelled
