"""What proves a joiner's start: certified origins of every fragment, under the owner's charters."""

from __future__ import annotations

import contextlib

from protocol import wire
from protocol.errors import BadSignature, UnexpectedMessage, WrongProject
from protocol.log.records import Body, FragmentMerged, Record, WeightsInitialised, open_record
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import CertifiedRecord, Envelope, FragmentIndex
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
    charters: list[Charter],
    fragments: int,
    block_sequences: int,
    verify: Verify,
) -> SwarmState:
    """The state that an index describes, each fragment of it certified by an origin.

    charters: of the owner, in force now and when origins were certified. Raises BadSignature,
    UnexpectedMessage or MalformedMessage.
    """
    summary = wire.decode(index.summary, SwarmSummary)
    is_fitting = len(summary.fragments) == fragments
    if not is_fitting or (summary.index, summary.head) != (index.log_index, index.head):
        raise UnexpectedMessage("the index does not fit the project")
    proven: dict[int, Body] = {}
    for entry in origins:
        record = _open_under(entry, charters, verify)
        proven[record.index] = record.body
    for at, fragment in enumerate(summary.fragments):
        body = proven.get(fragment.record_index)
        is_merge = (
            isinstance(body, FragmentMerged)
            and (body.fragment, body.version) == (at, fragment.version)
            and body.state == fragment.state
        )
        is_first = (
            isinstance(body, WeightsInitialised)
            and fragment.version == 0
            and body.fragments[at : at + 1] == (fragment.state,)
        )
        if not is_merge and not is_first:
            raise BadSignature(f"no certificate for fragment {at}")
    return SwarmState.restore(summary, block_sequences)


def _open_under(entry: CertifiedRecord, charters: list[Charter], verify: Verify) -> Record:
    """The record, certified by the voters of one of these charters."""
    for charter in charters[:-1]:
        with contextlib.suppress(BadSignature):
            return open_record(entry, charter.project, charter, verify)
    return open_record(entry, charters[-1].project, charters[-1], verify)
