"""What a syncer's machine is given at its start: the project, its keys, and what the disk held."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.messages import CertifiedRecord, Envelope
from protocol.project import Charter, Genesis
from protocol.signing import Signer, Verify
from protocol.state import SwarmState


@dataclass(slots=True)
class Recovered:
    """What the store gave back at start: the folded log and the entries worth keeping at hand."""

    state: SwarmState
    recent: list[CertifiedRecord] = field(default_factory=list)
    origins: dict[int, CertifiedRecord] = field(default_factory=dict)
    """Entries by log index that made the newest version of some fragment."""


@dataclass(frozen=True, slots=True)
class SyncerSetup:
    """Everything a syncer machine is told once."""

    project: bytes
    genesis: Genesis
    charter: Charter
    charter_envelope: Envelope
    layout_digest: bytes
    numels: tuple[int, ...]
    signer: Signer
    verify: Verify
    wall_offset_s: float
    """Wall clock minus the monotonic clock that events are stamped with."""
