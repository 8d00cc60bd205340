from __future__ import annotations

from node.host.shelf import Shelf
from tests.builders import digest_of

NAME = digest_of("blob")


def test_what_is_put_can_be_got_and_is_not_copied():
    shelf, blob = Shelf(), bytes(8)
    shelf.put(NAME, blob)
    assert shelf.get(NAME).obj is blob


def test_what_was_never_put_is_not_there():
    shelf = Shelf()
    assert shelf.get(NAME) is None
    shelf.drop(NAME)
    assert len(shelf) == 0


def test_a_blob_stays_until_every_owner_let_go():
    shelf = Shelf()
    shelf.put(NAME, b"blob")
    shelf.put(NAME, b"blob")
    shelf.drop(NAME)
    assert bytes(shelf.get(NAME)) == b"blob"
    shelf.drop(NAME)
    assert shelf.get(NAME) is None


def test_a_transfer_under_way_keeps_its_bytes():
    shelf = Shelf()
    shelf.put(NAME, b"blob")
    under_way = shelf.get(NAME)
    shelf.drop(NAME)
    assert bytes(under_way) == b"blob"
