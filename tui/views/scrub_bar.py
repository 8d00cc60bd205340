"""The place on a recording, and what is played."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.widget import Widget

from tui.messages import Sought
from tui.sources.playback import Playback
from tui.text import fmt, layout
from tui.text.paint import Paint


def scrub(playback: Playback, width: int, paint: Paint) -> tuple[Text, int, int]:
    """The bar of a recording: what it does, how fast, where; and its track's start and end."""
    text = Text(no_wrap=True)
    text.append("playing" if playback.is_playing else "paused ", style=paint.accent)
    text.append(f" x{playback.speed} ")
    clock = f" {_clock(playback.elapsed_s)} of {_clock(playback.length_s)} "
    count = f" frame {playback.position + 1:,} of {playback.length:,}"
    count += f", {fmt.plural(len(playback.faults), 'fault')}"
    count += "" if playback.is_searched else " so far"
    text.append(clock)
    track = max(width - text.cell_len - len(count) - 1, 8)
    start = text.cell_len
    last = max(playback.length - 1, 1)
    here = playback.position * (track - 1) // last
    faults = {number * (track - 1) // last for number in playback.faults}
    for cell in range(track):
        if cell == here:
            text.append("●", style=paint.accent)
        elif cell in faults:
            text.append("!", style=paint.bad)
        else:
            text.append("━" if cell < here else "─", style=paint.quiet)
    text.append(count, style=paint.quiet)
    return layout.fit(text, width), start, start + track


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{hours}:{minutes}" if hours else minutes


class ScrubBar(Widget):
    """Shows the place on a recording; a click goes there."""

    def __init__(self, playback: Playback) -> None:
        super().__init__(id="scrub")
        self._playback = playback
        self._paint = Paint()
        self._track = (0, 1)

    def show(self, paint: Paint) -> None:
        """Draws where the recording is now."""
        self._paint = paint
        self.refresh()

    def render(self) -> Text:
        text, start, end = scrub(self._playback, self.size.width, self._paint)
        self._track = (start, end)
        return text

    def on_click(self, event: events.Click) -> None:
        """Asks for the place under the mouse."""
        start, end = self._track
        if start <= event.x < end:
            self.post_message(Sought((event.x - start) / max(end - start - 1, 1)))
