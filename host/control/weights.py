"""The verbs `weights` and `piece`: a daemon's newest weights, for programs on its own machine.

`weights` names them and holds on to them; `piece` gives them bit by bit, so that no answer keeps
the daemon from its work for long. What is held is never changed in place, so nothing is copied for
it, and newer merges go on meanwhile. One reader is served at a time: a later one takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from host.control.client import Connection
from host.control.server import Verb
from protocol import limits
from protocol.errors import MalformedMessage, TransientError, UserError

F32 = NDArray[np.float32]

PIECE_BYTES_MAX: Final = 4 << 20
"""Some milliseconds of copying."""

HELD_S: Final = 60.0
"""Weights that nobody reads on with are let go: they may be the only reason to keep them."""

ANSWER_S: Final = 20.0
_ITEM_BYTES: Final = 4


class Cut(NamedTuple):
    """All fragments at one moment."""

    global_step: int
    tokens: int
    fragments: Sequence[F32]


class WeightsNamed(Struct):
    """Answer to `weights`."""

    ticket: int
    """Names this cut in requests for its pieces."""
    genesis: Annotated[bytes, Meta(max_length=limits.GENESIS_BYTES_MAX)]
    global_step: int
    tokens: int
    numels: Annotated[
        list[Annotated[int, Meta(ge=1, le=2**40)]], Meta(max_length=limits.FRAGMENTS_MAX)
    ]


class Piece(Struct):
    """Answer to `piece`."""

    values: bytes
    """Little-endian f32, from the element that was asked for."""


class Taken(NamedTuple):
    """What a reader has in the end."""

    genesis: bytes
    cut: Cut


Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class WeightsVerbs:
    """Answers both verbs for one daemon."""

    def __init__(
        self, genesis: bytes, newest: Callable[[], Cut], *, later: Later | None = None
    ) -> None:
        """newest: raises TransientError while there are none. later: the event loop's timer."""
        self._genesis = genesis
        self._newest = newest
        self._later = later
        self._ticket = 0
        self._held: Cut | None = None
        self._timer: asyncio.TimerHandle | None = None

    def verbs(self) -> dict[str, Verb]:
        """By name."""
        return {"weights": self.weights, "piece": self.piece}

    def weights(self, _: dict[str, Any]) -> dict[str, Any]:
        """Names the newest weights, and holds on to them."""
        cut = self._newest()
        self._ticket += 1
        self._hold(cut)
        return {
            "ticket": self._ticket,
            "genesis": self._genesis,
            "global_step": cut.global_step,
            "tokens": cut.tokens,
            "numels": [one.size for one in cut.fragments],
        }

    def piece(self, request: dict[str, Any]) -> dict[str, Any]:
        """Elements of a fragment from `first` on, as many as go into one answer."""
        ticket, fragment, first = (request.get(key) for key in ("ticket", "fragment", "first"))
        if not all(isinstance(one, int) for one in (ticket, fragment, first)):
            raise UserError("piece takes three numbers: ticket, fragment and first")
        assert isinstance(fragment, int)
        assert isinstance(first, int)
        held = self._held
        if held is None or ticket != self._ticket:
            raise TransientError("These weights are held no longer. Ask for the newest ones again.")
        if not 0 <= fragment < len(held.fragments):
            raise UserError(f"There is no fragment {fragment}.")
        values = held.fragments[fragment]
        if not 0 <= first < values.size:
            raise UserError(f"Fragment {fragment} has {values.size} elements.")
        self._hold(held)
        last = first + PIECE_BYTES_MAX // _ITEM_BYTES
        return {"values": values[first:last].tobytes()}

    def _hold(self, cut: Cut) -> None:
        if self._timer is not None:
            self._timer.cancel()
        later = self._later or asyncio.get_running_loop().call_later
        self._held, self._timer = cut, later(HELD_S, self._let_go)

    def _let_go(self) -> None:
        self._held = self._timer = None


def take(socket: Path) -> Taken:
    """The newest weights of the daemon at this control socket, f32 [numel] each.

    Raises what `Connection.ask` does. Cost: copies all of them over the socket.
    """
    connection = Connection(socket)
    try:
        named = connection.ask("weights", WeightsNamed, ANSWER_S)
        fragments = [
            _fragment(connection, named.ticket, at, numel) for at, numel in enumerate(named.numels)
        ]
    finally:
        connection.close()
    return Taken(named.genesis, Cut(named.global_step, named.tokens, fragments))


def _fragment(connection: Connection, ticket: int, fragment: int, numel: int) -> F32:
    values, first = np.empty(numel, np.float32), 0
    while first < numel:
        answer = connection.ask(
            "piece", Piece, ANSWER_S, ticket=ticket, fragment=fragment, first=first
        )
        size = len(answer.values)
        if not 0 < size <= _ITEM_BYTES * (numel - first) or size % _ITEM_BYTES:
            raise MalformedMessage(f"the daemon gave {size} bytes of fragment {fragment}")
        piece = np.frombuffer(answer.values, np.float32)
        values[first : first + piece.size] = piece
        first += piece.size
    return values
