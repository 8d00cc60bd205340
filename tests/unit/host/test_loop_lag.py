import asyncio
import time

import pytest

from host.runtime.loop_lag import (
    BUSY_FRAC,
    EARLY_S,
    EVERY_S,
    KEPT_S,
    QUIET_AFTER_S,
    QUIET_EVERY_S,
    LoopLagMonitor,
)
from protocol.errors import UserError


def lag_of(watch: LoopLagMonitor, over_s: float = KEPT_S) -> tuple[float, float, float]:
    lag = watch.lag(over_s)
    return lag["p50_s"], lag["p99_s"], lag["max_s"]


def test_nothing_is_told_before_the_first_timer():
    assert LoopLagMonitor().lag() == {}
    assert LoopLagMonitor().answer({}) == {}


def test_timers_in_time_are_not_late():
    watch, due_s = LoopLagMonitor(), 1.0
    for _ in range(100):
        due_s = watch.woke(due_s, due_s + 0.001)
    assert lag_of(watch) == pytest.approx((0.001, 0.001, 0.001))


def test_a_timer_that_comes_a_little_early_is_in_time_and_not_waited_for_again():
    watch, due_s = LoopLagMonitor(), 1.0
    for at in range(100):
        next_s = watch.woke(due_s, due_s - EARLY_S / 2)
        assert next_s == pytest.approx(1.0 + (at + 1) * EVERY_S)
        due_s = next_s
    assert lag_of(watch) == (0.0, 0.0, 0.0)


def test_a_standstill_makes_all_timers_late_that_were_due_in_it():
    watch, due_s = LoopLagMonitor(), 1.0
    due_s = watch.woke(due_s, due_s + 10.5 * EVERY_S)
    assert due_s == pytest.approx(1.0 + 11 * EVERY_S)
    assert lag_of(watch) == pytest.approx((5.5 * EVERY_S, 10.5 * EVERY_S, 10.5 * EVERY_S))


def test_one_late_timer_of_a_thousand_is_the_most_and_not_the_99th_percentile():
    watch, due_s = LoopLagMonitor(), 1.0
    for at in range(1000):
        due_s = watch.woke(due_s, due_s + (0.04 if at == 500 else 0.0))
    assert lag_of(watch) == pytest.approx((0.0, 0.0, 0.04), abs=1e-9)


def test_what_is_older_than_asked_for_does_not_count():
    watch, due_s = LoopLagMonitor(), 1.0
    due_s = watch.woke(due_s, due_s + 0.04)
    for _ in range(round(KEPT_S / EVERY_S) // 2):
        due_s = watch.woke(due_s, due_s)
    assert lag_of(watch)[2] == pytest.approx(0.04)
    assert lag_of(watch, 5.0)[2] == pytest.approx(0.0)
    for _ in range(round(KEPT_S / EVERY_S)):
        due_s = watch.woke(due_s, due_s)
    assert lag_of(watch)[2] == pytest.approx(0.0)


def test_a_process_that_was_stopped_for_a_day_goes_on_at_once():
    watch = LoopLagMonitor()
    watch.woke(watch.woke(1.0, 1.0), 86_400.0)
    assert lag_of(watch)[2] == pytest.approx(KEPT_S, abs=1.5 * EVERY_S)


def rests(
    watch: LoopLagMonitor, seconds: float, share: float, *, from_s: float, cpu_s: float
) -> list:
    """What it rests at each timer while the loop's thread takes this share of a core."""
    count = round(seconds / EVERY_S)
    at = [EVERY_S * number for number in range(1, count + 1)]
    return [watch.rest_s(from_s + one, cpu_s + share * one) for one in at]


def test_a_loop_that_has_nothing_to_do_is_looked_at_seldom():
    watch = LoopLagMonitor()
    found = rests(watch, 2 * QUIET_AFTER_S, BUSY_FRAC / 2, from_s=5.0, cpu_s=1.0)
    half = len(found) // 2
    assert set(found[: half - 1]) == {0.0}
    assert set(found[half + 1 :]) == {QUIET_EVERY_S - EVERY_S}


def test_a_loop_that_has_something_to_do_is_looked_at_often_and_for_a_while_after_it():
    watch = LoopLagMonitor()
    assert set(rests(watch, 10.0, 2 * BUSY_FRAC, from_s=0.0, cpu_s=0.0)) == {0.0}
    after = rests(watch, 2 * QUIET_AFTER_S, 0.0, from_s=10.0, cpu_s=20 * BUSY_FRAC)
    assert after[0] == 0.0
    assert after[-1] > 0.0
    again = rests(watch, EVERY_S, 2 * BUSY_FRAC, from_s=10.0 + 2 * QUIET_AFTER_S, cpu_s=9.0)
    assert again == [0.0]


def test_a_standstill_between_two_seldom_timers_is_booked_as_often_as_any():
    watch = LoopLagMonitor()
    due_s = watch.woke(1.0, 1.0) + QUIET_EVERY_S - EVERY_S
    watch.woke(due_s, due_s + 10 * EVERY_S)
    assert lag_of(watch)[2] == pytest.approx(10 * EVERY_S)
    assert len(watch._samples) == 12


def test_a_loop_that_is_blocked_is_seen_to_be():
    async def main() -> tuple[float, float, float]:
        watch = LoopLagMonitor()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(3 * EVERY_S)
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s:
            pass  # As a callback that takes too long.
        await asyncio.sleep(2 * EVERY_S)
        task.cancel()
        return lag_of(watch)

    assert asyncio.run(main())[2] >= 0.3 - EVERY_S


@pytest.mark.parametrize("over_s", [0, -1, KEPT_S + 1, "10", None])
def test_the_verb_refuses_other_times(over_s):
    with pytest.raises(UserError, match="loop_lag takes"):
        LoopLagMonitor().answer({"over_s": over_s})
