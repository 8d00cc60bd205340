"""What two hosts say of their direct channels over a stream of the engine, and where to dial.

The asker sends an offer, the other answers with its own: greeting, status u8, port u16, length u16
of the certificate, certificate; numbers big-endian. The asker then dials and says in one byte
whether it got through (DONE) or the other should try (DIAL_BACK), which answers with one byte.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from host import addresses
from host.bulk import frames
from host.network import certificates
from host.network.certificates import CERTIFICATE_BYTES_MAX
from host.network.round_trips import RELAY
from host.network.streams import Wire
from protocol.errors import MalformedMessage, UserError
from protocol.ids import NodeKey, short

OFFER, DECLINE = 0, 1
DONE, DIAL_BACK = 1, 2
REACHED, FAILED = 1, 2

ASK_S: Final = 10.0
BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side says of itself. `port` 0: it cannot be dialled."""

    status: int
    port: int
    certificate: bytes


def check(theirs: Offer, peer: NodeKey) -> None:
    """Raises MalformedMessage for a certificate of another key, or that is none."""
    if certificates.key_of_certificate(theirs.certificate) != peer:
        raise MalformedMessage(f"host {short(peer)} sent a certificate of another key")


async def write_offer(wire: Wire, offer: Offer) -> None:
    """Says it. Raises TransientError."""
    head = bytes([offer.status]) + offer.port.to_bytes(2, "big")
    size = len(offer.certificate).to_bytes(2, "big")
    await wire.write(frames.GREETING + head + size + offer.certificate, timeout_s=ASK_S)


async def read_offer(wire: Wire) -> Offer:
    """Hears one. Raises TransientError, MalformedMessage."""
    head = await wire.read_exactly(len(frames.GREETING) + 5, timeout_s=ASK_S)
    if not head.startswith(frames.GREETING):
        raise MalformedMessage(f"host {short(wire.peer)} does not speak the direct channel")
    status, port = head[-5], int.from_bytes(head[-4:-2], "big")
    size = int.from_bytes(head[-2:], "big")
    if size > CERTIFICATE_BYTES_MAX:
        raise MalformedMessage(f"host {short(wire.peer)} announced a certificate of {size} bytes")
    return Offer(status, port, await wire.read_exactly(size, timeout_s=ASK_S))


def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that take connections, all at one port; host: as `--listen` has it.

    Raises UserError.
    """
    first, *others = addresses.places_of(host)
    while True:
        made: list[socket.socket] = []
        try:
            made.append(_listener(first, port))
            chosen = made[0].getsockname()[1]
            made += [_listener(place, chosen) for place in others]
        except OSError as error:
            for one in made:
                one.close()
            if made and not port and error.errno == errno.EADDRINUSE:
                continue  # Free in one version, taken in the other.
            raise UserError(
                f"port {port} for bulk data cannot be opened ({error.strerror}); choose another "
                "with --bulk-port, or turn direct channels off with --bulk-port off"
            ) from error
        return made


def _listener(place: str, port: int) -> socket.socket:
    made = addresses.socket_for(place)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port != 0))
        made.bind((place, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def hosts_of(addresses: tuple[str, ...]) -> list[str]:
    """The IP addresses of connections that do not go through a relay, each once, in order."""
    found = []
    for text in addresses:
        parts = text.split("/")
        if RELAY in text or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        with contextlib.suppress(ValueError):
            found.append(str(ipaddress.ip_address(parts[2])))
    return list(dict.fromkeys(found))
