"""What proves a joiner's start: certified origins of every fragment, under the owner's charters."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec import structs

from protocol import wire
from protocol.errors import BadSignature, UnexpectedMessage, WrongProject
from protocol.log.records import (
    Body,
    FragmentMerged,
    Record,
    StateDigests,
    WeightsInitialised,
    WeightsRestored,
    open_record,
)
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import AdoptedCharter, CertifiedRecord, Envelope, FragmentIndex
from protocol.project import Charter
from protocol.signing import Verify, open_envelope


def read_charter(envelope: Envelope, *, project: bytes, owner: bytes, verify: Verify) -> Charter:
    """The charter, proven to be the owner's. Raises BadSignature or WrongProject."""
    payload = open_envelope("charter", project, envelope, verify, signer=owner)
    charter = wire.decode(payload, Charter)
    if charter.project != project:
        raise WrongProject("charter of another project")
    return charter


def prove_index(
    index: FragmentIndex,
    origins: list[CertifiedRecord],
    *,
    adopted: Sequence[AdoptedCharter],
    charters: list[Charter],
    fragments: int,
    block_sequences: int,
    verify: Verify,
    own: bytes = b"",
) -> SwarmState:
    """The state that an index describes, each fragment of it certified by an origin.

    own: the learner whose log it is, if it is one's. adopted: the charters that were told with it,
    oldest first. charters: of the owner, in force now and when origins were certified. Raises
    BadSignature, UnexpectedMessage or MalformedMessage.
    """
    said = wire.decode(index.summary, SwarmSummary)
    summary = structs.replace(said, charters=tuple(adopted))
    restored = summary.restored
    is_fitting = len(summary.fragments) == fragments
    is_fitting = is_fitting and (restored is None or len(restored.versions) == fragments)
    if not is_fitting or (summary.index, summary.head) != (index.log_index, index.head):
        raise UnexpectedMessage("the index does not fit the project")
    prove_origins(summary, origins, charters, verify)
    return SwarmState.restore(summary, block_sequences, own)


def prove_origins(
    summary: SwarmSummary,
    origins: Sequence[CertifiedRecord],
    charters: Sequence[Charter],
    verify: Verify,
) -> None:
    """Raises BadSignature unless each fragment's version is certified by one of these records."""
    proven: dict[int, Body] = {}
    for entry in origins:
        record = open_under(entry, charters, verify)
        proven[record.index] = record.body
    for at, fragment in enumerate(summary.fragments):
        if _named(proven.get(fragment.record_index), at) != (fragment.version, fragment.state):
            raise BadSignature(f"no certificate for fragment {at}")


def _named(body: Body | None, fragment: int) -> tuple[int, StateDigests] | None:
    """The version of a fragment that a record certifies, and its state."""
    match body:
        case FragmentMerged() if body.fragment == fragment:
            return body.version, body.state
        case WeightsInitialised(fragments) if fragment < len(fragments):
            return 0, fragments[fragment]
        case WeightsRestored(versions=versions, fragments=fragments) if fragment < min(
            len(versions), len(fragments)
        ):
            return versions[fragment], fragments[fragment]
    return None


def open_under(entry: CertifiedRecord, charters: Sequence[Charter], verify: Verify) -> Record:
    """The record, certified by the voters of one of these charters."""
    for charter in charters[:-1]:
        with contextlib.suppress(BadSignature):
            return open_record(entry, charter.project, charter, verify)
    return open_record(entry, charters[-1].project, charters[-1], verify)
