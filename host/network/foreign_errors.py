"""Where foreign failures become ours: one context manager, and the news that the engine is lost.

Nothing that sockets or the network engine raise gets past `translated`; callers above the host
layer see `protocol.errors` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.errors import PeerUnreachable, ShoalError, TransportLost

SETTLE_S = 0.1
"""A stream that breaks because the local engine died breaks some milliseconds before we learn of
the death; waiting this long keeps us from blaming the peer."""


@dataclass(frozen=True, slots=True)
class TransportState:
    """Whether the host is in the swarm; `reason` says why not."""

    is_up: bool
    reason: str = ""


@contextmanager
def translated(doing: str, foreign: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns failures of sockets, time-outs and the types in `foreign` into PeerUnreachable.

    `doing` starts the message: "dialling host 1f2e3d4c". Errors of ours pass unchanged.
    """
    try:
        yield
    except ShoalError:
        raise
    except TimeoutError as error:
        raise PeerUnreachable(f"{doing}: no answer in time") from error
    except EOFError as error:
        raise PeerUnreachable(f"{doing}: the other side closed the stream") from error
    except OSError as error:
        raise PeerUnreachable(f"{doing}: {error.strerror or 'the connection broke'}") from error
    except foreign as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise PeerUnreachable(f"{doing}: {text}") from error


class Loss:
    """Whether one run of the engine is lost, and why. Declared once, never taken back."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._declared = asyncio.Event()

    def declare(self, reason: str) -> None:
        """From now on `check` raises; the first reason stays."""
        self.reason = self.reason or reason
        self._declared.set()

    def check(self) -> None:
        """Raises TransportLost when the engine is lost."""
        if self.reason is not None:
            raise TransportLost(self.reason)

    async def settle(self) -> None:
        """Before a peer is blamed for a failure: raises TransportLost if that was the cause."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._declared.wait()
        except TimeoutError:
            return
        self.check()
