"""Small files that a daemon cannot do without: a damaged one shows, and is never half believed.

    4 bytes  MARK
    8 bytes  the first ones of the content's blake3
    the content

One flipped bit of a disk would otherwise make another vote of a vote. Files from before there were
checksums have none; their content is taken as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from blake3 import blake3

from host.runtime.atomic_files import write_atomically
from protocol.errors import CorruptState

MARK: Final = b"shl\x01"
"""No MessagePack array begins like this, so no file from before seems to have a checksum."""
CHECKSUM_BYTES: Final = 8


def checked(content: bytes) -> bytes:
    """The content behind its checksum, as it lies on disk."""
    return MARK + blake3(content).digest(CHECKSUM_BYTES) + content


def write_checked(path: Path, content: bytes) -> None:
    """Replace the file durably. TransientError if that is not possible now."""
    write_atomically(path, checked(content))


def read_checked(path: Path) -> bytes:
    """The content of the file. CorruptState if it is not what was written, in words that do not
    name it; OSError as it comes."""
    held = path.read_bytes()
    if not held.startswith(MARK):
        return held
    begin = len(MARK) + CHECKSUM_BYTES
    content = held[begin:]
    if blake3(content).digest(CHECKSUM_BYTES) != held[len(MARK) : begin]:
        raise CorruptState("its checksum is that of another content")
    return content
