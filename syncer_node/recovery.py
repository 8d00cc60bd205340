"""From what a disk holds back to a machine's state. Pure: bytes in, state out.

A record that this host stored is a vote it gave: the sole voter of a charter may sign it again and
gets the same certificate, because signing is deterministic. So nothing that was ever broadcast can
be lost between fsync and the writing of its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol import wire
from protocol.errors import CorruptState
from protocol.messages import Certificate, CertifiedRecord
from protocol.project import Voter
from protocol.records import FragmentMerged, Record, certify, record_hash, sign_record
from protocol.signing import Signer
from protocol.state import SwarmState


def recertify(
    encoded: bytes, certificate: Certificate | None, signer: Signer, voters: tuple[Voter, ...]
) -> CertifiedRecord | None:
    """The stored record with its certificate, made anew if this host is the only voter.

    A sole voter always signs anew, so that entries from before a change of its key are proven by
    the charter of now.
    """
    is_sole = len(voters) == 1 and voters[0].key == signer.key
    if not is_sole:
        return None if certificate is None else CertifiedRecord(encoded, certificate)
    record = wire.decode(encoded, Record)
    digest = record_hash(encoded)
    return CertifiedRecord(encoded, certify(record, digest, [sign_record(record, digest, signer)]))


def refold(
    state: SwarmState,
    records: Iterable[bytes],
    on_merge: Callable[[FragmentMerged], None],
) -> None:
    """Apply stored records to `state`, in order, and name each merge on the way.

    Raises CorruptState if the chain is broken.
    """
    for encoded in records:
        record = wire.decode(encoded, Record)
        if record.index != state.index + 1 or record.previous != state.head:
            raise CorruptState(f"the stored log breaks at record {state.index + 1}")
        state.apply(record, record_hash(encoded))
        if isinstance(record.body, FragmentMerged):
            on_merge(record.body)
