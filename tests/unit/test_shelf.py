from __future__ import annotations

from host.bulk.blob_cache import LINGER_S, RETIRED_MAX, Shelf
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


# Groups


def a_shelf():
    clock = [100.0]
    return Shelf(clock=lambda: clock[0]), clock


def group(shelf, number, *shared):
    name = digest_of("group", number)
    return name, shelf.put_group([(name, b"one"), *((other, b"shared") for other in shared)])


def test_a_group_goes_when_it_is_retired_and_nobody_wants_it():
    shelf, _ = a_shelf()
    name, offer = group(shelf, 1)
    assert shelf.is_grouped(name)
    shelf.retire(offer)
    assert shelf.get(name) is None
    assert len(shelf) == 0


def test_a_retired_group_stays_while_somebody_downloads_it():
    shelf, clock = a_shelf()
    name, offer = group(shelf, 1)
    shelf.get(name)
    shelf.retire(offer)
    clock[0] += LINGER_S - 1
    assert shelf.get(name) is not None
    clock[0] += LINGER_S - 1
    shelf.retire(group(shelf, 2)[1])
    assert shelf.get(name) is not None
    clock[0] += LINGER_S + 1
    shelf.retire(group(shelf, 3)[1])
    assert shelf.get(name) is None


def test_no_more_than_a_few_retired_groups_stay_and_those_asked_for_last():
    shelf, clock = a_shelf()
    made = [group(shelf, at) for at in range(RETIRED_MAX + 1)]
    for name, _ in reversed(made):
        clock[0] += 1
        shelf.get(name)
    for _, offer in made:
        shelf.retire(offer)
    assert [shelf.get(name) is not None for name, _ in made] == [True] * RETIRED_MAX + [False]


def test_a_blob_in_two_groups_stays_with_the_second():
    shelf, _ = a_shelf()
    _, first = group(shelf, 1, NAME)
    _, second = group(shelf, 2, NAME)
    shelf.retire(first)
    assert bytes(shelf.get(NAME)) == b"shared"
    shelf.drop(NAME)
    assert shelf.get(NAME) is None
    shelf.retire(second)


def test_a_single_blob_is_not_grouped():
    shelf, _ = a_shelf()
    shelf.put(NAME, b"blob")
    assert not shelf.is_grouped(NAME)
    assert not shelf.is_grouped(digest_of("nothing"))
