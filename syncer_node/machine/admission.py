"""Who may open a session, and what is said to those who may not."""

from __future__ import annotations

from protocol import limits
from protocol.log.state import SwarmState
from protocol.messages import Hello, Refused
from protocol.peers.membership import Membership
from syncer_node.machine.setup import SyncerSetup

NOT_READY_RETRY_S = 2.0
FULL_RETRY_S = 60.0


def refusal(
    setup: SyncerSetup, members: Membership, peer: bytes, hello: Hello, state: SwarmState
) -> Refused | None:
    """Why this session is not admitted, or None if it is.

    A refusal without `retry_after_s` is final: trying again would change nothing.
    """
    charter = setup.charter
    if hello.wire_version != limits.WIRE_VERSION:
        text = (
            f"this swarm speaks wire version {limits.WIRE_VERSION}, you speak "
            f"{hello.wire_version}: install the shoal release that matches"
        )
        return Refused("wire-version", text, None)
    if hello.project != setup.project:
        return Refused("wrong-project", "this syncer serves another project", None)
    if hello.layout != setup.layout_digest:
        return Refused(
            "wrong-layout", "your release divides the model differently: update shoal", None
        )
    if peer in charter.banned:
        return Refused("banned", "the project's owner has banned this key", None)
    known = members.sessions.get(peer)
    if known is not None and known.incarnation > hello.incarnation:
        text = "a newer session with this key is open: is the key used on two hosts?"
        return Refused("stale-incarnation", text, None)
    if known is None and sum(1 for _ in members.live()) >= charter.limits.learners:
        return Refused("full", "the project accepts no more learners", FULL_RETRY_S)
    if state.charter_epoch < charter.epoch:
        # Welcomed under the log's charter, it would not know what to go on from.
        return Refused("not-ready", "a new epoch is starting", NOT_READY_RETRY_S)
    if not state.has_weights:
        return Refused("not-ready", "the syncer is creating the first weights", NOT_READY_RETRY_S)
    return None
