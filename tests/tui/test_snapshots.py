"""Whole screens, compared with pictures: a recorded run of a real swarm, seen frame by frame."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tui.app import ShoalApp
from tui.sources import TapeSource

TAPE = Path(__file__).parents[2] / "docs" / "screenshots" / "run.tape"
WELL, LEARNER_KILLED, SYNCER_KILLED = 30, 42, 50


@pytest.fixture(autouse=True)
def _universal_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("frame", "keys", "size"),
    [
        (WELL, "1", (120, 34)),
        (SYNCER_KILLED, "1", (80, 24)),
        (LEARNER_KILLED, "2", (120, 34)),
        (LEARNER_KILLED, "5", (80, 24)),
    ],
    ids=["well", "syncer-killed", "peers", "syncer-view"],
)
def test_a_screen_looks_as_it_did(snap_compare, frame, keys, size):
    source = TapeSource(TAPE)
    source.playback.seek(frame)
    app = ShoalApp(source)

    async def look(pilot):
        while app.frame is None:
            await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)
