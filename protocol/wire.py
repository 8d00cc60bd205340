"""Bytes to messages and back. The only parser of what peers send.

Decoding is strict: unknown tags, missing or surplus fields, numbers out of range and encodings
that are not the canonical one are all `MalformedMessage`. Nothing else can come out of a decoder,
whatever goes in. What outlives a version (records, charters, states) may lack last fields that
have a default, as a former version wrote it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from protocol import decoders, limits
from protocol.errors import LimitExceeded, MalformedMessage
from protocol.messages import Message

T = TypeVar("T", bound=msgspec.Struct)

_ENCODER = msgspec.msgpack.Encoder()
_MESSAGE: msgspec.msgpack.Decoder[Message] = decoders.msgpack_decoder(Message)


def encode(value: msgspec.Struct) -> bytes:
    """Canonical bytes of a message or record. Raises LimitExceeded above one frame."""
    frame = _ENCODER.encode(value)
    if len(frame) > limits.FRAME_BYTES_MAX:
        raise LimitExceeded(f"{type(value).__name__} of {len(frame)} bytes exceeds one frame")
    return frame


def decode_message(frame: bytes) -> Message:
    """The message in a frame. Raises MalformedMessage or LimitExceeded, nothing else."""
    if len(frame) > limits.FRAME_BYTES_MAX:
        raise LimitExceeded(f"frame of {len(frame)} bytes, at most {limits.FRAME_BYTES_MAX}")
    return _canonical(_MESSAGE, frame, "message")


def decode(frame: bytes, kind: type[T], *, bytes_max: int = limits.FRAME_BYTES_MAX) -> T:
    """The struct of a known kind in these bytes. Raises MalformedMessage or LimitExceeded."""
    if len(frame) > bytes_max:
        raise LimitExceeded(f"{kind.__name__} of {len(frame)} bytes, at most {bytes_max}")
    return _canonical(decoders.msgpack_decoder(kind), frame, kind.__name__, is_kept=True)


D = TypeVar("D")


def _canonical(
    decoder: msgspec.msgpack.Decoder[D], frame: bytes, what: str, *, is_kept: bool = False
) -> D:
    try:
        value = decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"not a {what}: {str(error)[:160]}") from None
    # One value has one encoding, so that hashes and signatures cannot be dodged by re-encoding,
    # and fields that this version does not know are refused instead of dropped.
    encoded = _ENCODER.encode(value)
    if encoded != frame and not (is_kept and _is_former(frame, encoded)):
        raise MalformedMessage(f"not the canonical encoding of a {what}")
    return value


def _is_former(frame: bytes, encoded: bytes) -> bool:
    """Whether a frame is what a version wrote that lacks some last fields of some structs.

    Fields with defaults are added at the end. Hashes and signatures are over the bytes as they
    were, so this hides nothing.
    """
    if len(frame) >= len(encoded):
        return False
    plain = decoders.msgpack_decoder(Any)
    former = plain.decode(frame)
    return _ENCODER.encode(former) == frame and _extends(plain.decode(encoded), former)


def _extends(now: object, former: object) -> bool:
    """Whether the one is the other with more at the end of some arrays."""
    if isinstance(now, list) and isinstance(former, list):
        pairs = zip(now, former, strict=False)
        return len(now) >= len(former) and all(_extends(one, other) for one, other in pairs)
    if isinstance(now, dict) and isinstance(former, dict):
        is_same = list(now) == list(former)
        return is_same and all(_extends(now[key], former[key]) for key in now)
    return type(now) is type(former) and now == former
