"""Lengths of time as people type them."""

from __future__ import annotations

import pytest

from protocol.errors import UserError
from shoal.common.durations import seconds


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1.5 h", 5400), ("1D", 86400)]
)
def test_a_number_and_a_unit_is_a_length_of_time(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "0s", "two hours", "9999d", "1h30m"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UserError, match="such as 15m or 2h"):
        seconds(text)
