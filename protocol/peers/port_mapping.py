"""Asking a router to forward TCP ports: PCP (RFC 6887), and NAT-PMP (RFC 6886) where that is all.

Sans IO: the owner sends what `due` returns to the router's port 5351, and hands in what comes back
from there. One conversation is for all ports of a host. A router that answers neither is asked no
more; a mapping is asked for again at half of its life, and given back at the end.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

ROUTER_PORT: Final = 5351
DATAGRAM_BYTES_MAX: Final = 1100
"""As PCP has it; what is longer is not read."""

LIFE_S: Final = 3600
LIFE_S_MIN: Final = 120.0
LIFE_S_MAX: Final = 86_400.0
"""What a router grants is kept within these."""

ASK_AT_S: Final = (0.0, 0.25, 0.75, 1.75)
GIVE_UP_S: Final = 3.75
"""Both dialects take twice as long together."""

AGAIN_S: Final = 60.0
"""After a renewal that was not answered; it begins at half of the life that was granted."""

_TCP: Final = 6
_PCP_MAP: Final = 1
_PMP_ADDRESS: Final = 0
_PMP_MAP_TCP: Final = 2
_ANSWER: Final = 0x80

_PCP_REQUEST: Final = struct.Struct(">BBHI16s12sB3xHH16s")
_PCP_ANSWER: Final = struct.Struct(">BBxBIIxxxxxxxxxxxx12sB3xHH16s")
_PMP_REQUEST: Final = struct.Struct(">BBHHHI")
_PMP_ANSWER: Final = struct.Struct(">BBHIHHI")
_PMP_TOLD: Final = struct.Struct(">BBHI4s")

_PCP_REASONS: Final = {
    1: "it does not know this version",
    2: "it does not allow that",
    4: "it forwards no ports",
    7: "its own network is down",
    8: "it has no room left",
    9: "it forwards no TCP",
    10: "this machine has too many forwarded ports",
    11: "it has no such port left",
    12: "another NAT is between it and this machine",
}
_PMP_REASONS: Final = {
    2: "it does not allow that",
    3: "its own network is down",
    4: "it has no room left",
    5: "it forwards no ports",
}

Dialect = Literal["PCP", "NAT-PMP"]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A port that the router forwards."""

    outside: int
    """Its port there."""
    ip: str
    """The router's address as others see it; empty while it is not known."""
    ends_s: float
    renew_s: float


@dataclass(slots=True)
class PortMapper:
    """The mappings of one host at one router."""

    own_ip: str
    """The IPv4 address from which the router hears us."""
    ports: Sequence[int]
    nonce: bytes
    """12 random bytes, by which PCP tells our mappings from others'."""
    dialect: Dialect = "PCP"
    mappings: dict[int, Mapping] = field(default_factory=dict)
    """By our own port."""
    refusal: str = ""
    """Why the router does not forward, in words; empty if it was not asked, or does."""
    _ip: str = ""
    _began_s: float = 0.0
    _asked: int = 0
    _waiting: set[int] = field(default_factory=set)
    """Ports whose answer is awaited."""

    def begin(self, now_s: float) -> None:
        """Asks for all ports from now on."""
        self.refusal = ""
        self._ask_for(set(self.ports), now_s)

    @property
    def is_asking(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._waiting)

    def _ask_for(self, ports: set[int], now_s: float) -> None:
        self._began_s, self._asked, self._waiting = now_s, 0, set(ports)

    def due(self, now_s: float) -> list[bytes]:
        """What to send to the router now."""
        self._expire(now_s)
        if not self._waiting:
            late = {port for port, one in self.mappings.items() if now_s >= one.renew_s}
            if not late:
                return []
            self._ask_for(late, now_s)
        if now_s >= self._began_s + GIVE_UP_S:
            self._not_answered(now_s)
            return self.due(now_s) if self._waiting else []
        if self._asked >= len(ASK_AT_S) or now_s < self._began_s + ASK_AT_S[self._asked]:
            return []
        self._asked += 1
        return self._requests(sorted(self._waiting), LIFE_S)

    def pause_s(self, now_s: float) -> float:
        """Seconds until `due` has something to do; at most a minute."""
        if self._waiting:
            moments = [self._began_s + GIVE_UP_S]
            moments += [self._began_s + at_s for at_s in ASK_AT_S[self._asked :][:1]]
        else:
            moments = [one.renew_s for one in self.mappings.values()]
        moments += [one.ends_s for one in self.mappings.values()]
        return max(0.0, min([now_s + 60.0, *moments]) - now_s)

    def end(self) -> list[bytes]:
        """What to send so that the router forwards nothing any more."""
        ports = sorted(self.mappings)
        self.mappings, self._waiting = {}, set()
        return self._requests(ports, 0)

    def take(self, datagram: bytes, now_s: float) -> None:
        """What the router sent; anything but an answer that is awaited means nothing."""
        if len(datagram) > DATAGRAM_BYTES_MAX or len(datagram) < 4 or not self._waiting:
            return
        version, operation = datagram[0], datagram[1]
        if self.dialect == "PCP" and (version == 0 or datagram[3] == 1):
            # What a router that knows NAT-PMP alone says, by either RFC.
            if operation & _ANSWER:
                self.dialect = "NAT-PMP"
                self._ask_for(self._waiting, now_s)
        elif self.dialect == "PCP":
            self._take_pcp(datagram, now_s)
        elif version == 0:
            self._take_pmp(datagram, operation, now_s)

    # The two dialects.

    def _requests(self, ports: Sequence[int], life_s: int) -> list[bytes]:
        if not ports:
            return []
        if self.dialect == "PCP":
            return [self._pcp(port, life_s) for port in ports]
        asks_ip = [bytes([0, _PMP_ADDRESS])] if life_s else []
        return asks_ip + [
            _PMP_REQUEST.pack(0, _PMP_MAP_TCP, 0, port, self._wanted(port) if life_s else 0, life_s)
            for port in ports
        ]

    def _wanted(self, port: int) -> int:
        """The same outside as before, or as here."""
        return self.mappings[port].outside if port in self.mappings else port

    def _pcp(self, port: int, life_s: int) -> bytes:
        anywhere = _mapped("0.0.0.0")
        wanted = self._wanted(port) if life_s else 0
        head = (2, _PCP_MAP, 0, life_s, _mapped(self.own_ip))
        return _PCP_REQUEST.pack(*head, self.nonce, _TCP, port, wanted, anywhere)

    def _take_pcp(self, datagram: bytes, now_s: float) -> None:
        if len(datagram) < _PCP_ANSWER.size:
            return
        told = _PCP_ANSWER.unpack_from(datagram)
        version, operation, result, life_s, _, nonce, protocol, port, outside, ip = told
        if (version, operation) != (2, _PCP_MAP | _ANSWER) or protocol != _TCP:
            return
        if nonce != self.nonce or port not in self._waiting:
            return
        if result:
            self._refused(port, _PCP_REASONS.get(result, f"its reason has the number {result}"))
            return
        address = ipaddress.IPv6Address(ip).ipv4_mapped
        self._granted(port, outside, str(address) if address else "", life_s, now_s)

    def _take_pmp(self, datagram: bytes, operation: int, now_s: float) -> None:
        if operation == _PMP_ADDRESS | _ANSWER and len(datagram) >= _PMP_TOLD.size:
            _, _, result, _, ip = _PMP_TOLD.unpack_from(datagram)
            if not result:
                self._ip = str(ipaddress.IPv4Address(ip))
                self.mappings = {
                    port: Mapping(one.outside, self._ip, one.ends_s, one.renew_s)
                    for port, one in self.mappings.items()
                }
        elif operation == _PMP_MAP_TCP | _ANSWER and len(datagram) >= _PMP_ANSWER.size:
            _, _, result, _, port, outside, life_s = _PMP_ANSWER.unpack_from(datagram)
            if port not in self._waiting:
                return
            if result:
                self._refused(port, _PMP_REASONS.get(result, f"its reason has the number {result}"))
            else:
                self._granted(port, outside, self._ip, life_s, now_s)

    # What comes of it.

    def _granted(self, port: int, outside: int, ip: str, life_s: int, now_s: float) -> None:
        if not outside or not life_s:
            self._refused(port, "it named no port")
            return
        life = min(max(float(life_s), LIFE_S_MIN), LIFE_S_MAX)
        self._waiting.discard(port)
        self.mappings[port] = Mapping(outside, ip, now_s + life, now_s + life / 2)
        self.refusal = ""

    def _refused(self, port: int, reason: str) -> None:
        self._waiting.discard(port)
        self.mappings.pop(port, None)
        self.refusal = f"it refused: {reason}"

    def _not_answered(self, now_s: float) -> None:
        """Another dialect, if none was understood yet; else what was granted holds on."""
        waiting, self._waiting = self._waiting, set()
        if not self.mappings and self.dialect == "PCP":
            self.dialect = "NAT-PMP"
            self._ask_for(waiting, now_s)
        elif not self.mappings:
            self.refusal = "it does not answer"
        for port in waiting & self.mappings.keys():
            one = self.mappings[port]
            self.mappings[port] = Mapping(one.outside, one.ip, one.ends_s, now_s + AGAIN_S)

    def _expire(self, now_s: float) -> None:
        gone = [port for port, one in self.mappings.items() if now_s >= one.ends_s]
        for port in gone:
            del self.mappings[port]
            self.refusal = "it does not answer any more"


def _mapped(ip: str) -> bytes:
    """An IPv4 address as PCP writes it."""
    return bytes(10) + b"\xff\xff" + ipaddress.IPv4Address(ip).packed
