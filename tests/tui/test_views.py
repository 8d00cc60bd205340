"""What the screens say about recorded swarms, at every size, without colour and in ASCII."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.tui import tapes
from tests.tui.screens import screen_lines, screen_text
from tests.tui.staged import LARGE, SMALL, Staged, drive, settle
from tui import once
from tui.app import ShoalApp
from tui.history import History, sample
from tui.scene import Scene
from tui.verdict import judge
from tui.widgets import banner, contribution, fragments, overview, syncer, this_node

RENDERERS = {
    "overview": overview.render,
    "fragments": fragments.render,
    "node": this_node.render,
    "syncer": syncer.render,
    "contribution": contribution.summary,
}
SMALL_TAPES = [name for name in tapes.TAPES if name != "thousand"]


def scene_of(name: str, place: int = -1, focus: str = "") -> Scene:
    """How things look at this place of a tape, for somebody who saw all before."""
    frames = tapes.TAPES[name]()
    seen = frames[: place + 1] if place >= 0 else frames
    history = History.of(sample(one) for one in seen)
    return Scene(frame=seen[-1], history=history, focus=focus)


def squeezed(text: str) -> str:
    """Without the blanks and line ends that layout adds."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", tapes.TAPES)
def test_no_line_is_wider_than_the_terminal(name, width):
    for focus in ("", tapes.LEARNER):
        now = scene_of(name, focus=focus)
        for view, render in RENDERERS.items():
            for line in [*render(now, width, 20), *banner.render(now, width)]:
                assert line.cell_len <= width, (view, line.plain)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("name", SMALL_TAPES)
def test_the_sentence_stands_on_screen_whole(name, size):
    frames = tapes.TAPES[name]()
    app = ShoalApp(Staged(frames))

    async def look(pilot):
        wanted = judge(app.scene())
        top = screen_text(app).split("1 Overview")[0]
        assert squeezed(f"[{wanted.level}] {wanted.sentence}") in squeezed(top)

    drive(app, look, size)


@pytest.mark.parametrize(
    ("name", "place", "level", "says"),
    [
        ("healthy", -1, "WELL", "All is well. 8 learners training."),
        ("learner-killed", 19, "WELL", "All is well. 8 learners training."),
        ("learner-killed", 37, "CARE", "1 of 8 learners lost: osprey (last heard 17 s ago). 7"),
        ("learner-killed", 59, "CARE", "1 of 8 learners lost: osprey (last heard 39 s ago). 7"),
        ("leader-silent", 9, "WELL", "All is well."),
        ("leader-silent", 22, "TROUBLE", "The syncer default does not answer since 13 s"),
        ("quorum-short", 5, "CARE", "3 of 6 learners lost: heron, kestrel, osprey (last"),
        ("quorum-short", 59, "CARE", "No merge for 59 s: round 901 has 2 of 5 it needs, waiting"),
        ("ended", -1, "DONE", "The run is complete: 6,061 global steps"),
        ("daemon-gone", -1, "TROUBLE", "No daemon runs on this machine; looking on."),
        ("thousand", -1, "WELL", "All is well. 1000 learners training."),
    ],
)
def test_the_verdict_says_what_is_wrong_first(name, place, level, says):
    verdict = judge(scene_of(name, place))
    assert verdict.level == level
    assert verdict.sentence.startswith(says)


def test_a_learner_says_that_it_trains_without_a_syncer():
    verdict = judge(scene_of("leader-silent", 30, focus=tapes.LEARNER))
    assert verdict.level == "CARE"
    assert verdict.sentence.startswith("Training without a syncer")
    assert "The syncer default does not answer since 21 s." in verdict.sentence


def test_what_is_not_of_now_says_so():
    now = scene_of("leader-silent", 30)
    assert overview.render(now, 80, 20)[0].plain.startswith("From 21 s ago")
    assert "phase was training" in banner.title(now, 120).plain
    live = scene_of("leader-silent", 30, focus=tapes.LEARNER)
    assert not overview.render(live, 80, 20)[0].plain.startswith("From")


def test_time_left_is_told_only_where_it_is_known():
    assert "ETA not known" in banner.title(scene_of("healthy", 0), 120).plain
    assert re.search(r"ETA \d h", banner.title(scene_of("healthy"), 120).plain)
    assert "ETA stalled" in banner.title(scene_of("quorum-short"), 120).plain
    assert "ETA done" in banner.title(scene_of("ended"), 120).plain


@pytest.mark.parametrize("name", SMALL_TAPES)
def test_every_view_can_be_drawn_and_ascii_is_ascii(name):
    app = ShoalApp(Staged(tapes.TAPES[name]()), is_ascii=True)

    async def look(pilot):
        for digit in "1234567":
            await pilot.press(digit)
            await settle(pilot)
            assert screen_text(app).isascii(), digit
        for keys in (["question_mark"], ["escape", "2", "down", "enter"], ["escape", "colon", "p"]):
            await pilot.press(*keys)
            await settle(pilot)
            assert screen_text(app).isascii(), keys

    drive(app, look)


def test_names_of_other_machines_do_not_break_ascii_or_columns():
    frame = tapes.frame(5)
    frame.statuses[0].peers[0].name = "鯨の群れ\x1b[31m"
    app = ShoalApp(Staged([frame]), is_ascii=True)

    async def look(pilot):
        await pilot.press("2")
        await settle(pilot)
        rows = screen_lines(app)
        assert "".join(rows).isascii()
        states = {row.index("training") for row in rows[5:12] if "training" in row}
        assert len(states) == 1

    drive(app, look)


def test_a_wide_terminal_shows_learners_beside_the_overview():
    app = ShoalApp(Staged(tapes.healthy(30)))

    async def look(pilot):
        assert any("held-out" in row and "learner" in row for row in screen_lines(app))
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert not any("avocet" in row for row in screen_lines(app))

    drive(app, look, LARGE)


def test_charts_have_axes_and_a_curve():
    drawn = "\n".join(line.plain for line in overview.render(scene_of("healthy"), 120, 40))
    assert "held-out loss over tokens" in drawn
    assert "-30 s" in drawn
    assert "400 k" in drawn
    assert re.search("[\u2801-\u28ff]", drawn)


@pytest.mark.parametrize("name", tapes.TAPES)
def test_once_says_the_same_as_text(name):
    frame = tapes.TAPES[name]()[-1]
    text = once.text(frame, 100)
    assert f"[{judge(Scene(frame=frame, history=History())).level}]" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert once.text(frame, 100, is_ascii=True).isascii()


def test_the_screen_imports_nothing_heavy():
    program = (
        "import tui.app, tui.once, sys;"
        "print([name for name in ('torch', 'hivemind', 'node', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
