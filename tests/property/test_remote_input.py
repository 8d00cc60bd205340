"""Whatever others send is decoded or refused: no other exception, and memory in proportion.

What was found once, and what is worth a look each time, lies in `tests/fuzz_corpus`, in a folder
for each decoder of `tests.support.remote_input`.
"""

from __future__ import annotations

import math
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.remote_input import DECODERS, Decoder, sound

CORPUS = Path(__file__).parents[1] / "fuzz_corpus"
FILES = sorted(CORPUS.rglob("*.bin"))

MEMORY_FACTOR, MEMORY_BYTES = 64, 1 << 20
"""Of what came in, and besides."""

NEST = 5_000
"""Levels: more than any interpreter's recursion limit."""

quick = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
thorough = settings(quick, max_examples=200)
FEW, MANY = 8, 30
"""Samples of what is sound."""

noise = st.binary(max_size=300)
SPLICES = st.sampled_from(
    [
        b"\xdd\xff\xff\xff\xff",  # an array, a map and bytes of four thousand million
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xcf" + b"\xff" * 8,
        b"\xcb\x7f\xf0" + bytes(6),  # infinity, and no number
        b"\xcb\x7f\xf8" + bytes(6),
        b"\xc0",
        b"\xff\xfe",  # no UTF-8
        b"\x00",
        b"\x91" * NEST + b"\xc0",
        b"\x81\xa1x" * NEST + b"\xc0",
    ]
)
WORDS = st.sampled_from(
    [
        "²",
        "٣",
        "\0",
        "\u2028",
        "\ud7ff",
        "/",
        "/p2p/",
        "-1",
        "1e999",
        "9" * 400,
        "[" * NEST,
        "%n",
        '"',
    ]
).map(str.encode)
ODD: list[object] = [
    *(None, True, -1, 0, 2**63, 2**64 - 1, -(2**63), math.inf, -math.inf, math.nan, 5e-324),
    *("", "²", "\0" * 40, "x" * 3000, b"", bytes(31), bytes(33), b"\xff" * 3000, [], {}, [[]]),
    msgspec.Raw(b"\x91" * NEST + b"\xc0"),
    msgspec.Raw(b"\x81\xa1x" * NEST + b"\xc0"),
]
"""Values where others are expected; the last two are nested deeper than anybody reads."""


def peak_bytes(decoder: Decoder, content: bytes) -> int:
    """Memory that decoding or refusing took; whatever else comes out is a bug."""
    tracemalloc.start()
    try:
        with suppress(*decoder.refusals):
            decoder.read(content)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def read(decoder: Decoder, content: bytes) -> None:
    """Decodes or refuses, in memory that what came in explains."""
    bytes_max = MEMORY_BYTES + MEMORY_FACTOR * len(content)
    # The second time nothing is built that is built once: tables, compiled loops, modules.
    if peak_bytes(decoder, content) > bytes_max:
        assert peak_bytes(decoder, content) <= bytes_max


@st.composite
def mutated(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """What is sound but for a few places: other values in them, or other bytes."""
    content = draw(st.sampled_from(samples))
    if draw(st.booleans()):
        try:
            tree = msgspec.msgpack.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # It is made of something else.
        else:
            for _ in range(draw(st.integers(1, 2))):
                tree = replaced(draw, tree)
            return msgspec.msgpack.encode(tree)
    return spoilt(draw, content)


def replaced(draw: st.DrawFn, tree: object) -> object:
    """The same with one value in it replaced, left out or added."""
    if not isinstance(tree, list | dict) or not tree or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(ODD))
    places = list(range(len(tree)) if isinstance(tree, list) else tree)
    changed: Any = tree.copy()
    at = draw(st.sampled_from(places))
    match draw(st.sampled_from(["into", "into", "into", "out", "more"])):
        case "into":
            changed[at] = replaced(draw, changed[at])
        case "out":
            del changed[at]
        case _ if isinstance(changed, list):
            changed.append(draw(st.sampled_from(ODD)))
        case _:
            changed["more"] = draw(st.sampled_from(ODD))
    return changed


def spoilt(draw: st.DrawFn, sample: bytes) -> bytes:
    """The same with a few bytes changed, put in, left out or repeated."""
    content, pieces = bytearray(sample), WORDS if sample.isascii() else SPLICES
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from([0, 0, 1, 2, 8, 64])))
        match draw(st.sampled_from(["flip", "put", "put", "cut", "twice", "end"])):
            case "flip" if at < len(content):
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "put":
                content[at:end] = draw(st.one_of(pieces, st.binary(max_size=9)))
            case "cut":
                del content[at:end]
            case "twice":
                content[at:at] = content[at:end]
            case _:
                del content[at:]
    return bytes(content)


def try_mutations(name: str, samples: int, limit: settings) -> None:
    """Of a few samples: to draw one takes far longer than to change and to read it."""

    @limit
    @given(mutated(sound(name, samples)))
    def check(content: bytes) -> None:
        read(DECODERS[name], content)

    check()


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_sound_is_read_or_refused_in_words(name: str) -> None:
    for content in sound(name, FEW):
        read(DECODERS[name], content)


@pytest.mark.parametrize("name", DECODERS)
def test_noise_is_refused_or_read(name: str) -> None:
    decoder = DECODERS[name]

    @quick
    @given(noise)
    def check(content: bytes) -> None:
        read(decoder, content)

    check()


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_nearly_sound_is_refused_or_read(name: str) -> None:
    try_mutations(name, FEW, quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_much_that_is_nearly_sound_is_refused_or_read(name: str) -> None:
    try_mutations(name, MANY, thorough)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_was_found_before_is_refused_or_read(path: Path) -> None:
    read(DECODERS[path.parent.name], path.read_bytes())


def test_there_is_a_corpus() -> None:
    assert len(FILES) > 10
    assert {path.parent.name for path in FILES} <= set(DECODERS)
