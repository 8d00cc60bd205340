"""Every key, on a screen without a terminal."""

from __future__ import annotations

import pytest
from textual.binding import Binding
from textual.widgets import Input

from tests.support import recordings
from tests.support.screens import screen_lines, screen_text
from tests.support.staged import LARGE, Staged, drive, notices, replay, settle
from tui.app import ShoalApp
from tui.screens.dialogs import Confirm, Page, PauseMenu
from tui.text.theme import THEMES
from tui.views.roster import Roster
from tui.views.view_bar import VIEWS


def app_of(*frames, **options) -> ShoalApp:
    return ShoalApp(Staged(frames or [recordings.frame(3)]), **options)


async def obey(pilot, command: str) -> None:
    """The command line is opened, filled in and entered."""
    await pilot.press("colon")
    pilot.app.query_one("#prompt-input", Input).value = command
    await pilot.press("enter")


def test_digits_and_clicks_choose_the_view():
    app = app_of()

    async def look(pilot):
        for digit, (name, title) in enumerate(VIEWS.items(), 1):
            await pilot.press(str(digit))
            await settle(pilot)
            assert app.view == name
            assert f"[{digit} {title}]" in screen_text(app)
        await pilot.click("#views", offset=(16, 0))
        await settle(pilot)
        assert app.view == "peers"

    drive(app, look, LARGE)


@pytest.mark.parametrize("key", ["tab", "h"])
def test_the_next_daemon_comes_into_focus(key):
    app = app_of()

    async def look(pilot):
        assert "syncer default" in screen_lines(app)[0]
        await pilot.press(key)
        await settle(pilot)
        assert "learner heron" in screen_lines(app)[0]
        assert "[WELL] Training." in screen_text(app)
        await pilot.press(key)
        await settle(pilot)
        assert "syncer default" in screen_lines(app)[0]

    drive(app, look)


@pytest.mark.slow
def test_a_filter_is_kept_across_frames_and_cleared_with_escape():
    app = app_of()

    async def look(pilot):
        await pilot.press("2", "slash", *"osp", "enter")
        await settle(pilot)
        assert "1 of 8 shown" in screen_text(app)
        app.source.waiting.put_nowait(recordings.frame(4))
        await settle(pilot)
        rows = "\n".join(screen_lines(app)[5:])
        assert "osprey" in rows
        assert "avocet" not in rows
        await pilot.press("escape")
        await settle(pilot)
        assert "avocet" in screen_text(app)

    drive(app, look)


def test_sorting_and_cursor_are_kept_across_frames():
    app = app_of()

    async def look(pilot):
        await pilot.press("2")
        table = app.query_one("#learners", Roster)
        table.sort_by("merges")
        await pilot.press("down", "down")
        chosen = table.cursor_key
        assert chosen == recordings.key("curlew")
        second = recordings.frame(4)
        second.statuses[0].peers[1].merges = 1
        second.statuses[0].peers.reverse()
        app.source.waiting.put_nowait(second)
        await settle(pilot)
        assert table.sort == "merges"
        assert table.cursor_key == chosen
        assert table.cursor == 7
        assert [row.peer.merges for row in table.rows] == sorted(
            (row.peer.merges for row in table.rows), reverse=True
        )

    drive(app, look)


def test_columns_are_sorted_with_keys_and_mouse():
    app = app_of()

    async def look(pilot):
        await pilot.press("2")
        await settle(pilot)
        table = app.query_one("#learners", Roster)
        assert table.sort == "name"
        await pilot.press("s")
        assert table.sort == "state"
        await pilot.press("S", "o")
        assert (table.sort, table.is_reversed) == ("name", True)
        assert table.rows[0].peer.name == "wren"
        head = screen_lines(app)[4]
        await pilot.click("#learners", offset=(head.index("tok/s"), 0))
        assert table.sort == "speed"
        await pilot.click("#learners", offset=(3, 2))
        assert table.cursor == 1

    drive(app, look)


def test_enter_shows_all_that_the_log_says_of_a_contributor():
    app = app_of()

    async def look(pilot):
        await pilot.press("7")
        await settle(pilot)
        await pilot.press("G", "enter")
        await settle(pilot)
        assert isinstance(app.screen, Page)
        assert "Contributor" in screen_text(app)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1

    drive(app, look)


def test_enter_shows_all_of_a_learner_and_follows_it():
    app = app_of()

    async def look(pilot):
        await pilot.press("2", "G", "enter")
        await settle(pilot)
        assert isinstance(app.screen, Page)
        assert "wren" in screen_text(app)
        late = recordings.frame(4)
        late.statuses[0].peers[7].state = "gone"
        app.source.waiting.put_nowait(late)
        await settle(pilot)
        assert "state       gone" in screen_text(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, Page)

    drive(app, look)


def test_faults_only():
    app = ShoalApp(Staged(recordings.learner_killed()))

    async def look(pilot):
        await pilot.press("6", "x")
        await settle(pilot)
        rows = screen_lines(app)[5:]
        assert "FAULT" in rows[0]
        assert "heartbeat lost" in rows[0]
        assert not any("FragmentCommitted" in row for row in rows)
        await pilot.press("enter", "down", "enter")
        await settle(pilot)
        assert "SessionClosed" in screen_text(app)

    drive(app, look)


def test_new_events_do_not_move_what_is_read():
    app = ShoalApp(Staged(recordings.healthy(80)))

    async def look(pilot):
        await pilot.press("6", "pagedown", "pagedown", "pagedown")
        await settle(pilot)
        before = [row[:70] for row in screen_lines(app)[5:15]]
        app.source.waiting.put_nowait(recordings.frame(81))
        app.source.waiting.put_nowait(recordings.frame(82))
        await settle(pilot)
        assert [row[:70] for row in screen_lines(app)[5:15]] == before

    drive(app, look)


@pytest.mark.slow
def test_pause_asks_for_how_long():
    app = app_of()

    async def look(pilot):
        for choice, seconds in {"1": 900.0, "2": 3600.0, "3": 7200.0, "4": None}.items():
            app.source.commands.clear()
            app.clear_notifications()
            await pilot.press("p")
            await settle(pilot)
            assert isinstance(app.screen, PauseMenu)
            await pilot.press(choice)
            await settle(pilot)
            assert app.source.commands == [("pause", recordings.LEARNER, {"seconds": seconds})]
            assert "pause done" in notices(app)

    drive(app, look)


def test_pause_can_be_given_up_and_resume_needs_no_question():
    app = app_of()

    async def look(pilot):
        await pilot.press("p", "escape", "r")
        await settle(pilot)
        assert app.source.commands == [("resume", recordings.LEARNER, {})]

    drive(app, look)


def test_finish_asks_first_and_enter_alone_does_no_harm():
    app = app_of()

    async def look(pilot):
        await pilot.press("f")
        await settle(pilot)
        assert isinstance(app.screen, Confirm)
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press("f", "n")
        assert app.source.commands == []
        await pilot.press("f", "y")
        await settle(pilot)
        assert app.source.commands == [("finish", recordings.LEARNER, {})]

    drive(app, look)


def test_a_refusal_is_shown():
    app = app_of()
    app.source.refusal = "The learner [is] busy."

    async def look(pilot):
        await pilot.press("r")
        await settle(pilot)
        assert "The learner [is] busy." in notices(app)

    drive(app, look)


def test_readonly_has_no_key_that_commands():
    app = app_of(is_readonly=True)

    async def look(pilot):
        assert "Pause" not in screen_lines(app)[-1]
        for key in ("p", "r", "f"):
            await pilot.press(key)
            await settle(pilot)
            assert len(app.screen_stack) == 1
            assert app.source.commands == []

    drive(app, look)


def test_readonly_refuses_with_a_word():
    app = app_of(is_readonly=True)

    async def look(pilot):
        for command in ("pause", "stop"):
            app.clear_notifications()
            await pilot.press("colon", *command, "enter")
            await settle(pilot)
            assert len(app.screen_stack) == 1
            assert app.source.commands == []
            assert "Read only" in notices(app)

    drive(app, look)


def test_the_command_line():
    app = app_of()

    async def look(pilot):
        for typed, view in {"events": "events", "frag": "fragments", "7": "contribution"}.items():
            await obey(pilot, typed)
            await settle(pilot)
            assert app.view == view
        assert app.source.commands == []
        for typed, verb, said in (
            ("pause 2h", "pause", {"seconds": 7200.0}),
            ("pause", "pause", {"seconds": None}),
            ("resume", "resume", {}),
        ):
            app.source.commands.clear()
            await obey(pilot, typed)
            await settle(pilot)
            assert app.source.commands == [(verb, recordings.LEARNER, said)]
            assert app.view == "contribution"

    drive(app, look)


@pytest.mark.slow
def test_the_command_line_explains_what_it_does_not_know():
    app = app_of()

    async def look(pilot):
        for typed, says in {
            "pause for ever": "is not a duration",
            "dance": "no command 'dance'",
            "f": "could be fragments, finish, filter, focus",
            "theme mud": "no theme 'mud'",
            "focus moon": "No daemon 'moon'",
            "sort height": "no column 'height'",
        }.items():
            app.clear_notifications()
            await obey(pilot, typed)
            await settle(pilot)
            assert says in notices(app)

    drive(app, look)


@pytest.mark.slow
def test_other_commands():
    app = app_of()

    async def look(pilot):
        for typed in ("theme daylight", "focus heron", "2", "sort merges", "filter wren"):
            await obey(pilot, typed)
            await settle(pilot)
        assert app.theme == "daylight"
        assert app.daemon == recordings.LEARNER
        table = app.query_one("#learners", Roster)
        assert [row.peer.name for row in table.rows] == ["wren"]
        assert table.sort == "merges"
        await obey(pilot, "link")
        await settle(pilot)
        assert "shoal:xxx" in screen_text(app)

    drive(app, look)


def test_stop_names_the_daemon_and_asks():
    app = app_of()

    async def look(pilot):
        await obey(pilot, "stop")
        await settle(pilot)
        assert "Stop syncer default?" in screen_text(app)
        await pilot.press("y")
        await settle(pilot)
        assert app.source.commands == [("stop", recordings.SYNCER, {})]

    drive(app, look)


def test_help_names_every_key():
    app = app_of()

    async def look(pilot):
        await pilot.press("question_mark")
        await settle(pilot)
        shown = screen_text(app)
        for binding in ShoalApp.BINDINGS:
            assert isinstance(binding, Binding)
            assert (binding.tooltip or binding.description) in shown

    drive(app, look, (120, 80))


@pytest.mark.slow
def test_colours_change_and_quit_quits():
    app = app_of()

    async def look(pilot):
        seen = {app.theme}
        for _ in THEMES:
            await pilot.press("t")
            await settle(pilot)
            seen.add(app.theme)
        assert seen == {theme.name for theme in THEMES}
        await pilot.press("q")

    drive(app, look)
    assert app.return_value == 0


def test_typing_a_filter_does_not_trigger_keys():
    app = app_of()

    async def look(pilot):
        await pilot.press("2", "slash", *"qxp1")
        await settle(pilot)
        assert app.is_running
        assert app.view == "peers"
        assert app.filters["peers"] == "qxp1"

    drive(app, look)


def test_frames_coalesce_and_no_event_is_lost():
    app = ShoalApp(Staged())

    async def look(pilot):
        for frame in recordings.healthy(200):
            app.source.waiting.put_nowait(frame)
        await settle(pilot)
        assert app.frame is not None
        assert app.frame.at_s == recordings.START_S + 199
        assert len(app.history.events) == 200
        assert app.drawn < 100

    drive(app, look)


@pytest.mark.slow
def test_a_thousand_learners_scroll_and_stay_where_they_are():
    app = ShoalApp(Staged(recordings.thousand(1)))

    async def look(pilot):
        await pilot.press("2", "G")
        await settle(pilot)
        table = app.query_one("#learners", Roster)
        assert table.cursor == 999
        before = [row.split()[0] for row in screen_lines(app)[5:20]]
        app.source.waiting.put_nowait(recordings.thousand(2)[1])
        await settle(pilot)
        assert table.cursor == 999
        assert [row.split()[0] for row in screen_lines(app)[5:20]] == before

    drive(app, look)


@pytest.mark.slow
def test_replay_controls(tmp_path):
    app = ShoalApp(replay(tmp_path / "recording", recordings.learner_killed()))
    playback = app.source.playback

    async def look(pilot):
        for key, position in [
            ("right", 1), ("shift+right", 11), ("left", 10), ("shift+left", 0), ("end", 59),
            ("home", 0), ("n", 50), ("N", 50), ("left", 49), ("n", 50), ("right", 51), ("N", 50),
        ]:  # fmt: skip
            await pilot.press(key)
            await settle(pilot)
            assert playback.position == position, key
            assert app.frame.at_s == recordings.START_S + position
            assert f"frame {position + 1} of 60" in screen_text(app)
        assert "No fault before this." in notices(app)
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert playback.speed == 5
        await pilot.press("left_square_bracket")
        assert playback.speed == 2
        await pilot.press("space")
        assert playback.is_playing
        await pilot.press("space")
        assert not playback.is_playing
        await pilot.click("#scrub", offset=(30, 0))
        await settle(pilot)
        assert 0 < playback.position < 20

    drive(app, look)


@pytest.mark.slow
def test_a_recording_plays_to_its_end_and_knows_its_past(tmp_path):
    app = ShoalApp(replay(tmp_path / "recording", recordings.healthy(40)))
    playback = app.source.playback

    async def look(pilot):
        playback.speed = 100
        await pilot.press("space")
        while playback.is_playing:
            await pilot.pause(0.02)
        await settle(pilot)
        assert playback.position == 39
        assert len(app.history.events) == 40
        await pilot.press("colon", *"pause", "enter")
        await settle(pilot)
        assert "This is a recording" in notices(app)

    drive(app, look)


def test_going_back_takes_later_events_away(tmp_path):
    app = ShoalApp(replay(tmp_path / "recording", recordings.healthy(40)))

    async def look(pilot):
        await pilot.press("end")
        await settle(pilot)
        assert len(app.history.events) == 40
        await pilot.press("home")
        await settle(pilot)
        assert len(app.history.events) == 1

    drive(app, look)
