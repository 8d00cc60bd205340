"""Hours of the week as people write them: `mon-fri 22:00-06:00`, `sat sun`, `20:00-08:00`.

Local wall-clock time is an argument: weekday (0 is Monday) and minute of the day. Hours that end at
or before their beginning go on past midnight, and belong to the day on which they begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from protocol.errors import UserError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
ENTRIES_MAX: Final = 64

_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


class Schedule:
    """The hours of the week in which something is allowed; without any it always is."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """UserError, with examples, for what cannot be read."""
        self.texts = tuple(texts)
        if len(self.texts) > ENTRIES_MAX:
            raise UserError(f"{len(self.texts)} entries are too many for a week; {ENTRIES_MAX} do.")
        self._is_open = [not self.texts] * WEEK_MINUTES
        for text in self.texts:
            for begins, ends in _spans(text):
                for minute in range(begins, ends):
                    self._is_open[minute % WEEK_MINUTES] = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def is_open(self, weekday: int, minute: int) -> bool:
        """Whether it is allowed at this minute of this day."""
        return self._is_open[_at(weekday, minute)]

    def changes_in(self, weekday: int, minute: int) -> int | None:
        """Minutes until it is allowed if it is not, and the other way round; None if never."""
        at = _at(weekday, minute)
        for ahead in range(1, WEEK_MINUTES):
            if self._is_open[(at + ahead) % WEEK_MINUTES] != self._is_open[at]:
                return ahead
        return None


def clock(weekday: int, minute: int, ahead: int) -> str:
    """The moment so many minutes ahead, as people say it: `22:00`, or `mon 22:00` if not today."""
    at = (_at(weekday, minute) + ahead) % WEEK_MINUTES
    day, then = divmod(at, DAY_MINUTES)
    hour = f"{then // 60:02d}:{then % 60:02d}"
    return hour if day == weekday and ahead < DAY_MINUTES else f"{DAYS[day]} {hour}"


def _at(weekday: int, minute: int) -> int:
    return weekday * DAY_MINUTES + minute


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Beginning and end, in minutes since Monday 00:00; an end may lie in the next week."""
    words = re.sub(r"\s*-\s*", "-", text.strip().lower()).replace(",", " ").split()
    found = _HOURS.fullmatch(words[-1]) if words else None
    begins, ends = _minutes(text, found) if found else (0, DAY_MINUTES)
    named = words[:-1] if found else words
    days = {day for word in named for day in _days(text, word)}
    if not words:
        raise _unreadable(text)
    for day in sorted(days) if named else range(len(DAYS)):
        yield day * DAY_MINUTES + begins, day * DAY_MINUTES + ends


def _minutes(text: str, found: re.Match[str]) -> tuple[int, int]:
    hours = [int(part) for part in found.groups()]
    begins, ends = (60 * hours[at] + hours[at + 1] for at in (0, 2))
    is_time = hours[1] < 60 and hours[3] < 60 and begins < DAY_MINUTES and ends <= DAY_MINUTES
    if not is_time:
        raise _unreadable(text)
    return begins, ends if ends > begins else ends + DAY_MINUTES


def _days(text: str, word: str) -> list[int]:
    """The days from one to another, round the week where need be."""
    names = [part[:3] for part in word.split("-")]
    if len(names) > 2 or any(name not in DAYS for name in names):
        raise _unreadable(text)
    first, last = DAYS.index(names[0]), DAYS.index(names[-1])
    return [(first + on) % len(DAYS) for on in range((last - first) % len(DAYS) + 1)]


def _unreadable(text: str) -> UserError:
    return UserError(
        f"{text!r} names no hours. Write days, hours or both, such as 'mon-fri 22:00-06:00', "
        "'sat sun' or '20:00-08:00'."
    )
