"""What learners say to each other, and to the owner: optimizer state, and proofs of the log."""

from __future__ import annotations

from node.machine.context import Shared
from node.machine.fragment_sync import Keeping
from node.machine.jobs import CaptureMoments
from node.machine.moments_client import Rejoining
from node.machine.moments_server import Donating
from protocol import wire
from protocol.errors import RemoteError
from protocol.ids import JobId
from protocol.log.batching import in_messages
from protocol.machine import Job
from protocol.messages import (
    AskMoments,
    AskState,
    IndexPart,
    Message,
    MomentsReady,
    MomentsRefused,
    StateHeld,
)
from protocol.trace import PeerMisbehaved

PROVE_EVERY_S = 1.0
"""Whoever asks what our log says gets an answer, all together this often."""


class Trading:
    """Both sides of one learner."""

    def __init__(self, shared: Shared, keeping: Keeping, rejoining: Rejoining) -> None:
        self.shared = shared
        self.rejoining = rejoining
        self.donating = Donating(shared, keeping, rejoining)
        self._proved_s = -1e9

    def on_peer_up(self, peer: bytes) -> None:
        self.rejoining.on_peer_up(peer)

    def on_peer_down(self, peer: bytes, reason: str) -> None:
        self.donating.on_peer_down(peer)
        self.rejoining.on_peer_down(peer, reason)

    def on_message(self, peer: bytes, message: Message) -> None:
        """What another learner says; whatever else strangers say is not heard."""
        match message:
            case AskMoments():
                self.donating.on_ask(peer, message)
            case MomentsReady():
                try:
                    self.rejoining.on_ready(peer, message)
                except RemoteError as error:
                    self._blame(peer, error)
            case MomentsRefused():
                self.rejoining.on_refused(peer, message)
            case AskState(project) if project == self.shared.setup.project:
                self._prove(peer)
            case _:
                pass

    def _prove(self, peer: bytes) -> None:
        """Tell somebody what our log says, with all that proves it; not too often."""
        shared = self.shared
        head, origins = shared.proofs.head, shared.proofs.origins(shared.state)
        is_due = shared.now_s - self._proved_s >= PROVE_EVERY_S
        if head is None or origins is None or not is_due:
            return
        self._proved_s = shared.now_s
        for piece in in_messages(origins):
            shared.desk.send(peer, IndexPart(piece))
        shared.desk.send(peer, StateHeld(head, wire.encode(shared.state.summary())))

    def on_job(self, number: JobId, job: Job, result: object) -> None:
        if isinstance(job, CaptureMoments):
            self.donating.on_job(number, result)
        else:
            self.rejoining.on_job(number, job, result)

    def look(self) -> None:
        self.rejoining.look()
        self.donating.look()

    def deadlines_s(self) -> list[float | None]:
        return [self.rejoining.deadline_s(), self.donating.deadline_s()]

    def _blame(self, peer: bytes, error: RemoteError) -> None:
        faults = self.shared.tally.faults
        faults[error.reason] = faults.get(error.reason, 0) + 1
        self.shared.desk.emit(PeerMisbehaved(peer, error.reason, str(error)))
        self.rejoining.on_fault(peer, str(error))  # It hangs up.
