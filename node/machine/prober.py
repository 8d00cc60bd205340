"""A learner that is asked what somebody's push does to the loss: whether it measures, and what it
answers.

A push that was really trained on its text lowers the loss of that text more than that of other
text; a copy lowers both alike. The work is that of an evaluation, and as polite: whoever is paused,
about to leave, evaluating or being copied declines. One push is probed at a time. The probe dies
with its session, for the next leader knows nothing of it.
"""

from __future__ import annotations

from node.machine import jobs
from node.machine.context import LearnerContext
from node.machine.fragment_sync import FragmentSync
from node.machine.snapshot_participant import Part, SnapshotParticipant
from node.machine.trainer_control import TrainerControl
from node.machine.trainer_states import TrainerState
from protocol import limits
from protocol.errors import LimitExceeded
from protocol.ids import JobId
from protocol.machine import Failed
from protocol.messages import Probe, Probed, ProbeDeclined
from protocol.trace import ProbeRefused, PushMeasured

TRAINING = (TrainerState.STEPPING, TrainerState.STARVED)


class Prober:
    """One learner's answers to probes."""

    def __init__(
        self,
        context: LearnerContext,
        fragment_sync: FragmentSync,
        trainer_control: TrainerControl,
        snapshot_participant: SnapshotParticipant,
    ) -> None:
        self.context = context
        self.fragment_sync = fragment_sync
        self.trainer_control = trainer_control
        self.snapshot_participant = snapshot_participant
        self._job: JobId | None = None
        """Out, whether or not somebody waits for its answer."""
        self._probe: Probe | None = None
        """What the leader waits for."""

    def on_probe(self, probe: Probe) -> None:
        """Measure, or say at once why not. LimitExceeded if it names what the project lacks."""
        self._check(probe)
        reason = self._hindrance(probe)
        if reason:
            self._decline(probe, reason)
            return
        leader = self.context.leader
        assert leader is not None, "it comes from the leader"
        self._probe = probe
        self._job = self.context.effects.start(
            jobs.ProbePush(
                leader=leader,
                fragment=probe.fragment,
                codec=probe.codec,
                payload=probe.payload,
                payload_bytes=probe.payload_bytes,
                own=probe.own,
                other=probe.other,
                holder=probe.holder,
            )
        )

    def on_link_lost(self) -> None:
        """Nobody waits for an answer any more."""
        if self._probe is not None:
            self._probe = None
            self.context.effects.do(jobs.ForgetProbe())

    def on_job(self, number: JobId, result: object) -> None:
        """What became of it."""
        if number != self._job:
            return
        self._job = None
        probe, self._probe = self._probe, None
        if probe is None:
            return
        match result:
            case jobs.PushProbed(own, other, seconds):
                self.context.tally.probes += 1
                self.context.effects.emit(
                    PushMeasured(probe.probe, probe.fragment, own.mean, other.mean, seconds)
                )
                self.context.tell_leader(Probed(probe.probe, own, other, seconds))
            case jobs.NotProbed(trouble, detail):
                self._decline(probe, trouble, detail)
            case Failed(reason):
                self._decline(probe, "failed", reason)

    # Inside.

    def _check(self, probe: Probe) -> None:
        fragments = len(self.fragment_sync.local_fragments)
        if probe.fragment >= fragments:
            raise LimitExceeded(f"a probe of fragment {probe.fragment} of {fragments}")
        sequences = self.context.setup.genesis.data.block_sequences
        if any(place.sequence >= sequences for place in (*probe.own, *probe.other)):
            raise LimitExceeded(f"a probe of a sequence beyond the {sequences} of a block")

    def _hindrance(self, probe: Probe) -> str:
        """Why not to probe this push now; empty if nothing speaks against it."""
        control = self.trainer_control
        held = self.fragment_sync.local_fragments[probe.fragment].held
        if not self.context.setup.evaluates:
            return "off"
        if self._job is not None:
            return "busy"
        if control.is_paused:
            return "paused"
        if control.graceful_leave.until_s is not None:
            return "finishing"
        if control.trainer not in TRAINING or not self.fragment_sync.is_held:
            return "not training"
        if abs(held - probe.version) > limits.PUSH_LAG_MAX:
            return "another version"
        if control.is_evaluating:
            return "evaluating"
        if self.snapshot_participant.state is not Part.IDLE:
            return "snapshot"
        return ""

    def _decline(self, probe: Probe, reason: str, detail: str = "") -> None:
        self.context.tally.probes_declined += 1
        self.context.effects.emit(ProbeRefused(probe.probe, reason, detail))
        self.context.tell_leader(ProbeDeclined(probe.probe, reason))
