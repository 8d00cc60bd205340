"""How much data a connection hands over at once: what its line sends within a tenth of a second.

An answer, and a question of our own, leave behind whatever was handed over before them. On a fast
line large pieces cost less. On one that sends 60 kB a second a mebibyte takes a quarter of a
minute, and whoever only asks whether we have something waits for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AHEAD_S: Final = 0.1
"""About the round trip of a long line."""

BYTES_MIN: Final = 16 << 10
"""One record of TLS."""

BYTES_MAX: Final = 1 << 20

FIRST_BYTES: Final = 32 << 10
"""Until it is known how fast the line is."""

WINDOW_S: Final = 0.05
WINDOW_UNSENTS: Final = 4
"""A rate is taken over so much time of waiting, or over so many times what the kernel may hold,
beside which it does not count what the kernel makes room for by itself."""

QUIET_S: Final = 1.0
"""After so long without data nothing is known: what is asked for next may be less than what had
room while the line was another one's, and then it would never be measured again."""

UNSENT_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class SendAhead:
    """What one connection may have waiting to leave."""

    size_bytes: int = FIRST_BYTES
    """In our own queue, and in one piece of a blob."""
    _room_bytes: int = 0
    """That the kernel was given and has not filled: what goes there has not left."""
    _left_bytes: int = 0
    _took_s: float = 0.0
    """Of the present window: what had to wait and has left, and how long that took."""
    _used_s: float = -QUIET_S

    @property
    def unsent_bytes(self) -> int:
        """What the kernel may hold beyond what is on its way: it says that there is room when half
        of it has left, and we are not always there at once."""
        return min(UNSENT_BYTES_MAX, 2 * self.size_bytes)

    def begin(self, now_s: float) -> bool:
        """A piece is about to be handed over; whether that is the first one after a pause."""
        is_first, self._used_s = now_s - self._used_s > QUIET_S, now_s
        if is_first:
            self.size_bytes = FIRST_BYTES
            self._room_bytes, self._left_bytes, self._took_s = 0, 0, 0.0
        return is_first

    def left(self, count: int, took_s: float, now_s: float) -> int:
        """So many bytes that had to wait were taken within this time; how many of them have left,
        and do not fill room that the kernel was given."""
        self._used_s = now_s
        filling = min(self._room_bytes, max(0, count))
        self._room_bytes -= filling
        self._left_bytes += count - filling
        self._took_s += took_s
        is_much = self._left_bytes >= WINDOW_UNSENTS * self.unsent_bytes and self._took_s > 0.0
        if self._took_s >= WINDOW_S or is_much:
            self._close()
        return count - filling

    def _close(self) -> None:
        wanted = int(AHEAD_S * self._left_bytes / self._took_s)
        before = self.unsent_bytes
        # Step by step: what is on its way grows too, and that looks like a fast line.
        self.size_bytes = min(BYTES_MAX, 2 * self.size_bytes, max(BYTES_MIN, wanted))
        self._room_bytes = max(0, self.unsent_bytes - before)
        self._left_bytes, self._took_s = 0, 0.0
