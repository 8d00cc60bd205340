"""Float32 arrays to wire payloads and back: f32, bf16, int8, int4, int2 and int1.

Decoding is part of the replicated state: every holder of the same payload gets the same bits, on
any CPU. The intN have one bf16 scale for each block of 128 elements, so that code times scale has
at most 16 significant bits and is exact in float32; scales are 0 or lie in [2^-100, 2^100], so that
no product is subnormal or overflows. Decoded arrays hold no subnormal and no negative zero.

Layout of the intN, little endian: all codes, then all scales. An int4 byte of a block holds
element i in its low and element i + 64 in its high nibble, each as code + 8. The int4 scale is
minus an eighth of the element of largest magnitude, sign included: all 16 codes are used. int2 and
int1 are described in `protocol.numerics.low_bit`.

Everything works in chunks; nothing but input and output grows with the array. The loops of int8 and
int4 are compiled where numba is installed (`protocol.numerics.compiled.kernels`); the NumPy code
here is what they must agree with, bit for bit, and what runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InternalError, MalformedPayload, ShoalError
from protocol.fragments import BLOCK
from protocol.numerics import buffers, low_bit
from protocol.numerics.compiled import kernels
from protocol.numerics.compiled.kernels import SCALE_MAX, SCALE_MIN
from protocol.numerics.payload_sizes import CODE_BITS, SCALE_BYTES, payload_bytes
from protocol.numerics.workers import ALONE, Workers, pieces
from protocol.project import CodecName

F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
Payload: TypeAlias = bytes | bytearray | memoryview

CHUNK = 1 << 17
"""Elements handled at a time: their temporaries fit a second-level cache. A multiple of BLOCK."""

_CODE_MAX: dict[CodecName, float] = {"int8": 128.0, "int4": 8.0}
"""Largest magnitude of a code."""

_EXPONENT = np.uint32(0x7F80_0000)
_INT8_MAX = np.float32(127)
_INT4_MAX = np.float32(7)
_INT4_OFFSET = np.float32(8)


class NonFinite(ShoalError):
    """A value is Inf, NaN, or too large for its codec: the caller drops it as a failed result."""


def encode(codec: CodecName, values: F32, *, workers: Workers = ALONE) -> memoryview:
    """The payload of `values`, a flat contiguous array of whole blocks, each value to the nearest.

    Blocks whose scale would be under 2^-100 in magnitude become zeros.
    Raises: NonFinite if any value is Inf or NaN, or too large for the codec; InternalError if the
    array has another shape or type.
    """
    require_flat(values)
    draft = Draft(codec, values.size)
    workers.map(lambda part: draft.tell(part[0], values[slice(*part)]), pieces(values.size))
    return draft.payload


class Draft:
    """A payload in the making: pieces of it may be told at the same time, in any order."""

    def __init__(self, codec: CodecName, numel: int) -> None:
        """Raises: InternalError as `payload_bytes`."""
        self._codec = codec
        self._bytes = buffers.empty_bytes(payload_bytes(codec, numel))
        codes = numel * CODE_BITS[codec] // 8
        self._codes, self._scales = self._bytes[:codes], self._bytes[codes:]

    @property
    def payload(self) -> memoryview:
        """All of it, read-only; its memory is used again when nobody looks at it any more."""
        return self._bytes.data.toreadonly()

    def tell(
        self,
        start: int,
        values: F32,
        *,
        minus: F32 | None = None,
        residual: F32 | None = None,
        left: F32 | None = None,
        is_streamed: bool = False,
    ) -> None:
        """Encodes the elements from `start` on: `values`, or values - minus + residual, flushed,
        where there is a `left`, which is filled with what their codes do not say, flushed;
        is_streamed: past the caches.

        Raises: NonFinite as `encode`.
        """
        codes, scales = self._places(start, values.size)
        if kernels.IS_COMPILED and self._codec in _CODES:
            plane, bits = codes.view(_CODES[self._codec]), scales.view(np.uint16)
            if not kernels.tell(values, minus, residual, left, plane, bits, is_streamed):
                told = values if residual is None else wanted(values, minus, residual)
                _require_finite(told)
                raise NonFinite("a value is too large for the scale of a block")
            return
        told = values
        if left is not None and residual is not None:
            left[:] = told = wanted(values, minus, residual)
        for at, end in pieces(values.size, step=CHUNK):
            here, there = self._places(start + at, end - at)
            made, sent = TWIN_ENCODERS[self._codec](told[at:end])
            here[:], there[:] = np.frombuffer(made, np.uint8), np.frombuffer(sent, np.uint8)
            if left is not None:
                bits = there.view("<u2").astype(np.uint16, copy=False)
                _leave(self._codec, here, bits, left[at:end])

    def _places(self, start: int, numel: int) -> tuple[U8, U8]:
        bits, width = CODE_BITS[self._codec], SCALE_BYTES[self._codec]
        first, last = start // BLOCK * width, (start + numel) // BLOCK * width
        return self._codes[start * bits // 8 : (start + numel) * bits // 8], self._scales[
            first:last
        ]


def wanted(values: F32, minus: F32 | None, residual: F32) -> F32:
    """What there is to say, flushed: how far values are from `minus`, and what was left before."""
    with np.errstate(over="ignore", invalid="ignore"):
        told = (values if minus is None else values - minus) + residual
    flush(told)
    return told


def _leave(codec: CodecName, codes: U8, bits: U16, values: F32) -> None:
    """Takes from `values` what codes and the bits of their scales say, and flushes the rest."""
    told = np.empty_like(values)
    TWIN_DECODERS[codec](codes, wide_scales(bits), told)
    values -= told
    flush(values)


def decode(codec: CodecName, payload: Payload, numel: int, *, workers: Workers = ALONE) -> F32:
    """The `numel` values of a payload, as a new array.

    Raises: MalformedPayload if the length is wrong, a value or scale is Inf or NaN, or a scale is
    neither 0 nor in [2^-100, 2^100] in magnitude.
    """
    payload_bytes(codec, numel)  # Raises where that is not a whole number of blocks.
    out = buffers.empty(numel)
    _checked_view(codec, payload, numel)

    is_streamed = buffers.is_streamed(out)

    def work(part: tuple[int, int]) -> None:
        here = out[slice(*part)]
        decode_into(codec, payload, numel, part[0], here, is_streamed=is_streamed)

    workers.map(work, pieces(numel))
    return out


def decode_range(codec: CodecName, payload: Payload, numel: int, start: int, stop: int) -> F32:
    """Elements `start` to `stop`, both on block borders, of a payload of `numel` elements.

    Only that range is looked at beyond the length.
    Raises: MalformedPayload as `decode`; InternalError if the range is off the block borders.
    """
    _require_borders(numel, start, stop)
    out = buffers.empty(stop - start)
    decode_into(codec, payload, numel, start, out)
    return out


def decode_into(
    codec: CodecName,
    payload: Payload,
    numel: int,
    start: int,
    out: F32,
    *,
    is_streamed: bool = False,
) -> None:
    """Fills `out` with the elements from `start` on; is_streamed: past the caches, into a part of
    an array that `buffers.is_streamed`. Raises: as `decode_range`."""
    for begin, end in pieces(out.size, start, CHUNK):
        codes, scales = planes(codec, payload, numel, begin, end)
        _fill(codec, codes, scales, out[begin - start : end - start], is_streamed=is_streamed)


def _fill(codec: CodecName, codes: U8, scales: F32, out: F32, *, is_streamed: bool = False) -> None:
    if kernels.IS_COMPILED and codec in _CODES:
        decode_chunk = kernels.stream if is_streamed else kernels.decode
        decode_chunk(codes.view(_CODES[codec]), scales, out)
    else:
        TWIN_DECODERS[codec](codes, scales, out)


def decode_blocks(codec: CodecName, payload: Payload, numel: int, chosen: NDArray[np.int64]) -> F32:
    """Elements of these blocks of a payload of `numel` elements, one block after the other.

    Raises: MalformedPayload as `decode`.
    """
    view, plane = _checked_view(codec, payload, numel), numel * CODE_BITS[codec] // 8
    out = buffers.empty(chosen.size * BLOCK)
    codes = view[:plane].reshape(numel // BLOCK, -1)[chosen].reshape(-1)
    bits = _scale_bits(codec, view, numel, 0, numel)
    _fill(codec, codes, _sound(codec, bits[chosen] if bits.size else bits), out)
    return out


def code_planes(codec: CodecName, payload: Payload, numel: int) -> tuple[U8, U16]:
    """All codes, as bytes, and the bits of all scales of an int8 or int4 payload; read-only.

    Raises: MalformedPayload as `decode`.
    """
    view, plane = _checked_view(codec, payload, numel), numel * CODE_BITS[codec] // 8
    _scales(codec, view, numel, 0, numel)
    view = view.view()
    view.flags.writeable = False
    return view[:plane], view[plane:].view("<u2").astype(np.uint16, copy=False)


def planes(codec: CodecName, payload: Payload, numel: int, start: int, stop: int) -> tuple[U8, F32]:
    """Codes, as bytes, and scales of elements `start` to `stop` of a payload, both on block
    borders; no scales for a codec without.

    Raises: as `decode_range`.
    """
    _require_borders(numel, start, stop)
    view, bits = _checked_view(codec, payload, numel), CODE_BITS[codec]
    return view[start * bits // 8 : stop * bits // 8], _scales(codec, view, numel, start, stop)


def check(codec: CodecName, payload: Payload, numel: int) -> float:
    """A bound on the magnitude of the payload's values; reads only the scales of int8 and int4.

    Raises: MalformedPayload as `decode`.
    """
    view = _checked_view(codec, payload, numel)
    if codec in _CODE_MAX:  # Any code of theirs is good.
        scales = _scales(codec, view, numel, 0, numel)
        return _CODE_MAX[codec] * float(np.abs(scales).max(initial=0.0))
    largest = 0.0
    for start in range(0, numel, CHUNK):
        values = decode_range(codec, payload, numel, start, min(start + CHUNK, numel))
        largest = max(largest, float(np.abs(values).max(initial=0.0)))
    return largest


def flush(values: F32) -> None:
    """Turns subnormals and negative zeros of `values` into +0, in place; the array is flat."""
    if kernels.IS_COMPILED:
        kernels.flush(values)
        return
    for start in range(0, values.size, CHUNK):
        bits = values[start : start + CHUNK].view(np.uint32)
        # On the bits, because a float comparison depends on the CPU's denormals-are-zero mode.
        bits *= (bits & _EXPONENT) != 0


def require_flat(values: F32) -> None:
    """Raises: InternalError unless `values` is a flat contiguous float32 array of whole blocks."""
    if values.dtype != np.float32 or values.ndim != 1 or not values.flags.c_contiguous:
        raise InternalError(f"expected a flat float32 array, got {values.ndim}-d {values.dtype}")
    if values.size % BLOCK:
        raise InternalError(f"{values.size} elements are not a whole number of blocks of {BLOCK}")


def _require_borders(numel: int, start: int, stop: int) -> None:
    if start % BLOCK or stop % BLOCK or not 0 <= start <= stop <= numel:
        raise InternalError(f"elements {start} to {stop} of {numel} are not whole blocks")


def _checked_view(codec: CodecName, payload: Payload, numel: int) -> U8:
    size = memoryview(payload).nbytes
    # NumPy refuses to view an empty buffer.
    view = np.frombuffer(payload, dtype=np.uint8) if size else np.empty(0, np.uint8)
    expected = payload_bytes(codec, numel)
    if view.size != expected:
        raise MalformedPayload(f"{codec} payload has {view.size} bytes instead of {expected}")
    return view


def _scales(codec: CodecName, view: U8, numel: int, start: int, stop: int) -> F32:
    """The scales of the blocks of that range; empty for a codec without scales."""
    return _sound(codec, _scale_bits(codec, view, numel, start, stop))


def _scale_bits(codec: CodecName, view: U8, numel: int, start: int, stop: int) -> U16:
    width = SCALE_BYTES[codec]
    plane = numel * CODE_BITS[codec] // 8
    first, last = plane + start // BLOCK * width, plane + stop // BLOCK * width
    return view[first:last].view("<u2").astype(np.uint16, copy=False)


def _sound(codec: CodecName, bits: U16) -> F32:
    """What these bits stand for. Raises MalformedPayload for what is no scale."""
    if kernels.IS_COMPILED:
        found = np.empty(bits.size, dtype=np.float32)
        is_sound = kernels.scales(bits, found)
    else:
        magnitude = bits & np.uint16(0x7FFF)
        is_sound = not (
            (magnitude != 0) & ((magnitude < SCALE_MIN) | (magnitude > SCALE_MAX))
        ).any()
        found = wide_scales(bits)
    if not is_sound:
        raise MalformedPayload(f"{codec} payload has a scale outside 0 or [2^-100, 2^100]")
    return found


def _to_bf16(values: F32) -> U16:
    """Bits of the nearest bf16, ties to even. Finite input only; the largest values become Inf."""
    bits = values.view(np.uint32)
    halfway = (bits >> np.uint32(16)) & np.uint32(1)
    halfway += np.uint32(0x7FFF)
    halfway += bits
    halfway >>= np.uint32(16)
    return halfway.astype(np.uint16)


def wide_scales(bits: U16) -> F32:
    """The values of bf16 bits."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _require_finite(values: F32) -> None:
    if not np.isfinite(values).all():
        raise NonFinite("a value is Inf or NaN")


def _scale_of(wanted: F32) -> tuple[F32, bytes]:
    """What turns values into codes where the exact scales are `wanted`, and the scales as sent.

    A scale under 2^-100 is sent as 0, with an inverse of 1: all of its block rounds to code 0.
    """
    _require_finite(wanted)
    bits = _to_bf16(wanted)
    magnitude = bits & np.uint16(0x7FFF)
    if (magnitude > SCALE_MAX).any():
        raise NonFinite("a value is too large for the scale of a block")
    bits *= magnitude >= SCALE_MIN
    divisors = wide_scales(bits)
    divisors[bits == 0] = 1
    return np.float32(1) / divisors, bits.astype("<u2", copy=False).tobytes()


def _encode_f32(values: F32) -> tuple[bytes, bytes]:
    _require_finite(values)
    return values.astype("<f4", copy=False).tobytes(), b""


def _encode_bf16(values: F32) -> tuple[bytes, bytes]:
    _require_finite(values)
    bits = _to_bf16(values)
    if ((bits & np.uint16(0x7F80)) == np.uint16(0x7F80)).any():
        raise NonFinite("a value is too large for bf16")
    return bits.astype("<u2", copy=False).tobytes(), b""


def _encode_int8(values: F32) -> tuple[bytes, bytes]:
    blocks = values.reshape(-1, BLOCK)
    extreme = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
    inverses, scales = _scale_of(extreme / _INT8_MAX)
    # bf16 rounds the scale by less than 1/256, so no product reaches 127.5: nothing to clip.
    codes = np.rint(blocks * inverses[:, None]).astype(np.int8)
    return codes.tobytes(), scales


def _encode_int4(values: F32) -> tuple[bytes, bytes]:
    blocks = values.reshape(-1, BLOCK)
    highest, lowest = blocks.max(axis=1), blocks.min(axis=1)
    # Of two elements of equal magnitude the positive one gets the exact code -8.
    extreme = np.where(highest >= -lowest, highest, lowest)
    inverses, scales = _scale_of(extreme / -_INT4_OFFSET)
    products = blocks * inverses[:, None]
    np.rint(products, out=products)
    # The extreme itself is at most -8.04, so only the other sign can leave the range.
    np.minimum(products, _INT4_MAX, out=products)
    products += _INT4_OFFSET
    codes = products.astype(np.uint8)
    return (codes[:, : BLOCK // 2] | (codes[:, BLOCK // 2 :] << np.uint8(4))).tobytes(), scales


def _encode_coarse(values: F32, bits: low_bit.Bits) -> tuple[bytes, bytes]:
    _require_finite(values)
    codes, wanted = low_bit.quantise(values.reshape(-1, BLOCK), bits)
    _, scales = _scale_of(wanted)
    codes[np.frombuffer(scales, "<u2") == 0] = 0
    return low_bit.pack(codes, bits), scales


def _decode_coarse(codes: U8, scales: F32, out: F32, bits: low_bit.Bits) -> None:
    low_bit.restore(low_bit.unpack(codes, bits), scales, bits, out.reshape(-1, BLOCK))
    out += np.float32(0)


def _decode_f32(codes: U8, _scales: F32, out: F32) -> None:
    out[:] = codes.view("<f4")
    if not np.isfinite(out).all():
        raise MalformedPayload("f32 payload holds Inf or NaN")
    flush(out)


def _decode_bf16(codes: U8, _scales: F32, out: F32) -> None:
    out[:] = wide_scales(codes.view("<u2").astype(np.uint16, copy=False))
    if not np.isfinite(out).all():
        raise MalformedPayload("bf16 payload holds Inf or NaN")
    flush(out)


def _decode_int8(codes: U8, scales: F32, out: F32) -> None:
    np.multiply(codes.view(np.int8).reshape(-1, BLOCK), scales[:, None], out=out.reshape(-1, BLOCK))
    # No product is subnormal, and adding +0 turns -0 into +0.
    out += np.float32(0)


def _decode_int4(codes: U8, scales: F32, out: F32) -> None:
    packed = codes.reshape(-1, BLOCK // 2)
    blocks = out.reshape(-1, BLOCK)
    blocks[:, : BLOCK // 2] = packed & np.uint8(0x0F)
    blocks[:, BLOCK // 2 :] = packed >> np.uint8(4)
    blocks -= _INT4_OFFSET
    blocks *= scales[:, None]
    out += np.float32(0)


TWIN_ENCODERS: dict[CodecName, Callable[[F32], tuple[Payload, bytes]]] = {
    "f32": _encode_f32,
    "bf16": _encode_bf16,
    "int8": _encode_int8,
    "int4": _encode_int4,
    "int2": partial(_encode_coarse, bits=2),
    "int1": partial(_encode_coarse, bits=1),
}
TWIN_DECODERS: dict[CodecName, Callable[[U8, F32, F32], None]] = {
    "f32": _decode_f32,
    "bf16": _decode_bf16,
    "int8": _decode_int8,
    "int4": _decode_int4,
    "int2": partial(_decode_coarse, bits=2),
    "int1": partial(_decode_coarse, bits=1),
}

_CODES: dict[CodecName, type[np.generic]] = {"int8": np.int8, "int4": np.uint8}
"""What kernels take the codes as."""
