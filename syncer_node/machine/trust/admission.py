"""Who may open a session, what is said to those who may not, and who gives way to whom.

While there is room everybody gets in. Keys are free, but network addresses are not, and merged
work is not: so in a full project a newcomer takes the place of a learner of which nothing was
merged for long, or of one whose network address has more than its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from protocol import limits
from protocol.log.state import SwarmState
from protocol.messages import Hello, Refused
from protocol.peers.membership import Membership, Session
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.trust.invites import Invites

NOT_READY_RETRY_S = 2.0
FULL_RETRY_S = 60.0

SHARE: Final = 0.25
"""Of all learners, those of one network address in a full project. A quarter leaves a large site
alone, and whoever wants to keep everybody else out needs four addresses."""

SHARE_MIN: Final = 4
"""So many machines of a household stay in the smallest project."""

UNMERGED_S_MAX: Final = 600.0
"""In a full project, a learner of which nothing was merged in this time gives way. Far slower
machines than any that `shoal join` admits hand in sooner."""


def refusal(
    setup: SyncerSetup,
    members: Membership,
    invites: Invites,
    peer: bytes,
    hello: Hello,
    state: SwarmState,
    network: str,
    now_s: float,
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
    barred = invites.refusal(setup, peer, hello.invite, now_s + setup.wall_offset_s)
    if barred is not None:
        return barred
    known = members.sessions.get(peer)
    if known is not None and known.incarnation > hello.incarnation:
        text = "a newer session with this key is open: is the key used on two hosts?"
        return Refused("stale-incarnation", text, None)
    learners = charter.limits.learners
    if not has_room(members, peer, learners) and not gives_way(members, learners, network, now_s):
        return Refused("full", "the project accepts no more learners", FULL_RETRY_S)
    if state.charter_epoch < charter.epoch:
        # Welcomed under the log's charter, it would not know what to go on from.
        return Refused("not-ready", "a new epoch is starting", NOT_READY_RETRY_S)
    if not state.has_weights:
        return Refused("not-ready", "the syncer is creating the first weights", NOT_READY_RETRY_S)
    return None


def has_room(members: Membership, peer: bytes, learners: int) -> bool:
    """Whether this host gets in without anybody going. learners: the charter's bound.

    One that merely lost its connection comes back whatever happened meanwhile, if something of it
    was merged; another one may find its place taken.
    """
    known = members.sessions.get(peer)
    if known is not None and (known.is_connected or known.merges > 0):
        return True
    return sum(1 for _ in members.live()) < learners


def gives_way(
    members: Membership, learners: int, network: str, now_s: float
) -> tuple[Session, str] | None:
    """Who leaves a full project for a newcomer from this network address, and what it is told.

    First who came first of those without a merge; else the one with the least merged of the address
    with the most learners, where that has more than its share. From an address that has its share,
    a newcomer takes the place of one without a merge from there only.
    """
    here = Counter(session.network for session in members.live())
    share = _fair_share(learners)
    among = [s for s in members.live() if here[network] < share or s.network == network]
    idle = _unmerged(members, among, now_s)
    if idle is not None:
        minutes = round((now_s - idle.arrived_s) / 60.0)
        return idle, (
            f"the project is full, and nothing of this learner was merged in {minutes} minutes: "
            "a newcomer takes its place"
        )
    found = most_crowded(here, learners)
    if found is None or here[network] >= share:
        return None
    crowded, count = found
    crowd = [session for session in members.live() if session.network == crowded]
    last = min(crowd, key=lambda session: (session.merges, -session.since_s, session.peer))
    return last, (
        f"the project is full, and {count} of its {learners} learners come from your network "
        "address: a newcomer from another one takes this place"
    )


def most_crowded(here: Mapping[str, int], learners: int) -> tuple[str, int] | None:
    """The network address with the most learners, and how many; None if that is its fair share.

    here: learners by network address, which is empty behind relays. learners: the seats there are.
    """
    most = max(here.items(), key=lambda item: (item[1], item[0]), default=None)
    return most if most is not None and most[1] > _fair_share(learners) else None


def _fair_share(learners: int) -> int:
    return max(SHARE_MIN, int(SHARE * learners))


def _unmerged(members: Membership, among: list[Session], now_s: float) -> Session | None:
    """Who of these came first and has no merge for too long, while others' work was merged."""
    merged_s = max(
        (at_s for session in members.live() for at_s in session.merged_s.values()), default=None
    )
    if merged_s is None:
        return None
    late = [
        session
        for session in among
        if not session.merges and min(now_s, merged_s) - session.arrived_s >= UNMERGED_S_MAX
    ]
    return min(late, key=lambda session: (session.arrived_s, session.peer), default=None)
