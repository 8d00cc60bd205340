"""Snapshots of the whole swarm: when one is taken, whose part is in it, and who went on from one.

The rules of a consistent cut are in `protocol.snapshots.cut`; this is the seat's part of it. A
snapshot is lost with the seat, and another one can be taken at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from protocol.effect_queue import EffectQueue
from protocol.machine import Failed
from protocol.messages import CertifiedRecord, PartMessage
from protocol.peers.membership import Membership, Session
from protocol.snapshots import manifest
from protocol.snapshots.cut import Channel, Taking
from protocol.snapshots.vector_clock import VectorClock
from protocol.status import RestoreRow
from protocol.trace import LearnerRestored, SnapshotBegan, SnapshotEnded
from syncer_node.machine import jobs
from syncer_node.machine.rounds import Rounds
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.telling.followers import Followers
from syncer_node.machine.telling.recent_entries import RecentEntries

TAKE_S_MAX = 600.0
"""Parts that are not written by then are not in the snapshot."""

RETRY_S = 60.0
"""A scheduled snapshot that could not be kept is tried again after this."""

RESTORES_MAX = 1024


@dataclass(slots=True)
class Snapshots:
    """One seat's."""

    setup: SyncerSetup
    effects: EffectQueue
    recent: RecentEntries
    followers: Followers
    members: Membership
    rounds: Rounds
    book: list[manifest.SnapshotOutline]
    """Those on this host's disk, oldest first; shared by all seats of this machine."""
    restores: dict[bytes, RestoreRow] = field(default_factory=dict)
    taking: Taking | None = None
    trouble: str = ""
    """Why the last one was not kept."""
    _cut: manifest.Manifest | None = None
    """Of the snapshot that is being taken, as known at the cut."""
    _proof: tuple[CertifiedRecord, tuple[CertifiedRecord, ...]] | None = None
    """The record at the cut, and those that made the newest versions."""
    _is_written: bool = False
    """The weights of the cut are on the disk."""
    _is_keeping: bool = False
    """Every part is known, and the manifest is on its way to the disk."""
    next_s: float | None = None
    """When the next scheduled one is due."""

    # Taking one.

    def begin(self, now_s: float) -> int:
        """Cut here and ask everybody for a part; the snapshot's number."""
        state, newest = self.rounds.state, self.recent.newest
        assert newest is not None, "there are weights, so there are records"
        former = max((one.snapshot for one in self.book), default=0)
        snapshot = max(int(now_s + self.setup.wall_offset_s), former + 1)
        clock = VectorClock(state.index, tuple(one.version for one in state.fragments))
        live = list(self.members.live())
        self.taking = Taking(
            snapshot, clock, now_s, {one.peer: self._channel(one) for one in live}, self._away()
        )
        self.trouble, self._is_written, self._is_keeping = "", False, False
        self._cut = manifest.Manifest(
            snapshot=snapshot,
            project=self.setup.project,
            epoch=state.epoch,
            index=state.index,
            head=state.head,
            clock=clock,
            global_step=state.global_step,
            tokens=state.tokens,
            parts=(),
            skipped=(),
            seconds=0.0,
        )
        self._proof = (newest, tuple(self.recent.origins()))
        self.effects.do(jobs.CutSnapshot(snapshot, state.summary()))
        self.effects.start(jobs.WriteSnapshot(snapshot))
        kept = tuple(sorted(self.kept()))
        for session in live:
            self.followers.bring_up(session)
            self.effects.send(session.peer, manifest.Marker(snapshot, clock, kept))
        self.effects.emit(SnapshotBegan(manifest.stamp(snapshot), state.index, len(live)))
        return snapshot

    def kept(self, *more: int) -> set[int]:
        """Snapshots that stay: the newest ones, and the one at which this epoch began."""
        charter = self.setup.charter
        known = sorted([*(one.snapshot for one in self.book), *more])
        kept = set(known[-charter.limits.snapshots_kept :])
        if charter.origin is not None and charter.origin.snapshot in known:
            kept.add(charter.origin.snapshot)
        return kept

    def _channel(self, session: Session) -> Channel:
        in_hand = self.rounds.in_hand(session.key)
        return Channel(session.peer, session.incarnation, session.name, in_hand)

    def _away(self) -> tuple[manifest.Skipped, ...]:
        """Learners that are known and not here."""
        gone = [one for _, one in sorted(self.members.sessions.items()) if not one.is_connected]
        return tuple(
            manifest.Skipped(one.peer, one.name, f"disconnected: {one.lost_reason}"[:200])
            for one in gone
        )

    # What comes in.

    def on_push(self, session: Session, sequence: int) -> None:
        if self.taking is not None:
            self.taking.on_push(session.key, sequence)

    def on_message(self, session: Session, message: PartMessage, now_s: float) -> None:
        """What a learner says of its part."""
        if isinstance(message, manifest.PartRestored):
            self._restored(session, message)
            return
        taking = self.taking
        if taking is None or message.snapshot != taking.snapshot:
            return  # Of a snapshot that was given up.
        match message:
            case manifest.Marker():
                taking.on_marker(session.key, message.clock)
            case manifest.PartKept():
                taking.on_kept(session.key, message)
            case manifest.PartRefused():
                taking.skip(session.peer, f"{message.reason}: {message.text}"[:200])
        self._try_finish(now_s)

    def on_gone(self, peer: bytes, reason: str, now_s: float) -> None:
        """A learner left or died: nobody waits for its part."""
        if self.taking is not None:
            self.taking.skip(peer, reason[:200])
            self._try_finish(now_s)

    def on_written(self, job: jobs.WriteSnapshot, result: object, now_s: float) -> None:
        """The weights of the cut are on the disk, or are not."""
        if self.taking is None or job.snapshot != self.taking.snapshot:
            return
        if isinstance(result, Failed):
            self._give_up(result.reason, now_s)
            return
        self._is_written = True
        self._try_finish(now_s)

    def on_kept(self, job: jobs.KeepSnapshot, result: object, now_s: float) -> None:
        """The manifest is on the disk: the snapshot exists; or it does not."""
        taking = self.taking
        if taking is None or job.manifest.snapshot != taking.snapshot:
            return
        if not isinstance(result, jobs.SnapshotKept):
            reason = result.reason if isinstance(result, Failed) else "not kept"
            self._give_up(reason, now_s)
            return
        skipped = tuple((one.name, one.reason) for one in job.manifest.skipped)
        parts = len(job.manifest.parts)
        name, seconds = manifest.stamp(taking.snapshot), job.manifest.seconds
        self.taking = None
        self.effects.emit(SnapshotEnded(name, True, parts, skipped, "", seconds))

    def close(self) -> None:
        """The seat ends, and with it what is being taken."""
        if self.taking is not None and not self._is_keeping:
            self.effects.do(jobs.DropSnapshot(self.taking.snapshot))
        self.taking = None

    # Time.

    def look(self, now_s: float, *, may_begin: bool) -> None:
        """Begin a scheduled snapshot when it is due; do not wait for parts for ever."""
        taking = self.taking
        if taking is not None and now_s >= taking.begun_s + TAKE_S_MAX and not taking.is_done:
            for peer in list(taking.channels):
                taking.skip(peer, f"not written within {TAKE_S_MAX:.0f} s")
            self._try_finish(now_s)
        every_s = self.setup.charter.limits.snapshot_every_s
        if not every_s:
            self.next_s = None
            return
        if self.next_s is None:
            last = max((one.snapshot for one in self.book), default=0)
            due_s = last + every_s - self.setup.wall_offset_s
            self.next_s = due_s if last else now_s + every_s
        if may_begin and taking is None and now_s >= self.next_s:
            self.next_s = now_s + every_s
            self.begin(now_s)

    def deadline_s(self) -> float | None:
        """When `look` is due if nothing happens before."""
        taking = self.taking
        times = [self.next_s] if taking is None else [taking.begun_s + TAKE_S_MAX]
        return min((t for t in times if t is not None), default=None)

    # Inside.

    def _try_finish(self, now_s: float) -> None:
        taking, cut = self.taking, self._cut
        is_ready = self._is_written and not self._is_keeping
        if taking is None or cut is None or not taking.is_done or not is_ready:
            return
        assert self._proof is not None, "it was taken with the cut"
        whole = structs.replace(
            cut, parts=taking.parts(), skipped=taking.skipped(), seconds=now_s - taking.begun_s
        )
        self._is_keeping = True
        kept = tuple(sorted(self.kept(taking.snapshot)))
        self.effects.start(jobs.KeepSnapshot(whole, *self._proof, kept))

    def _give_up(self, reason: str, now_s: float) -> None:
        taking, self.taking = self.taking, None
        assert taking is not None, "there is one to give up"
        self.trouble = reason
        self.effects.do(jobs.DropSnapshot(taking.snapshot))
        if self.next_s is not None:
            self.next_s = min(self.next_s, now_s + RETRY_S)
        seconds = now_s - taking.begun_s
        self.effects.emit(
            SnapshotEnded(manifest.stamp(taking.snapshot), False, 0, (), reason, seconds)
        )

    @property
    def origin(self) -> manifest.SnapshotOutline | None:
        """The snapshot at which this epoch began, if there is one and it is here."""
        origin = self.setup.charter.origin
        wanted = origin.snapshot if origin is not None else 0
        return next((one for one in self.book if one.snapshot == wanted), None)

    def may_resume(self, peer: bytes, incarnation: int) -> bool:
        """Whether a learner may go on under a lower incarnation than it came with: that of its
        part, once."""
        part = self._part_of(peer)
        return part is not None and part.incarnation == incarnation and peer not in self.restores

    def _part_of(self, peer: bytes) -> manifest.PartOutline | None:
        parts = self.origin.parts if self.origin is not None else ()
        return next((one for one in parts if one.learner == peer), None)

    def _restored(self, session: Session, said: manifest.PartRestored) -> None:
        origin = self.setup.charter.origin
        if origin is None or said.snapshot != origin.snapshot:
            return
        outline, part = self.origin, self._part_of(session.peer)
        trouble = said.text[:200]
        is_other = part is None or part.digest != said.digest
        if said.is_restored and outline is not None and is_other:
            trouble = "its part is not the one the snapshot names"
        told = RestoreRow(
            name=session.name,
            is_restored=said.is_restored,
            local_step=said.local_step,
            trouble=trouble,
        )
        if self.restores.get(session.peer) == told or len(self.restores) >= RESTORES_MAX:
            return
        self.restores[session.peer] = told
        self.effects.emit(
            LearnerRestored(
                session.peer, told.name, told.is_restored, told.local_step, told.trouble
            )
        )
