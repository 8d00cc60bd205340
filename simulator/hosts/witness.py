"""Simulated witnesses: the daemon's machine behind the disk of any voter."""

from __future__ import annotations

from protocol import wire
from protocol.machine import Effect
from protocol.messages import Envelope
from protocol.project import Charter
from simulator.hosts.voter import SimVoter
from syncer_node.machine.witness import WitnessMachine
from syncer_node.raft.raft import Raft


class SimWitness(SimVoter):
    """A voter without tensors in virtual time."""

    witness: WitnessMachine
    machine_class: type[WitnessMachine] = WitnessMachine

    @property
    def raft(self) -> Raft:
        return self.witness.raft

    def build(self) -> WitnessMachine:
        setup, disk = self._begin_life(), self.disk
        self.witness = self.machine_class(
            setup,
            start=disk.start(self.signer, self._proven_alone),
            ballot=disk.ballot,
            charter_envelope=disk.charter,
            charter=wire.decode(disk.charter.payload, Charter),
        )
        return self.witness

    def _offer_charter(self, envelope: Envelope) -> list[Effect]:
        return self.witness.offer_charter(envelope, self.clock_s)
