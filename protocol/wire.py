"""Bytes to messages and back. The only parser of what peers send.

Decoding is strict: unknown tags, missing or surplus fields, numbers out of range and encodings
that are not the canonical one are all `MalformedMessage`. Nothing else can come out of a decoder,
whatever goes in.
"""

from __future__ import annotations

from typing import TypeVar

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
    return _canonical(decoders.msgpack_decoder(kind), frame, kind.__name__)


D = TypeVar("D")


def _canonical(decoder: msgspec.msgpack.Decoder[D], frame: bytes, what: str) -> D:
    try:
        value = decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"not a {what}: {str(error)[:160]}") from None
    # One value has one encoding, so that hashes and signatures cannot be dodged by re-encoding,
    # and fields that this version does not know are refused instead of dropped.
    if _ENCODER.encode(value) != frame:
        raise MalformedMessage(f"not the canonical encoding of a {what}")
    return value
