"""A syncer that does not lead keeps up: payloads before votes, versions in order, checkpoints.

A record that names bytes counts as stored here only when the bytes are on this disk too, so that
whoever may be elected can compute every state that was ever certified. What is certified is then
replayed one by one, in log order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.effect_queue import EffectQueue
from protocol.log import records
from protocol.log.state import SwarmState
from protocol.machine import Failed, Job
from protocol.messages import CertifiedRecord
from protocol.trace import FragmentAdvanced, PhaseChanged
from syncer_node.machine import jobs
from syncer_node.raft.log import Entry

FETCH_RETRY_S = 0.5
WRITE_RETRY_S = 2.0
FAILURES_MAX = 5
"""Fetches for one record that fail before a whole state is asked for."""

REPAIR_RETRY_S = 2.0
NONE = -1
"""No version."""

FETCHES_MAX = 4
"""Payloads fetched side by side; more would only fight for the leader's line."""


@dataclass(slots=True)
class Standby:
    """What a standby has still to fetch and to replay."""

    effects: EffectQueue
    state: SwarmState
    leader: Callable[[], bytes | None]
    on_payload: Callable[[int], None]
    is_needed: Callable[[int, bytes], bool]
    """(record index, record hash) -> whether that record is still in the log."""
    held: list[int]
    """Version of each fragment that the bank stands on, `NONE` where it is to be fetched."""
    now_s: float = 0.0
    failures: dict[int, int] = field(default_factory=dict)
    """Fetches that failed for a record, by index."""
    trouble: str = ""
    """Why this standby cannot keep up, in words."""
    _wanted: dict[int, Entry] = field(default_factory=dict)
    """Records whose bytes are not here yet, by index."""
    _fetching: set[int] = field(default_factory=set)
    _retry_s: dict[int, float] = field(default_factory=dict)
    _queue: deque[Job] = field(default_factory=deque)
    """What is certified and not yet replayed, in log order."""
    _replaying: Job | None = None
    _repairing: set[int] = field(default_factory=set)
    _repair_s: dict[int, float] = field(default_factory=dict)
    _was_missing: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether the bank stands where the log stands."""
        return not self._queue and self._replaying is None and not self.missing

    @property
    def is_left_behind(self) -> bool:
        """Whether payloads are gone everywhere: only a whole state would help."""
        return any(self.failures.get(index, 0) >= FAILURES_MAX for index in self._wanted)

    @property
    def is_waiting(self) -> bool:
        """Whether the bytes of some record are still to come."""
        return bool(self._wanted)

    @property
    def missing(self) -> list[int]:
        """Fragments that are still to be fetched as a whole."""
        return [at for at, version in enumerate(self.held) if version == NONE]

    def fetch(self, entry: Entry) -> bool:
        """Whether this record needs bytes from elsewhere; they are being fetched then."""
        if not isinstance(entry.record.body, records.NewVersions | records.WeightsInitialised):
            return False
        self._wanted[entry.record.index] = entry
        self._pump()
        return True

    def look(self, now_s: float) -> None:
        self.now_s = now_s
        self._pump()
        self._repair()

    def deadline_s(self) -> float:
        waiting = [at for index, at in self._retry_s.items() if index in self._wanted]
        waiting += [self._repair_s.get(at, 1e18) for at in self.missing]
        return min(waiting, default=1e18)

    def _pump(self) -> None:
        for index in sorted(self._wanted):
            entry = self._wanted[index]
            if not self.is_needed(index, entry.digest):
                del self._wanted[index]
                self.failures.pop(index, None)
                continue
            is_due = self.now_s >= self._retry_s.get(index, -1e9)
            if index not in self._fetching and is_due and len(self._fetching) < FETCHES_MAX:
                self._fetching.add(index)
                self._fetch(index, entry)

    def _fetch(self, index: int, entry: Entry) -> None:
        match entry.record.body:
            case records.FragmentMerged() as merged:
                self.effects.start(jobs.FetchPayload(index, self.leader(), merged))
            case records.WeightsInitialised(fragments):
                self.effects.start(jobs.FetchWeights(index, self.leader(), fragments))
            case records.WeightsRestored() as restored:
                self.effects.start(jobs.FetchRestored(index, self.leader(), restored))
            case _:
                raise AssertionError("only records with bytes are fetched for")

    def on_fetched(self, job: jobs.FetchJob, result: object) -> None:
        """The bytes of a record are on disk, or another try is due."""
        self._fetching.discard(job.index)
        entry = self._wanted.get(job.index)
        if entry is None:
            return
        if isinstance(result, jobs.PayloadKept) and _is_for(job, entry.record.body):
            self.trouble = ""
            self.failures.pop(job.index, None)
            del self._wanted[job.index]
            self._retry_s.pop(job.index, None)
            self.on_payload(job.index)
        elif isinstance(result, jobs.PayloadNotWritten):
            # A whole state would not fit on this disk either.
            self.trouble = result.reason
            self._retry_s[job.index] = self.now_s + WRITE_RETRY_S
        else:
            self.trouble = result.reason if isinstance(result, Failed) else "not fetched"
            self.failures[job.index] = self.failures.get(job.index, 0) + 1
            self._retry_s[job.index] = self.now_s + FETCH_RETRY_S
        self._pump()

    # Replaying what is certified.

    def on_certified(self, entry: CertifiedRecord, index: int, body: object) -> None:
        """The next record counts, and the state has it already."""
        match body:
            case records.WeightsInitialised():
                self._queue.append(jobs.LoadWeights())
            case records.FragmentMerged():
                self._queue.append(jobs.Replay(body))
            case records.WeightsRestored():
                self._queue.append(jobs.Restore(body))
                self._queue.append(jobs.WriteCheckpoint(index, self.state.summary()))
            case records.CheckpointMarked():
                self._queue.append(jobs.WriteCheckpoint(index, self.state.summary()))
            case records.CheckpointEvaluated():
                if self.state.best is not None:
                    self.effects.do(jobs.NameBest(self.state.best.checkpoint))
        self._replay()

    def on_replayed(self, job: Job, result: object) -> None:
        """One step is done; a bank that cannot follow the log must not go on."""
        if job is not self._replaying:
            return  # A checkpoint of a seat that is closed.
        self._replaying = None
        if isinstance(job, jobs.WriteCheckpoint):
            if isinstance(result, Failed):
                self.effects.emit(PhaseChanged("checkpoint failed", result.reason))
        elif not isinstance(result, jobs.Replayed):
            self._fall_back(job, result.reason if isinstance(result, Failed) else "not replayed")
            return
        if isinstance(job, jobs.LoadWeights):
            self.held = [0] * len(self.state.fragments)
        if isinstance(job, jobs.Replay):
            merged = job.merged
            self.held[merged.fragment] = merged.version
            self.effects.emit(
                FragmentAdvanced(merged.fragment, merged.version, merged.state.theta, "outer step")
            )
        if isinstance(job, jobs.Restore):
            self._restored(job.restored)
        self._replay()

    def _restored(self, restored: records.WeightsRestored) -> None:
        for at, (version, state) in enumerate(
            zip(restored.versions, restored.fragments, strict=True)
        ):
            if version > self.held[at]:
                self.held[at] = version
                self.effects.emit(FragmentAdvanced(at, version, state.theta, "the guard went back"))

    def _fall_back(self, job: Job, reason: str) -> None:
        """What was kept is lost or damaged: fetch the fragment as a whole, as certified."""
        self.trouble = reason
        self.effects.emit(PhaseChanged("repairing", reason))
        if isinstance(job, jobs.Replay):
            self.held[job.merged.fragment] = NONE
        else:
            self.held = [NONE] * len(self.state.fragments)
        self._repair()

    def _replay(self) -> None:
        while self._queue and self._replaying is None and not self.missing:
            job = self._queue.popleft()
            if self._is_held(job):
                continue  # It was fetched as a whole, in this version or a newer one.
            self._replaying = job
            self.effects.start(job)
        if self._was_missing and self.is_idle:
            # What was fetched is kept: a checkpoint of exactly this state.
            self._was_missing = False
            self._replaying = jobs.WriteCheckpoint(self.state.index, self.state.summary())
            self.effects.start(self._replaying)

    def _is_held(self, job: Job) -> bool:
        match job:
            case jobs.Replay(merged):
                return merged.version <= self.held[merged.fragment]
            case jobs.Restore(restored):
                pairs = zip(restored.versions, self.held, strict=True)
                return all(version <= held for version, held in pairs)
        return False

    # Fetching what this disk lost, or never had.

    def _repair(self) -> None:
        for fragment in self.missing:
            is_due = self.now_s >= self._repair_s.get(fragment, -1e9)
            is_free = fragment not in self._repairing and len(self._repairing) < FETCHES_MAX
            if is_due and is_free and self.state.has_weights:
                self._repairing.add(fragment)
                self._was_missing = True
                newest = self.state.fragments[fragment]
                self.effects.start(jobs.RepairFragment(fragment, self.leader(), newest))

    def on_repaired(self, job: jobs.RepairFragment, result: object) -> None:
        """A fragment was fetched as a whole, or another try is due."""
        self._repairing.discard(job.fragment)
        if isinstance(result, jobs.Repaired):
            self.held[job.fragment] = job.newest.version
            self.trouble = ""
        else:
            self.trouble = result.reason if isinstance(result, Failed) else "not fetched"
            self._repair_s[job.fragment] = self.now_s + REPAIR_RETRY_S
        self._repair()
        self._replay()


def _is_for(job: jobs.FetchJob, body: records.Body) -> bool:
    """Whether the job fetched the bytes of this record: another one may have taken its place."""
    match job:
        case jobs.FetchPayload(merged=named) | jobs.FetchRestored(restored=named):
            return body == named
        case jobs.FetchWeights(fragments=fragments):
            return body == records.WeightsInitialised(fragments)
