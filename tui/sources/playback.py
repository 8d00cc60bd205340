"""Plays a recording: at its own pace or faster, step by step, from fault to fault."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from protocol.errors import UserError
from tui.frames.frame import Attached, Frame
from tui.frames.history import SAMPLES_MAX, History, Sample, sample
from tui.sources.recording import Recording

SPEEDS = (1, 2, 5, 20, 100)
REFRESH_S = 0.1
"""Faster than this no frame is shown: at high speed frames are left out, not crowded."""

GAP_S_MAX = 5.0
"""A longer pause in the recording is cut to this."""

HISTORY_BYTES_MAX = 48 << 20
"""At most so much of the recording is read to show what led to a frame that was jumped to."""

SAMPLES_KEPT_MAX = 3 * SAMPLES_MAX
SCAN_FIRST_S = 0.1
"""A recording of minutes is searched for faults at once, a longer one while it is watched."""

SCAN_BATCH = 64
SCAN_REST_S = 0.004
"""The search leaves time for the screen."""


class _Mark(Struct, kw_only=True):
    """What the search for faults reads of an event."""

    is_fault: bool = False


class _Glance(Struct, kw_only=True):
    """What the search for faults reads of a frame; nothing else of it is decoded."""

    at_s: float
    events: tuple[_Mark, ...] = ()
    daemons: tuple[Attached, ...] = ()


class Playback:
    """The controls of one recording, and where it stands."""

    def __init__(self, recording: Recording) -> None:
        """recording: of at least one frame."""
        self._recording = recording
        self._sample = lru_cache(SAMPLES_KEPT_MAX)(self._read_sample)
        self._read_bytes = 0
        self._silent: frozenset[str] = frozenset()
        self.faults: list[int] = []
        """Numbers of the frames that bring a fault, or with which a daemon falls silent, among
        those searched so far."""
        self.searched = 0
        self.position = 0
        self.speed = SPEEDS[0]
        self.is_playing = True
        self.moved = asyncio.Event()
        """Set by every touch of the controls."""

    @property
    def length(self) -> int:
        """How many frames there are."""
        return len(self._recording)

    @property
    def elapsed_s(self) -> float:
        """From the first frame to the one that is shown."""
        return self._recording.times_s[self.position] - self._recording.times_s[0]

    @property
    def length_s(self) -> float:
        """From the first frame to the last."""
        return self._recording.times_s[-1] - self._recording.times_s[0]

    @property
    def is_searched(self) -> bool:
        """Whether all faults are known."""
        return self.searched >= self.length

    def search(self) -> None:
        """Looks for faults in the next few frames. For any one thread."""
        end = min(self.searched + SCAN_BATCH, self.length)
        for number in range(self.searched, end):
            try:
                glance = self._recording.decode(number, _Glance)
            except UserError:
                continue  # the error shows when the frame is played
            silent = frozenset(
                one.label
                for one in glance.daemons
                if one.silent_s(glance.at_s) is not None and not one.period_s
            )
            if silent - self._silent or any(event.is_fault for event in glance.events):
                self.faults.append(number)
            self._silent = silent
        self.searched = end

    def history(self) -> History:
        """What led to the frame that is shown, as far back as screens look and reading is quick."""
        samples: list[Sample] = []
        self._read_bytes = 0
        for number in range(self.position, max(self.position - SAMPLES_MAX, -1), -1):
            try:
                samples.append(self._sample(number))
            except UserError:
                break  # damaged: what lies before is not of the same story
            if self._read_bytes > HISTORY_BYTES_MAX:
                break
        return History.of(reversed(samples))

    def _read_sample(self, number: int) -> Sample:
        self._read_bytes += self._recording.size(number)
        return sample(self._recording.frame(number))

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

    def next_due(self) -> tuple[int, float]:
        """The frame to show next, and the seconds until then."""
        times_s, wait_s, target = self._recording.times_s, 0.0, self.position
        while target < self.length - 1 and wait_s < REFRESH_S:
            gap_s = times_s[target + 1] - times_s[target]
            wait_s += min(max(gap_s, 0.0), GAP_S_MAX) / self.speed
            target += 1
        return target, wait_s

    def arrive(self, position: int) -> None:
        """The wait for this frame is over."""
        self.position = position
        self.is_playing = position < self.length - 1


class PlaybackSource:
    """The frames of a recording, as its playback shows them."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if this is no readable recording, or one without frames."""
        self._recording = Recording(path)
        if not len(self._recording):
            raise UserError(f"The recording {path} holds no frame yet.")
        self.playback = Playback(self._recording)
        ends_s = time.monotonic() + SCAN_FIRST_S
        while not self.playback.is_searched and time.monotonic() < ends_s:
            self.playback.search()

    async def frames(self) -> AsyncIterator[Frame]:
        """A frame whenever the position changes, and one for each touch of the controls."""
        searching = asyncio.create_task(self._search(), name="faults of the recording")
        try:
            async for frame in self._frames():
                yield frame
        finally:
            searching.cancel()

    async def _search(self) -> None:
        playback = self.playback
        while not playback.is_searched:
            await asyncio.to_thread(playback.search)
            await asyncio.sleep(SCAN_REST_S)
        if not playback.is_playing:
            playback.moved.set()  # so that the bar shows what was found

    async def _frames(self) -> AsyncIterator[Frame]:
        playback = self.playback
        shown: int | None = None
        frame: Frame | None = None
        while True:
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
            due, wait_s = playback.next_due()
            try:
                async with asyncio.timeout(wait_s):
                    await playback.moved.wait()
            except TimeoutError:
                playback.arrive(due)

    async def command(self, verb: str, target: str, **fields: Any) -> str:
        """A recording takes no commands: always raises UserError."""
        raise UserError(f"This is a recording: {target} cannot {verb}.")
