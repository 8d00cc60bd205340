"""Whose turn it is on a direct connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from host.bulk.fair_queue import FairQueue, Serving
from host.network.token_bucket import TokenBucket

STEP = 100
A, B, C = (bytes([name]) * 32 for name in b"ABC")


def content(size: int, seed: int = 1) -> memoryview:
    return memoryview(bytes((seed + at) % 251 for at in range(size)))


def unpaced() -> FairQueue:
    return FairQueue(lambda _: STEP, lambda count, bucket: 0.0)


def ask(
    turns: FairQueue, digest: bytes, id: int, size: int, bucket: TokenBucket | None = None
) -> None:
    turns.add(digest, Serving(id, content(size), 0, size, bucket))


def taken(turns: FairQueue, now_s: float = 0.0) -> list[int]:
    """Whose turns they were until nothing was left that may leave."""
    order = []
    while (turn := turns.take(now_s)) is not None:
        order.append(turn[0])
    return order


def test_who_asked_for_more_at_first_has_no_more_turns():
    turns = unpaced()
    for id in (1, 2, 3):
        ask(turns, A, id, 2 * STEP)
    ask(turns, B, 4, 2 * STEP)
    ask(turns, C, 5, STEP)
    assert taken(turns) == [1, 4, 5, 1, 4, 2, 2, 3, 3]
    assert (len(turns), turns.requests, turns.next_s()) == (0, 0, None)


def test_one_that_comes_later_has_its_turn_next():
    turns = unpaced()
    ask(turns, A, 1, 5 * STEP)
    first = [turns.take(0.0) for _ in range(2)]
    ask(turns, B, 2, STEP)
    assert [turn[0] for turn in first if turn] == [1, 1]
    assert taken(turns) == [1, 2, 1, 1]


def test_nothing_to_send_needs_no_turn():
    turns = unpaced()
    ask(turns, A, 1, 0)
    assert (turns.take(0.0), turns.requests) == (None, 0)


def test_one_that_waits_for_its_own_ceiling_does_not_hold_up_others():
    slow = TokenBucket(STEP)  # A turn each second.
    now_s = 10.0
    turns = FairQueue(
        lambda _: STEP, lambda count, bucket: 0.0 if bucket is None else bucket.take(count, now_s)
    )
    ask(turns, A, 1, 3 * STEP, slow)
    ask(turns, B, 2, 3 * STEP)
    assert taken(turns, now_s) == [2, 2, 2]
    wakes_s = turns.next_s()
    assert wakes_s is not None
    assert now_s < wakes_s <= now_s + 1.0
    now_s = wakes_s
    assert taken(turns, now_s) == [1]
    assert turns.requests == 1


def test_a_connection_that_ended_lets_go_of_its_blobs():
    turns = unpaced()
    ask(turns, A, 1, STEP)
    turns.clear()
    assert (turns.take(0.0), turns.requests, len(turns)) == (None, 0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.integers(0, 700), st.integers(0, 3)), max_size=12
    )
)
def test_every_byte_leaves_once_and_in_order_and_each_waits_for_one_turn_of_each_other(asked):
    turns = unpaced()
    came: dict[int, bytes] = {}
    digest_of: dict[int, bytes] = {}
    left, waited = {A: 0, B: 0, C: 0}, {A: 0, B: 0, C: 0}

    def serve() -> None:
        turn = turns.take(0.0)
        assert (turn is None) == (not any(left.values()))
        if turn is None:
            return
        id, piece = turn
        came[id] = came.get(id, b"") + bytes(piece)
        served = digest_of[id]
        left[served] -= len(piece)
        for digest in left:
            waited[digest] = waited[digest] + 1 if left[digest] and digest != served else 0
        assert max(waited.values()) < len(left)

    for id, (digest, size, serves) in enumerate(asked):
        turns.add(digest, Serving(id, content(size, id), 0, size, None))
        digest_of[id] = digest
        left[digest] += size
        for _ in range(serves):
            serve()
    while any(left.values()):
        serve()
    for id, (_, size, _) in enumerate(asked):
        assert came.get(id, b"") == bytes(content(size, id))
