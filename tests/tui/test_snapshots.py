"""Whole screens, compared with pictures: a recorded run of a real swarm, seen frame by frame."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import recordings
from tests.support.staged import Staged, settle
from tui.app import ShoalApp
from tui.frames.frame import Frame
from tui.sources.playback import PlaybackSource

RECORDING = Path(__file__).parents[2] / "docs" / "screenshots" / "run.recording"
WELL, LEARNER_KILLED, SYNCER_KILLED = 20, 40, 57


@pytest.fixture(autouse=True)
def _universal_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("recording", "place", "keys", "size"),
    [
        ("voters-away", 29, "5", (80, 24)),
        ("election", 35, "1", (80, 24)),
        ("two-here", 4, "5", (200, 60)),
        ("left", 4, "2", (120, 34)),
        ("liar", 4, "5", (120, 50)),
        ("copier", 4, "5", (120, 50)),
    ],
    ids=["voters", "no-leader", "voters-wide", "left", "trust", "suspended"],
)
def test_an_election_looks_as_it_did(snap_compare, recording, place, keys, size):
    app = ShoalApp(Staged(recordings.RECORDINGS[recording]()[: place + 1]))

    async def look(pilot):
        await settle(pilot)
        await pilot.press(*keys)
        await pilot.pause()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)


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
    source = PlaybackSource(RECORDING)
    source.playback.seek(frame)
    app = ShoalApp(source)

    async def look(pilot):
        while app.frame is None:
            await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["small", "large"])
def test_this_node_looks_as_it_did(snap_compare, size):
    because = "it runs on battery"
    node = recordings.learner(
        900,
        guest=recordings.guest(is_held=True, is_suspended=True, because=because),
        state="paused",
        sentence=f"Paused because {because}. The weights stay current.",
        trainer="suspended",
        trainer_detail="its memory is free",
        trainer_pid=None,
        heard_s=0.2,
    )
    app = ShoalApp(Staged([Frame(at_s=recordings.START_S, statuses=(node,))]))

    async def look(pilot):
        await settle(pilot)
        await pilot.press("4")
        await pilot.pause()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)
