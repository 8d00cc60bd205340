"""Where the seat is: what a syncer announces in the DHT, and how a learner finds and checks it.

The DHT only says where to look. What makes an announcer the leader is the charter: signed by the
project's owner, it names the keys that may hold the seat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from host.files.signed_project import open_project
from protocol import limits, wire
from protocol.errors import RemoteError
from protocol.ids import Count, Digest, NodeKey
from protocol.log.records import is_elected
from protocol.messages import Envelope, Vote
from protocol.peers.reachability import RELAYS_MAX
from protocol.project import Charter
from protocol.signing import verify_ed25519

ANNOUNCE_EVERY_S = 5.0
ANNOUNCE_TTL_S = 30.0

SYNCING: Final = "syncing"


class SeatNotice(Struct, frozen=True, array_like=True):
    """What the holder of the seat announces."""

    project: Digest
    epoch: Count
    term: Count
    log_index: Count
    charter: Digest
    """Content address of the signed charter's envelope."""
    charter_bytes: Count
    votes: Annotated[tuple[Vote, ...], Meta(max_length=limits.VOTES_MAX)]
    """Of the voters that elected it: the proof that it leads in this term."""
    relays: Annotated[tuple[NodeKey, ...], Meta(max_length=RELAYS_MAX)] = ()
    """Who carries streams to it; empty where it can be dialled, or where that is not known."""


class LearnerNotice(Struct, frozen=True, array_like=True):
    """What a learner announces: that fragments may be fetched from it.

    One whose `state` is `SYNCING` has some of them only.
    """

    name: str
    state: str
    log_index: Count
    relays: Annotated[tuple[NodeKey, ...], Meta(max_length=RELAYS_MAX)] = ()
    """Who carries streams to it; empty where it can be dialled, or where that is not known."""
    is_brief: bool = False
    """The log is told to it in brief: it cannot say what others gave."""

    @property
    def holds_all(self) -> bool:
        return self.state != SYNCING


def read_learners(found: Mapping[bytes, bytes]) -> dict[bytes, LearnerNotice]:
    """The notices by key; what is none is left out. found: values of the table."""
    notices: dict[bytes, LearnerNotice] = {}
    for key, value in found.items():
        with contextlib.suppress(RemoteError):  # Anybody may write there; others' notices count.
            notices[key] = wire.decode(value, LearnerNotice)
    return notices


def holders_of_all(found: Mapping[bytes, bytes], *, whole_first: bool = False) -> list[bytes]:
    """Keys of the learners that say that they hold every fragment, sorted.

    whole_first: those with a whole log ahead of all others.
    """
    holders = [(key, one) for key, one in read_learners(found).items() if one.holds_all]
    return [
        key for key, one in sorted(holders, key=lambda it: (whole_first and it[1].is_brief, it[0]))
    ]


def seat_topic(project: bytes) -> str:
    return f"shoal/{project.hex()}/seat"


def learners_topic(project: bytes) -> str:
    return f"shoal/{project.hex()}/learners"


def read_notice(value: bytes, project: bytes) -> SeatNotice | None:
    """The notice in a DHT value, or None if it is not one for this project."""
    try:
        notice = wire.decode(value, SeatNotice)
    except RemoteError:
        return None
    if notice.project != project or notice.charter_bytes > limits.FRAME_BYTES_MAX:
        return None
    return notice


def elected_under(
    key: bytes, genesis: bytes, envelope: Envelope, notice: SeatNotice
) -> Charter | None:
    """The charter, if its owner signed it and its voters gave this key the seat."""
    try:
        charter = open_project(genesis, envelope).charter
    except RemoteError:
        return None
    is_leader = is_elected(
        key,
        epoch=notice.epoch,
        term=notice.term,
        votes=notice.votes,
        charter=charter,
        verify=verify_ed25519,
    )
    return charter if is_leader and charter.epoch == notice.epoch else None
