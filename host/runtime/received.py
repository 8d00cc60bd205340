"""Bytes and descriptors that another process of this machine sent over a local socket."""

from __future__ import annotations

import array
import os
import socket

from host.runtime import stand_ins


def receive(end: socket.socket, bytes_max: int, descriptors_max: int) -> tuple[bytes, list[int]]:
    """What is waiting there, no bytes at end of file; the caller closes the descriptors.

    Children do not inherit them. Never blocks: BlockingIOError if nothing is waiting.
    """
    flags = int(socket.MSG_DONTWAIT)
    is_native = stand_ins.uses("received-cloexec")
    if is_native:
        flags |= socket.MSG_CMSG_CLOEXEC
    # Not socket.recv_fds, which up to Python 3.12 takes flags and leaves them out.
    room = socket.CMSG_LEN(descriptors_max * array.array("i").itemsize)
    piece, ancillary, _, _ = end.recvmsg(bytes_max, room, flags)
    descriptors = _descriptors(ancillary)
    if not is_native:
        for one in descriptors:
            os.set_inheritable(one, False)
    return piece, descriptors


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return found.tolist()
