from __future__ import annotations

import math

import msgspec
import pytest

from protocol import limits, wire
from protocol.errors import LimitExceeded, MalformedMessage
from protocol.log.records import Record, read_record
from protocol.log.state import SwarmSummary
from protocol.messages import Decline, Envelope, Heartbeat, Message, Push, PushHeader
from protocol.project import Charter
from tests.support.builders import heartbeat, hello, merged, push_header, record
from tests.support.strategies import each_of

pack = msgspec.msgpack.encode


def parts(message):
    """What is on the wire for a message, as a list that a test may spoil."""
    return msgspec.msgpack.decode(wire.encode(message))


def test_a_message_comes_back_as_it_was_sent():
    assert wire.decode_message(wire.encode(heartbeat())) == heartbeat()


def test_every_message_has_a_tag_of_its_own():
    tags = [kind.__struct_config__.tag for kind in each_of(Message)]
    assert len(set(tags)) == len(tags)
    assert all(isinstance(tag, str) for tag in tags)


def test_an_unknown_tag_is_malformed():
    with pytest.raises(MalformedMessage, match="not a message"):
        wire.decode_message(pack(["gossip", *parts(hello())[1:]]))


def test_a_message_without_a_tag_is_malformed():
    with pytest.raises(MalformedMessage):
        wire.decode_message(pack(parts(hello())[1:]))


def test_a_surplus_field_is_malformed():
    with pytest.raises(MalformedMessage, match="canonical"):
        wire.decode_message(pack([*parts(hello()), 1]))


def test_a_surplus_field_deep_inside_is_malformed():
    spoilt = parts(heartbeat())
    assert spoilt[9] == [0, 0]
    spoilt[9] = [0, 0, 0]
    with pytest.raises(MalformedMessage, match="canonical"):
        wire.decode_message(pack(spoilt))


def test_a_missing_field_is_malformed():
    with pytest.raises(MalformedMessage):
        wire.decode_message(pack(parts(hello())[:-1]))


@pytest.mark.parametrize(
    "longer",
    [
        b"\xcc\x01",  # 1 as uint8
        b"\xcf\x00\x00\x00\x00\x00\x00\x00\x01",  # as uint64
        b"\xd0\x01",  # as int8
    ],
)
def test_a_number_in_a_longer_encoding_than_needed_is_malformed(longer):
    frame = wire.encode(Decline(1, 0, ""))
    head = b"\x94\xa7decline"
    assert frame == head + b"\x01\x00\xa0"
    with pytest.raises(MalformedMessage, match="canonical"):
        wire.decode_message(head + longer + b"\x00\xa0")


def test_a_real_number_written_as_an_integer_is_malformed():
    spoilt = parts(heartbeat(step_s=1.0))
    spoilt[5] = 1
    with pytest.raises(MalformedMessage, match="canonical"):
        wire.decode_message(pack(spoilt))


def test_bytes_after_a_message_are_malformed():
    with pytest.raises(MalformedMessage):
        wire.decode_message(wire.encode(hello()) + b"\x00")


def test_an_empty_frame_is_malformed():
    with pytest.raises(MalformedMessage):
        wire.decode_message(b"")


@pytest.mark.parametrize("field", ["step_s", "loss", "work_s", "alive_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e301])
def test_a_number_that_is_not_finite_or_out_of_range_is_malformed(field, value):
    frame = wire.encode(heartbeat(**{field: value}))
    with pytest.raises(MalformedMessage):
        wire.decode_message(frame)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "sleeping"),
        ("state", 3),
        ("local_step", -1),
        ("local_step", 2**63),
        ("local_step", "8"),
        ("local_step", 8.0),
        ("local_step", None),
        ("step_s", True),
        ("steps", 8),
        ("steps", [1.5]),
        ("cursor", [0]),
        ("device", b"cpu"),
        ("device", "x" * 129),
    ],
)
def test_a_field_of_another_type_or_range_is_malformed(field, value):
    spoilt = parts(heartbeat())
    spoilt[1 + Heartbeat.__struct_fields__.index(field)] = value
    with pytest.raises(MalformedMessage):
        wire.decode_message(pack(spoilt))


def test_text_that_is_not_utf8_is_malformed():
    frame = wire.encode(Decline(1, 0, "why?"))
    with pytest.raises(MalformedMessage):
        wire.decode_message(frame.replace(b"why?", b"wh\xff?"))


def test_a_key_of_another_length_is_malformed():
    spoilt = parts(Push(Envelope(b"", bytes(31), bytes(64))))
    with pytest.raises(MalformedMessage):
        wire.decode_message(pack(spoilt))


def test_nesting_without_end_is_malformed():
    with pytest.raises(MalformedMessage):
        wire.decode_message(b"\x91" * 100_000)


def test_an_announced_length_beyond_the_frame_costs_no_memory():
    # Ten bytes that promise 2^32 - 1 items: refused as truncated before room is made for them.
    with pytest.raises(MalformedMessage):
        wire.decode(b"\xdd\xff\xff\xff\xff\x93", SwarmSummary)
    head = pack(parts(heartbeat()))[:1] + b"\xa4beat\xa8training\xa0"
    with pytest.raises(MalformedMessage):
        wire.decode_message(head + b"\xdd\xff\xff\xff\xff")


def test_an_oversize_frame_is_refused_before_it_is_looked_at():
    with pytest.raises(LimitExceeded):
        wire.decode_message(bytes(limits.FRAME_BYTES_MAX + 1))


def test_an_oversize_message_is_not_encoded():
    with pytest.raises(LimitExceeded, match="one frame"):
        wire.encode(Push(Envelope(bytes(limits.FRAME_BYTES_MAX), bytes(32), bytes(64))))


def test_a_known_kind_is_decoded_strictly_too():
    frame = wire.encode(push_header())
    assert wire.decode(frame, PushHeader) == push_header()
    with pytest.raises(MalformedMessage):
        wire.decode(frame + b"\x00", PushHeader)
    with pytest.raises(MalformedMessage):
        wire.decode(frame, Charter)


def test_a_bound_of_its_own_holds_for_a_known_kind():
    frame = wire.encode(push_header())
    assert wire.decode(frame, PushHeader, bytes_max=len(frame)) == push_header()
    with pytest.raises(LimitExceeded):
        wire.decode(frame, PushHeader, bytes_max=len(frame) - 1)


def shortened(value, *place):
    """The encoding of a value without the last field of the struct at this place."""
    plain = msgspec.msgpack.decode(wire.encode(value))
    inner = plain
    for at in place:
        inner = inner[at]
    del inner[-1]
    return pack(plain)


def test_a_record_of_a_former_version_lacks_last_fields_and_is_read():
    merge = record(merged())
    parts_at = (-1, 11)
    (part,) = merge.body.contributions
    assert msgspec.msgpack.decode(wire.encode(merge))[-1][11][0][-1] == part.novelty
    former = shortened(merge, *parts_at, 0)
    assert wire.decode(former, Record) == merge
    assert len(former) < len(wire.encode(merge))


@pytest.mark.parametrize("place", [(), (-1, 11)], ids=["a field without default", "an entry"])
def test_what_a_record_cannot_do_without_is_not_left_out(place):
    with pytest.raises(MalformedMessage):
        read_record(shortened(record(merged()), *place))


def test_a_former_record_in_another_encoding_is_malformed():
    former = shortened(record(merged()), -1, 11, 0)
    at = former.index(b"\xa6merged") + len(b"\xa6merged")
    assert former[at] == 1  # the round
    with pytest.raises(MalformedMessage, match="canonical"):
        wire.decode(former[:at] + b"\xcc\x01" + former[at + 1 :], Record)
