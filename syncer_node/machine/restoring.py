"""The guard goes back by itself: the leader has the weights ready, and says so in the log.

    paused --weights here, nothing in flight--> proposed --committed--> merging goes on
    paused --nobody has the weights--> given up: the owner decides

Versions only grow: every fragment's next version is the one of the best checkpoint. So pushes,
downloads and proofs need to know nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.effect_queue import EffectQueue
from protocol.log.records import Body, RestoreGivenUp, WeightsRestored
from protocol.log.restoring import States
from protocol.log.state import SwarmState
from syncer_node.machine import jobs

TRIES = 8
RETRY_S = 5.0
"""So often, and so far apart, the weights are looked for before the guard gives up: other syncers
that hold them may be restarting."""


@dataclass(slots=True)
class Restoring:
    """What a leader does about a pause that the guard ends by itself."""

    effects: EffectQueue
    state: SwarmState
    propose: Callable[[Body], None]
    record: bytes = b""
    """Hash of the record with which the pause began that this is about; empty for none."""
    is_loading: bool = False
    is_ready: bool = False
    """The weights are on this disk and in memory."""
    is_proposed: bool = False
    failures: int = 0
    retry_s: float = 0.0

    def look(self, now_s: float, *, is_quiet: bool) -> None:
        """is_quiet: every record is certified, and no merge is on its way into the log."""
        target, pause = self.state.restoring, self.state.pause
        record = pause.record if pause is not None and target is not None else b""
        if record != self.record:
            self.record = record
            self.is_ready = self.is_proposed = False
            self.failures, self.retry_s = 0, 0.0
        if target is None or self.is_proposed or self.is_loading or now_s < self.retry_s:
            return
        if not self.is_ready:
            self.is_loading = True
            self.effects.start(jobs.HoldCheckpoint(*target))
        elif is_quiet:
            self.is_proposed = True
            self.propose(self._restored(*target))

    def deadline_s(self) -> float | None:
        """When the weights are looked for again."""
        is_waiting = bool(self.record) and not self.is_ready and not self.is_loading
        return self.retry_s if is_waiting and not self.is_proposed else None

    def on_held(self, job: jobs.HoldCheckpoint, result: object, now_s: float) -> None:
        """The weights are here, or another try is due."""
        self.is_loading = False
        if not self.record or self.state.restoring != (job.checkpoint, job.states):
            return  # The owner spoke meanwhile.
        if isinstance(result, jobs.PayloadKept):
            self.is_ready = True
            return
        self.failures += 1
        self.retry_s = now_s + RETRY_S
        if self.failures >= TRIES:
            self.is_proposed = True
            self.propose(RestoreGivenUp(self.record))

    def _restored(self, checkpoint: int, states: States) -> WeightsRestored:
        state = self.state
        return WeightsRestored(
            pause=self.record,
            checkpoint=checkpoint,
            global_step=state.global_step,
            round=state.rounds,
            versions=tuple(fragment.version + 1 for fragment in state.fragments),
            fragments=states,
        )
