"""How long bytes take between two hosts: latency, shared bandwidth, loss, links that clog.

Every host hangs on an access link of its own. Two lanes run over it, as with the daemons: control
messages, which are small and go first, and bulk transfers, which share the link and queue behind
each other. A lost segment delays its stream until it was sent again; a stream that loses too many
in a row breaks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SEGMENT_BYTES = 1400
RESEND_S_MIN = 0.2
"""As TCP's smallest retransmission timeout."""

RESENDS_MAX = 7
"""Losses in a row after which a stream breaks."""

MATHIS = 1.22
"""Constant of the throughput of a lossy stream (Mathis et al., 1997,
https://doi.org/10.1145/263932.264023): SEGMENT_BYTES * MATHIS / (round trip * sqrt(loss))."""


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """What all links have in common."""

    latency_s: float = 0.03
    jitter_s: float = 0.01
    bytes_per_s: float = 2e6
    """Of an access link, each way, where a host has none of its own."""
    loss: float = 0.0
    """Share of segments that are lost."""


@dataclass(frozen=True, slots=True)
class AccessLink:
    """One host's way into the network."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float = 0.0
    """On top of the model's, for everything from and to this host."""
    loss: float = 0.0
    """On top of the model's."""


@dataclass(slots=True)
class Queues:
    """When a host's access link is free again."""

    up_s: float = 0.0
    down_s: float = 0.0


@dataclass(slots=True)
class Network:
    """The state of all links."""

    model: NetworkModel
    chance: random.Random
    links: dict[bytes, AccessLink] = field(default_factory=dict)
    clogged_until_s: dict[frozenset[bytes], float] = field(default_factory=dict)
    """Between these two hosts nothing arrives before; then all of it does, in order."""
    slow_s: dict[frozenset[bytes], float] = field(default_factory=dict)
    """More latency than usual between two hosts."""
    transferred_bytes: int = 0
    _queues: dict[bytes, Queues] = field(default_factory=dict)
    _usual: AccessLink = field(init=False)

    def __post_init__(self) -> None:
        self._usual = AccessLink(self.model.bytes_per_s, self.model.bytes_per_s)

    def latency_s(self, one: bytes, other: bytes) -> float:
        """One way, with jitter and whatever is the matter with this link."""
        model = self.model
        latency_s = model.latency_s + self.chance.random() * model.jitter_s
        own_s = self._link(one).latency_s + self._link(other).latency_s
        slow_s = self.slow_s.get(frozenset((one, other)), 0.0) if self.slow_s else 0.0
        return latency_s + own_s + slow_s

    def loss(self, one: bytes, other: bytes) -> float:
        """Share of segments between two hosts that are lost."""
        if not self.links:
            return self.model.loss
        kept = 1.0 - self.model.loss
        for key in (one, other):
            kept *= 1.0 - self._link(key).loss
        return 1.0 - kept

    def message_s(self, sender: bytes, receiver: bytes, size: int, now_s: float) -> float | None:
        """Arrival of a control message that is sent now; None if its loss breaks the stream."""
        latency_s = self.latency_s(sender, receiver)
        rate = min(self._link(sender).up_bytes_per_s, self._link(receiver).down_bytes_per_s)
        arrival_s = now_s + latency_s + size / rate
        loss = self.loss(sender, receiver)
        if loss > 0.0:
            resends = 0
            while self.chance.random() < loss:
                arrival_s += max(RESEND_S_MIN, 3 * latency_s) * 2**resends
                resends += 1
                if resends == RESENDS_MAX:
                    return None
        return self._unclogged(sender, receiver, arrival_s, latency_s)

    def transfer_s(self, source: bytes, target: bytes, size: int, now_s: float) -> float:
        """Seconds until `target`, asking now, has so many bytes from `source`.

        The bytes queue at the source's uplink and at the target's downlink.
        """
        there_s, back_s = self.latency_s(target, source), self.latency_s(source, target)
        start_s = self._unclogged(target, source, now_s + there_s, there_s)
        up, down = self._link(source).up_bytes_per_s, self._link(target).down_bytes_per_s
        queue = self._queues.setdefault(source, Queues())
        queue.up_s = max(start_s, queue.up_s) + size / up
        other = self._queues.setdefault(target, Queues())
        # The first byte need not wait for the last one: the two links work at the same time. What
        # comes slowly takes no more of the target's link than what comes fast.
        other.down_s = max(start_s, other.down_s) + size / down
        self.transferred_bytes += size
        arrival_s, loss = max(queue.up_s, other.down_s), self.loss(source, target)
        if loss > 0.0:
            # Resending holds up this stream, not the others that share the links.
            stream = SEGMENT_BYTES * MATHIS / ((there_s + back_s) * loss**0.5)
            arrival_s = max(arrival_s, start_s + size / stream)
        return self._unclogged(source, target, arrival_s + back_s, back_s) - now_s

    def up_bytes_per_s(self, key: bytes) -> float:
        """What a host's line sends at most."""
        return self._link(key).up_bytes_per_s

    def _unclogged(self, one: bytes, other: bytes, time_s: float, latency_s: float) -> float:
        if not self.clogged_until_s:
            return time_s
        until_s = self.clogged_until_s.get(frozenset((one, other)), 0.0)
        return max(time_s, until_s + latency_s) if until_s > 0.0 else time_s

    def _link(self, key: bytes) -> AccessLink:
        return self.links.get(key, self._usual)
