"""What learners say to each other, and to the owner: optimizer state, and proofs of the log."""

from __future__ import annotations

from node.machine.context import LearnerContext
from node.machine.fragment_sync import FragmentSync
from node.machine.jobs import CaptureMoments
from node.machine.moments_client import MomentsClient
from node.machine.moments_server import MomentsServer
from protocol import limits, messages
from protocol.errors import RemoteError
from protocol.ids import JobId
from protocol.log.batching import Telling, apart, telling
from protocol.machine import Job

PROVE_EVERY_S = 1.0
"""Whoever asks what our log says gets an answer, all together this often."""

PROVE_AT_LENGTH_EVERY_S = 60.0
"""Where the accounts go in messages of their own: that is megabytes, and anybody may ask."""


class PeerExchange:
    """Both sides of one learner."""

    def __init__(
        self, context: LearnerContext, fragment_sync: FragmentSync, moments_client: MomentsClient
    ) -> None:
        self.context = context
        self._fragment_sync = fragment_sync
        self.moments_client = moments_client
        self.moments_server = MomentsServer(context, fragment_sync, moments_client)
        self._prove_again_s = -1e9
        self._proving: tuple[bytes, Telling] | None = None
        """Who is being told what our log says, and what is left of it."""

    def on_peer_down(self, peer: bytes, reason: str) -> None:
        if self._proving is not None and self._proving[0] == peer:
            self._proving = None
        self.moments_server.on_peer_down(peer)
        self.moments_client.on_peer_down(peer, reason)

    def on_message(self, peer: bytes, message: messages.Message) -> None:
        """What another learner says; whatever else strangers say is not heard."""
        match message:
            case messages.AskMoments():
                self.moments_server.on_ask(peer, message)
            case messages.MomentsReady():
                try:
                    self.moments_client.on_ready(peer, message)
                except RemoteError as error:
                    self.context.blame(peer, error)
                    self.moments_client.on_fault(peer, str(error))  # It hangs up.
            case messages.MomentsRefused():
                self.moments_client.on_refused(peer, message)
            case messages.AskState(project) if project == self.context.setup.project:
                self._prove(peer)
            case _:
                pass

    def _prove(self, peer: bytes) -> None:
        """Tell somebody the newest state whose weights are all here, with what proves it; not too
        often. Who asks again meanwhile is told the next piece."""
        context = self.context
        if self._proving is not None and self._proving[0] == peer:
            self._tell(1)
            return
        if context.now_s < self._prove_again_s:
            return
        told = context.proofs.newest_held(context.state, self._fragment_sync.held)
        if told is None:
            return
        accounts, summary = apart(told.summary)
        pause_s = PROVE_AT_LENGTH_EVERY_S if accounts else PROVE_EVERY_S
        self._prove_again_s = context.now_s + pause_s
        held = messages.StateHeld(told.head, summary)
        self._proving = (peer, telling(told.origins, told.summary.charters, accounts, held))
        self._tell(limits.PIECES_AHEAD_MAX)

    def _tell(self, most: int) -> None:
        assert self._proving is not None, "asked for by somebody"
        peer, what = self._proving
        for message in what.take(most):
            self.context.effects.send(peer, message)
        if what.end is None:
            self._proving = None

    def on_job(self, number: JobId, job: Job, result: object) -> None:
        if isinstance(job, CaptureMoments):
            self.moments_server.on_job(number, result)
        else:
            self.moments_client.on_job(number, job, result)

    def look(self) -> None:
        self.moments_client.look()
        self.moments_server.look()

    def deadlines_s(self) -> list[float | None]:
        return [self.moments_client.deadline_s(), self.moments_server.deadline_s()]
