import pytest

from protocol.errors import InternalError
from protocol.log.permutation import block_at, permuted

KEY = bytes(range(32))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000])
def test_every_place_is_taken_exactly_once(length):
    places = [permuted(position, length, KEY) for position in range(length)]
    assert sorted(places) == list(range(length))


def test_another_key_gives_another_order():
    one = [permuted(i, 100, KEY) for i in range(100)]
    other = [permuted(i, 100, bytes(32)) for i in range(100)]
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_the_order_is_the_same_on_every_python():
    assert [permuted(i, 10, KEY) for i in range(10)] == [0, 9, 3, 1, 6, 8, 5, 4, 2, 7]
    assert permuted(123_456_789, 10**12, KEY) == 835067402175


def test_neighbours_are_spread_over_the_whole_range():
    length = 4096
    gaps = [abs(permuted(i, length, KEY) - permuted(i + 1, length, KEY)) for i in range(500)]
    # Two independent uniform places are a third of the range apart on average.
    assert 0.27 < sum(gaps) / len(gaps) / length < 0.40


@pytest.mark.parametrize("position", [-1, 10, 11])
def test_a_position_outside_the_range_is_our_bug(position):
    with pytest.raises(InternalError):
        permuted(position, 10, KEY)


def test_each_pass_visits_every_block_in_an_order_of_its_own():
    blocks = 50
    passes = [[block_at(p * blocks + i, blocks, seed=3) for i in range(blocks)] for p in range(4)]
    assert all(sorted(order) == list(range(blocks)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4


def test_the_seed_decides_the_order():
    orders = {tuple(block_at(i, 50, seed) for i in range(50)) for seed in (0, 1, 2**63 - 1)}
    assert len(orders) == 3
    assert [block_at(i, 8, 42) for i in range(16)] == [
        6,
        7,
        3,
        1,
        5,
        2,
        4,
        0,
        6,
        5,
        4,
        0,
        7,
        1,
        3,
        2,
    ]


def test_late_positions_of_endless_runs_are_answered():
    assert 0 <= block_at(2**62, 2**40, 5) < 2**40


@pytest.mark.parametrize(("position", "blocks"), [(-1, 5), (0, 0)])
def test_no_such_block_is_our_bug(position, blocks):
    with pytest.raises(InternalError):
        block_at(position, blocks, 1)
