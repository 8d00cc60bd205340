"""What a home router's NAT does to those outside: nobody can begin a connection inwards.

Addresses are not translated: a node keeps its own, and others see it. What a program meets behind
a NAT without a forwarded port is the same: it can dial, and it cannot be dialled. Nor does an
attempt from inside open the way for one from outside, as it does with the better half of routers.
"""

from __future__ import annotations

from typing import Final

_TCP: Final = 6
_SYN: Final = 0x02
_ACK: Final = 0x10


def begins_tcp(packet: bytes) -> bool:
    """Whether an IPv4 packet begins a TCP connection: SYN without ACK."""
    if len(packet) < 20 or packet[0] >> 4 != 4 or packet[9] != _TCP:
        return False
    if int.from_bytes(packet[6:8], "big") & 0x1FFF:
        return False  # A later fragment holds no header.
    flags_at = 4 * (packet[0] & 0x0F) + 13
    return len(packet) > flags_at and packet[flags_at] & (_SYN | _ACK) == _SYN
