"""A router's end of PCP (RFC 6887) or NAT-PMP (RFC 6886), written from the texts, as a program.

    python -m tests.support.port_gateway pcp|nat-pmp|refuses EXTERNAL_ADDRESS [PORTS_ABOVE]

It grants every TCP port for 600 s: by PCP the same port outside, by NAT-PMP the one that is wanted,
or one that is so much higher. It prints a line of JSON for what it does: `{"began": true}`, then
`{"forward": [ours, outside]}` or `{"ended": ours}`.
"""

from __future__ import annotations

import json
import socket
import sys

LIFE_S = 600


def number(data, at, size):
    return int.from_bytes(data[at : at + size], "big")


def big(value, size):
    return value.to_bytes(size, "big")


def tell(**what):
    print(json.dumps(what), flush=True)


def pcp(data, external, above, refuses):
    """The answer to a MAP request of 60 bytes."""
    life_s, nonce, protocol, ours = number(data, 4, 4), data[24:36], data[36], number(data, 40, 2)
    result = 2 if refuses else 0
    outside = ours + above
    if not refuses:
        tell(forward=[ours, outside]) if life_s else tell(ended=ours)
    granted = LIFE_S if life_s and not refuses else 0
    head = bytes([2, 0x81, 0, result]) + big(granted, 4) + big(77, 4) + bytes(12)
    address = bytes(10) + b"\xff\xff" + socket.inet_aton(external)
    return head + nonce + bytes([protocol, 0, 0, 0]) + big(ours, 2) + big(outside, 2) + address


def nat_pmp(data, external, above):
    if data[0] != 0:
        return bytes([0, 0x80 | data[1]]) + big(1, 2) + big(77, 4)  # Unsupported version.
    if data[1] == 0:
        return bytes([0, 0x80]) + big(0, 2) + big(77, 4) + socket.inet_aton(external)
    ours, wanted, life_s = number(data, 4, 2), number(data, 6, 2), number(data, 8, 4)
    outside = (wanted or ours) + above if life_s else 0
    tell(forward=[ours, outside]) if life_s else tell(ended=ours)
    head = bytes([0, 0x80 | data[1]]) + big(0, 2) + big(77, 4)
    return head + big(ours, 2) + big(outside, 2) + big(LIFE_S if life_s else 0, 4)


def main(kind, external, above="0"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("0.0.0.0", 5351))
        tell(began=True)
        while True:
            data, asker = line.recvfrom(1100)
            if kind == "nat-pmp":
                line.sendto(nat_pmp(data, external, int(above)), asker)
            elif len(data) == 60 and data[0] == 2 and data[1] == 1:
                line.sendto(pcp(data, external, int(above), kind == "refuses"), asker)


if __name__ == "__main__":
    main(*sys.argv[1:])
