"""The keys of a recording: play, step, speed, from fault to fault."""

from __future__ import annotations

from textual.app import App
from textual.binding import Binding, BindingType

from tui.frames.sources import Source
from tui.messages import Sought

RECORDING_ACTIONS = ("play", "step", "speed", "seek_end", "fault")

RECORDING_BINDINGS: list[BindingType] = [
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


class RecordingApp(App[int]):
    """An app that has these keys if its source is a recording."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        if source.playback is not None:
            # Only here, so that neither footer nor help names keys that do nothing.
            for binding in RECORDING_BINDINGS:
                assert isinstance(binding, Binding)
                self._bindings.key_to_bindings.setdefault(binding.key, []).insert(0, binding)

    def action_play(self) -> None:
        """Plays or pauses."""
        if self.source.playback is not None:
            self.source.playback.toggle()

    def action_step(self, frames: int) -> None:
        """Goes a few frames on or back."""
        if self.source.playback is not None:
            self.source.playback.step(frames)

    def action_speed(self, direction: int) -> None:
        """Plays faster or slower."""
        if self.source.playback is not None:
            self.source.playback.change_speed(direction)

    def action_seek_end(self, is_end: int) -> None:
        """Goes to the start or to the end."""
        if self.source.playback is not None:
            self.source.playback.seek(self.source.playback.length - 1 if is_end else 0)

    def action_fault(self, direction: int) -> None:
        """Goes to where something went wrong."""
        if self.source.playback is not None and not self.source.playback.find_fault(direction):
            self.notify("No fault after this." if direction > 0 else "No fault before this.")

    def on_sought(self, message: Sought) -> None:
        """A click on the track."""
        if self.source.playback is not None:
            self.source.playback.seek(round(message.share * (self.source.playback.length - 1)))
