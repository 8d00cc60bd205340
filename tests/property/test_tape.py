"""A tape reads as it was written; whatever breaks it is found."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tape import (
    VERSION,
    Fed,
    Frame,
    Input,
    Preface,
    PushCaptured,
    StepsDone,
    TapeDamaged,
    TapeReading,
    TapeWriting,
    encode_frame,
)

PREFACE = Preface(
    VERSION, b"p" * 32, "syncer", b"k" * 32, "ed25519", "events", b"12345678", 0, b"", 1.5, "a name"
)
seqs = st.integers(0, 2**60)
frames = st.one_of(
    st.builds(Fed, seqs, seqs, seqs),
    st.builds(StepsDone, seqs, st.floats(allow_nan=False)),
    st.builds(PushCaptured, seqs, seqs, seqs, st.binary(min_size=32, max_size=32)),
    st.builds(
        Input,
        st.floats(allow_nan=False),
        st.text(max_size=8),
        st.binary(max_size=64),
        st.binary(min_size=8, max_size=8),
        st.just((("Keep", b"x"),)),
        st.just(()),
    ),
)
groups = st.lists(st.lists(frames, min_size=1, max_size=4), min_size=1, max_size=5)


def written(content: list[list[Frame]], *, is_packed: bool) -> tuple[bytes, list[int]]:
    """The bytes of a tape, and where each group ends."""
    writing = TapeWriting(PREFACE, is_packed=is_packed)
    data, ends = writing.first, []
    for group in content:
        data += writing.group([encode_frame(one) for one in group])
        ends.append(len(data))
    return data, ends


def read(data: bytes) -> tuple[list[list[Frame]], int]:
    reading = TapeReading(io.BytesIO(data).read, "tape")
    assert reading.preface == PREFACE
    return [group.frames for group in reading.groups()], reading.cut_bytes


@given(groups, st.booleans())
def test_reading_gives_what_was_written(content: list[list[Frame]], is_packed: bool) -> None:
    data, _ = written(content, is_packed=is_packed)
    assert read(data) == (content, 0)


@given(groups, st.booleans(), st.data())
def test_any_truncation_behind_the_preface_opens_with_all_whole_groups(
    content: list[list[Frame]], is_packed: bool, data: st.DataObject
) -> None:
    whole, ends = written(content, is_packed=is_packed)
    start = len(TapeWriting(PREFACE).first)
    length = data.draw(st.integers(start, len(whole)))
    found, cut = read(whole[:length])
    kept = [end for end in ends if end <= length]
    assert found == content[: len(kept)]
    assert cut == length - (kept[-1] if kept else start)


@given(groups, st.booleans(), st.data())
def test_any_flipped_bit_is_found(
    content: list[list[Frame]], is_packed: bool, data: st.DataObject
) -> None:
    whole, ends = written(content, is_packed=is_packed)
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    broken = bytearray(whole)
    broken[at] ^= 1 << bit
    last = ends[-2] if len(ends) > 1 else len(TapeWriting(PREFACE).first)
    try:
        found, cut = read(bytes(broken))
    except TapeDamaged:
        return
    # Only the body of the last group may pass for half written, and that is told.
    assert at >= last
    assert cut > 0
    assert found == content[:-1]


@given(groups.filter(lambda one: len(one) > 1), st.data())
def test_a_group_that_is_missing_is_found(content: list[list[Frame]], data: st.DataObject) -> None:
    whole, ends = written(content, is_packed=False)
    at = data.draw(st.integers(0, len(ends) - 2))
    start = ends[at - 1] if at else len(TapeWriting(PREFACE).first)
    with pytest.raises(TapeDamaged):
        read(whole[:start] + whole[ends[at] :])


@given(groups, st.integers(1, 5000))
def test_zeros_behind_the_end_are_cut(content: list[list[Frame]], count: int) -> None:
    """What a file system may leave after a power cut."""
    data, _ = written(content, is_packed=True)
    assert read(data + bytes(count)) == (content, count)


@given(st.binary(max_size=400))
def test_other_bytes_are_refused_with_a_place(data: bytes) -> None:
    with pytest.raises(TapeDamaged, match="at byte 0"):
        TapeReading(io.BytesIO(data).read, "some file")
