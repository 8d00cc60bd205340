"""What follows from the owner's settings and one look at the machine. No clock, no sensors, no IO.

Puts together the governor (whether to train), the throttle (how much), and the ceilings on memory
and files, which can only be watched: what is over one of them stops training, in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from host.files.local_settings import Settings
from node.governor.budget import Allowance, Throttle, allowance
from node.governor.governor import Governor, Ruling, rules_of
from node.governor.sensors import Look

SETTLE_S: Final = 15.0
"""A trainer with a smaller micro-batch gets so long to show what it takes."""

RAM_WARN_FRAC: Final = 0.95
"""Action is taken at this share of a memory ceiling, before it is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """What is known of the trainer."""

    device: str = ""
    """Empty before the first start."""
    pid: int | None = None
    micro_batch: int | None = None
    is_stepping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What holds until the next look."""

    ruling: Ruling
    duty_frac: float
    allowed: Allowance
    wants_smaller: str = ""
    """Why the trainer must make do with a smaller micro-batch, once; empty if it need not."""


class Policy:
    """Decides for one learner."""

    def __init__(self, settings: Settings, *, cores: int) -> None:
        self.settings = settings
        self.throttle = Throttle(cores)
        self._governor = Governor(rules_of(settings, ""))
        self._too_big = ""
        self._settled_s = 0.0

    def change(self, settings: Settings) -> None:
        """The owner decided anew."""
        if settings.limits.ram_bytes_max != self.settings.limits.ram_bytes_max:
            self._too_big = ""
        self.settings = settings

    @property
    def wants_owner(self) -> bool:
        """Whether anything depends on somebody's using the machine."""
        rules = self._governor.rules
        return rules.mode == "idle" or rules.has_less_beside

    def decide(self, look: Look, trainer: TrainerFacts, disk_bytes: int) -> Decision:
        """disk_bytes: what Shoal's files take."""
        device = trainer.device or self.settings.learner.device or ""
        self._governor.change(rules_of(self.settings, device))
        ruling = self._governor.look(look.reading, look.at_s)
        wants_smaller = self._memory(look, trainer)
        reasons = [words for words in (self._too_big, self._disk(disk_bytes)) if words]
        if reasons:
            ruling = Ruling("none", (*(ruling.reasons if ruling.is_paused else ()), *reasons))
        allowed = allowance(self.settings, ruling.share)
        is_accelerated = device.partition(":")[0] not in ("", "cpu")
        duty = self.throttle.look(look.own, look.at_s, allowed, is_accelerated=is_accelerated)
        return Decision(ruling=ruling, duty_frac=duty, allowed=allowed, wants_smaller=wants_smaller)

    def _memory(self, look: Look, trainer: TrainerFacts) -> str:
        """Why a smaller micro-batch is due; where there is none, remembers that it cannot fit."""
        ceiling, used = self.settings.limits.ram_bytes_max, look.own.memory_bytes
        if not trainer.is_stepping or look.at_s < self._settled_s:
            return ""
        if ceiling is None or used <= RAM_WARN_FRAC * ceiling:
            return ""
        words = f"it takes {gib(used)} GiB of memory and limits.ram_bytes_max is {gib(ceiling)} GiB"
        if (trainer.micro_batch or 1) > 1:
            self._settled_s = look.at_s + SETTLE_S
            return words
        enough = gib(int(used / RAM_WARN_FRAC))
        self._too_big = f"{words}, where {enough} GiB would be enough"
        return ""

    def _disk(self, used: int) -> str:
        ceiling = self.settings.limits.disk_bytes_max
        if ceiling is None or used <= ceiling:
            return ""
        return f"its files take {gib(used)} GiB and limits.disk_bytes_max is {gib(ceiling)} GiB"


def gib(count: int) -> str:
    """An amount in GiB, with as many digits as matter."""
    return f"{count / 2**30:.2f}"
