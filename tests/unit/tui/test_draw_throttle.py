"""How often the screen draws: what it costs decides."""

from __future__ import annotations

import pytest

from tui.draw_throttle import REST_S_MAX, DrawThrottle


def drawings(cost_s, *, seconds=60.0, frames_per_s=2.0):
    """How many of the frames are drawn, at this cost each."""
    now, spent, drawn = [0.0], [5.0], 0
    draw_throttle = DrawThrottle(lambda: now[0], lambda: spent[0])
    while now[0] < seconds:
        if draw_throttle.may_draw("all answer"):
            drawn += 1
            spent[0] += cost_s
        spent[0] += 0.001  # Taking a frame in costs something too.
        now[0] += 1.0 / frames_per_s
    return drawn


@pytest.mark.parametrize(("cost_s", "drawn"), [(0.005, 120), (0.03, 60), (0.06, 40), (1.0, 24)])
def test_dear_drawings_come_less_often_but_never_stop(cost_s, drawn):
    assert drawings(cost_s) == drawn
    assert drawings(cost_s) >= 60.0 / REST_S_MAX


def test_who_answers_is_drawn_at_once():
    now, spent = [0.0], [0.0]
    draw_throttle = DrawThrottle(lambda: now[0], lambda: spent[0])
    assert draw_throttle.may_draw("asking")
    now[0], spent[0] = 0.5, 0.4
    assert not draw_throttle.may_draw("asking")
    assert draw_throttle.may_draw("answered")
