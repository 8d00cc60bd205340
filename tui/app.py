"""The terminal UI: tells in five seconds whether the swarm is well.

Composition and bindings only. Functions of a `Scene` make what is drawn (see `tui.views`), frames
come from a `Source`, and the newest frame wins.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.filter import LineFilter
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer

from protocol.errors import ShoalError, UserError
from protocol.status import NodeStatus, SyncerStatus
from tui import commands
from tui.draw_throttle import REST_S_MAX, DrawThrottle, who_answers
from tui.frames.frame import Frame
from tui.frames.history import History, sample
from tui.frames.scene import Scene
from tui.frames.traffic import Traffic
from tui.messages import Entered, FrameCame, Sought, ViewWanted
from tui.sources.live import Source
from tui.text import fmt
from tui.text.paint import Paint
from tui.text.status_rows import label_of
from tui.text.theme import THEME, THEMES, AsciiFilter, paint_of
from tui.views import overview, picture
from tui.views.banner import Banner
from tui.views.sheet import Sheet
from tui.views.view_bar import VIEWS, ViewBar

# Everything else is imported once it is wanted, so that the first screen is there at once.
if TYPE_CHECKING:
    from tui.other_views import View
    from tui.sources.playback import Playback
    from tui.views.roster import Roster

WIDE = 160
"""From this width on facts and events have a column of their own in the overview."""

ROOMY = 120
"""From this width on everything known of one learner stands beside the table of all."""

SIDE_PERCENT = 34
GARBAGE_EVERY = 20_000
"""New objects between two looks for garbage."""

MOVE_S = 0.12
"""Between two looks at what travels."""

LINK_CELLS = 72
TABLES = ("peers", "events", "contribution")
"""Views that can be filtered."""

RECORDING_ACTIONS = ("play", "step", "speed", "seek_end", "fault")

RECORDING_BINDINGS: list[Binding] = [
    Binding("space", "play", "Play", tooltip="Play or pause", id="recording.play", priority=True),
    Binding("left", "step(-1)", "Frame back", show=False, id="recording.back", priority=True),
    Binding("right", "step(1)", "Frame on", show=False, id="recording.on", priority=True),
    Binding(
        "shift+left", "step(-10)", "Ten back", show=False, id="recording.back10", priority=True
    ),
    Binding("shift+right", "step(10)", "Ten on", show=False, id="recording.on10", priority=True),
    Binding(
        "left_square_bracket",
        "speed(-1)",
        "Slower",
        key_display="[",
        show=False,
        id="recording.slower",
    ),
    Binding(
        "right_square_bracket",
        "speed(1)",
        "Faster",
        key_display="]",
        show=False,
        id="recording.faster",
    ),
    Binding("home", "seek_end(0)", "Start", show=False, id="recording.start", priority=True),
    Binding("end", "seek_end(1)", "End", show=False, id="recording.end", priority=True),
    Binding("n", "fault(1)", "Next fault", id="recording.fault"),
    Binding("N", "fault(-1)", "Fault before", show=False, id="recording.fault-back"),
]

_COMMANDS = {"pause", "resume", "finish"}
"""Actions that tell a daemon what to do."""

_OWN_KEYS = {"focus_next_daemon", *RECORDING_ACTIONS}
"""Actions whose keys come before those of the widget in focus."""


class ShoalApp(App[int]):
    """The screen. Its result is an exit code."""

    CSS_PATH = "app.tcss"
    TITLE = "Shoal"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(place), f"view('{name}')", title, show=False, id=f"view.{name}")
            for place, (name, title) in enumerate(VIEWS.items(), 1)
        ),
        Binding("tab,h", "focus_next_daemon", "Next daemon", show=False, id="daemon.next",
                priority=True),
        Binding("slash", "filter", "Filter", key_display="/", id="filter"),
        Binding("colon", "command", "Command", key_display=":", id="command"),
        Binding("x", "faults_only", "Faults only", id="faults"),
        Binding("e", "every_event", "Every event", show=False, id="every-event"),
        Binding("p", "pause", "Pause", id="pause"),
        Binding("r", "resume", "Resume", show=False, id="resume"),
        Binding("f", "finish", "Finish", show=False, id="finish"),
        Binding("t", "next_theme", "Colours", show=False, id="theme"),
        Binding("escape", "clear", "Clear the filter", show=False, id="clear"),
        Binding("question_mark", "help", "Help", key_display="?", id="help"),
        Binding("q,ctrl+c", "leave", "Quit", key_display="q", id="quit"),
    ]  # fmt: skip

    def __init__(
        self,
        source: Source,
        *,
        is_readonly: bool = False,
        is_ascii: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: seconds that only grow, by which the picture moves."""
        self._ascii_filter = AsciiFilter() if is_ascii else None
        super().__init__()
        self.source = source
        if source.playback is not None:
            # Only here, so that neither footer nor help names keys that do nothing.
            for binding in RECORDING_BINDINGS:
                self._bindings.key_to_bindings.setdefault(binding.key, []).insert(0, binding)
        self.animation_level = "none"
        self.is_readonly = is_readonly
        self.history = History()
        self.traffic = Traffic()
        self.frame: Frame | None = None
        self._clock = clock
        self._frame_s = 0.0
        """When it came, by that clock."""
        self._is_watched = True
        self.daemon = ""
        """Label of the daemon in focus; empty for the first."""
        self.view = "overview"
        self.is_faults = False
        self.is_every_event = False
        """Also those that come many times a second, with the daemons' own words for them."""
        self._views: dict[str, View] = {}
        """Those that somebody looked at, but for the overview."""
        self.filters: dict[str, str] = {}
        """What each view is filtered by."""
        self.draw_throttle = DrawThrottle(time.monotonic, time.process_time)
        self._is_put_off = False
        self.drawn = 0
        """How many frames were drawn."""
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEME
        if is_ascii:
            self.add_class("-ascii")

    def get_line_filters(self) -> list[LineFilter]:
        """The last one lets nothing but ASCII through, if that is wanted."""
        own = [] if self._ascii_filter is None else [self._ascii_filter]
        return [*super().get_line_filters(), *own]

    def compose(self) -> ComposeResult:
        """Banner, overview, place on the recording, keys."""
        yield Banner()
        yield ViewBar()
        with ContentSwitcher(initial="overview", id="body"), Horizontal(id="overview"):
            with Vertical(id="overview-main"):
                yield Sheet(picture.render, id="picture")
                yield Sheet(overview.render, id="overview-sheet")
            yield Sheet(overview.side, id="overview-side")
        if self.source.playback is not None:
            from tui.views.scrub_bar import ScrubBar

            yield ScrubBar(self.source.playback)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Starts to follow the source."""
        self.query_one("#overview-sheet").focus()
        self.theme_changed_signal.subscribe(self, self._repaint)
        self._draw()
        self._follow()
        self.set_interval(MOVE_S, self.move)

    @work(exclusive=True)
    async def _follow(self) -> None:
        """Takes in every frame; drawing is asked for by a message that coalesces."""
        playback = self.source.playback
        try:
            async for frame in self.source.frames():
                if frame.is_jump and playback is not None:
                    self.history = playback.history()
                else:
                    self.history.add(sample(frame))
                self.frame = frame
                self._frame_s = self._clock()
                self._look_at_traffic(frame)
                self.post_message(FrameCame())
        except UserError as error:
            self.exit(error.exit_code, message=str(error))

    def _look_at_traffic(self, frame: Frame) -> None:
        """What travels, while the picture of it is looked at."""
        if self.view != "overview" or not self._is_watched:
            self.traffic.look_away()
            return
        self.traffic.observe(self.scene().leader, frame.at_s, is_jump=frame.is_jump)

    def on_frame_came(self) -> None:
        """Draws the newest frame, or a later one where that costs too much."""
        if self.source.playback is None and not self.draw_throttle.may_draw(
            who_answers(self.frame)
        ):
            if not self._is_put_off:
                self._is_put_off = True
                self.set_timer(REST_S_MAX, self.catch_up)
            return
        self._draw()
        self._is_put_off = False
        self.drawn += 1

    def catch_up(self) -> None:
        """Draws what was put off, where no frame came since."""
        if self._is_put_off:
            self._is_put_off = False
            self._draw()

    def on_app_focus(self) -> None:
        """Somebody looks again."""
        self._is_watched = True

    def on_app_blur(self) -> None:
        """Nobody looks: nothing has to move."""
        self._is_watched = False

    def move(self) -> None:
        """Moves what travels in the picture, where it can be seen and costs little."""
        playback = self.source.playback
        if self.view != "overview" or self.frame is None or self.traffic.is_idle:
            return
        if not self._is_watched or (playback is not None and not playback.is_playing):
            return
        if len(self.screen_stack) == 1 and self.draw_throttle.may_move():
            self.query_one("#picture", Sheet).show(self.scene())

    def on_resize(self, event: events.Resize) -> None:
        """Wide terminals have room for two views."""
        self.set_class(event.size.width >= WIDE, "-wide")
        self.set_class(event.size.width >= ROOMY, "-roomy")
        self.call_after_refresh(self._draw)

    @property
    def paint(self) -> Paint:
        """Styles of the theme."""
        return paint_of(self.current_theme)

    def scene(self) -> Scene:
        """What is drawn now."""
        frame = self.frame or Frame(at_s=0.0)
        playback = self.source.playback
        pace = 1 if playback is None else playback.speed * playback.is_playing
        moving_s = frame.at_s + (self._clock() - self._frame_s) * pace
        return Scene(
            frame=frame,
            history=self.history,
            focus=self.daemon,
            paint=self.paint,
            is_recording=playback is not None,
            moving=tuple(self.traffic.moving(moving_s)),
            is_wide=self.has_class("-wide"),
        )

    def _repaint(self, theme: Theme) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        """Hands the scene to what is visible."""
        if not self.is_running or not self.query(Banner):
            return
        now = self.scene()
        self.query_one(Banner).show(now)
        self.query_one(ViewBar).show(self.view, now.paint)
        if self.source.playback is not None:
            from tui.views.scrub_bar import ScrubBar

            self.query_one(ScrubBar).show(now.paint)
        if self.view == "overview":
            self._draw_overview(now)
        elif self.view in self._views:
            self._draw_other(self._views[self.view], now)
        if len(self.screen_stack) > 1:
            from tui.screens.dialogs import Page

            if isinstance(self.screen, Page):
                self.screen.renew()

    def _draw_other(self, view: View, now: Scene) -> None:
        from tui.other_views import Wanted

        wanted = Wanted(
            filter=self.filters.get(self.view, ""),
            is_faults=self.is_faults,
            is_every_event=self.is_every_event,
            is_roomy=self.has_class("-roomy"),
        )
        view.draw(now, wanted)

    def _draw_overview(self, now: Scene) -> None:
        body, sheet = self.query_one("#overview"), self.query_one("#picture", Sheet)
        width = body.size.width * (100 - SIDE_PERCENT * now.is_wide) // 100 - 3
        rows = overview.picture_rows(now, width, body.size.height)
        # Setting a style lays the screen out anew, so only when it is another height.
        if sheet.styles.height is None or sheet.styles.height.value != rows:
            sheet.styles.height = rows
            sheet.display = rows > 0
        for name in ("#picture", "#overview-sheet"):
            self.query_one(name, Sheet).show(now)
        if now.is_wide:
            self.query_one("#overview-side", Sheet).show(now)

    def on_roster_moved(self, message: Roster.Moved) -> None:
        """What stands beside a table shows whom the cursor is on."""
        self._view_of(message.roster).on_cursor(self.scene())

    def _view_of(self, table: Roster[Any]) -> View:
        return next(view for view in self._views.values() if view.focus is table)

    # What keys do.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come first must not steal from dialogs and from what is typed; a screen that
        commands nothing names no key for it."""
        if action in _COMMANDS and (self.is_readonly or self.source.playback is not None):
            return False
        if action in _OWN_KEYS:
            is_typing = self.focused is not None and self.focused.id == "prompt-input"
            return len(self.screen_stack) == 1 and not is_typing
        return True

    async def action_view(self, name: str) -> None:
        """Shows this view, made now if nobody looked at it before."""
        body = self.query_one("#body", ContentSwitcher)
        if name != "overview" and name not in self._views:
            from tui import other_views

            view = self._views[name] = other_views.made(name)
            await body.mount(view.widget)
        self.view = body.current = name
        self._focus_widget.focus()
        self._draw()

    @property
    def _focus_widget(self) -> Widget:
        """What has the keys in this view."""
        if self.view == "overview":
            return self.query_one("#overview-sheet")
        return self._views[self.view].focus

    async def on_view_wanted(self, message: ViewWanted) -> None:
        """A click on the bar of views."""
        await self.action_view(message.view)

    def action_focus_next_daemon(self) -> None:
        """Looks at the next of the daemons."""
        labels = [one.label for one in self.frame.attached()] if self.frame else []
        if len(labels) < 2:
            self.notify("Only one daemon is attached." if labels else "No daemon is attached.")
            return
        now = self.scene().attached
        place = labels.index(now.label) if now is not None else -1
        self.daemon = labels[(place + 1) % len(labels)]
        self._draw()

    async def action_filter(self) -> None:
        """Asks for words that rows must have."""
        if self.view not in TABLES:
            await self.action_view("peers")
        await self._open_prompt("filter", self.filters.get(self.view, ""))

    async def action_command(self) -> None:
        await self._open_prompt("command")

    async def _open_prompt(self, kind: str, text: str = "") -> None:
        from tui.views.prompt import Prompt

        footer = self.query_one(Footer)
        if not self.query(Prompt):
            prompt = Prompt(commands.suggestions(self._theme_names()))
            await self.screen.mount(prompt, before=footer)
        # It takes the line of the keys, so that nothing above moves.
        footer.display = False
        self.query_one(Prompt).open(kind, text)

    async def on_entered(self, message: Entered) -> None:
        """Takes what was typed."""
        if message.kind == "filter":
            self.filters[self.view] = message.text
            self._draw()
        if message.is_final:
            self.query_one(Footer).display = True
            await self.action_view(self.view)
        if message.kind == "command" and message.is_final and message.text.strip():
            try:
                await self._obey(commands.parse(message.text))
            except UserError as error:
                self._complain(error)

    def action_clear(self) -> None:
        """Takes the filter away."""
        self.filters.pop(self.view, None)
        self.is_faults = False
        self._draw()

    def action_faults_only(self) -> None:
        """Leaves out whatever is well, or shows it again."""
        self.is_faults = not self.is_faults
        self.notify("Faults only, in tables." if self.is_faults else "Everything is shown.")
        self._draw()

    async def action_every_event(self) -> None:
        """Shows every event there is, or only those that say something to people."""
        self.is_every_event = not self.is_every_event
        await self.action_view("events")

    def action_next_theme(self) -> None:
        """Other colours."""
        names = self._theme_names()
        place = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(place + 1) % len(names)]

    def action_help(self) -> None:
        from tui.screens import help as help_page
        from tui.screens.dialogs import Page
        from tui.views.roster import Roster

        groups: list[help_page.Group] = [("Everywhere", self.BINDINGS)]
        if self.source.playback is not None:
            groups.append(("Recording", RECORDING_BINDINGS))
        groups += [("Tables", Roster.BINDINGS), ("Pages", Sheet.BINDINGS)]
        has_recording = self.source.playback is not None
        self.push_screen(
            Page("Keys", lambda: help_page.page(groups, self.paint, has_recording=has_recording))
        )

    def action_leave(self) -> None:
        """Ends the screen; the daemons go on."""
        self.exit(0)

    def on_roster_chosen(self, message: Roster.Chosen) -> None:
        """Shows all that is known of a row."""
        page = self._view_of(message.roster).page(message.key, self.scene)
        if page is not None:
            self.push_screen(page)

    # The keys of a recording; without one nothing is bound to them.

    @property
    def playback(self) -> Playback:
        """The controls of the recording."""
        assert self.source.playback is not None, "only a recording has keys for it"
        return self.source.playback

    def action_play(self) -> None:
        """Plays or pauses."""
        self.playback.toggle()

    def action_step(self, frames: int) -> None:
        """Goes a few frames on or back."""
        self.playback.step(frames)

    def action_speed(self, direction: int) -> None:
        """Plays faster or slower."""
        self.playback.change_speed(direction)

    def action_seek_end(self, is_end: int) -> None:
        """Goes to the start or to the end."""
        self.playback.seek(self.playback.length - 1 if is_end else 0)

    def action_fault(self, direction: int) -> None:
        """Goes to where something went wrong."""
        if not self.playback.find_fault(direction):
            self.notify("No fault after this." if direction > 0 else "No fault before this.")

    def on_sought(self, message: Sought) -> None:
        """A click on the track."""
        self.playback.seek(round(message.share * (self.playback.length - 1)))

    # Telling daemons what to do.

    def action_pause(self) -> None:
        """Asks for how long to pause the learner."""
        who = self._target("pause")
        if who:
            from tui.screens.dialogs import PauseMenu

            self.push_screen(PauseMenu(who), lambda chosen: self._paused(who, chosen))

    def _paused(self, who: str, chosen: tuple[float | None] | None) -> None:
        if chosen is not None:
            self._tell("pause", who, seconds=chosen[0])

    def action_resume(self) -> None:
        """Lets the learner go on."""
        who = self._target("resume")
        if who:
            self._tell("resume", who)

    def action_finish(self) -> None:
        """Lets the learner hand in what it has and leave."""
        self._confirmed("finish", "Let {who} push what it has, leave the swarm and stop?", "finish")

    def _confirmed(self, verb: str, question: str, yes: str) -> None:
        who = self._target(verb)
        if who:
            from tui.screens.dialogs import Confirm

            self.push_screen(
                Confirm(question.format(who=who), yes),
                lambda is_yes: self._tell(verb, who) if is_yes else None,
            )

    def _target(self, verb: str) -> str:
        """Label of the daemon that is meant; empty, with a word to the viewer, if none can be."""
        now = self.scene()
        reason = ""
        if self.is_readonly:
            reason = f"Read only: {verb} is switched off by --readonly."
        elif now.is_recording:
            reason = f"This is a recording: there is nothing to {verb}."
        elif verb == "stop" or isinstance(now.told, NodeStatus):
            return now.attached.label if now.attached is not None else ""
        else:
            learners = [
                one.label for one in now.frame.attached() if one.label.startswith("learner")
            ]
            if len(learners) == 1:
                return learners[0]
            reason = (
                "Several learners run here: choose one with Tab."
                if learners
                else f"No learner runs here to {verb}."
            )
        self.notify(reason, severity="warning")
        return ""

    def _tell(self, verb: str, who: str, **fields: Any) -> None:
        """Sends the command, without waiting for the answer."""
        self.run_worker(self._say_answer(verb, who, fields))

    async def _say_answer(self, verb: str, who: str, fields: dict[str, Any]) -> None:
        try:
            self.notify(fmt.clean(await self.source.command(verb, who, **fields), 300))
        except ShoalError as error:
            self._complain(error)

    def _complain(self, error: ShoalError) -> None:
        self.notify(fmt.clean(str(error), 500), severity="error", markup=False)

    def _theme_names(self) -> list[str]:
        return [theme.name for theme in THEMES]

    async def _obey(self, command: commands.Command) -> None:
        """Does what the command line says. Raises UserError."""
        rest = command.rest
        match command.verb:
            case "quit":
                self.action_leave()
            case "help":
                self.action_help()
            case "pause":
                length_s = commands.seconds(rest)
                if who := self._target("pause"):
                    self._tell("pause", who, seconds=length_s)
            case "resume":
                self.action_resume()
            case "finish":
                self.action_finish()
            case "stop":
                self._confirmed("stop", "Stop {who}?", "stop")
            case "filter":
                self.filters[self.view] = rest
                self._draw()
            case "theme" | "focus" | "sort" | "link":
                self._adjust(command.verb, rest)
            case view:
                await self.action_view(view)

    def _adjust(self, verb: str, rest: str) -> None:
        if verb == "theme":
            if rest not in self.available_themes:
                raise UserError(f"There is no theme {rest!r}: {', '.join(self._theme_names())}.")
            self.theme = rest
        elif verb == "focus":
            labels = [one.label for one in self.frame.attached()] if self.frame else []
            meant = [label for label in labels if rest and rest in label]
            if not meant:
                raise UserError(f"No daemon {rest!r} is attached: {', '.join(labels) or 'none'}.")
            self.daemon = meant[0]
            self._draw()
        elif verb == "sort":
            self._sort(rest)
        else:
            self._show_link()

    def _sort(self, column: str) -> None:
        from tui.views.roster import Roster

        table = self._focus_widget
        keys = [one.key for one in table.columns] if isinstance(table, Roster) else []
        if not isinstance(table, Roster) or column not in keys:
            raise UserError(f"There is no column {column!r} here: {', '.join(keys) or 'none'}.")
        table.sort_by(column)

    def _show_link(self) -> None:
        status = self.scene().syncer
        if not isinstance(status, SyncerStatus) or not status.join_link:
            raise UserError("Only a syncer of this machine knows the link.")
        link = fmt.clean(status.join_link, 4096)
        from tui.screens.dialogs import Page

        pieces = [link[i : i + LINK_CELLS] for i in range(0, len(link), LINK_CELLS)]
        title = f"Others join {label_of(status)} with: shoal join LINK"
        self.push_screen(Page(title, lambda: [Text(piece) for piece in pieces]))


def run(source: Source, *, is_readonly: bool = False, is_ascii: bool = False) -> int:
    """Shows the source until the viewer leaves; the exit code."""
    # Code is no garbage, and what frames are made of holds no circles: looking for some after each
    # 700 new objects, as by default, takes a tenth of the time with a thousand learners.
    gc.freeze()
    gc.set_threshold(GARBAGE_EVERY)
    app = ShoalApp(source, is_readonly=is_readonly, is_ascii=is_ascii)
    result = app.run()
    return app.return_code or result or 0
