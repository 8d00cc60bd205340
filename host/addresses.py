"""Addresses of hosts as text: checking them, free ports, and the pause before the next try."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from host.files import keystore
from protocol.errors import (
    MalformedMessage,
    PeerUnreachable,
    ShoalError,
    TransientError,
    UserError,
)
from protocol.ids import NodeKey
from protocol.peers.reachability import IpVersion

EVERY_VERSION = "all"
"""What `--listen` says for every address of this machine, of IPv4 and of IPv6."""

PEERS_TRIED_MAX = 8
"""Addresses handed to the engine for one try; one that answers is enough."""

STEADY_PORTS = range(20_000, 32_000)
"""Below what Linux (32768), macOS and Windows (49152) take for outgoing connections."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a host listens: its key and the whole address ending in `/p2p/ID`."""

    key: NodeKey
    text: str


def parse_peer(text: str) -> PeerAddress:
    """The host and place that an address names; UserError for anything but TCP with an id."""
    place, _, name = text.strip().rpartition("/p2p/")
    if not place:
        raise UserError(
            f"The address {text!r} is not complete. It should look like "
            "/ip4/203.0.113.7/tcp/4100/p2p/12D3Koo..."
        )
    check_listen(place.split("/p2p/")[0])
    try:
        return PeerAddress(keystore.key_of_peer_text(name), text.strip())
    except MalformedMessage as error:
        raise UserError(f"The address {text!r} does not end in a host's id: {error}.") from error


def parse_others(texts: Iterable[str], own: bytes) -> list[PeerAddress]:
    """The hosts that these addresses name, without our own. Raises UserError as `parse_peer`."""
    return [peer for peer in map(parse_peer, texts) if peer.key != own]


def readable(texts: Iterable[str]) -> list[PeerAddress]:
    """The hosts that these addresses name, without those that no host can be dialled at."""
    found = []
    for text in texts:
        with contextlib.suppress(ShoalError):  # Relayed or odd addresses.
            found.append(parse_peer(text))
    return found


def check_listen(text: str) -> str:
    """`text` if it reads /ip4/A/tcp/P, /ip6/A/tcp/P or /dns.../NAME/tcp/P; otherwise UserError.

    TCP only: over QUIC the engine was measured to lose the ends of streams.
    """
    parts = text.split("/")
    is_sound = len(parts) == 5 and not parts[0] and parts[3] == "tcp" and _is_port(parts[4])
    if is_sound and parts[1] in ("ip4", "ip6"):
        try:
            is_sound = ipaddress.ip_address(parts[2]).version == int(parts[1][2])
        except ValueError:
            is_sound = False
    elif is_sound:
        is_sound = parts[1] in ("dns", "dns4", "dns6") and bool(parts[2])
    if not is_sound:
        raise UserError(
            f"The address {text!r} cannot be used. Give a TCP address such as "
            "/ip4/203.0.113.7/tcp/4100 or /dns4/example.org/tcp/4100."
        )
    return text


def _is_port(text: str) -> bool:
    # Other scripts have digits too, of which `int` takes some and others not.
    is_number = text.isascii() and text.isdigit() and len(text) <= 5
    return is_number and 0 < int(text) < 65_536


def is_tcp(text: str) -> bool:
    """Whether a listening address of the engine is one that we hand out."""
    return "/tcp/" in text and "/ws" not in text


def is_loopback(text: str) -> bool:
    """Whether only this machine can dial the address."""
    return text.startswith(("/ip4/127.", "/ip6/::1/"))


def host_in(text: str) -> str:
    """The IP address of a connection or listener; empty for a name or a carried connection."""
    parts = text.split("/")
    if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts:
        return ""
    try:
        return str(ipaddress.ip_address(parts[2]))
    except ValueError:
        return ""


def ip_version_of(text: str) -> IpVersion | None:
    """Of the IP address in an address; None for a name or a carried connection."""
    host = host_in(text)
    if not host:
        return None
    return 6 if ":" in host else 4


def network_of(text: str) -> str:
    """Whose line an address is on: the IPv4 address or the IPv6 /64; empty where it has none.

    A host commands a whole /64, so that is what counts as one; several homes may share an IPv4
    address behind a carrier's NAT, and nothing tells them apart.
    """
    host = host_in(text)
    if not host:
        return ""
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv4Address):
        return host
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((host, 64), strict=False))


def is_public(text: str) -> bool:
    """Whether the whole internet could dial the address."""
    host = host_in(text)
    return bool(host) and ipaddress.ip_address(host).is_global


def places_of(listen_host: str) -> tuple[str, ...]:
    """The IP addresses that `--listen` stands for: itself, or with `all` every address of this
    machine, in each version of the Internet protocol that it has."""
    if listen_host != EVERY_VERSION:
        return (listen_host,)
    return ("0.0.0.0", "::") if has_six() else ("0.0.0.0",)


def listen_address(place: str, port: int) -> str:
    """An IP address and a port as the engine writes them."""
    return f"/ip{6 if ':' in place else 4}/{place}/tcp/{port}"


def has_six() -> bool:
    """Whether this machine has IPv6 at all, be it only with itself."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def socket_for(place: str) -> socket.socket:
    """A TCP socket to listen at this IP address: at `::` of IPv6 alone, as the engine's."""
    if ":" not in place:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


class PortTaken(UserError):
    """Somebody else listens on the port."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is in use by another program; choose another with --port")


def kept_port(host: str, port: int, *, is_asked_for: bool) -> int:
    """`port`, as it was before, if nobody listens there; else a free one, unless its owner asked
    for this one. Raises as `claim_port`."""
    try:
        return claim_port(host, port)
    except PortTaken:
        if is_asked_for:
            raise
        return claim_port(host, 0)


def claim_port(host: str, port: int) -> int:
    """`port` if nobody listens there, or a free one for 0; host: as `--listen` has it.

    The engine shares a busy port without a word, and joins then reach the wrong process, so this is
    asked before each start. Raises PortTaken, or UserError when the host is not ours.
    """
    first, *others = places_of(host)
    while True:
        chosen = _claimed(first, port)
        try:
            for place in others:
                _claimed(place, chosen)
        except PortTaken:
            if port:
                raise
            continue  # Free in one version, taken in the other.
        return chosen


def _claimed(place: str, port: int) -> int:
    with socket_for(place) as probe:
        # Connections of our own last run that still linger must not count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port != 0))
        try:
            probe.bind((place, port))
        except PermissionError as error:
            raise UserError(
                f"only root may open port {port}; choose one above 1023 with --port"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(port) from error
            raise UserError(
                f"this machine has no address {place}; give one of its own, 0.0.0.0 for all of "
                f"IPv4, or {EVERY_VERSION} for all"
            ) from error
        chosen: int = probe.getsockname()[1]
        return chosen


def steady_port(host: str) -> int:
    """A free port that the system gives to no outgoing connection, so that a program that ends can
    start there again. Chosen at random; raises as `claim_port`."""
    while True:
        try:
            return claim_port(host, random.choice(STEADY_PORTS))
        except PortTaken:
            continue


def rotated(peers: Sequence[PeerAddress], attempt: int) -> list[PeerAddress]:
    """The addresses for try number `attempt`: a window that moves on with every failure."""
    if len(peers) <= PEERS_TRIED_MAX:
        return list(peers)
    start = (attempt * PEERS_TRIED_MAX) % len(peers)
    return [*peers[start:], *peers[:start]][:PEERS_TRIED_MAX]


_CLOCKS = re.compile(r"local: (\d+\.\d+), peer: (\d+\.\d+)")
"""In the words of hivemind."""


def _clock_words(cause: str) -> str:
    """By how much our clock is off, and which way."""
    found = _CLOCKS.search(cause)
    if found is None:
        return "more than 3 s"
    ahead_s = float(found[1]) - float(found[2])
    return f"{abs(ahead_s):,.0f} s (it is {'ahead' if ahead_s > 0 else 'behind'})"


def explained(
    peers: Sequence[PeerAddress], error: TransientError, port: int, no_network: str = ""
) -> ShoalError:
    """The same failed start in words: whose clock is off, who did not answer, or that our port
    was taken. no_network: that this machine has none, in words; empty if it has."""
    cause = str(error.__cause__)
    if "address already in use" in cause:
        return PortTaken(port)
    if "local time" in cause:
        return TransientError(
            f"this machine's clock differs by {_clock_words(cause)} from the swarm's: set it with "
            "NTP (for example: timedatectl set-ntp true)"
        )
    if "bootstrap" not in cause or not peers:
        return error
    if no_network:
        return PeerUnreachable(no_network)
    tried = ", ".join(peer.text for peer in peers)
    return PeerUnreachable(
        f"none of the swarm's addresses answers: {tried}. This machine has a network, so they are "
        "offline, or the link is old: ask the project's host whether a syncer runs, and for a "
        "fresh link"
    )
