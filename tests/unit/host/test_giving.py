"""Copies of merged payloads are promised as fast as they can leave, and each promise is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from host.bulk.giving import PROMISED_S, Giving

ONE, TWO, THREE = (bytes([at]) * 32 for at in range(3))
PAYLOAD, OTHER = bytes(32), bytes([9]) * 32


def test_copies_are_given_one_after_the_other_at_the_owner_s_rate():
    giving = Giving(1000.0)
    assert giving.may_give(ONE, PAYLOAD, 500, 0.0)
    assert not giving.may_give(TWO, PAYLOAD, 500, 0.4)
    assert giving.may_give(TWO, PAYLOAD, 500, 0.5)
    assert not giving.may_give(THREE, OTHER, 500, 0.6)
    assert not Giving(0.0).may_give(ONE, PAYLOAD, 1, 0.0)


def test_all_pieces_of_a_copy_are_given_that_was_promised():
    giving = Giving(1000.0)
    assert all(giving.may_give(ONE, PAYLOAD, 5000, 0.1 * piece) for piece in range(20))
    assert giving.backlog_s(2.0) == 3.0
    assert not giving.may_give(ONE, OTHER, 5000, 2.0)
    assert giving.may_give(ONE, PAYLOAD, 5000, 2.0 + PROMISED_S)


def test_a_promise_that_nobody_came_for_is_forgotten():
    giving = Giving(1000.0)
    assert giving.may_give(ONE, PAYLOAD, 5000, 0.0)
    assert giving.may_give(TWO, PAYLOAD, 500_000, 5.0 + PROMISED_S)
    assert not giving.may_give(ONE, PAYLOAD, 5000, 6.0 + PROMISED_S)


def test_the_line_counts_where_it_is_slower_than_the_owner_s_limit():
    giving = Giving(1000.0)
    giving.measured(100.0)
    assert giving.may_give(ONE, PAYLOAD, 500, 0.0)
    assert not giving.may_give(TWO, PAYLOAD, 500, 4.9)
    giving.measured(None)
    assert giving.may_give(TWO, PAYLOAD, 500, 5.0)
    assert giving.may_give(THREE, PAYLOAD, 500, 5.5)


def test_a_voter_does_not_wait_and_others_wait_for_it():
    giving = Giving(1000.0)
    assert giving.may_give(ONE, PAYLOAD, 500, 0.0)
    assert giving.may_give(TWO, PAYLOAD, 500, 0.0, is_owed=True)
    assert giving.backlog_s(0.0) == 1.0
    assert not giving.may_give(THREE, PAYLOAD, 500, 0.9)


def test_nothing_waits_where_nobody_knows_how_fast_the_line_is():
    giving = Giving(ahead_s=10.0)
    assert all(giving.may_give(bytes([at]), PAYLOAD, 10**12, 0.0) for at in range(100))
    assert giving.backlog_s(0.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 10**7)), max_size=50))
def test_no_more_is_promised_ahead_than_may_be_and_one_copy(asked):
    giving, now_s = Giving(1e6, ahead_s=10.0), 0.0
    for at, (pause_s, size) in enumerate(asked):
        now_s += pause_s
        before_s = giving.backlog_s(now_s)
        assert giving.may_give(at.to_bytes(32, "big"), PAYLOAD, size, now_s) == (before_s <= 10.0)
        assert giving.backlog_s(now_s) <= 10.0 + 10.0


class _Remembered:
    """All promises, looked through one by one: what `Giving` does without looking."""

    def __init__(self) -> None:
        self.free_s, self.until = -1e9, dict[tuple[bytes, bytes], float]()

    def may_give(self, to: bytes, payload: bytes, size: int, now_s: float, rate: float) -> bool:
        here = self.until.get((to, payload), -1e9) > now_s
        if not here and self.free_s > now_s:
            return False
        self.free_s = self.free_s if here else max(self.free_s, now_s) + size / rate
        self.until[to, payload] = max(self.free_s, now_s) + PROMISED_S
        return True


asked_for = st.tuples(
    st.floats(0.0, 50.0),
    st.sampled_from([ONE, TWO, THREE]),
    st.sampled_from([PAYLOAD, OTHER]),
    st.integers(1, 10**5),
    st.sampled_from([100.0, 1000.0]),
)


@given(st.lists(asked_for, max_size=50))
def test_a_promise_ends_a_minute_after_its_last_piece_whatever_was_promised_since(asked):
    giving, model, now_s = Giving(), _Remembered(), 0.0
    for pause_s, to, payload, size, rate in asked:
        now_s += pause_s
        giving.measured(rate)
        wanted = model.may_give(to, payload, size, now_s, rate)
        assert giving.may_give(to, payload, size, now_s) == wanted
