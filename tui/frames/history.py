"""What the frames seen so far tell beyond the newest: rates, stand-stills, events. Bounded."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from protocol.status import DaemonStatus, NodeStatus, SyncerStatus, WitnessStatus
from tui.frames.frame import Frame, Told

SAMPLES_MAX = 3600
"""An hour at one a second."""

SAMPLE_GAP_S = 0.9
EVENTS_MAX = 5000

RATE_WINDOW_S = 120.0
"""Merges come in bursts; two minutes of them give an estimate that does not jump."""

RATE_SPAN_S_MIN = 5.0

COURSE_LENGTH = 24
"""What a learner said, so many times."""

COURSE_GAP_S = 2.0
PEERS_MAX = 512
"""Of more learners no course is kept."""


class Reading(NamedTuple):
    """What one daemon said that is worth remembering."""

    at_s: float
    global_step: int
    tokens: int
    """Committed by the swarm."""
    tokens_per_s: float
    """Trained just now: by all learners for a syncer, by itself for a learner."""
    is_leaderless: bool = False
    """No leader was known to it."""


class Courses(NamedTuple):
    """What each learner of a swarm said at one moment, packed: recordings keep hours of it."""

    keys: tuple[str, ...]
    speeds: array[float]
    """Tokens a second; 0 where it does not train."""
    losses: array[float]
    """Of its last local step; NaN where it has none."""


class Sample(NamedTuple):
    """The memorable part of one frame."""

    at_s: float
    readings: dict[str, Reading]
    events: tuple[Told, ...]
    silent: frozenset[str]
    """Labels of daemons that do not answer."""
    courses: Courses | None = None


def sample(frame: Frame) -> Sample:
    """What to remember of a frame. Daemons that are silent have said nothing new."""
    silent, readings = set(), {}
    for daemon in frame.attached():
        status = frame.status(daemon.key)
        if daemon.silent_s(frame.at_s) is not None:
            silent.add(daemon.label)
        elif status is not None:
            readings[status.key] = _reading(status, frame.at_s)
    return Sample(frame.at_s, readings, frame.events, frozenset(silent), _courses(frame, silent))


def _courses(frame: Frame, silent: set[str]) -> Courses | None:
    """Of the learners that a leading syncer knows, if one is heard."""
    for daemon in frame.attached():
        status = frame.status(daemon.key)
        if isinstance(status, SyncerStatus) and status.peers and daemon.label not in silent:
            peers = status.peers[:PEERS_MAX]
            return Courses(
                _same(tuple(peer.key for peer in peers)),
                array("f", (one.tokens_per_s * (one.state == "training") for one in peers)),
                array("f", (math.nan if one.loss is None else one.loss for one in peers)),
            )
    return None


@lru_cache(16)
def _same(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Equal keys as one object: a sample each second names the same learners."""
    return keys


def _reading(status: DaemonStatus, at_s: float) -> Reading:
    seat = None if isinstance(status, NodeStatus) else status.seat
    is_leaderless = seat is not None and not seat.leader
    match status:
        case WitnessStatus():
            return Reading(at_s, 0, 0, 0.0, is_leaderless)
        case SyncerStatus():
            speed = sum(one.tokens_per_s for one in status.peers if one.state == "training")
        case NodeStatus():
            speed = status.tokens_per_s if status.state in ("training", "adrift") else 0.0
    swarm = status.swarm
    return Reading(at_s, swarm.global_step, swarm.tokens, speed, is_leaderless)


class History:
    """Grows with each frame; see `Sample`."""

    def __init__(self) -> None:
        self.events: deque[Told] = deque(maxlen=EVENTS_MAX)
        """Oldest first."""
        self.events_seen = 0
        self._readings: dict[str, deque[Reading]] = {}
        self._moved_s: dict[str, float] = {}
        self._step: dict[str, int] = {}
        self._leaderless_from_s: dict[str, float] = {}
        self._courses: dict[str, deque[tuple[float, float]]] = {}
        self._course_s = -math.inf

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> History:
        """The history that these make."""
        history = cls()
        for one in samples:
            history.add(one)
        return history

    def add(self, one: Sample) -> None:
        """Takes in what came next."""
        self.events.extend(one.events)
        self.events_seen += len(one.events)
        for key, reading in one.readings.items():
            self._remember(key, reading)
        if one.courses is not None and not 0 <= one.at_s - self._course_s < COURSE_GAP_S:
            self._course_s = one.at_s
            self._add_courses(one.courses)

    def _add_courses(self, new: Courses) -> None:
        for key, speed, loss in zip(new.keys, new.speeds, new.losses, strict=True):
            kept = self._courses.get(key)
            if kept is None:
                kept = self._courses[key] = deque(maxlen=COURSE_LENGTH)
            kept.append((speed, loss))
        if len(self._courses) > 2 * PEERS_MAX:
            here = set(new.keys)
            self._courses = {key: one for key, one in self._courses.items() if key in here}

    def speeds(self, key: str) -> list[float]:
        """Tokens a second of a learner over the last minute, oldest first."""
        return [speed for speed, _ in self._courses.get(key, ())]

    def losses(self, key: str) -> list[float]:
        """Training loss of a learner over the last minute, oldest first."""
        return [loss for _, loss in self._courses.get(key, ()) if math.isfinite(loss)]

    def _remember(self, key: str, reading: Reading) -> None:
        kept = self._readings.setdefault(key, deque(maxlen=SAMPLES_MAX))
        if kept and (reading.tokens < kept[-1].tokens or reading.at_s < kept[-1].at_s):
            kept.clear()  # another history: the daemon began anew, or the clock was set
            self._step.pop(key, None)
        if self._step.get(key) != reading.global_step:
            self._step[key] = reading.global_step
            self._moved_s[key] = reading.at_s
        if reading.is_leaderless:
            self._leaderless_from_s.setdefault(key, reading.at_s)
        else:
            self._leaderless_from_s.pop(key, None)
        if not kept or reading.at_s - kept[-1].at_s >= SAMPLE_GAP_S:
            kept.append(reading)

    def readings(self, key: str) -> list[Reading]:
        """What this daemon said over time, oldest first."""
        return list(self._readings.get(key, ()))

    def committed_per_s(self, key: str, now_s: float) -> float | None:
        """Tokens that the swarm commits each second; None while that cannot be told."""
        recent = self._recent(key, now_s)
        if len(recent) < 2 or recent[-1].at_s - recent[0].at_s < RATE_SPAN_S_MIN:
            return None
        return (recent[-1].tokens - recent[0].tokens) / (recent[-1].at_s - recent[0].at_s)

    def step_gap_s(self, key: str, now_s: float) -> float | None:
        """Usual seconds between global steps; None while that cannot be told."""
        recent = self._recent(key, now_s)
        steps = recent[-1].global_step - recent[0].global_step if recent else 0
        # Up to the last step: a standstill must not look usual because it lasts.
        return (self._moved_s[key] - recent[0].at_s) / steps if steps > 0 else None

    def standstill_s(self, key: str, now_s: float) -> float:
        """For how long, at least, no global step came."""
        moved_s = self._moved_s.get(key)
        return 0.0 if moved_s is None else max(now_s - moved_s, 0.0)

    def leaderless_s(self, key: str, now_s: float) -> float | None:
        """For how long, at least, no leader was known to this daemon; None while one is."""
        from_s = self._leaderless_from_s.get(key)
        return None if from_s is None else max(now_s - from_s, 0.0)

    def _recent(self, key: str, now_s: float) -> list[Reading]:
        picked = []
        for reading in reversed(self._readings.get(key, ())):
            if now_s - reading.at_s > RATE_WINDOW_S:
                break
            picked.append(reading)
        return picked[::-1]
