"""What a direct connection sends next: transfers take turns, however much each has asked for.

Whoever asked first would otherwise have eight pieces of its own in front of the others' first. All
requests for one blob are one transfer, served in the order in which they came. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from host.network.token_bucket import TokenBucket
from protocol.ids import Digest


@dataclass(slots=True)
class Serving:
    """A request that is being answered: what is left of it is `blob[start:end]`."""

    id: int
    blob: memoryview
    start: int
    end: int
    bucket: TokenBucket | None
    """What limits the rate of this blob."""


@dataclass(slots=True)
class _Transfer:
    requests: deque[Serving] = field(default_factory=deque)
    granted: int = 0
    """Bytes of the first request that ceilings have let through."""
    ready_s: float = 0.0
    """From when on they may leave."""


class FairQueue:
    """The transfers of one connection."""

    def __init__(
        self,
        step: Callable[[TokenBucket | None], int],
        wait_s: Callable[[int, TokenBucket | None], float],
    ) -> None:
        """step: the most bytes of one turn. wait_s: takes so many bytes from the ceilings; seconds
        until they may leave."""
        self._step = step
        self._wait_s = wait_s
        self._transfers: dict[Digest, _Transfer] = {}
        """In the order of their turns."""
        self.requests = 0
        """Of which something is left."""

    def __len__(self) -> int:
        return len(self._transfers)

    def add(self, digest: Digest, request: Serving) -> None:
        """One more request; an empty one needs no turn."""
        if request.start < request.end:
            self._transfers.setdefault(digest, _Transfer()).requests.append(request)
            self.requests += 1

    def take(self, now_s: float) -> tuple[int, memoryview] | None:
        """A request's id and its bytes that leave now; None where nothing may."""
        for digest, transfer in self._transfers.items():
            if not transfer.granted:
                self._grant(transfer, now_s)
            if transfer.ready_s <= now_s:
                return self._serve(digest, transfer)
        return None

    def clear(self) -> None:
        """Lets go of all blobs."""
        self._transfers.clear()
        self.requests = 0

    def next_s(self) -> float | None:
        """When the first of those that wait for a ceiling may go on."""
        return min((one.ready_s for one in self._transfers.values() if one.granted), default=None)

    def _grant(self, transfer: _Transfer, now_s: float) -> None:
        first = transfer.requests[0]
        transfer.granted = min(first.end - first.start, self._step(first.bucket))
        transfer.ready_s = now_s + self._wait_s(transfer.granted, first.bucket)

    def _serve(self, digest: Digest, transfer: _Transfer) -> tuple[int, memoryview]:
        first = transfer.requests[0]
        piece = first.blob[first.start : first.start + transfer.granted]
        first.start += transfer.granted
        transfer.granted = 0
        del self._transfers[digest]
        if first.start == first.end:
            transfer.requests.popleft()
            self.requests -= 1
        if transfer.requests:
            self._transfers[digest] = transfer  # Behind the others.
        return first.id, piece
