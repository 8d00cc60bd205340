"""What the model writes now and then, for the owner of this machine to look at.

It is drawn from the newest global weights by the trainer, between two local steps, which wait for
it. Off unless the owner of the machine wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from host.files.local_settings import LearnerSettings
from protocol.errors import TransientError
from protocol.status import SampleStatus

EVERY_S_MIN: Final = 10.0
"""Oftener it would show in the speed of training."""

TOKENS: Final = 60
LOOK_S: Final = 1.0
TEXT_CHARS_MAX: Final = 2000


class Sampler:
    """Asks for a sample on a schedule and keeps the newest."""

    def __init__(
        self,
        wanted: LearnerSettings,
        draw: Callable[[str, int], Awaitable[str]],
        global_step: Callable[[], int],
        is_training: Callable[[], bool],
    ) -> None:
        """draw: raises TransientError while there is no trainer."""
        self._prompt = wanted.sample_prompt
        self._every_s = max(EVERY_S_MIN, wanted.sample_every_s) if wanted.sample_every_s else None
        self._draw, self._global_step, self._is_training = draw, global_step, is_training
        self.newest: SampleStatus | None = None

    async def run(self) -> None:
        """Samples until it is cancelled; at once where nobody wants any."""
        if self._every_s is None:
            return
        while True:
            is_drawn = await self.sample()
            await asyncio.sleep(self._every_s if is_drawn else LOOK_S)

    async def sample(self) -> bool:
        """Draws one, if the trainer is at work; whether it did."""
        if not self._is_training():
            return False
        step = self._global_step()
        try:
            text = await self._draw(self._prompt, TOKENS)
        except TransientError:
            return False  # It ends or rests just now; later is early enough.
        if text:  # Training code of somebody's own may write nothing.
            self.newest = SampleStatus(self._prompt, text[:TEXT_CHARS_MAX], step, time.time())
        return True
