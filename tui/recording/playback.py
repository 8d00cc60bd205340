"""Plays a recording: at its own pace or faster, step by step, from fault to fault."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from protocol.errors import UserError
from tui.frames.frame import Attached, Frame
from tui.frames.history import SAMPLES_MAX, History, Sample, sample
from tui.recording.files import Recording

SPEEDS = (1, 2, 5, 20, 100)
REFRESH_S = 0.1
"""Faster than this no frame is shown: at high speed frames are left out, not crowded."""

GAP_S_MAX = 5.0
"""A pause in the recording is not sat out."""


HISTORY_BYTES_MAX = 48 << 20
"""So much of the recording is read, at most, to tell what led to a frame that was jumped to."""

SCAN_FIRST_S = 0.1
"""A recording of minutes is searched for faults at once, a longer one while it is watched."""

KEPT_MAX = 3 * SAMPLES_MAX
SCAN_BATCH = 64
SCAN_REST_S = 0.004
"""The search leaves time for the screen."""


class Mark(Struct, kw_only=True):
    """What the search for faults looks at in an event."""

    is_fault: bool = False


class Glance(Struct, kw_only=True):
    """What the search for faults looks at in a frame; nothing else of it is decoded."""

    at_s: float
    events: tuple[Mark, ...] = ()
    daemons: tuple[Attached, ...] = ()


class FaultScan:
    """Finds the frames that bring a fault, or with which a daemon falls silent, in order."""

    def __init__(self, recording: Recording) -> None:
        self.faults: list[int] = []
        """Numbers of frames; grows while the search goes on."""
        self.is_done = False
        self.trouble = ""
        """Why it ended early."""
        self._recording = recording
        self._next = 0
        self._silent: frozenset[str] = frozenset()

    def go_on(self, frames: int) -> None:
        """Looks at so many frames more."""
        end = min(self._next + frames, len(self._recording))
        try:
            for number in range(self._next, end):
                self._look(number)
        except UserError as error:
            self.trouble = str(error)
            self.is_done = True
        self._next = end
        self.is_done = self.is_done or end == len(self._recording)

    def _look(self, number: int) -> None:
        glance = self._recording.decode(number, Glance)
        silent = frozenset(
            one.label for one in glance.daemons if one.silent_s(glance.at_s) is not None
        )
        if silent - self._silent or any(event.is_fault for event in glance.events):
            self.faults.append(number)
        self._silent = silent


class Reel:
    """The memorable part of each frame, decoded when asked for; those nearby are kept."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._kept: dict[int, Sample] = {}

    def history(self, position: int) -> History:
        """What led to this frame, as far back as the screens look and reading is quick."""
        samples: list[Sample] = []
        read_bytes = 0
        for number in range(position, max(position - SAMPLES_MAX, -1), -1):
            if number not in self._kept:
                read_bytes += self._recording.places[number].size
                if read_bytes > HISTORY_BYTES_MAX and samples:
                    break
            try:
                samples.append(self._sample(number))
            except UserError:
                break  # damaged: what lies before is not of the same story
        if len(self._kept) > KEPT_MAX:
            near = range(position - SAMPLES_MAX, position + SAMPLES_MAX)
            self._kept = {number: one for number, one in self._kept.items() if number in near}
        return History.of(reversed(samples))

    def _sample(self, number: int) -> Sample:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = sample(self._recording.frame(number))
        return kept


class Playback:
    """The controls of one recording, and where it stands."""

    def __init__(self, recording: Recording) -> None:
        """recording: of at least one frame."""
        self._places = recording.places
        self._reel = Reel(recording)
        self._due = 0
        self.scan = FaultScan(recording)
        self.position = 0
        self.speed = SPEEDS[0]
        self.is_playing = True
        self.moved = asyncio.Event()
        """Set by every touch of the controls."""

    @property
    def faults(self) -> list[int]:
        """Numbers of the frames with which something went wrong, as far as was searched."""
        return self.scan.faults

    @property
    def length(self) -> int:
        """How many frames there are."""
        return len(self._places)

    def _at_s(self, number: int) -> float:
        return self._places[number].at_s

    @property
    def elapsed_s(self) -> float:
        """From the first frame to the one that is shown."""
        return self._at_s(self.position) - self._at_s(0)

    @property
    def length_s(self) -> float:
        """From the first frame to the last."""
        return self._at_s(self.length - 1) - self._at_s(0)

    def history(self) -> History:
        """What led to the frame that is shown."""
        return self._reel.history(self.position)

    def toggle(self) -> None:
        """Plays or pauses; at the end it plays from the beginning."""
        self.is_playing = not self.is_playing
        if self.is_playing and self.position == self.length - 1:
            self.position = 0
        self.moved.set()

    def seek(self, position: int) -> None:
        """Shows the frame at this place, or the nearest that there is, and stays there."""
        self.position = min(max(position, 0), self.length - 1)
        self.is_playing = False
        self.moved.set()

    def step(self, frames: int) -> None:
        """So many frames on, or back."""
        self.seek(self.position + frames)

    def change_speed(self, direction: int) -> None:
        """The next faster or slower speed that there is."""
        place = SPEEDS.index(self.speed) + direction
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self.moved.set()

    def find_fault(self, direction: int) -> bool:
        """Goes to the next or previous fault; whether there is one."""
        if direction > 0:
            place = bisect.bisect_right(self.faults, self.position)
        else:
            place = bisect.bisect_left(self.faults, self.position) - 1
        if not 0 <= place < len(self.faults):
            return False
        self.seek(self.faults[place])
        return True

    def advance(self) -> float:
        """Goes on to the frame that is due next; the seconds until it is, after `speed`."""
        wait_s = 0.0
        target = self.position
        while target < self.length - 1 and wait_s < REFRESH_S:
            gap_s = self._at_s(target + 1) - self._at_s(target)
            wait_s += min(max(gap_s, 0.0), GAP_S_MAX) / self.speed
            target += 1
        self._due = target
        return wait_s

    def arrive(self) -> None:
        """The time that `advance` told is over."""
        self.position = self._due
        if self.position == self.length - 1:
            self.is_playing = False


class PlaybackSource:
    """The frames of a recording, as its playback shows them."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if this is no readable recording, or one without frames."""
        self._recording = Recording(path)
        if not len(self._recording):
            raise UserError(f"The recording {path} holds no frame yet.")
        self._playback = Playback(self._recording)
        ends_s = time.monotonic() + SCAN_FIRST_S
        while not self._playback.scan.is_done and time.monotonic() < ends_s:
            self._playback.scan.go_on(SCAN_BATCH)

    @property
    def playback(self) -> Playback:
        """The controls."""
        return self._playback

    async def frames(self) -> AsyncIterator[Frame]:
        """A frame whenever the position changes, and one for each touch of the controls."""
        searching = asyncio.create_task(self._search(), name="faults of the recording")
        try:
            async for frame in self._frames():
                yield frame
        finally:
            searching.cancel()

    async def _search(self) -> None:
        scan = self._playback.scan
        while not scan.is_done:
            await asyncio.to_thread(scan.go_on, SCAN_BATCH)
            await asyncio.sleep(SCAN_REST_S)
        if not self._playback.is_playing:
            self._playback.moved.set()  # so that the bar shows what was found

    async def _frames(self) -> AsyncIterator[Frame]:
        shown: int | None = None
        frame: Frame | None = None
        while True:
            playback = self._playback
            position = playback.position
            try:
                frame = self._recording.frame(position)
            except UserError as error:
                if frame is None:
                    raise
                frame = msgspec.structs.replace(frame, notice=str(error), events=())
            is_jump = shown is None or position != shown + 1
            shown = position
            yield msgspec.structs.replace(frame, is_jump=is_jump)
            playback.moved.clear()
            if playback.position != position:
                continue
            if not playback.is_playing:
                await playback.moved.wait()
                continue
            try:
                async with asyncio.timeout(playback.advance()):
                    await playback.moved.wait()
            except TimeoutError:
                playback.arrive()

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        """A recording takes no commands: always raises UserError."""
        raise UserError(f"This is a recording: {target} cannot be told to {verb}.")
