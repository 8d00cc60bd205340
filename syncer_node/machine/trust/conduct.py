"""What the leader can say of learners that take part and give nothing, or what cannot be taken.

None of this stops them: rounds wait for nobody, and what is wrong is refused. It is for people, who
want to know who it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from protocol.log.state import SwarmState
from protocol.peers.membership import MISSES_MAX, Membership, Session

TOLD_S: Final = 60.0
"""A refusal is told for so long."""

PATIENCE_S: Final = 8.0
"""Nobody is said to give nothing before it has been here for so long."""

CYCLES_MAX: Final = 3
"""Who has taken H local steps so many times has handed something in, or holds it."""

REFUSALS: Final[Mapping[str, str]] = {
    "false-claim": "Refused, because they claim more work than they can have done",
    "malformed-payload": "Refused, because no merge could hold what they hand in",
}
UNDELIVERED: Final = "Announcing pushes that never arrive"
EMPTY_HANDED: Final = "Reporting local steps but handing in nothing"


def charges(
    members: Membership, state: SwarmState, *, local_steps: int, now_s: float
) -> dict[str, list[Session]]:
    """Who of those that are here does what, in words that a list of names completes.

    local_steps: H.
    """

    def is_empty_handed(one: Session) -> bool:
        beat = one.beat
        return (
            one.is_training
            and beat is not None
            and now_s - one.arrived_s >= PATIENCE_S
            and beat.local_step >= CYCLES_MAX * local_steps
            and max(beat.steps, default=0) < local_steps
            and not state.has_merges(one.peer)
        )

    def was_refused(reason: str, one: Session) -> bool:
        return one.wrong == reason and now_s - one.wrong_s < TOLD_S

    def is_awaited_in_vain(one: Session) -> bool:
        # One whose payload came and could not be taken is told as that.
        return one.misses >= MISSES_MAX and one.missed_s > one.wrong_s

    kinds: dict[str, Callable[[Session], bool]] = {
        words: partial(was_refused, reason) for reason, words in REFUSALS.items()
    }
    kinds |= {UNDELIVERED: is_awaited_in_vain, EMPTY_HANDED: is_empty_handed}
    here = list(members.live())
    found = {words: [one for one in here if does(one)] for words, does in kinds.items()}
    return {words: those for words, those in found.items() if those}
