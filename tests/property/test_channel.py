"""The direct channel's choice and frames, whatever happens and however bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.bulk.channel_policy import (
    RESTS_S,
    WORTH_BYTES,
    Agreed,
    Carried,
    ChannelPolicy,
    CloseAll,
    Closed,
    Declined,
    Dial,
    Grown,
    Negotiate,
    Offended,
    Opened,
    Wanted,
    Way,
)
from host.bulk.frames import (
    DATA_BYTES_MAX,
    GREETING,
    HEADER,
    PIECE_BYTES_MAX,
    Answer,
    Data,
    FrameReader,
    Greeted,
    Request,
    answer_bytes,
    data_header,
    request_bytes,
)
from protocol.errors import RemoteError

PEER = b"p" * 32

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["want", "decline", "agree", "open", "close", "idle", "carry", "grown",
                         "offend"]),
        st.floats(0.0, 700.0),
    ),
    max_size=60,
)  # fmt: skip


class World:
    """Carries out what the choice asks for, as far as that is possible at the moment."""

    def __init__(self):
        self.choice = ChannelPolicy()
        self.now_s = 0.0
        self.connections = 0
        self.is_negotiating = self.is_growing = False
        self.asked_s = []
        self.offended_s = -1e9

    def tell(self, event):
        for effect in self.choice.handle(event, self.now_s):
            match effect:
                case Negotiate():
                    assert not self.is_negotiating, "two negotiations with one peer"
                    assert self.now_s >= self.offended_s + 3600.0
                    self.is_negotiating = True
                    self.asked_s.append(self.now_s)
                case Dial(_, count):
                    assert self.connections, "more connections of none"
                    assert not self.is_growing
                    assert count > 0
                    self.is_growing = True
                case CloseAll(_, reason):
                    while self.connections:
                        self.connections -= 1
                        self.tell(Closed(PEER, reason, is_broken=True))

    def step(self, what):
        match what:
            case "want":
                self.tell(Wanted(PEER, WORTH_BYTES, 0.1))
            case "decline" if self.is_negotiating:
                self.is_negotiating = False
                self.tell(Declined(PEER, "no"))
            case "agree" if self.is_negotiating:
                self.is_negotiating = False
                self.connections += 1
                self.tell(Opened(PEER))
                self.tell(Agreed(PEER, is_dialler=True))
            case "open":
                self.connections += 1
                self.tell(Opened(PEER))
            case "close" | "idle" if self.connections:
                self.connections -= 1
                self.tell(Closed(PEER, "reset", is_broken=what == "close"))
            case "carry" if self.connections:
                self.tell(Carried(PEER))
            case "grown" if self.is_growing:
                self.is_growing = False
                self.tell(Grown(PEER))
            case "offend" if self.connections:
                self.offended_s = self.now_s
                self.tell(Offended(PEER, "nonsense"))


@given(STEPS)
def test_direct_exactly_while_a_connection_stands(steps):
    world = World()
    for what, later_s in steps:
        world.now_s += later_s
        world.step(what)
        assert (world.choice.way(PEER) is Way.DIRECT) == (world.connections > 0)
        if not world.connections and not world.is_negotiating:
            assert world.choice.way(PEER) is not Way.ASKING, "waits for nobody"


@given(st.lists(st.floats(0.0, 30.0), max_size=80))
def test_a_peer_that_never_agrees_is_asked_ever_less(pauses):
    world = World()
    for later_s in pauses:
        world.now_s += later_s
        world.step("want")
        world.step("decline")
    for number, (one, next_one) in enumerate(zip(world.asked_s, world.asked_s[1:], strict=False)):
        rest_s = RESTS_S[min(number, len(RESTS_S) - 1)]
        # Two sums of floats: their difference is off by a rounding error.
        assert next_one - one >= rest_s - 1e-6


FRAMES = st.lists(
    st.one_of(
        st.builds(
            Request,
            id=st.integers(0, 2**32 - 1),
            digest=st.binary(min_size=32, max_size=32),
            offset=st.integers(0, 1 << 32),
            count=st.integers(0, 1 << 20),
        ),
        st.builds(
            Answer,
            id=st.integers(0, 2**32 - 1),
            status=st.integers(0, 255),
            total=st.integers(0, 2**64 - 1),
        ),
        st.binary(min_size=1, max_size=300),
    ),
    max_size=8,
)


def feed(reader, stream, cuts):
    """Hands bytes over in parts of the given sizes, as a connection would."""
    at, found = 0, []
    while at < len(stream):
        room = reader.buffer()
        step = min(len(room), len(stream) - at, cuts[at % len(cuts)])
        room[:step] = stream[at : at + step]
        at += step
        frame = reader.took(step)
        if frame is not None:
            found.append(frame)
    return found


@given(FRAMES, st.lists(st.integers(1, 400), min_size=1, max_size=9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, cuts):
    stream, blob, got = GREETING, b"", bytearray(4000)
    for frame in frames:
        match frame:
            case Request():
                stream += request_bytes(frame)
            case Answer():
                stream += answer_bytes(frame)
            case _:
                stream += data_header(9, len(frame)) + frame
                blob += frame
    filled = 0

    def room(id):
        assert id == 9
        return memoryview(got)[filled:]

    class Counting(FrameReader):
        def took(self, count):
            nonlocal filled
            frame = super().took(count)
            if isinstance(frame, Data):
                filled += frame.count
            return frame

    found = feed(Counting(room), stream, cuts)
    assert found[0] == Greeted()
    told = [frame for frame in found[1:] if not isinstance(frame, Data)]
    assert told == [frame for frame in frames if not isinstance(frame, bytes)]
    assert bytes(got[:filled]) == blob


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), min_size=1, max_size=5))
@settings(max_examples=300)
def test_nonsense_is_refused_or_waits_and_never_grows(nonsense, cuts):
    slot = memoryview(bytearray(DATA_BYTES_MAX))
    reader = FrameReader(lambda _: slot)
    try:
        found = feed(reader, GREETING + nonsense, cuts)
    except RemoteError:
        return
    assert len(found) <= 1 + len(nonsense) // HEADER.size + len(nonsense)
    assert len(reader.buffer()) <= DATA_BYTES_MAX


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(0, 0, 0, 1, 0, 0),
        HEADER.pack(4, 0, 0, 1, 0, 0),
        HEADER.pack(2, 0, 1, 1, 0, 0),
        HEADER.pack(3, 0, 0, 1, DATA_BYTES_MAX + 1, 0),
        HEADER.pack(3, 0, 0, 1, 0, 0),
        HEADER.pack(3, 0, 0, 1, 5, 0),
        HEADER.pack(1, 0, 0, 1, PIECE_BYTES_MAX + 1, 0),
        HEADER.pack(1, 0, 0, 1, 1, 1 << 60),
    ],
)
def test_a_frame_that_breaks_a_rule_is_refused_from_its_header_alone(header):
    reader = FrameReader(lambda _: memoryview(bytearray(4)))
    with pytest.raises(RemoteError):
        feed(reader, GREETING + header, [7])


def test_another_greeting_is_refused():
    with pytest.raises(RemoteError, match="does not speak"):
        feed(FrameReader(lambda _: memoryview(b"")), b"GET / HT", [3])
