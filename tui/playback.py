"""Plays a tape: at its own pace or faster, step by step, from fault to fault."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import UserError
from tui.frames import Frame
from tui.history import SAMPLES_MAX, History, Sample, sample
from tui.tape import Tape

SPEEDS = (1, 2, 5, 20, 100)
REFRESH_S = 0.1
"""Faster than this no frame is shown: at high speed frames are left out, not crowded."""

GAP_S_MAX = 5.0
"""A pause in the recording is not sat out."""


class Playback:
    """The controls of one tape, and where it stands."""

    def __init__(self, samples: list[Sample]) -> None:
        """samples: what is memorable of each frame; at least one."""
        self._samples = samples
        self._due = 0
        self.faults = _faults(samples)
        """Numbers of the frames with which something went wrong."""
        self.position = 0
        self.speed = SPEEDS[0]
        self.is_playing = True
        self.moved = asyncio.Event()
        """Set by every touch of the controls."""

    @property
    def length(self) -> int:
        """How many frames there are."""
        return len(self._samples)

    @property
    def at_s(self) -> float:
        """When the frame that is shown was recorded."""
        return self._samples[self.position].at_s

    @property
    def elapsed_s(self) -> float:
        """From the first frame to the one that is shown."""
        return self.at_s - self._samples[0].at_s

    @property
    def length_s(self) -> float:
        """From the first frame to the last."""
        return self._samples[-1].at_s - self._samples[0].at_s

    def history(self) -> History:
        """What led to the frame that is shown."""
        end = self.position + 1
        return History.of(self._samples[max(0, end - SAMPLES_MAX) : end])

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
            gap_s = self._samples[target + 1].at_s - self._samples[target].at_s
            wait_s += min(max(gap_s, 0.0), GAP_S_MAX) / self.speed
            target += 1
        self._due = target
        return wait_s

    def arrive(self) -> None:
        """The time that `advance` told is over."""
        self.position = self._due
        if self.position == self.length - 1:
            self.is_playing = False


class TapeSource:
    """The frames of a tape, as its playback shows them."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if this is no readable tape, or one without frames."""
        self._tape = Tape(path)
        if not len(self._tape):
            raise UserError(f"The tape {path} holds no frame yet.")
        samples = [sample(self._tape.frame(i)) for i in range(len(self._tape))]
        self._playback = Playback(samples)

    @property
    def playback(self) -> Playback:
        """The controls."""
        return self._playback

    async def frames(self) -> AsyncIterator[Frame]:
        """A frame whenever the position changes, and one for each touch of the controls."""
        shown: int | None = None
        while True:
            playback = self._playback
            position = playback.position
            frame = self._tape.frame(position)
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


def _faults(samples: list[Sample]) -> list[int]:
    """Frames that bring a fault, or with which a daemon falls silent."""
    found = []
    silent: frozenset[str] = frozenset()
    for number, one in enumerate(samples):
        if one.silent - silent or any(event.is_fault for event in one.events):
            found.append(number)
        silent = one.silent
    return found
