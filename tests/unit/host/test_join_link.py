"""The join link: what goes in comes out, and what is damaged is refused in one clear line."""

from __future__ import annotations

import base64

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from host.join_link import JoinLink, format_link, parse_link
from protocol import limits
from protocol.errors import UserError
from protocol.messages import Envelope

PEER = "12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"
ADDRESS = f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER}"
LINK = JoinLink(
    project=bytes(range(32)),
    genesis_bytes=4321,
    name="Übungshafen",
    addresses=(ADDRESS, f"/dns4/example.org/tcp/4100/p2p/{PEER}"),
)


def coded(payload: bytes) -> str:
    """A link around any payload, its checksum right."""
    checksum = blake3(payload, derive_key_context="shoal 1 join link").digest(4)
    return "shoal:" + base64.urlsafe_b64encode(payload + checksum).decode().rstrip("=")


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_link(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_link_survives_the_round_trip():
    text = format_link(LINK)
    assert parse_link(text) == LINK
    assert text.startswith("shoal:")
    assert text.removeprefix("shoal:").replace("-", "").replace("_", "").isalnum()


@given(st.binary(min_size=32, max_size=32), st.integers(1, limits.GENESIS_BYTES_MAX))
def test_any_project_survives_the_round_trip(project, genesis_bytes):
    link = JoinLink(project, genesis_bytes, "n", (ADDRESS,))
    assert parse_link(format_link(link)) == link


def test_a_link_may_carry_an_invite_and_links_of_before_carry_none():
    invite = Envelope(b"x" * limits.INVITE_BYTES_MAX, bytes(32), bytes(64))
    link = msgspec.structs.replace(LINK, invite=invite)
    assert parse_link(format_link(link)) == link
    former = msgspec.msgpack.decode(msgspec.msgpack.encode(LINK))[:-1]
    assert parse_link(coded(msgspec.msgpack.encode(former))) == LINK


@pytest.mark.parametrize(
    ("invite", "words"),
    [
        (Envelope(bytes(limits.INVITE_BYTES_MAX + 1), bytes(32), bytes(64)), "too long"),
        (Envelope(b"x", bytes(31), bytes(64)), "is invalid"),
        (Envelope(b"x", bytes(32), bytes(65)), "is invalid"),
    ],
)
def test_an_invite_out_of_bounds_is_refused_with_its_link(invite, words):
    said = refusal(coded(msgspec.msgpack.encode(msgspec.structs.replace(LINK, invite=invite))))
    assert words in said
    assert "Ask the project's host for a new" in said


def test_blanks_line_breaks_and_quotes_of_a_paste_do_not_matter():
    text = format_link(LINK)
    broken = "\n  ".join(text[at : at + 40] for at in range(0, len(text), 40))
    assert parse_link(f'  "{broken}"\r\n') == LINK


def test_a_link_cut_off_anywhere_is_refused_and_says_to_copy_it_again():
    text = format_link(LINK)
    for end in range(len("shoal:"), len(text)):
        assert "Copy it again" in refusal(text[:end])
    assert "cut off" in refusal(text[: len(text) // 2])
    assert "cut off" in refusal("shoal:")


def test_characters_too_many_at_the_end_are_counted():
    for length in range(1, 5):  # Base64 leaves other bits unused for each length.
        link = msgspec.structs.replace(LINK, name="x" * length)
        text = format_link(link)
        assert "has 1 character too many at its end" in refusal(f"{text}A")
        assert "has 2 characters too many at its end" in refusal(f"{text}zz")
        assert parse_link(text) == link


def test_any_changed_character_is_refused():
    text = format_link(LINK)
    for at in range(len("shoal:"), len(text) - 1):
        changed = "A" if text[at] != "A" else "B"
        assert refusal(text[:at] + changed + text[at + 1 :])
    assert "checksum" in refusal(text[:-8] + "AAAA" + text[-4:])


@pytest.mark.parametrize("text", ["", "https://example.org", "Shoal:abc", "hoal:abc"])
def test_what_is_no_link_at_all_is_told_how_one_begins(text):
    assert "`shoal:`" in refusal(text)


@pytest.mark.parametrize("text", ["shoal:a+b/", "shoal:äöü", "shoal:ab=cd!"])
def test_foreign_characters_are_named(text):
    assert "foreign characters" in refusal(text)


@pytest.mark.parametrize("chars", [limits.LINK_CHARS_MAX + 1, 3 * limits.LINK_CHARS_MAX])
def test_an_oversized_text_is_refused_before_it_is_decoded(chars):
    assert str(limits.LINK_CHARS_MAX) in refusal("shoal:" + "A" * chars)


def test_a_link_of_another_version_says_so():
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(LINK))
    assert "version 2" in refusal(coded(msgspec.msgpack.encode([2, *fields[1:]])))


def test_text_that_is_not_utf_8_and_bottomless_nesting_are_refused():
    assert "new one" in refusal(coded(b"\x92\x01\xa2\x9c\x9c"))
    assert "new one" in refusal(coded(b"\x91" * 2500))
    assert refusal(coded(b"\x91" * 2500)[:-4] + "AAAA")


@pytest.mark.parametrize("fields", [[], [1], [1, b"short", 1, "n", [ADDRESS]], {"a": 1}, "text"])
def test_a_sound_checksum_around_nonsense_is_refused(fields):
    assert "new one" in refusal(coded(msgspec.msgpack.encode(fields)))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "example.org:4100",
        "/ip4/203.0.113.700/tcp/4100/p2p/" + PEER,
        "/ip4/203.0.113.7/tcp/4100",
        "/ip4/203.0.113.7/udp/4100/quic-v1/p2p/" + PEER,
        "/ip4/203.0.113.7/tcp/4100/p2p/QmNotAnEd25519Key",
        f"/p2p/{PEER}",
    ],
)
def test_an_address_that_nobody_could_dial_is_refused_in_both_directions(address):
    link = msgspec.structs.replace(LINK, addresses=(ADDRESS, address))
    assert "address" in refusal(coded(msgspec.msgpack.encode(link)))
    with pytest.raises(UserError, match="address"):
        format_link(link)


def test_a_link_without_an_address_is_refused_in_both_directions():
    link = msgspec.structs.replace(LINK, addresses=())
    assert "new one" in refusal(coded(msgspec.msgpack.encode(link)))
    with pytest.raises(UserError, match="--announce"):
        format_link(link)


def test_a_link_that_would_be_too_long_to_paste_is_not_made():
    link = msgspec.structs.replace(LINK, addresses=(ADDRESS,) * (limits.ADDRESSES_MAX + 1))
    with pytest.raises(UserError, match="fewer"):
        format_link(link)
