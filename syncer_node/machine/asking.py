"""Whom a round may ask: learners with something to give whom no other round waits for.

With hundreds of learners nearly all of them are busy most of the time, and a syncer looks often. So
who is busy is found once for a look, not once for each learner and round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.peers.membership import Session
from protocol.rounds import PullState

if TYPE_CHECKING:
    from syncer_node.machine.rounds import Rounds


def busy(rounds: Rounds, now_s: float) -> set[bytes]:
    """Learners from whom a push is on its way, or was asked for."""
    found: set[bytes] = set()
    for current in rounds.rounds.values():
        if current.is_collecting:
            found.update(current.pending(now_s))
    timeout_s = rounds.spec.pull_timeout_s
    late = rounds.stragglers.items()
    found.update(peer for (_, peer), one in late if one.is_pending(now_s, timeout_s))
    return found


def can_ask(
    rounds: Rounds, session: Session, fragment: int, version: int, taken: set[bytes]
) -> bool:
    """Whether a pull would bring something. taken: who is `busy`."""
    if session.peer in taken or (fragment, session.peer) in rounds.stragglers:
        return False
    return session.can_push(fragment, version)


def has_given(rounds: Rounds, session: Session, fragment: int) -> bool:
    """Whether its push for this fragment is here, too late for the round that asked for it."""
    ticket = rounds.stragglers.get((fragment, session.peer))
    return ticket is not None and ticket.state is PullState.ARRIVED
