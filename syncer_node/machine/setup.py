"""What a syncer's machine is given at its start: the project, its keys, and what the disk held."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from protocol.log.state import SwarmState
from protocol.merge_rules import RULES, MergeRules
from protocol.messages import CertifiedRecord, Envelope
from protocol.project import Charter, Genesis
from protocol.signing import Signer, Verify
from protocol.snapshots.manifest import SnapshotOutline
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.log import LogStart


@dataclass(slots=True)
class Recovered:
    """What the store gave back at start: the folded log and the entries worth keeping at hand."""

    state: SwarmState
    log: LogStart
    ballot: Ballot
    held: list[int]
    """Version of each fragment that the bank holds, -1 where it is lost and must be fetched."""
    recent: list[CertifiedRecord] = field(default_factory=list)
    origins: dict[int, CertifiedRecord] = field(default_factory=dict)
    """Entries by log index that made the newest version of some fragment."""
    snapshots: tuple[SnapshotOutline, ...] = ()
    """Of the whole swarm, on this disk, oldest first."""


@dataclass(frozen=True, slots=True)
class SyncerSetup:
    """Everything a syncer machine is told once; a new charter makes a new one."""

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
    rng: random.Random
    nonce: int
    """Drawn at this start, so that a clone of this host shows."""
    addresses: tuple[str, ...] = ()
    """Where this host can be reached, told to the other voters for join links."""
    rules: MergeRules = RULES
    name: str = ""
    """As its owner calls this host, told to the other voters."""

    def for_raft(self) -> RaftSetup:
        """The part that a voter needs."""
        return RaftSetup(
            project=self.project,
            owner=self.genesis.owner,
            signer=self.signer,
            verify=self.verify,
            rng=self.rng,
            wall_offset_s=self.wall_offset_s,
            nonce=self.nonce,
            addresses=self.addresses,
            name=self.name,
        )
