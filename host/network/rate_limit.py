"""The owner's ceilings on bytes per second: bulk data waits its turn, control messages never do.

What control messages took is booked as well, so that everything together keeps to the ceiling as
long as bulk data is most of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from host.network.line_meter import LineMeter
from host.network.token_bucket import PIECE_BYTES, TokenBucket

PIECE_S: Final = 0.25
PIECE_BYTES_MIN: Final = 4 << 10


@dataclass(slots=True)
class Way:
    """One direction: sending, or receiving. Any thread may wait for its turn."""

    bucket: TokenBucket | None = None
    """None: as fast as it goes."""
    meter: LineMeter = field(default_factory=LineMeter)
    bulk_bytes: int = 0
    _booked_bytes: int = 0
    _seen_bytes: int = 0
    _other_bytes: int = 0
    """Not booked yet; below zero where bulk data is counted later than it was granted."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def limit(self, bytes_per_s: int | None) -> None:
        """The ceiling from now on; transfers under way keep to it from their next piece on."""
        if bytes_per_s is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(bytes_per_s)
        else:
            self.bucket.bytes_per_s = bytes_per_s

    @property
    def bytes_per_s(self) -> float | None:
        """What goes at most: the ceiling, or what the line was measured to take, whichever is less;
        None while neither is known."""
        bucket, measured = self.bucket, self.meter.bytes_per_s
        if bucket is None:
            return measured
        return bucket.bytes_per_s if measured is None else min(bucket.bytes_per_s, measured)

    @property
    def piece_bytes(self) -> int | None:
        """What one transfer moves at a time, so that others get their turn; None for no limit."""
        if self.bucket is None:
            return None
        wanted = int(self.bucket.bytes_per_s * PIECE_S)
        return max(PIECE_BYTES_MIN, min(PIECE_BYTES, wanted))

    def wait_s(self, count: int, now_s: float) -> float:
        """Seconds until so many bytes of bulk data may be on their way."""
        with self._lock:
            self.bulk_bytes += count
        bucket = self.bucket
        return 0.0 if bucket is None else bucket.take(count, now_s)

    def book(self, total_bytes: int, now_s: float) -> None:
        """Takes account of what went besides bulk data; total_bytes: everything so far."""
        bulk_bytes, bucket = self.bulk_bytes, self.bucket
        self._other_bytes += (total_bytes - self._seen_bytes) - (bulk_bytes - self._booked_bytes)
        self._seen_bytes, self._booked_bytes = total_bytes, bulk_bytes
        if self._other_bytes > 0:
            other, self._other_bytes = self._other_bytes, 0
            if bucket is not None:
                bucket.take(other, now_s)


@dataclass(slots=True)
class RateLimiter:
    """Both directions of one host."""

    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)

    def limit(self, up: int | None, down: int | None) -> None:
        """Ceilings in bytes per second, None for none."""
        self.up.limit(up)
        self.down.limit(down)


async def wait_turn(way: Way, count: int, own: TokenBucket | None = None) -> float:
    """Sleeps until the ceilings let so many bytes through; the seconds slept."""
    now_s = asyncio.get_running_loop().time()
    wait_s = way.wait_s(count, now_s)
    if own is not None:
        wait_s = max(wait_s, own.take(count, now_s))
    if wait_s > 0.0:
        await asyncio.sleep(wait_s)
    return wait_s
