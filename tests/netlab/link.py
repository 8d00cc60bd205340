"""What a link does to a packet: pure, so that the same packets at the same times fare the same.

A packet waits for its turn on the link's rate, may be lost on the way, and arrives a latency later.
One direction keeps its order, whatever the jitter: most real paths do, and TCP takes disorder for
loss.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

QUEUE_BYTES = 256 * 1024
"""A home router's order of magnitude: a quarter of a second at 1 MB/s."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two nodes. The default is perfect."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """A packet takes up to so much longer or shorter, evenly spread."""
    loss_frac: float = 0.0
    rate_bytes_per_s: float | None = None
    """Of whole IP packets; None for no limit."""
    queue_bytes: int = QUEUE_BYTES
    """Packets that would have to wait behind more than this are dropped."""

    def __post_init__(self) -> None:
        if self.latency_s < 0 or not 0 <= self.jitter_s <= self.latency_s:
            raise ValueError("a packet cannot arrive before it is sent")
        if not 0 <= self.loss_frac <= 1:
            raise ValueError(f"a loss of {self.loss_frac} is not a share")
        if self.rate_bytes_per_s is not None and self.rate_bytes_per_s <= 0:
            raise ValueError("a link without a rate is a cut: say so")


@dataclass(slots=True)
class Counts:
    """What became of the packets of one direction."""

    forwarded: int = 0
    forwarded_bytes: int = 0
    lost: int = 0
    """On the way, by chance."""
    overflowed: int = 0
    """For lack of room in the queue."""
    cut: int = 0
    refused: int = 0
    """By the NAT that the receiver is behind."""


class RateLimiter:
    """A link in use: its queue, its chances and its counts."""

    def __init__(self, link: Link, *, seed: str) -> None:
        self.link = link
        self.is_open = True
        self.counts = Counts()
        self._fate = random.Random(f"{seed} loss")
        self._wobble = random.Random(f"{seed} jitter")
        self._free_s = 0.0
        """When the last byte taken so far has left."""
        self._arrival_s = 0.0

    def admit(self, size_bytes: int, now_s: float) -> float | None:
        """When a packet that comes now arrives; None if it never does."""
        link, counts = self.link, self.counts
        if not self.is_open:
            counts.cut += 1
            return None
        leaves_s = now_s
        if link.rate_bytes_per_s is not None:
            starts_s = max(now_s, self._free_s)
            if (starts_s - now_s) * link.rate_bytes_per_s > link.queue_bytes:
                counts.overflowed += 1
                return None
            self._free_s = leaves_s = starts_s + size_bytes / link.rate_bytes_per_s
        if link.loss_frac and self._fate.random() < link.loss_frac:
            counts.lost += 1
            return None
        arrival_s = leaves_s + link.latency_s
        if link.jitter_s:
            arrival_s += self._wobble.uniform(-link.jitter_s, link.jitter_s)
        self._arrival_s = arrival_s = max(arrival_s, self._arrival_s)
        counts.forwarded += 1
        counts.forwarded_bytes += size_bytes
        return arrival_s
