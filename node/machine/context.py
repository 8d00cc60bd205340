"""What the parts of a learner's machine have in common: its setup, the log's state, its tally."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from node.machine.bookmark import Bookmark
from node.machine.jobs import Stepped
from node.machine.proofs import Proofs
from node.machine.snapshot_part import PartState
from protocol.effect_queue import EffectQueue
from protocol.errors import RemoteError
from protocol.log.receipts import Credit
from protocol.log.state import SwarmState
from protocol.messages import Envelope, Message
from protocol.project import Charter, Genesis, InnerSpec
from protocol.signing import Signer, Verify
from protocol.trace import PeerMisbehaved


@dataclass(frozen=True, slots=True)
class EpochStart:
    """How a machine begins an epoch that begins at a snapshot."""

    snapshot: int
    epoch: int
    part: PartState | None = None
    """This learner's own part, to go on from; None: it begins as a joiner."""
    digest: bytes = b""
    trouble: str = ""
    """Why there is no part."""


@dataclass(frozen=True, slots=True)
class LearnerSetup:
    """Everything a learner machine is told once."""

    project: bytes
    genesis: Genesis
    layout_digest: bytes
    name: str
    agent: str
    incarnation: int
    evaluates: bool
    micro_batch: int | None
    signer: Signer
    verify: Verify
    rng: random.Random
    """Only for the spread of reconnection attempts."""
    shares_moments: bool = True
    """Whether optimizer state may come from and go to other learners, where the project wants."""
    keeps_parts: bool = True
    """Whether this host takes part in snapshots."""
    parts: tuple[int, ...] = ()
    """Snapshots of which there is a part on this host's disk."""
    start: EpochStart | None = None
    """Present in a machine that was built anew for an epoch."""
    invite: Envelope | None = None
    """What the join link carried, for a project that asks for it."""
    credit: Credit | None = None
    """Of the newest receipt that this host has kept."""
    batch_sequences: int | None = None
    """What the owner of this machine wants a local step to take; None: what suits the device."""
    bookmark: Bookmark | None = None
    """Where a former life of this daemon ended, if it kept that and its weights."""


@dataclass(slots=True)
class Tally:
    """What this daemon did, for its owner."""

    merged: int = 0
    pushed: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    states_from_peers: int = 0
    states_from_syncer: int = 0
    """Fragments of which the syncer had to send at least a part."""
    state_bytes: dict[bytes, int] = field(default_factory=dict)
    """Bytes of weights by who sent them."""
    trainer_restarts: int = 0
    lost_steps: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    trust: float = 1.0
    """How far the newest merged push counted."""
    probes: int = 0
    probes_declined: int = 0


@dataclass(slots=True)
class LearnerContext:
    """One learner's present, seen by all parts of its machine."""

    setup: LearnerSetup
    effects: EffectQueue
    state: SwarmState
    tally: Tally = field(default_factory=Tally)
    charter: Charter | None = None
    leader: bytes | None = None
    is_following: bool = False
    """The session is open: messages to the leader will be heard."""
    stepped: Stepped | None = None
    """Last report of the inner loop; None while there is no trainer."""
    batch_sequences: int = 0
    """In each local step of the newest trainer; 0 before there was one."""
    now_s: float = 0.0
    proofs: Proofs = field(default_factory=Proofs)

    def tell_leader(self, message: Message) -> None:
        """Say it, if it will be heard."""
        if self.leader is not None and self.is_following:
            self.effects.send(self.leader, message)

    @property
    def run_paused_at_s(self) -> float | None:
        """Since when the project's owner pauses the run; None while it goes on.

        A joiner hears of the charter before it has the log.
        """
        if self.charter is None or self.state.index:
            return self.state.owner_paused_at_s
        return self.charter.paused_at_s

    def blame(self, peer: bytes, error: RemoteError) -> None:
        """Count a peer's offence, and tell of it."""
        faults = self.tally.faults
        faults[error.reason] = faults.get(error.reason, 0) + 1
        self.effects.emit(PeerMisbehaved(peer, error.reason, str(error)))

    @property
    def inner(self) -> InnerSpec:
        """How this learner trains: as the charter says, with its own batch if it wants one."""
        assert self.charter is not None, "a trainer runs under a charter"
        inner, wished = self.charter.inner, self.setup.batch_sequences
        return inner if wished is None else inner.with_batch(wished)

    @property
    def rebases(self) -> bool:
        return self.charter is not None and self.charter.rounds.apply == "rebase"

    @property
    def local_steps(self) -> int:
        """H; 0 before there is a charter."""
        return self.charter.rounds.local_steps if self.charter is not None else 0

    @property
    def keeps_left_out(self) -> bool:
        """Whether local steps outlive a merge that has no push of this learner in it."""
        return self.charter is not None and self.charter.rounds.participants_max > 0

    @property
    def outliving(self) -> tuple[bool, bool]:
        """What local steps outlive: merges with a push of this learner in them, and those without.

        It decides how a push is encoded, and what becomes of the inner loop once it is merged.
        """
        return self.rebases, self.rebases or self.keeps_left_out

    @property
    def kept_frac(self) -> float:
        """Share of the local value that outlives a delivery."""
        return self.charter.rounds.kept_frac if self.charter is not None else 0.0
