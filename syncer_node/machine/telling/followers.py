"""Learners that follow the log: some are told all of it, the others in brief.

What is told to everybody is told as often as there are learners, and what each of them causes is
told to all: that would be a line full of records with a few thousand. So beyond a few whole logs,
which are what an owner can go on from when no syncer's disk is left, a learner is told who is here,
what was merged, and what concerns itself.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.effect_queue import EffectQueue
from protocol.log.leases import LeaseBook, total
from protocol.log.records import (
    AccountsNoted,
    BlocksLeased,
    Body,
    FragmentMerged,
    InviteUsed,
    PushProbed,
    TokensGivenBack,
    TokensTakenBack,
    told_in_brief,
)
from protocol.log.state import SwarmState
from protocol.messages import CertifiedRecord, Committed, Hello
from protocol.peers.membership import Membership, Session
from syncer_node.machine.telling.recent_entries import RecentEntries

WHOLE_LOGS = 16
"""So many learners are told everything, if there are as many."""

WHOLE_LOGS_MAX = 32
"""So many may go on so: after a change of leaders all come back at once, in any order."""

SETTLED_S = 60.0
"""A leader waits so long for whole logs to come back before others begin one."""


class Followers:
    """One term's."""

    def __init__(
        self, effects: EffectQueue, state: SwarmState, members: Membership, recent: RecentEntries
    ) -> None:
        self._effects = effects
        self._state = state
        self._members = members
        self._recent = recent
        self._whole: set[bytes] | None = None
        """Who was told everything when that was asked last; None before it was."""

    def tell(self, entry: CertifiedRecord, body: Body) -> bool:
        """A record is committed and applied to the state: everybody whom it concerns hears of it.

        Whether that is everybody who is here. Those that hear the same hear it one after the other,
        so that it is encoded once.
        """
        contributors: Collection[bytes] = ()
        only = concerned(body, self._state.leases, self._state.block_sequences)
        if isinstance(body, FragmentMerged):
            contributors = frozenset(part.learner for part in body.contributions)
        whole, brief = Committed((entry,)), Committed((told_in_brief(entry),))
        in_brief, is_for_all = [], True
        for session in self._members.live():
            if session.is_brief:
                if only is not None and session.peer not in only:
                    is_for_all = False
                    continue
                if contributors and session.peer not in contributors:
                    in_brief.append(session)
                    continue
            self._send(session, whole)
        for session in in_brief:
            self._send(session, brief)
        return is_for_all

    def bring_up(self, session: Session) -> None:
        """Where its log stands must be where ours does: for what is about this very record."""
        newest = self._recent.newest
        if session.is_brief and session.told_index < self._state.index and newest is not None:
            self._send(session, Committed((newest,)))

    def _send(self, session: Session, message: Committed) -> None:
        session.told_index = self._state.index
        self._effects.send(session.peer, message)

    # Who comes.

    def missed(self, peer: bytes, hello: Hello, led_s: float) -> tuple[CertifiedRecord, ...] | None:
        """The entries behind those that a learner has; None if it begins with an index.

        led_s: for how long this host has led. Where whole logs are few, one that followed in brief
        begins one, with an index.
        """
        if hello.follows != "brief":
            return self._recent.continuation(hello)
        if led_s >= SETTLED_S and len(self._whole_logs() - {peer}) < WHOLE_LOGS:
            return None
        return self._recent.continuation(hello, in_brief_for=peer)

    def admit(self, session: Session, hello: Hello, *, is_anew: bool) -> None:
        """How a learner follows from here on. is_anew: it begins with an index."""
        others = len(self._whole_logs() - {session.peer})
        has_room = others < (WHOLE_LOGS if is_anew else WHOLE_LOGS_MAX)
        is_whole = has_room and (is_anew or hello.follows == "whole")
        session.is_brief = hello.follows is not None and not is_whole
        session.told_index = self._state.index
        if not session.is_brief:
            self._whole_logs().add(session.peer)

    def _whole_logs(self) -> set[bytes]:
        """Who is here and told everything: found among those that were, not among thousands."""
        known = self._members.sessions
        among = self._whole if self._whole is not None else set(known)
        self._whole = {
            peer
            for peer in among
            if peer in known and known[peer].is_connected and not known[peer].is_brief
        }
        return self._whole


def concerned(body: Body, leases: LeaseBook, block_sequences: int) -> Collection[bytes] | None:
    """Of those that follow in brief, whom a record concerns; None for all of them.

    leases: behind the record. That a learner came, by its first lease, concerns all: whom it asks
    for payloads, each finds among those that are here.
    """
    match body:
        case BlocksLeased(learner, incarnation, spans):
            granted = leases.granted.get((learner, incarnation))
            is_first = granted is None or granted == total(spans, block_sequences)
            return None if is_first else (learner,)
        case PushProbed(learner) | TokensTakenBack(learner) | TokensGivenBack(learner):
            return (learner,)
        case InviteUsed(_, learner):
            return (learner,)
        case AccountsNoted(names, refusals):
            return frozenset([*(one.learner for one in names), *(one.learner for one in refusals)])
    return None
