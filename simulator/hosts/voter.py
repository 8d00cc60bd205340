"""Voters in virtual time: a disk that survives, and a machine built from it at each start."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable

import msgspec

from protocol.machine import Effect, Start
from protocol.messages import Certificate, CertifiedRecord, Envelope
from simulator.hosts.voter_disk import VoterDisk
from simulator.stand_ins.tiny import SimSigner, TinyProject, charter_envelope, sim_verify
from simulator.virtual.world import Host, World
from syncer_node.machine.jobs import Keep, KeepCharter
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.raft import RESTART_EXIT, Raft

FSYNC_S = 0.004
RESTART_S = 0.2
PROOFS_KEPT = 0.98
"""Share of the proofs that are on the disk at once. The others come with the next one, unless the
host dies before."""


class SimVoter(Host):
    """A syncer or a witness."""

    disk: VoterDisk

    def __init__(
        self, world: World, tiny: TinyProject, signer: SimSigner, *, name: str, observer: Observer
    ) -> None:
        """observer: told of every record that this host knows to be certified, in order."""
        super().__init__(world, signer.key, name)
        self.tiny = tiny
        self.signer = signer
        self.observer = observer
        self.chance = random.Random(f"{name} {world.seed}")
        self.unkept_proofs: list[Certificate] = []
        """Proofs that would be on the disk by now, had it not failed."""
        self.wipe()
        self.wall_offset_s = 1.7e9
        """A clock that was set: the daemon takes note when it starts."""

    @property
    @abstractmethod
    def raft(self) -> Raft:
        """The election and replication of the machine that runs."""

    # The disk.

    def wipe(self) -> None:
        """The disk is lost; the key is not."""
        self.disk = self._empty_disk(Ballot(self.chance.randbytes(32), 0))

    def _empty_disk(self, ballot: Ballot) -> VoterDisk:
        return VoterDisk(ballot, charter_envelope(self.tiny))

    def find_payload(self, name: bytes) -> bytes | None:
        """The payload of a merge, as far as this host can find it."""
        return None

    def _proven_alone(self, entry: CertifiedRecord, index: int) -> None:
        """It found on its disk at a start that it can prove this record."""
        self.observer(self, entry, index)

    def _keep_proof(self, certificate: Certificate) -> None:
        self.unkept_proofs.append(certificate)
        if self.chance.random() < PROOFS_KEPT and not self.disk.is_full:
            for proof in self.unkept_proofs:
                self.disk.keep(proof)
            self.unkept_proofs.clear()

    # Lives.

    @property
    def seed(self) -> str:
        """Of this life's chance."""
        return f"{self.name} {self.world.seed} {self.life}"

    def _begin_life(self) -> RaftSetup:
        """What a machine that is built now is told, but for its disk."""
        ballot = self.disk.ballot
        self.disk.ballot = msgspec.structs.replace(ballot, boot=ballot.boot + 1)
        return RaftSetup(
            project=self.tiny.project,
            owner=self.tiny.owner.key,
            signer=self.signer,
            verify=sim_verify,
            rng=random.Random(self.seed),
            wall_offset_s=self.wall_offset_s,
            nonce=self.chance.getrandbits(56),
        )

    def crash(self) -> None:
        is_restart = self.stopped is not None and self.stopped.exit_code == RESTART_EXIT
        super().crash()
        self.unkept_proofs.clear()
        if is_restart:
            self.world.after(RESTART_S, self.revive)

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job = start.job
        self.world.after(FSYNC_S, lambda: answer(self.disk.write(job)))

    def act(self, action: object) -> None:
        match action:
            case Keep(entry, index):
                self.observer(self, entry, index)
                self._keep_proof(entry.certificate)
            case KeepCharter(envelope):
                self.disk.charter = envelope

    # The owner's hand.

    def take_charter(self, envelope: Envelope) -> None:
        """Its owner hands a newer charter over. Raises RemoteError if it is not valid."""
        self.carry_out(self._offer_charter(envelope))

    @abstractmethod
    def _offer_charter(self, envelope: Envelope) -> list[Effect]:
        """What the machine does about it."""

    def carry_out(self, effects: list[Effect]) -> None:
        """Of something that a person asked of the machine."""
        for effect in effects:
            self._carry_out(effect)


Observer = Callable[[SimVoter, CertifiedRecord, int], None]
