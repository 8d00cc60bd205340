from __future__ import annotations

from host.bulk.blob_store import LINGER_S, RETIRED_MAX, BlobStore
from tests.support.builders import digest_of

NAME = digest_of("blob")


def test_what_is_put_can_be_got_and_is_not_copied():
    blob_store, blob = BlobStore(), bytes(8)
    blob_store.put(NAME, blob)
    assert blob_store.get(NAME).obj is blob


def test_what_was_never_put_is_not_there():
    blob_store = BlobStore()
    assert blob_store.get(NAME) is None
    blob_store.drop(NAME)
    assert len(blob_store) == 0


def test_a_blob_stays_until_every_owner_let_go():
    blob_store = BlobStore()
    blob_store.put(NAME, b"blob")
    blob_store.put(NAME, b"blob")
    blob_store.drop(NAME)
    assert bytes(blob_store.get(NAME)) == b"blob"
    blob_store.drop(NAME)
    assert blob_store.get(NAME) is None


def test_a_transfer_under_way_keeps_its_bytes():
    blob_store = BlobStore()
    blob_store.put(NAME, b"blob")
    under_way = blob_store.get(NAME)
    blob_store.drop(NAME)
    assert bytes(under_way) == b"blob"


# Groups


def a_shelf():
    clock = [100.0]
    return BlobStore(clock=lambda: clock[0]), clock


def group(blob_store, number, *shared):
    name = digest_of("group", number)
    return name, blob_store.put_group([(name, b"one"), *((other, b"shared") for other in shared)])


def test_a_group_goes_when_it_is_retired_and_nobody_wants_it():
    blob_store, _ = a_shelf()
    name, offer = group(blob_store, 1)
    assert blob_store.is_grouped(name)
    blob_store.retire(offer)
    assert blob_store.get(name) is None
    assert len(blob_store) == 0


def test_a_retired_group_stays_while_somebody_downloads_it():
    blob_store, clock = a_shelf()
    name, offer = group(blob_store, 1)
    blob_store.get(name)
    blob_store.retire(offer)
    clock[0] += LINGER_S - 1
    assert blob_store.get(name) is not None
    clock[0] += LINGER_S - 1
    blob_store.retire(group(blob_store, 2)[1])
    assert blob_store.get(name) is not None
    clock[0] += LINGER_S + 1
    blob_store.retire(group(blob_store, 3)[1])
    assert blob_store.get(name) is None


def test_no_more_than_a_few_retired_groups_stay_and_those_asked_for_last():
    blob_store, clock = a_shelf()
    made = [group(blob_store, at) for at in range(RETIRED_MAX + 1)]
    for name, _ in reversed(made):
        clock[0] += 1
        blob_store.get(name)
    for _, offer in made:
        blob_store.retire(offer)
    assert [blob_store.get(name) is not None for name, _ in made] == [True] * RETIRED_MAX + [False]


def test_a_blob_in_two_groups_stays_with_the_second():
    blob_store, _ = a_shelf()
    _, first = group(blob_store, 1, NAME)
    _, second = group(blob_store, 2, NAME)
    blob_store.retire(first)
    assert bytes(blob_store.get(NAME)) == b"shared"
    blob_store.drop(NAME)
    assert blob_store.get(NAME) is None
    blob_store.retire(second)


def test_a_single_blob_is_not_grouped():
    blob_store, _ = a_shelf()
    blob_store.put(NAME, b"blob")
    assert not blob_store.is_grouped(NAME)
    assert not blob_store.is_grouped(digest_of("nothing"))
