"""Hosts known from before: what is kept, what is believed of a file, and who is tried first."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files import keystore
from host.files.home import Home
from host.nat import peer_file
from host.nat.peer_file import PeerFile, is_sound
from protocol.peers.peer_book import (
    ADDRESSES_MAX,
    AHEAD_S,
    FILE_BYTES_MAX,
    OLD_S,
    PEERS_MAX,
    PeerBook,
)

NOW_S = 1_800_000_000.0


def key(number):
    return number.to_bytes(32, "big")


def address(number, port=4100):
    return f"/ip4/203.0.113.{number % 250}/tcp/{port}/p2p/{keystore.peer_id(key(number))}"


def book(*numbers, at_s=NOW_S):
    made = PeerBook(is_sound)
    for number in numbers:
        assert made.saw(key(number), [address(number)], at_s)
    return made


def reread(packed, now_s=NOW_S):
    found = PeerBook(is_sound)
    return found, found.read(packed, now_s)


def test_what_was_kept_is_read_again():
    found, trouble = reread(book(1, 2, 3).pack())
    assert not trouble
    assert sorted(found.best()) == sorted(book(1, 2, 3).best())


def test_who_answered_last_is_tried_first_and_who_failed_last():
    made = book(1)
    made.saw(key(2), [address(2)], NOW_S + 5)
    made.saw(key(3), [address(3)], NOW_S + 9)
    made.failed(key(3))
    assert [one for one, _ in made.best()] == [key(2), key(1), key(3)]
    made.answered(key(3), NOW_S + 10)
    assert made.best()[0][0] == key(3)


def test_the_newest_address_of_a_host_comes_first_and_few_are_kept():
    made = book()
    for port in range(4100, 4110):
        made.saw(key(1), [address(1, port)], NOW_S)
    ((_, known),) = made.best()
    assert known[0] == address(1, 4109)
    assert len(known) == ADDRESSES_MAX


@pytest.mark.parametrize(
    "text",
    [
        address(2),  # Another host's.
        "/ip4/203.0.113.1/udp/4100/quic-v1/p2p/" + keystore.peer_id(key(1)),
        "/ip4/300.0.113.1/tcp/4100/p2p/" + keystore.peer_id(key(1)),
        "/ip4/203.0.113.1/tcp/4100",
        "nonsense",
        "",
        "/dns4/" + "a" * 300 + "/tcp/4100/p2p/" + keystore.peer_id(key(1)),
    ],
)
def test_an_address_that_leads_elsewhere_is_not_kept(text):
    made = book()
    assert not made.saw(key(1), [text], NOW_S)
    assert not len(made)


def test_entries_are_checked_one_by_one_when_they_are_read():
    good = msgspec.to_builtins(msgspec.json.decode(book(1).pack()))["peers"][0]
    bad = [
        {**good, "key": "zz"},
        {**good, "addresses": [address(2)]},
        {**good, "addresses": []},
        {**good, "seen_s": NOW_S - OLD_S - 1},
        {**good, "seen_s": NOW_S + AHEAD_S + 1},
        {**good, "failures": -1},
        17,
        None,
    ]
    packed = msgspec.json.encode({"format": 1, "peers": [*bad, good]})
    found, trouble = reread(packed)
    assert [one for one, _ in found.best()] == [key(1)]
    assert trouble == "8 of its entries are unsound or old"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"format": 9, "peers": []}', "format 9"),
        (b" " * (FILE_BYTES_MAX + 1), "bytes long"),
    ],
)
def test_a_file_that_is_none_is_named_and_costs_nothing(content, says):
    found, trouble = reread(content)
    assert says in trouble
    assert not len(found)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_bytes_that_nobody_wrote_name_no_peer_and_are_complained_of(content):
    found, trouble = reread(content)
    assert not len(found)
    assert trouble


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * PEERS_MAX), st.booleans(), st.floats(0, 1e6)), max_size=400
    )
)
def test_the_book_stays_small_and_packs_to_itself(steps):
    made = book()
    for number, answers, pause_s in steps:
        if answers:
            made.saw(key(number), [address(number)], NOW_S + pause_s)
        else:
            made.failed(key(number))
        assert len(made) <= PEERS_MAX
    packed = made.pack()
    assert len(packed) <= FILE_BYTES_MAX
    found, trouble = reread(packed, NOW_S + 1e6)
    assert not trouble
    assert found.best() == made.best()


def test_the_largest_book_fits_its_file():
    made = book()
    for number in range(PEERS_MAX):
        name = "a" * 180
        texts = [
            f"/dns4/{name}{k}/tcp/65535/p2p/{keystore.peer_id(key(number))}"
            for k in range(ADDRESSES_MAX)
        ]
        made.saw(key(number), texts, NOW_S + number / 7)
    assert len(made.pack()) <= FILE_BYTES_MAX


# The file.


def test_a_file_is_written_and_found_again(tmp_path):
    path = tmp_path / "peers.json"
    kept = PeerFile(path, own=key(9))
    kept.saw(key(1), [address(1)])
    kept.saw(key(9), [address(9)])
    asyncio.run(kept.save(is_last=True))
    assert [one for one, _ in PeerFile(path).book.best()] == [key(1)], "not itself"


def test_news_is_written_now_and_then(tmp_path, monkeypatch):
    path = tmp_path / "peers.json"
    clock = [100.0]
    monkeypatch.setattr(peer_file.time, "monotonic", lambda: clock[0])
    kept = PeerFile(path)
    asyncio.run(kept.save())
    assert not path.exists(), "there is nothing to keep"
    kept.saw(key(1), [address(1)])
    asyncio.run(kept.save())
    first = path.read_bytes()
    kept.saw(key(2), [address(2)])
    asyncio.run(kept.save())
    assert path.read_bytes() == first, "too soon"
    clock[0] += peer_file.SAVE_EVERY_S
    asyncio.run(kept.save())
    assert path.read_bytes() != first


def test_a_damaged_file_is_told_and_does_not_stop_anybody(tmp_path, caplog):
    path = tmp_path / "peers.json"
    path.write_bytes(b"{half a")
    with caplog.at_level("WARNING"):
        assert not len(PeerFile(path).book)
    assert "cannot be read" in caplog.text


def test_a_command_knows_whom_any_daemon_of_the_home_met(tmp_path):
    home, project = Home(tmp_path), bytes(32)
    assert peer_file.places_known(home, project, 4) == []
    for role, instance, met in (("learner", "ada", (1, 2)), ("syncer", "default", (3,))):
        kept = peer_file.peer_file(home, project, role, instance, own=key(9))
        for number in met:
            kept.saw(key(number), [address(number)])
        asyncio.run(kept.save(is_last=True))
    assert set(peer_file.places_known(home, project, 4)) == {address(at) for at in (1, 2, 3)}
    assert len(peer_file.places_known(home, project, 1)) == 2
