"""Where a learner's log stood when its daemon stopped, so that the next one can go on from there.

It says what an index would say, and is proven as one: a learner that kept it and the weights needs
neither from anybody, only what was merged since. And where all hosts of a project were off and the
syncer's disk is lost, what its learners kept can bring the run back.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from node.machine.index_proof import open_under, prove_origins, read_charter
from protocol import decoders
from protocol.errors import CorruptState, UnexpectedMessage
from protocol.log.records import record_hash
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord
from protocol.project import Genesis
from protocol.signing import Verify


class Bookmark(Struct, frozen=True, array_like=True):
    """The state at a record, and what proves it."""

    head: CertifiedRecord
    origins: tuple[CertifiedRecord, ...]
    """Of every fragment, in log order."""
    summary: SwarmSummary


def encoded(bookmark: Bookmark) -> bytes:
    """As it lies on disk."""
    return msgspec.msgpack.encode(bookmark)


def decoded(content: bytes) -> Bookmark:
    """What was encoded, unproven. CorruptState if it is something else."""
    try:
        return decoders.msgpack_decoder(Bookmark).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptState(f"no bookmark: {error}") from None


def prove_bookmark(
    bookmark: Bookmark, *, project: bytes, genesis: Genesis, verify: Verify, own: bytes = b""
) -> SwarmState:
    """The state that it describes. RemoteError if it is another project's, or not proven.

    own: the learner whose log it is, if it is one's.
    """
    summary = bookmark.summary
    charters = [
        read_charter(one.charter, project=project, owner=genesis.owner, verify=verify)
        for one in summary.charters
    ]
    if not charters or len(summary.fragments) != genesis.fragments:
        raise UnexpectedMessage("the bookmark does not fit the project")
    head = open_under(bookmark.head, charters, verify)
    if (head.index, record_hash(bookmark.head.record)) != (summary.index, summary.head):
        raise UnexpectedMessage("the bookmark is not of its record")
    prove_origins(summary, bookmark.origins, charters, verify)
    return SwarmState.restore(summary, genesis.data.block_sequences, own)
