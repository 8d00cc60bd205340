"""Serves a copy of the optimizer state to learners that come (back).

The inner loop pays one copy of each fragment's moments at a local-step boundary and nothing else.
There is at most one snapshot, it is held for a bounded time, and whoever asks for a clock that it
covers shares it. A learner gets one now and then, so that a loop of restarts costs little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from node.machine.context import LearnerContext
from node.machine.fragment_state import NONE
from node.machine.fragment_sync import FragmentSync
from node.machine.jobs import CaptureMoments, MomentsCaptured, WithdrawMoments
from node.machine.moments_client import MomentsClient, Rejoin
from protocol import messages
from protocol.ids import JobId
from protocol.machine import Disconnect
from protocol.snapshots.vector_clock import VectorClock
from protocol.trace import MomentsOffered

WAITING_MAX = 4
"""Learners that may wait for a snapshot at once."""

BEHIND_S_MAX = 15.0
"""Whoever asks waits so long for our clock, or for its turn."""

OFFER_S_MAX = 120.0
"""A snapshot is given up after this even if somebody still fetches it."""

SNAPSHOT_EVERY_S = 10.0
"""Keys are free, so snapshots are rationed for all requesters together."""

GIVE_EVERY_S = 10.0
"""... and for each of them; who was outrun by the swarm may soon ask again."""

GIVEN_MAX = 64
"""Requesters remembered for that."""


class MomentsServerState(Enum):
    """What becomes of the one snapshot."""

    IDLE = "no snapshot"
    CAPTURING = "copying"
    OFFERING = "on offer"


SERVER_TRANSITIONS: dict[tuple[MomentsServerState, str], MomentsServerState] = {
    (MomentsServerState.IDLE, "asked"): MomentsServerState.CAPTURING,
    (MomentsServerState.CAPTURING, "captured"): MomentsServerState.OFFERING,
    (MomentsServerState.CAPTURING, "failed"): MomentsServerState.IDLE,
    (MomentsServerState.OFFERING, "over"): MomentsServerState.IDLE,
}


@dataclass(frozen=True, slots=True)
class Requester:
    """Somebody who waits for a snapshot that has observed this clock."""

    clock: VectorClock
    since_s: float


@dataclass(eq=False)
class MomentsServer:
    """The serving side of one learner."""

    context: LearnerContext
    fragment_sync: FragmentSync
    moments_client: MomentsClient
    state: MomentsServerState = MomentsServerState.IDLE
    _waiting: dict[bytes, Requester] = field(default_factory=dict)
    _takers: set[bytes] = field(default_factory=set)
    _given_s: dict[bytes, float] = field(default_factory=dict)
    _clock: VectorClock = field(init=False)
    """Ours when the snapshot began: no part of it is older."""
    _blobs: tuple[bytes, ...] = ()
    _job: JobId | None = None
    _begun_s: float = -1e9
    _until_s: float = 0.0

    def clock(self) -> VectorClock | None:
        """What the inner loop has observed; None while it lacks weights."""
        standing = tuple(local.standing for local in self.fragment_sync.local_fragments)
        if NONE in standing:
            return None
        return VectorClock(self.context.state.newest_version_index, standing)

    # From peers.

    def on_ask(self, peer: bytes, ask: messages.AskMoments) -> None:
        """Refuse at once what will not be; the rest waits for `look`."""
        reason = self._objection(peer, ask)
        if reason is not None:
            self._refuse(peer, reason)
            return
        self._waiting[peer] = Requester(ask.clock, self.context.now_s)

    def on_peer_down(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)
        self._takers.discard(peer)

    # From the trainer.

    def on_job(self, number: JobId, result: object) -> None:
        if number != self._job:
            return
        self._job = None
        if not isinstance(result, MomentsCaptured):
            self._fire("failed")
            for peer in list(self._waiting):
                self._refuse(peer, "idle")
            return
        self._fire("captured")
        self._blobs = result.blobs
        self._until_s = self.context.now_s + OFFER_S_MAX
        clock = (self._clock.log_index, *self._clock.versions)
        self.context.effects.emit(MomentsOffered(clock, len(result.blobs)))

    def look(self) -> None:
        """Answer whoever can be answered, and clear away what nobody needs any more."""
        if not self._waiting and self.state is MomentsServerState.IDLE:
            return
        now_s = self.context.now_s
        self._forget_given()
        if self.state is MomentsServerState.OFFERING:
            for peer, requester in list(self._waiting.items()):
                if self._suits(self._clock, peer, requester):
                    self._give(peer)
            if not self._takers or now_s >= self._until_s:
                self._fire("over")
                self._takers.clear()
                self._blobs = ()
                self.context.effects.do(WithdrawMoments())
        if self.state is MomentsServerState.IDLE and now_s >= self._begun_s + SNAPSHOT_EVERY_S:
            self._capture()
        for peer, requester in list(self._waiting.items()):
            if (
                self.state is not MomentsServerState.CAPTURING
                and now_s >= requester.since_s + BEHIND_S_MAX
            ):
                clock = self.clock()
                is_behind = clock is None or not clock.has_observed(requester.clock)
                self._refuse(peer, "behind" if is_behind else "busy")

    def deadline_s(self) -> float | None:
        """When `look` is due if nothing happens before."""
        if not self._waiting and self.state is MomentsServerState.IDLE:
            return None
        times = [requester.since_s + BEHIND_S_MAX for requester in self._waiting.values()]
        times += [
            self._given_s[peer] + GIVE_EVERY_S for peer in self._waiting.keys() & self._given_s
        ]
        if self.state is MomentsServerState.OFFERING:
            times.append(self._until_s)
        if self.state is MomentsServerState.IDLE and self._waiting:
            times.append(self._begun_s + SNAPSHOT_EVERY_S)
        later = [at_s for at_s in times if at_s > self.context.now_s]
        return min(later, default=None)

    # Inside.

    def _fire(self, trigger: str) -> None:
        self.state = SERVER_TRANSITIONS[self.state, trigger]

    def _objection(self, peer: bytes, ask: messages.AskMoments) -> messages.MomentsReason | None:
        setup = self.context.setup
        self._forget_given()
        if (ask.project, ask.layout) != (setup.project, setup.layout_digest):
            return "wrong-project"
        if len(ask.clock.versions) != len(self.fragment_sync.local_fragments):
            return "wrong-project"
        if peer in self._waiting:
            return "too-soon"
        if len(self._waiting) >= WAITING_MAX or len(self._given_s) >= GIVEN_MAX:
            return "busy"
        return self._incapacity()

    def _suits(self, clock: VectorClock, peer: bytes, requester: Requester) -> bool:
        """Whether a snapshot with this clock may go to this requester now."""
        return clock.has_observed(requester.clock) and peer not in self._given_s

    def _forget_given(self) -> None:
        oldest_s = self.context.now_s - GIVE_EVERY_S
        self._given_s = {key: at_s for key, at_s in self._given_s.items() if at_s > oldest_s}

    def _incapacity(self) -> messages.MomentsReason | None:
        """Why no snapshot can be taken here now."""
        context = self.context
        inner = context.charter.inner if context.charter is not None else None
        if inner is None or inner.moments != "peer" or not context.setup.shares_moments:
            return "off"
        if not self.fragment_sync.can_deliver or self.clock() is None or context.stepped is None:
            return "idle"
        own_steps = context.stepped.local_step
        is_seasoned = self.moments_client.state is Rejoin.SEASONED
        if own_steps < 1 or (own_steps < inner.fresh_moment_steps and not is_seasoned):
            return "young"
        return None

    def _capture(self) -> None:
        """Take a snapshot if somebody waits whose clock ours has observed."""
        clock = self.clock()
        if clock is None:
            return
        if not any(
            self._suits(clock, peer, requester) for peer, requester in self._waiting.items()
        ):
            return
        if self._incapacity() is not None:
            return  # The trainer went meanwhile.
        self._fire("asked")
        self._clock, self._begun_s = clock, self.context.now_s
        self._job = self.context.effects.start(CaptureMoments())

    def _give(self, peer: bytes) -> None:
        del self._waiting[peer]
        self._takers.add(peer)
        self._given_s[peer] = self.context.now_s
        self.context.effects.send(peer, messages.MomentsReady(self._clock, self._blobs))

    def _refuse(self, peer: bytes, reason: messages.MomentsReason) -> None:
        self._waiting.pop(peer, None)
        self.context.effects.send(peer, messages.MomentsRefused(reason))
        self.context.effects.out.append(Disconnect(peer, reason))
