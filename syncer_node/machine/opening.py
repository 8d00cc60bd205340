"""Which round opens next: that of the fragment whose turn it is, once the pace allows it.

While nobody trains no round is due, however long one waits. Learners that are about to leave would
then take with them what they did; for them rounds open at once, of every fragment on which they
have local steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syncer_node.machine.asking import busy, can_ask, has_given

if TYPE_CHECKING:
    from syncer_node.machine.rounds import Rounds

LEAVING_EVERY_S = 2.0
"""Rounds of one fragment for those who leave come no more often: one that they answered left them
nothing on it, and one that they declined is not asked for again at once."""


def next_to_open(rounds: Rounds, now_s: float) -> int | None:
    """The fragment whose round opens now; None for none."""
    if len(rounds.rounds) >= rounds.spec.overlap_steps:
        return None
    coming = rounds.coming()
    if not coming:
        return None
    training = rounds.members.training()
    if not training:
        fragment = _of_those_who_leave(rounds, coming, now_s)
        if fragment is not None:
            return fragment
    fragment = coming[0]
    version = rounds.state.fragments[fragment].version
    if not rounds.pace.may_open(fragment, version, training, now_s):
        return None
    taken = busy(rounds, now_s)
    if any(can_ask(rounds, session, fragment, version, taken) for session in training):
        return fragment
    # Nobody can be asked. If all that there is was here too late for its round, a round of that
    # alone must open: nobody else would ever open one. Else some are busy, and soon are not.
    is_all_here = all(has_given(rounds, session, fragment) for session in training)
    return fragment if training and is_all_here else None


def _of_those_who_leave(rounds: Rounds, coming: list[int], now_s: float) -> int | None:
    """The first fragment on which somebody who leaves has local steps, or has given some late."""
    leaving, opened_s = rounds.members.leaving(), rounds.pace.leaving_opened_s
    taken = busy(rounds, now_s) if leaving else set()
    for fragment in coming:
        version = rounds.state.fragments[fragment].version
        is_due = now_s >= opened_s.get(fragment, -LEAVING_EVERY_S) + LEAVING_EVERY_S
        if is_due and any(
            can_ask(rounds, one, fragment, version, taken) or has_given(rounds, one, fragment)
            for one in leaving
        ):
            opened_s[fragment] = now_s
            return fragment
    return None
