"""Whom the charter's admission rule lets in: everybody, invited keys, or listed keys.

An invite is bound to the key that brings it by a record, so that the next leader knows the key
without it. Until that record is committed the binding counts here already: two strangers in the
same moment do not share one use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from protocol import limits
from protocol.errors import RemoteError
from protocol.invites import Invite, named_project, open_invite
from protocol.log.accounts import printable
from protocol.log.records import Body, InviteUsed
from protocol.log.state import SwarmState
from protocol.messages import Envelope, Refused
from protocol.project import Charter
from syncer_node.machine.setup import SyncerSetup

ANOTHER = "ask the project's host for another link made with `shoal invite`"


@dataclass(slots=True)
class Invites:
    """One term's."""

    state: SwarmState
    propose: Callable[[Body], None]
    _binding: dict[bytes, bytes] = field(default_factory=dict)
    """Learner -> invite, proposed and not yet committed."""

    def standing_refusal(self, charter: Charter, peer: bytes) -> Refused | None:
        """Why this key may not take part as things stand, or None if it may."""
        if peer in charter.banned:
            return Refused("banned", "the project's owner has banned this key", None)
        if charter.admission == "open" or peer in charter.allowed:
            return None
        if charter.admission == "list":
            text = (
                "only keys that the project's owner listed take part in it; ask the project's host "
                f"to run `shoal project allow {peer.hex()}`"
            )
            return Refused("not-listed", text, None)
        if self._bound(peer) is not None:
            return None
        text = (
            "this project takes part by invitation; ask its host for a link made with "
            "`shoal invite`"
        )
        return Refused("not-invited", text, None)

    def refusal(
        self, setup: SyncerSetup, peer: bytes, token: Envelope | None, at_s: float
    ) -> Refused | None:
        """Why this key may not come in with this invite, or None if it may.

        at_s: wall clock, Unix seconds.
        """
        refused = self.standing_refusal(setup.charter, peer)
        if refused is None or refused.reason != "not-invited" or token is None:
            return refused
        judged = self._judge(setup, peer, token, at_s)
        return judged if isinstance(judged, Refused) else None

    def bind(self, setup: SyncerSetup, peer: bytes, token: Envelope | None, at_s: float) -> None:
        """The key came in: if a sound invite brought it, that is written down.

        In an open project too, so that the owner sees who came with it, and so that those stay who
        did when the project closes.
        """
        charter = setup.charter
        if token is None or charter.admission == "list" or peer in charter.allowed:
            return
        if self._bound(peer) is not None:
            return
        judged = self._judge(setup, peer, token, at_s)
        if isinstance(judged, Invite):
            self._binding[peer] = judged.id
            self.propose(InviteUsed(judged.id, peer))

    def on_committed(self, used: InviteUsed) -> None:
        """The state has it now."""
        self._binding.pop(used.learner, None)

    def _bound(self, peer: bytes) -> bytes | None:
        """The invite that brought this key."""
        return self.state.invited.get(peer) or self._binding.get(peer)

    def _judge(
        self, setup: SyncerSetup, peer: bytes, token: Envelope, at_s: float
    ) -> Invite | Refused:
        """The invite if it may bring this key."""
        try:
            invite = open_invite(
                token, project=setup.project, owner=setup.genesis.owner, verify=setup.verify
            )
        except RemoteError:
            if named_project(token) not in (None, setup.project):
                text = f"the invite in your link is for another project; {ANOTHER}"
                return Refused("invite-foreign", text, None)
            text = f"the invite in your link is not signed by this project's owner; {ANOTHER}"
            return Refused("invite-forged", text, None)
        called = f"the invite {printable(invite.name)}"
        if invite.id in setup.charter.revoked:
            return Refused("invite-revoked", f"{called} was revoked; {ANOTHER}", None)
        if at_s >= invite.expires_s:
            day = datetime.fromtimestamp(invite.expires_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
            return Refused("invite-expired", f"{called} expired at {day}; {ANOTHER}", None)
        if invite.key not in (None, peer):
            text = f"{called} is for another key than yours, {peer.hex()}; {ANOTHER}"
            return Refused("invite-key", text, None)
        return self._room(invite, called) or invite

    def _room(self, invite: Invite, called: str) -> Refused | None:
        """Why it can bring nobody more."""
        brought = {**self.state.invited, **self._binding}
        uses = sum(one == invite.id for one in brought.values())
        if uses >= invite.uses:
            text = f"{called} has brought all {invite.uses} that it may; {ANOTHER}"
            return Refused("invite-used-up", text, None)
        if len(brought) >= limits.INVITED_MAX:
            text = (
                f"invites have brought {limits.INVITED_MAX:,} keys, the most that a project "
                "remembers; ask the project's host to list yours with `shoal project allow`"
            )
            return Refused("invites-full", text, None)
        return None
