"""Hosts known from before, kept across restarts: whom to try when those that were named are gone.

A cache, not a truth: every entry is checked when it is read and again when its host is dialled,
since an address leads nowhere unless the host's own key answers there. Bounded, so that a crowd of
made-up hosts cannot fill a disk; hosts that answered lately push out those that did not.

Pure: the clock and the check of an address are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from protocol import decoders
from protocol.ids import NodeKey

PEERS_MAX: Final = 128
ADDRESSES_MAX: Final = 4
"""Of one host: two networks, two kinds of address."""

ADDRESS_CHARS_MAX: Final = 256
FILE_BYTES_MAX: Final = 256 << 10
FAILURES_MAX: Final = 1000
OLD_S: Final = 90 * 86_400.0
"""A host that has not answered for so long is forgotten."""

AHEAD_S: Final = 86_400.0
"""Entries from further in the future were written by a clock that was wrong."""

FORMAT: Final = 1

IsSound = Callable[[NodeKey, str], bool]
"""Whether an address is one at which this host could be dialled."""


class Known(Struct, frozen=True):
    """One host, as it is kept."""

    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=ADDRESS_CHARS_MAX)], ...],
        Meta(min_length=1, max_length=ADDRESSES_MAX),
    ]
    """Whole, the newest first."""
    seen_s: Annotated[float, Meta(ge=0.0, le=1e12)]
    """Wall clock, Unix seconds, when it answered last."""
    failures: Annotated[int, Meta(ge=0, le=FAILURES_MAX)] = 0
    """Tries in vain since."""


class _File(Struct, frozen=True):
    format: int
    peers: tuple[msgspec.Raw, ...]


class PeerBook:
    """Hosts and where they were reached."""

    def __init__(self, is_sound: IsSound) -> None:
        self._is_sound = is_sound
        self._known: dict[NodeKey, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def saw(self, key: NodeKey, addresses: Iterable[str], now_s: float) -> bool:
        """A host answered, and is reached there; whether that was news worth keeping."""
        sound = [text for text in addresses if self._is_usable(key, text)]
        old = self._known.get(key)
        merged = tuple(dict.fromkeys([*sound, *(old.addresses if old else ())]))[:ADDRESSES_MAX]
        if not merged:
            return False
        self._known[key] = Known(key.hex(), merged, now_s)
        self._trim()
        return old is None or old.addresses != merged or old.failures > 0

    def answered(self, key: NodeKey, now_s: float) -> None:
        """A known host answered again."""
        old = self._known.get(key)
        if old is not None:
            self._known[key] = Known(old.key, old.addresses, max(now_s, old.seen_s))

    def failed(self, key: NodeKey) -> None:
        """A known host was tried in vain."""
        old = self._known.get(key)
        if old is not None:
            failures = min(old.failures + 1, FAILURES_MAX)
            self._known[key] = Known(old.key, old.addresses, old.seen_s, failures)

    def places(self, key: NodeKey) -> tuple[str, ...]:
        """Where a host was reached, the newest first; empty for one that is not known."""
        known = self._known.get(key)
        return known.addresses if known is not None else ()

    def best(self) -> list[tuple[NodeKey, tuple[str, ...]]]:
        """All of them, those first that are most likely there."""
        ranked = sorted(self._known.values(), key=_rank)
        return [(bytes.fromhex(one.key), one.addresses) for one in ranked]

    def pack(self) -> bytes:
        """The book as a file."""
        ranked = sorted(self._known.values(), key=_rank)
        return msgspec.json.format(msgspec.json.encode({"format": FORMAT, "peers": ranked}))

    def read(self, content: bytes, now_s: float) -> str:
        """Takes over what a file holds; what was wrong with it, empty if nothing.

        Entries that are unsound or too old are left out, and those that are sound still count.
        """
        if len(content) > FILE_BYTES_MAX:
            return f"it is {len(content)} bytes long"
        try:
            found = decoders.json_decoder(_File).decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"it cannot be read ({error})"
        if found.format != FORMAT:
            return f"it has the format {found.format}, this host reads {FORMAT}"
        refused = 0
        for raw in found.peers:
            one = self._entry(raw, now_s)
            if one is None:
                refused += 1
            else:
                self._known[bytes.fromhex(one.key)] = one
        self._trim()
        return f"{refused} of its entries are unsound or old" if refused else ""

    def _entry(self, raw: msgspec.Raw, now_s: float) -> Known | None:
        try:
            one = decoders.json_decoder(Known).decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        key = bytes.fromhex(one.key)
        sound = tuple(text for text in one.addresses if self._is_usable(key, text))
        is_old = now_s - one.seen_s > OLD_S or one.seen_s - now_s > AHEAD_S
        return None if is_old or not sound else Known(one.key, sound, one.seen_s, one.failures)

    def _is_usable(self, key: NodeKey, text: str) -> bool:
        return len(text) <= ADDRESS_CHARS_MAX and self._is_sound(key, text)

    def _trim(self) -> None:
        if len(self._known) > PEERS_MAX:
            ranked = sorted(self._known.values(), key=_rank)
            for one in ranked[PEERS_MAX:]:
                del self._known[bytes.fromhex(one.key)]


def _rank(one: Known) -> tuple[int, float, str]:
    return one.failures, -one.seen_s, one.key
