"""A learner's part in snapshots of the swarm: cut here, write, say so; and go on from one later.

    marker -> nothing moves to or from the inner loop -> copy at a boundary: the cut -> marker back
    -> write -> part kept

From the marker to the cut, what the syncer sends is held back: it was sent after the syncer's cut
and must not change what is copied. That takes a local step or two, in which the inner loop goes
on; deliveries and hand-ins wait for a boundary anyway. Whatever goes wrong only costs this
learner's part.

A new epoch that begins at a snapshot is entered by a new machine: with the learner's own part if
it is here and sound, and otherwise as a joiner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from node.machine import jobs
from node.machine.context import EpochStart, LearnerContext
from node.machine.fragment_sync import FragmentSync
from node.machine.snapshot_part import LocalFragmentState, PartState
from node.machine.trainer_control import TrainerControl
from node.machine.trainer_states import TrainerState
from protocol.ids import JobId
from protocol.machine import Failed, Job, Stop
from protocol.messages import Goodbye, Message, Refused
from protocol.snapshots.manifest import (
    Marker,
    PartBooks,
    PartKept,
    PartReason,
    PartRefused,
    PartRestored,
    stamp,
)
from protocol.snapshots.vector_clock import VectorClock
from protocol.trace import PartChanged

CUT_S_MAX = 30.0
"""What the syncer says is held back no longer: an evaluation may keep the trainer busy."""

HELD_MAX = 4096
"""Messages held back at most."""

RESTART_EXIT = 75
"""Of a machine whose daemon should build it anew, from a part or as a joiner."""

NO_PART = bytes(32)

WHOLE = (TrainerState.STEPPING, TrainerState.STARVED, TrainerState.HELD, TrainerState.SUSPENDED)
"""States in which the trainer has all that a part consists of."""


class Part(Enum):
    """Where this learner's part of a snapshot stands."""

    IDLE = "no snapshot"
    SETTLING = "waiting until nothing moves"
    CUTTING = "copying at a boundary"
    WRITING = "writing"


PART_TRANSITIONS: dict[tuple[Part, str], Part] = {
    (Part.IDLE, "marker"): Part.SETTLING,
    (Part.SETTLING, "quiet"): Part.CUTTING,
    (Part.CUTTING, "cut"): Part.WRITING,
    (Part.WRITING, "kept"): Part.IDLE,
    **{(state, "gave up"): Part.IDLE for state in (Part.SETTLING, Part.CUTTING, Part.WRITING)},
}


class SnapshotParticipant:
    """One learner's side of snapshots."""

    def __init__(
        self, context: LearnerContext, fragment_sync: FragmentSync, trainer_control: TrainerControl
    ) -> None:
        self.context = context
        self.fragment_sync = fragment_sync
        self.trainer_control = trainer_control
        self.state = Part.IDLE
        self.held: deque[Message] = deque()
        """What came after the marker, in order."""
        self.parts = set(context.setup.parts)
        """Snapshots of which there is a part here."""
        self.report: PartRestored | None = None
        """What became of the part with which this epoch began for this learner."""
        self.next_start: EpochStart | None = None
        """How the next machine begins, once this one asked to be replaced."""
        self.is_leaving = False
        """It is about to ask for that, or looks for a part first."""
        self._marker: Marker | None = None
        self._until_s = 0.0
        self._job: JobId | None = None
        self._accounts: PartBooks | None = None
        if context.setup.start is not None and context.setup.start.part is None:
            start = context.setup.start
            self.report = PartRestored(start.snapshot, False, NO_PART, 0, start.trouble[:2000])

    # Taking one.

    @property
    def is_holding(self) -> bool:
        """Whether what the syncer says has to wait."""
        return self.state in (Part.SETTLING, Part.CUTTING)

    def holds(self, message: Message) -> bool:
        """Hold this message back, if the cut is still to come."""
        if not self.is_holding:
            return False
        if isinstance(message, Goodbye | Refused):
            self._refuse("busy", "the session ended")
        elif len(self.held) >= HELD_MAX:
            self._refuse("busy", f"{HELD_MAX} messages came before the cut")
        self.held.append(message)
        return True

    def release(self, take: Callable[[bytes, Message], None]) -> None:
        """Have `take` look at what was held back, in order, as soon as it may be."""
        while self.held and not self.is_holding:
            assert self.context.leader is not None, "the leader said it"
            take(self.context.leader, self.held.popleft())

    def on_marker(self, marker: Marker) -> None:
        """The syncer is cut; so is this learner, as soon as a copy can be made."""
        if self.state is not Part.IDLE:
            self._give_up("another snapshot began")
        self._marker = marker
        self._until_s = self.context.now_s + CUT_S_MAX
        self._fire("marker", stamp(marker.snapshot))
        if not self.context.setup.keeps_parts:
            self._refuse("off", "this host keeps no parts of snapshots")
        elif self.trainer_control.trainer not in WHOLE:
            self._refuse("starting", f"its trainer is {self.trainer_control.trainer.value}")
        else:
            self.fragment_sync.may_move = False
            self.look()

    def look(self) -> None:
        """Do what time or the inner loop has made due."""
        if not self.is_holding:
            return
        if self.context.now_s >= self._until_s:
            self._refuse("busy", f"no boundary within {CUT_S_MAX:.0f} s")
        elif self.state is Part.SETTLING and self.fragment_sync.is_quiet:
            assert self._marker is not None, "a marker came"
            self._fire("quiet", "")
            self._job = self.context.effects.start(jobs.CutPart(self._marker.snapshot))

    def deadline_s(self) -> float | None:
        """When `look` is due if nothing happens before."""
        return self._until_s if self.is_holding else None

    def on_note(self, value: object) -> None:
        """News of the trainer: with it goes what was to be copied."""
        if isinstance(value, jobs.TrainerLost) and self.is_holding:
            self._refuse("failed", "its trainer ended")

    def on_link_lost(self) -> None:
        """Nobody waits for this part; what was held back comes again."""
        self.held.clear()
        if self.state is not Part.IDLE:
            self._give_up("the syncer is gone")

    def on_job(self, number: JobId, job: Job, result: object) -> None:
        """An answer; that of a job that nobody waits for any more changes nothing."""
        if isinstance(job, jobs.LoadPart):
            self._restart(job, result.reason if isinstance(result, Failed) else "")
            return
        if number != self._job:
            return
        self._job = None
        match result:
            case jobs.PartCut():
                self._cut(result)
            case jobs.PartWritten(digest, size_bytes):
                assert self._marker is not None, "it was cut for a marker"
                assert self._accounts is not None, "and its accounts were closed then"
                snapshot = self._marker.snapshot
                self.parts = (self.parts & set(self._marker.kept)) | {snapshot}
                self._fire("kept", stamp(snapshot))
                self.context.tell_leader(PartKept(snapshot, digest, size_bytes, self._accounts))
            case Failed(reason):
                is_disk = isinstance(job, jobs.WritePart) and "disk" in reason
                self._refuse("disk" if is_disk else "failed", reason)

    # Going on from one.

    def wants_restart(self) -> bool:
        """Whether the epoch begins at a snapshot, so that another machine has to enter it.

        Where there is a part it is looked for; the machine stops once that is known.
        """
        context = self.context
        charter, start = context.charter, context.setup.start
        origin = charter.origin if charter is not None else None
        if charter is None or origin is None or not origin.snapshot:
            return False
        if self.is_leaving or (start is not None and start.epoch >= charter.epoch):
            return self.is_leaving
        job = jobs.LoadPart(origin.snapshot, charter.epoch)
        if origin.snapshot in self.parts:
            self.is_leaving = True
            context.effects.start(job)
        elif context.state.has_weights and context.state.epoch < charter.epoch:
            self._restart(job, "it has no part of that snapshot")
        return self.is_leaving

    def on_refused(self, refused: Refused) -> bool:
        """The session of the part cannot go on: begin as a joiner instead. Whether that is so."""
        start = self.context.setup.start
        if start is None or start.part is None or refused.reason != "stale-incarnation":
            return False
        self._restart(
            jobs.LoadPart(start.snapshot, start.epoch), "it had come back as a new session"
        )
        return True

    def on_trainer(self, result: object) -> None:
        """A trainer was started: whether it goes on from the part. A later one never does.

        If it does not, neither can the part's session: begin as a joiner instead.
        """
        start = self.context.setup.start
        if start is None or start.part is None or self.report is not None:
            return
        if isinstance(result, jobs.TrainerReady) and result.unread is not None:
            self.report = PartRestored(start.snapshot, True, start.digest, result.local_step, "")
            self.tell()
        else:
            reason = result.reason if isinstance(result, Failed) else "it was not taken up"
            self._restart(jobs.LoadPart(start.snapshot, start.epoch), reason)

    def tell(self) -> None:
        """Say what became of the part; again in every session, for leaders change."""
        if self.report is not None:
            self.context.tell_leader(self.report)

    # Inside.

    def _fire(self, trigger: str, detail: str) -> None:
        self.state = PART_TRANSITIONS[self.state, trigger]
        self.context.effects.emit(PartChanged(self.state.value, trigger, detail))

    def _refuse(self, reason: PartReason, text: str) -> None:
        assert self._marker is not None, "a marker came"
        snapshot = self._marker.snapshot
        self._give_up(f"{reason}: {text}")
        self.context.tell_leader(PartRefused(snapshot, reason, text[:2000]))

    def _give_up(self, reason: str) -> None:
        self._fire("gave up", reason)
        self._job = self._marker = self._accounts = None
        self.fragment_sync.may_move = True

    def _cut(self, cut: jobs.PartCut) -> None:
        """This is the cut: what was sent so far lies before it, and what was held back behind."""
        assert self._marker is not None, "it is cut for a marker"
        context, fragment_sync = self.context, self.fragment_sync
        local_fragments = fragment_sync.local_fragments
        accounts = [local.accounts for local in local_fragments]
        self._accounts = PartBooks(
            sequence=fragment_sync.sequence,
            open=tuple(sorted(sequence for one in accounts for sequence in one.open)),
            local_step=cut.local_step,
            processed=sum(one.dead + cut.tokens for one in accounts),
            merged=sum(one.merged for one in accounts),
            in_flight=sum(one.in_flight() for one in accounts),
            pending=sum(one.pending(cut.tokens) for one in accounts),
            discarded=sum(one.discarded for one in accounts),
            lost=sum(one.lost for one in accounts),
        )
        fragment_sync.may_move = True
        self._fire("cut", f"at record {context.state.index}, local step {cut.local_step}")
        standing = tuple(max(0, local.standing) for local in local_fragments)
        snapshot, kept = self._marker.snapshot, self._marker.kept
        self.context.tell_leader(Marker(snapshot, VectorClock(context.state.index, standing)))
        self._job = context.effects.start(jobs.WritePart(self._part(snapshot), kept))

    def _part(self, snapshot: int) -> PartState:
        context = self.context
        assert context.charter is not None, "a trainer runs under a charter"
        return PartState(
            project=context.setup.project,
            snapshot=snapshot,
            learner=context.setup.signer.key,
            incarnation=context.setup.incarnation,
            epoch=context.state.epoch,
            index=context.state.index,
            sequence=self.fragment_sync.sequence,
            inner=context.charter.inner,
            local_fragments=tuple(
                LocalFragmentState.of(local) for local in self.fragment_sync.local_fragments
            ),
        )

    def _restart(self, job: jobs.LoadPart, trouble: str) -> None:
        self.is_leaving = True
        self.next_start = EpochStart(job.snapshot, job.epoch, trouble=trouble)
        words = trouble or "it goes on from its own part"
        text = f"the owner went back to snapshot {stamp(job.snapshot)}: {words}"
        self.context.effects.out.append(Stop(text, RESTART_EXIT))
