"""Decoders by type, each built once and one at a time.

msgspec makes what it must know of a Struct with its first decoder, and shows it to other threads
before it is whole: one that decodes in that moment crashes the process. So nothing else in Shoal
builds a decoder, and `tests/repo` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

Read = Callable[[type, Any], Any]
"""Gets a type and what was written of it; raises ValueError, TypeError or msgspec's errors."""

_BUILDING = Lock()
_MSGPACK: dict[tuple[object, Read | None], msgspec.msgpack.Decoder[Any]] = {}
_JSON: dict[object, msgspec.json.Decoder[Any]] = {}


@overload
def msgpack_decoder(kind: type[T], read: Read | None = None) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any, read: Read | None = None) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any, read: Read | None = None) -> msgspec.msgpack.Decoder[Any]:
    """The one decoder of MessagePack for this type; from any thread.

    read: makes values of types that MessagePack does not know.
    """
    decoder = _MSGPACK.get((kind, read))
    if decoder is None:
        with _BUILDING:
            made = msgspec.msgpack.Decoder(kind, dec_hook=read)
            decoder = _MSGPACK.setdefault((kind, read), made)
    return decoder


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The one decoder of JSON for this type; from any thread."""
    decoder = _JSON.get(kind)
    if decoder is None:
        with _BUILDING:
            decoder = _JSON.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


@overload
def convert(value: object, kind: type[T], **options: Any) -> T: ...
@overload
def convert(value: object, kind: Any, **options: Any) -> Any: ...
def convert(value: object, kind: Any, **options: Any) -> Any:
    """`msgspec.convert`, from any thread: it builds what it needs at each call."""
    with _BUILDING:
        return msgspec.convert(value, kind, **options)
