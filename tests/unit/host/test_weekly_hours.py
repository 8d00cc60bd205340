"""Hours of the week: past midnight, past Sunday, and what is no hours at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.weekly_hours import DAY_MINUTES, DAYS, Schedule, clock
from protocol.errors import UserError

MON, TUE, FRI, SAT, SUN = 0, 1, 4, 5, 6


def at(text: str) -> int:
    hour, minute = text.split(":")
    return 60 * int(hour) + int(minute)


@pytest.mark.parametrize(
    ("texts", "day", "time", "is_open"),
    [
        ([], MON, "12:00", True),
        (["mon-fri 22:00-06:00"], MON, "21:59", False),
        (["mon-fri 22:00-06:00"], MON, "22:00", True),
        (["mon-fri 22:00-06:00"], TUE, "05:59", True),
        (["mon-fri 22:00-06:00"], TUE, "06:00", False),
        (["mon-fri 22:00-06:00"], MON, "05:00", False),  # Sunday's night is not named
        (["mon-fri 22:00-06:00"], SAT, "05:00", True),  # Friday's night is
        (["sun 22:00-06:00"], MON, "05:00", True),  # past the end of the week
        (["sat sun"], SUN, "23:59", True),
        (["sat, sun"], FRI, "23:59", False),
        (["fri-mon 00:00-24:00"], SUN, "03:00", True),
        (["fri-mon"], TUE, "00:00", False),
        (["20:00 - 08:00"], SUN, "07:00", True),
        (["Monday 08:00-08:00"], TUE, "07:59", True),  # a whole day from eight
        (["mon 08:00-09:00", "mon 10:00-11:00"], MON, "09:30", False),
    ],
)
def test_what_is_allowed_when(texts, day, time, is_open):
    assert Schedule(texts).is_open(day, at(time)) is is_open


@pytest.mark.parametrize(
    "text",
    ["", "noon", "mon 25:00-26:00", "mon 08:60-09:00", "08:00-24:01", "mon-tue-wed", "mon 8-9"],
)
def test_what_is_no_hours_is_refused_with_examples(text):
    with pytest.raises(UserError, match="such as 'mon-fri 22:00-06:00'"):
        Schedule([text])


def test_the_next_change_and_its_name():
    nights = Schedule(["mon-fri 22:00-06:00"])
    assert nights.changes_in(MON, at("21:00")) == 60
    assert nights.changes_in(MON, at("23:00")) == 7 * 60
    assert nights.changes_in(SAT, at("07:00")) == at("22:00") - at("07:00") + 2 * DAY_MINUTES
    assert Schedule().changes_in(MON, 0) is None
    assert Schedule(["00:00-24:00"]).changes_in(MON, 0) is None
    assert clock(MON, at("21:00"), 60) == "22:00"
    assert clock(SAT, at("07:00"), 15 * 60 + 2 * DAY_MINUTES) == "mon 22:00"
    assert clock(MON, at("21:00"), 7 * DAY_MINUTES) == "mon 21:00"


@given(
    day=st.sampled_from(DAYS),
    begins=st.integers(0, DAY_MINUTES - 1),
    length=st.integers(1, DAY_MINUTES),
    ahead=st.integers(-3 * DAY_MINUTES, 3 * DAY_MINUTES),
)
def test_exactly_its_own_minutes_are_open(day, begins, length, ahead):
    ends = (begins + length) % DAY_MINUTES
    text = f"{day} {begins // 60:02d}:{begins % 60:02d}-{ends // 60:02d}:{ends % 60:02d}"
    start = DAYS.index(day) * DAY_MINUTES + begins
    weekday, minute = divmod((start + ahead) % (7 * DAY_MINUTES), DAY_MINUTES)
    assert Schedule([text]).is_open(weekday, minute) == (0 <= ahead < length)
