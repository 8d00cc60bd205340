"""How long payloads are, for whoever needs no more of codecs than that.

Light: the codecs themselves load NumPy and the compiler.
"""

from __future__ import annotations

from protocol.errors import InternalError
from protocol.fragments import BLOCK
from protocol.project import CodecName

CODE_BITS: dict[CodecName, int] = {
    "f32": 32,
    "bf16": 16,
    "int8": 8,
    "int4": 4,
    "int2": 2,
    "int1": 1,
}
SCALE_BYTES: dict[CodecName, int] = {
    "f32": 0,
    "bf16": 0,
    "int8": 2,
    "int4": 2,
    "int2": 2,
    "int1": 2,
}
"""For each block."""


def payload_bytes(codec: CodecName, numel: int) -> int:
    """Length of the payload of `numel` elements.

    Raises: InternalError if `numel` is not a whole number of blocks.
    """
    if numel < 0 or numel % BLOCK:
        raise InternalError(f"{numel} elements are not a whole number of blocks of {BLOCK}")
    return numel * CODE_BITS[codec] // 8 + numel // BLOCK * SCALE_BYTES[codec]
