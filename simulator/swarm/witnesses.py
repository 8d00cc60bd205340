"""Simulated witnesses of a training swarm: the daemon's machine, a disk that survives."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from protocol import wire
from protocol.machine import Start
from protocol.messages import CertifiedRecord
from protocol.project import Charter
from simulator.checkers.ledger import Ledger
from simulator.stand_ins.tiny import SimSigner, TinyProject, sim_verify
from simulator.swarm.syncers import FSYNC_S, charter_envelope
from simulator.swarm.voter_disk import VoterDisk
from simulator.virtual.world import Host, World
from syncer_node.machine.jobs import InstallState, Keep, KeepCharter
from syncer_node.machine.witness import WitnessMachine
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.jobs import Append, KeepProofs, SaveBallot
from syncer_node.raft.raft import RESTART_EXIT

_JOBS = (SaveBallot, Append, KeepProofs, InstallState)


class SimWitness(Host):
    """A voter without tensors in virtual time."""

    def __init__(
        self, world: World, tiny: TinyProject, signer: SimSigner, *, ledger: Ledger, name: str
    ) -> None:
        super().__init__(world, signer.key, name)
        self.tiny = tiny
        self.signer = signer
        self.ledger = ledger
        self.chance = random.Random(f"{name} {world.seed}")
        self.disk = VoterDisk(Ballot(self.chance.randbytes(32), 0), charter_envelope(tiny))
        self.wall_offset_s = 1.7e9
        self.witness: WitnessMachine

    def build(self) -> WitnessMachine:
        disk = self.disk
        disk.ballot = msgspec.structs.replace(disk.ballot, boot=disk.ballot.boot + 1)
        setup = RaftSetup(
            project=self.tiny.project,
            owner=self.tiny.owner.key,
            signer=self.signer,
            verify=sim_verify,
            rng=random.Random(f"{self.name} {self.world.seed} {self.life}"),
            wall_offset_s=self.wall_offset_s,
            nonce=self.chance.getrandbits(56),
        )
        self.witness = WitnessMachine(
            setup,
            start=disk.start(self.signer, self._proven_alone),
            ballot=disk.ballot,
            charter_envelope=disk.charter,
            charter=wire.decode(disk.charter.payload, Charter),
        )
        return self.witness

    def crash(self) -> None:
        is_restart = self.stopped is not None and self.stopped.exit_code == RESTART_EXIT
        super().crash()
        if is_restart:
            self.world.after(0.2, self.revive)

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job = start.job
        self.world.after(FSYNC_S, lambda: answer(self._write(job)))

    def _write(self, job: object) -> object:
        assert isinstance(job, _JOBS), "a witness has no other jobs"
        return self.disk.write(job)

    def _proven_alone(self, entry: CertifiedRecord, index: int) -> None:
        self.ledger.add(self.name, entry, index)

    def act(self, action: object) -> None:
        match action:
            case Keep(entry, index):
                self.ledger.add(self.name, entry, index)
                if self.chance.random() < 0.98:  # Not fsynced: a crash may lose some.
                    self.disk.keep(entry.certificate)
            case KeepCharter(envelope):
                self.disk.charter = envelope
            case _:
                pass
