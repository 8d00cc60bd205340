import numpy as np
import pytest

from protocol.errors import InternalError, MalformedPayload
from protocol.numerics import codecs
from protocol.numerics.codecs import NonFinite, check, decode, decode_range, encode, payload_bytes
from protocol.numerics.outer import digest
from tests.support.oracle import wave

CODECS = ("f32", "bf16", "int8", "int4", "int2", "int1")
SCALED = ("int8", "int4", "int2", "int1")


def block(*values, size=128):
    """A block that starts with `values` and ends in zeros."""
    out = np.zeros(size, dtype=np.float32)
    out[: len(values)] = values
    return out


def gaussian(numel):
    return np.random.default_rng(7).standard_normal(numel).astype(np.float32)


def relative_error(codec, values):
    back = decode(codec, encode(codec, values), values.size)
    return float(np.linalg.norm(back - values) / np.linalg.norm(values))


def same_bits(left, right):
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("codec", "size"),
    [("f32", 1024), ("bf16", 512), ("int8", 260), ("int4", 132), ("int2", 68), ("int1", 36)],
)
def test_two_blocks_take_the_documented_number_of_bytes(codec, size):
    assert payload_bytes(codec, 256) == size
    assert len(encode(codec, wave(256))) == size


def test_f32_is_little_endian():
    payload = encode("f32", block(1.0, -2.5, 3.0e-3))
    assert payload.hex() == "0000803f" + "000020c0" + "a69b443b" + "00" * 500


def test_bf16_rounds_to_nearest_and_ties_to_even():
    ulp = 2.0**-7
    values = block(1.0, 1 + ulp / 2, 1 + 1.5 * ulp, 1 + 0.51 * ulp, -3.0, 2.0**-126)
    payload = encode("bf16", values)
    assert payload.hex() == "803f" + "803f" + "823f" + "813f" + "40c0" + "8000" + "00" * 244


def test_int8_sends_codes_in_multiples_of_a_127th_of_the_largest():
    # The largest magnitude is 127, so the scale is 1.0 (bf16 3f80); ties go to even.
    payload = encode("int8", block(127.0, -127.0, 2.5, 3.5, -1.0, 0.4))
    assert payload.hex() == "7f" + "81" + "02" + "04" + "ff" + "00" + "00" * 122 + "803f"


def test_int4_puts_the_second_half_of_a_block_in_the_high_nibbles():
    # The largest magnitude is +8, so the scale is -1.0 (bf16 bf80): 8 -> -8, -7 -> 7, 2.5 -> -2.
    values = block(8.0, 1.0)
    values[64:67] = (-7.0, 2.5, -3.5)
    payload = encode("int4", values)
    assert payload.hex() == "f0" + "67" + "c8" + "88" * 61 + "80bf"


def test_int4_gives_the_positive_of_two_equal_extremes_the_exact_code():
    payload = encode("int4", block(-8.0, 8.0))
    back = decode("int4", payload, 128)
    assert payload.hex() == "8f" + "80" + "88" * 62 + "80bf"
    assert back[:2].tolist() == [-7.0, 8.0]


def test_int2_fits_a_scale_to_codes_on_both_sides_of_the_threshold():
    # Root mean square 2.24: 3 is beyond it and 1 is not. Scale 1.0 (bf16 3f80), codes 3 2 1 0.
    values = np.tile(np.array([3.0, 1.0, -1.0, -3.0], np.float32), 32)
    payload = encode("int2", values)
    assert payload.hex() == "ffaa5500" * 8 + "803f"
    assert same_bits(decode("int2", payload, 128), values)


def test_int1_is_signs_and_the_mean_magnitude():
    values = np.tile(np.array([1.0, -3.0], np.float32), 64)
    payload = encode("int1", values)
    assert payload.hex() == "ff00" * 8 + "0040"
    assert decode("int1", payload, 128)[:4].tolist() == [2.0, -2.0, 2.0, -2.0]


@pytest.mark.parametrize("codec", ["int2", "int1"])
@pytest.mark.parametrize("used", [0, 1, 2, 64, 127, 128])
def test_coarse_codes_leave_padding_exactly_zero_and_everything_else_not(codec, used):
    values = gaussian(128)
    values[used:] = 0.0
    back = decode(codec, encode(codec, values), 128)
    assert not back[used:].any()
    assert (np.sign(back[:used]) == np.sign(values[:used])).all()


@pytest.mark.parametrize(("codec", "size"), [("int2", 32), ("int1", 16)])
def test_a_coarse_block_that_ends_in_zeros_and_does_not_say_where_is_malformed(codec, size):
    good = bytes(size - 1) + b"\x80" + bytes.fromhex("80bf")
    assert not decode(codec, good, 128)[-1]
    for reader in (decode, check):
        with pytest.raises(MalformedPayload, match="does not say where"):
            reader(codec, bytes(size) + bytes.fromhex("80bf"), 128)


@pytest.mark.parametrize("codec", ["int2", "int1"])
def test_coarse_codes_have_the_same_bits_on_every_machine(codec):
    payload = encode(codec, wave(1024))
    known = {
        "int2": "0b064a0e1aba4bbf",
        "int1": "ff63eb709bf58b08",
    }[codec]
    assert digest(payload).hex()[:16] == known


@pytest.mark.parametrize("codec", SCALED)
def test_scales_follow_all_codes(codec):
    values = np.concatenate([block(127.0 * 2), block(8.0 * 4)])
    scales = encode(codec, values)[-4:]
    expected = {
        "int8": [2.0, 0.251953125],
        "int4": [-31.75, -4.0],
        "int2": [-84.5, -10.6875],
        "int1": [-254.0, -32.0],
    }[codec]
    bits = np.frombuffer(scales, "<u2").astype(np.uint32) << np.uint32(16)
    assert bits.view(np.float32).tolist() == expected


def test_payloads_written_by_hand_decode_to_known_values():
    f32 = bytes.fromhex("0000803f" + "000020c0") + bytes(504)
    assert decode("f32", f32, 128)[:3].tolist() == [1.0, -2.5, 0.0]
    bf16 = bytes.fromhex("803f" + "40c0") + bytes(252)
    assert decode("bf16", bf16, 128)[:3].tolist() == [1.0, -3.0, 0.0]
    int8 = bytes.fromhex("7f" + "80") + bytes(126) + bytes.fromhex("003f")
    assert decode("int8", int8, 128)[:3].tolist() == [63.5, -64.0, 0.0]
    int4 = bytes.fromhex("0f" + "f0") + bytes([0x88] * 62) + bytes.fromhex("803e")
    assert decode("int4", int4, 128)[[0, 1, 64, 65]].tolist() == [1.75, -2.0, -2.0, 1.75]


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        ("f32", 0, 0),
        ("bf16", 1e-4, 0.002),
        ("int8", 0.004, 0.01),
        ("int4", 0.095, 0.11),
        ("int2", 0.33, 0.36),
        ("int1", 0.59, 0.61),
    ],
)
def test_the_error_on_gaussian_values_is_as_documented(codec, low, high):
    assert low <= relative_error(codec, gaussian(1 << 15)) <= high


@pytest.mark.parametrize("codec", CODECS)
def test_chunk_borders_leave_no_trace(codec):
    numel = 2 * codecs.CHUNK + 256
    values = wave(numel)
    whole = encode(codec, values)
    parts = [encode(codec, values[i : i + 256]) for i in range(0, numel, 256)]
    codes = payload_bytes(codec, 256) - 2 * codecs.SCALE_BYTES[codec]
    assert whole == b"".join(p[:codes] for p in parts) + b"".join(p[codes:] for p in parts)
    decoded = np.concatenate([decode(codec, part, 256) for part in parts])
    assert same_bits(decode(codec, whole, numel), decoded)


@pytest.mark.parametrize("codec", CODECS)
def test_a_range_decodes_to_that_part_of_the_whole(codec):
    payload = encode(codec, wave(1024))
    part = decode_range(codec, memoryview(payload), 1024, 256, 640)
    assert same_bits(part, decode(codec, payload, 1024)[256:640])


@pytest.mark.parametrize("codec", CODECS)
def test_a_range_off_the_block_borders_is_our_bug(codec):
    payload = encode(codec, wave(256))
    for start, stop in ((1, 128), (0, 100), (0, 384), (128, 0)):
        with pytest.raises(InternalError):
            decode_range(codec, payload, 256, start, stop)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("where", [0, 64, 255])
def test_inf_and_nan_are_refused_wherever_they_stand(codec, bad, where):
    values = wave(256)
    values[where] = bad
    with pytest.raises(NonFinite):
        encode(codec, values)


def test_a_value_that_would_round_to_infinity_is_refused():
    with pytest.raises(NonFinite):
        encode("bf16", block(3.4e38))
    for codec, largest in (("int8", 127 * 2.0**100), ("int4", 8 * 2.0**100)):
        assert decode(codec, encode(codec, block(largest)), 128)[0] == np.float32(largest)
        with pytest.raises(NonFinite):
            encode(codec, block(largest * 1.01))


@pytest.mark.parametrize(("codec", "steps"), [("int8", 127), ("int4", -8)])
def test_a_block_with_a_scale_under_the_smallest_becomes_plain_zeros(codec, steps):
    smallest = np.float32(steps * 2.0**-100)
    assert decode(codec, encode(codec, block(smallest)), 128)[0] == smallest
    payload = encode(codec, block(smallest * 0.99, -smallest * 0.99))
    assert payload[-2:] == b"\0\0"
    assert same_bits(decode(codec, payload, 128), block())


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_and_negative_zeros_decode_to_positive_zeros(codec):
    values = np.full(128, -0.0, dtype=np.float32)
    values[0] = exact = 3 * 8 if codec == "int2" else 8 * 127
    assert same_bits(decode(codec, encode(codec, values), 128), block(exact))


@pytest.mark.parametrize("codec", ["f32", "bf16"])
def test_subnormals_decode_to_zero_and_the_smallest_normal_survives(codec):
    values = block(2.0**-126, 2.0**-127, -(2.0**-130))
    assert same_bits(decode(codec, encode(codec, values), 128), block(2.0**-126))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_payload_of_the_wrong_length_is_malformed(codec, change):
    payload = (bytes(encode(codec, wave(128))) + b"\0")[: payload_bytes(codec, 128) + change]
    with pytest.raises(MalformedPayload):
        decode(codec, payload, 128)
    with pytest.raises(MalformedPayload):
        check(codec, payload, 128)
    with pytest.raises(MalformedPayload):
        decode(codec, b"", 128)


@pytest.mark.parametrize(("codec", "hexes"), [("f32", "0000807f 0000c0ff"), ("bf16", "807f c0ff")])
def test_a_payload_with_inf_or_nan_is_malformed(codec, hexes):
    payload = bytearray(encode(codec, wave(256)))
    for bad in hexes.split():
        spoiled = payload[: -len(bad) // 2] + bytes.fromhex(bad)
        for reader in (decode, check):
            with pytest.raises(MalformedPayload):
                reader(codec, spoiled, 256)


@pytest.mark.parametrize("codec", SCALED)
@pytest.mark.parametrize("scale", ["807f", "80ff", "c07f", "7f0d", "8171", "0100"])
def test_a_scale_that_is_not_finite_or_out_of_range_is_malformed(codec, scale):
    payload = bytearray(encode(codec, wave(256)))
    payload[-2:] = bytes.fromhex(scale)
    for reader in (decode, check):
        with pytest.raises(MalformedPayload):
            reader(codec, payload, 256)


@pytest.mark.parametrize("codec", SCALED)
@pytest.mark.parametrize("scale", ["0000", "0080", "800d", "808d", "8071", "80f1"])
def test_the_outermost_legal_scales_decode_to_normal_numbers(codec, scale):
    payload = bytearray(encode(codec, wave(128)))
    payload[-2:] = bytes.fromhex(scale)
    check(codec, payload, 128)
    back = decode(codec, payload, 128)
    nonzero = back[back != 0]
    assert np.isfinite(back).all()
    assert (np.abs(nonzero) >= 2.0**-126).all()
    assert not np.signbit(back[back == 0]).any()
    assert (nonzero.size == 0) == (scale in ("0000", "0080"))


@pytest.mark.parametrize("codec", CODECS)
def test_good_payloads_pass_the_check_and_empty_arrays_are_fine(codec):
    check(codec, encode(codec, wave(256)), 256)
    assert encode(codec, wave(0)) == b""
    assert decode(codec, b"", 0).size == 0


@pytest.mark.parametrize(
    "values",
    [
        wave(100),
        wave(128).astype(np.float64),
        wave(256).reshape(2, 128),
        wave(256)[::2],
    ],
)
def test_arrays_of_another_shape_or_type_are_our_bug(values):
    with pytest.raises(InternalError):
        encode("int4", values)


def test_encoding_leaves_its_input_alone():
    values = wave(256)
    values[3] = -0.0
    before = values.tobytes()
    for codec in CODECS:
        encode(codec, values)
    assert values.tobytes() == before


def test_flush_clears_subnormals_and_signs_of_zero_and_nothing_else():
    values = np.array([-0.0, 2.0**-127, -(2.0**-149), 2.0**-126, -1.5, np.inf], dtype=np.float32)
    codecs.flush(values)
    assert same_bits(values, np.array([0, 0, 0, 2.0**-126, -1.5, np.inf], dtype=np.float32))
