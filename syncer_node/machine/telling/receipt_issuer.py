"""Receipts that a leader hands out: when, to whom, and what is in them.

A contributor hears of its first merge at once, of later ones now and then, and of each while it
finishes: what a host that is switched off has no receipt for yet is what was merged since the last.
That is in the log all the same, and in the next receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol.effect_queue import EffectQueue
from protocol.log.receipts import Credit, sign_credit
from protocol.log.records import FragmentMerged
from protocol.log.state import SwarmState
from protocol.messages import Receipt
from protocol.peers.membership import Membership, Session
from syncer_node.machine.setup import SyncerSetup

EVERY_S = 30.0
"""No contributor that goes on gets receipts more often."""


DEPARTED_MAX = 64
"""Of so many that have no session any more it is remembered what they were told."""


class Receipts:
    """One term's. Every receipt goes out before the record that it is about.

    So it is there when a learner reads in that record that it is free to go, and waits there until
    the log has come so far.
    """

    def __init__(
        self,
        effects: EffectQueue,
        state: SwarmState,
        members: Membership,
        bring_up: Callable[[Session], None],
    ) -> None:
        """bring_up: tell a learner the record at which the state stands, if it was not."""
        self._effects = effects
        self._bring_up = bring_up
        self._state = state
        self._members = members
        self._told: dict[bytes, tuple[int, float, int]] = {}
        """Incarnation, time and merges of the last receipt of each contributor."""

    def on_merged(self, merged: FragmentMerged, setup: SyncerSetup, now_s: float) -> None:
        """A merge is committed and applied to the state."""
        for part in merged.contributions:
            session = self._members.sessions.get(part.learner)
            if session is None or not session.is_connected:
                continue
            told = self._told.get(part.learner)
            is_new = told is None or told[0] != session.incarnation
            is_leaving = session.beat is not None and session.beat.state == "finishing"
            if is_new or is_leaving or (told is not None and now_s - told[1] >= EVERY_S):
                self._hand_out(session, setup, now_s)

    def on_leaving(self, session: Session, setup: SyncerSetup, now_s: float) -> None:
        """A contributor says that it leaves soon: it should have a receipt for all so far."""
        self._hand_out_to((session,), setup, now_s)
        self._bring_up(session)

    def on_ended(self, setup: SyncerSetup, now_s: float) -> None:
        """The run is over: everybody who is here gets the last word."""
        self._hand_out_to(self._members.live(), setup, now_s)

    def on_welcome(self, session: Session, setup: SyncerSetup, now_s: float) -> None:
        """A contributor is (back) here; perhaps it left before its last receipt."""
        self._told.pop(session.peer, None)
        self._hand_out_to((session,), setup, now_s)

    def _hand_out_to(self, sessions: Iterable[Session], setup: SyncerSetup, now_s: float) -> None:
        for session in sessions:
            account = self._state.accounts.get(session.peer)
            told = self._told.get(session.peer)
            known = told[2] if told is not None and told[0] == session.incarnation else 0
            if account is not None and account.merges != known:
                self._hand_out(session, setup, now_s)

    def _forget_departed(self) -> None:
        """A leader leads for months; who has no session is welcomed anew."""
        sessions = self._members.sessions
        if len(self._told) > 2 * len(sessions) + DEPARTED_MAX:
            self._told = {peer: one for peer, one in self._told.items() if peer in sessions}

    def _hand_out(self, session: Session, setup: SyncerSetup, now_s: float) -> None:
        state, account = self._state, self._state.accounts[session.peer]
        self._told[session.peer] = (session.incarnation, now_s, account.merges)
        self._forget_departed()
        credit = Credit(
            project=setup.project,
            epoch=state.epoch,
            term=state.term,
            index=state.index,
            head=state.head,
            revision=state.charter_revision if state.charter else setup.charter.revision,
            learner=session.peer,
            name=session.name,
            merges=account.merges,
            tokens=account.tokens,
            clipped=account.clipped,
            at_s=max(0.0, now_s + setup.wall_offset_s),
        )
        self._effects.send(session.peer, Receipt(sign_credit(credit, setup.signer)))
