"""What a hostile learner says of its work, beside the payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from protocol.ids import SessionKey
from protocol.log.leases import LeaseBook, TextShape
from protocol.messages import Cursor, Heartbeat, PushHeader

Said = TypeVar("Said", PushHeader, Heartbeat)


REQUEST_BLOCKS_MAX = 4096


@dataclass(frozen=True, slots=True)
class LeasedText:
    """The text leased to a hostile learner, as its own log says."""

    leases: LeaseBook
    shape: TextShape
    session: SessionKey
    step_sequences: int

    def all_of_it(self, header: PushHeader) -> PushHeader:
        """This push with as many steps as all leased text that is not counted yet."""
        held = self.leases.held.get(self.session)
        if not held:
            return header
        end = Cursor(held[-1].stop - 1, self.shape.block_sequences)
        covered = self.leases.covered(self.session, header.fragment, end, self.shape) or 0
        steps = max(header.steps, covered // self.step_sequences)
        return structs.replace(
            header,
            steps=steps,
            tokens=steps * self.step_sequences * self.shape.sequence_tokens,
            local_step=header.local_step + steps,
            cursor=end,
        )


@dataclass(frozen=True, slots=True)
class Claims:
    """How many times the truth it claims; 1 is the truth."""

    tokens: int = 1
    """Tokens of a push, for the same steps."""
    steps: int = 1
    """Local steps of a push, and the tokens of so many steps."""
    speed: int = 1
    """Local steps in heartbeats, in which a step takes as much less time."""
    hands_in: bool = True
    """Otherwise it never answers a pull."""
    all_text: bool = False
    """It asks for text all the time, and claims with each push that it has read all it has."""

    def header(self, header: PushHeader, text: LeasedText) -> PushHeader:
        """What it signs in place of the true one."""
        if self.all_text:
            return text.all_of_it(header)
        return structs.replace(
            header,
            steps=self.steps * header.steps,
            tokens=self.steps * self.tokens * header.tokens,
            local_step=self.steps * header.local_step,
        )

    def heartbeat(self, beat: Heartbeat) -> Heartbeat:
        """What it says of itself in place of the truth."""
        return structs.replace(
            beat,
            local_step=self.speed * beat.local_step,
            tokens=self.speed * beat.tokens,
            step_s=beat.step_s / self.speed,
            steps=tuple(self.speed * steps for steps in beat.steps),
        )


TRUTH = Claims()
