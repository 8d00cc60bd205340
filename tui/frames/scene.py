"""What one view draws from: the newest frame, the past, and whom the viewer looks at."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.status import (
    DaemonStatus,
    NodeStatus,
    PeerRow,
    Status,
    SyncerStatus,
    WitnessStatus,
)
from tui.frames.frame import Attached, Frame
from tui.frames.history import History
from tui.frames.traffic import Packet
from tui.text import election, fmt, standstill
from tui.text.election import LOST, alive, leads
from tui.text.paint import Paint


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a renderer may look at."""

    frame: Frame
    history: History
    focus: str = ""
    """Label of the daemon the viewer looks at; empty for the first."""
    paint: Paint = field(default_factory=Paint)
    is_recording: bool = False
    """It is played from a recording: not now."""
    moving: tuple[Packet, ...] = ()
    """What is under way between learners and syncer."""
    is_wide: bool = False
    """Facts and events have a column of their own."""

    @property
    def now_s(self) -> float:
        """Wall clock of the frame."""
        return self.frame.at_s

    @property
    def attached(self) -> Attached | None:
        """The daemon in focus; until one is chosen, the first that has ever said something."""
        daemons = self.frame.attached()
        chosen = [one for one in daemons if one.label == self.focus]
        telling = [one for one in daemons if self.frame.status(one.key) is not None]
        return next(iter(chosen or telling or daemons), None)

    @property
    def told(self) -> DaemonStatus | None:
        """What the daemon in focus said last."""
        return self.frame.status(self.attached.key) if self.attached else None

    @property
    def status(self) -> Status | None:
        """The same; where that is a witness, which has no model, another of its project."""
        told = self.told
        if not isinstance(told, WitnessStatus):
            return told
        others = (one for one in self._fellows(told) if not isinstance(one, WitnessStatus))
        return next(others, None)

    def _fellows(self, status: DaemonStatus) -> list[DaemonStatus]:
        """Whoever of its project has ever said something."""
        return [one for one in self.frame.statuses if one.project.id == status.project.id]

    @property
    def names(self) -> dict[str, str]:
        """What the daemons of this machine are called, by key, and voters elsewhere by the name
        that they give."""
        found = {
            row.key: election.voter_name(row, {})
            for status in self.frame.statuses
            if not isinstance(status, NodeStatus) and status.seat is not None
            for row in status.seat.voters
            if row.name
        }
        return found | {one.key: one.label for one in self.frame.attached() if one.key}

    @property
    def voter(self) -> SyncerStatus | WitnessStatus | None:
        """Whose view of the election is shown: the daemon in focus, or a syncer."""
        told = self.told
        return told if isinstance(told, WitnessStatus) else self.syncer

    @property
    def syncer(self) -> SyncerStatus | None:
        """The syncer to learn about the swarm from: the one in focus, or one of its project."""
        status = self.status
        if status is None or isinstance(status, SyncerStatus):
            return status
        fellows = self._fellows(status)
        return next((one for one in fellows if isinstance(one, SyncerStatus)), None)

    @property
    def leader(self) -> SyncerStatus | None:
        """Who knows the learners: `syncer`, unless that only stands by and the leader is here."""
        syncer = self.syncer
        if syncer is None or leads(syncer):
            return syncer
        for other in self._fellows(syncer):
            if isinstance(other, SyncerStatus) and leads(other) and self.silent_s(other) is None:
                return other
        return syncer

    @property
    def best(self) -> Status | None:
        """Who knows most: the syncer, unless it is silent and another is looked at."""
        syncer = self.syncer
        return self.status if syncer is None or self.silent_s(syncer) is not None else syncer

    @property
    def node(self) -> NodeStatus | None:
        """The learner in focus, or the first of the same project on this machine."""
        status = self.status
        if status is None or isinstance(status, NodeStatus):
            return status
        return next(iter(self.nodes_here), None)

    @property
    def nodes_here(self) -> list[NodeStatus]:
        """All learners of this machine that work for the project in focus."""
        fellows = [] if self.status is None else self._fellows(self.status)
        return [one for one in fellows if isinstance(one, NodeStatus)]

    def still_s(self, status: Status) -> float:
        """For how long, at least, no global step came."""
        pace = status.swarm.pace
        if pace is None or pace.still_s is None:
            return self.history.standstill_s(status.key, self.now_s)
        return pace.still_s + (self.silent_s(status) or 0.0)

    def is_stalled(self, status: Status) -> bool:
        """Whether global steps fail to come that should have come.

        What the daemon measured counts: a viewer who has just come knows no usual pace.
        """
        pace = status.swarm.pace
        gap_s = self.history.step_gap_s(status.key, self.now_s) if pace is None else pace.gap_s
        return standstill.is_standstill(self.still_s(status), gap_s, is_measured=pace is not None)

    def silent_s(self, status: DaemonStatus | None) -> float | None:
        """For how long the daemon that gave this status has not answered; None while it does."""
        if status is None:
            return None
        for one in self.frame.attached():
            if one.key == status.key:
                return one.silent_s(self.now_s)
        return None

    def stale(self, status: DaemonStatus | None) -> str:
        """A warning where what is shown is not of now; else empty."""
        quiet_s = self.silent_s(status)
        if status is None or quiet_s is None:
            return ""
        label = next(one.label for one in self.frame.attached() if one.key == status.key)
        return f"From {fmt.whole(quiet_s)} ago: {label} does not answer."


def lost(status: SyncerStatus) -> list[PeerRow]:
    """Learners that it does not, the latest loss first."""
    return sorted((one for one in status.peers if one.state in LOST), key=lambda one: one.heard_s)


def goodput(status: SyncerStatus) -> float | None:
    """Mean over the learners that are heard and have worked."""
    shares = [one.goodput for one in alive(status) if one.goodput is not None]
    return sum(shares) / len(shares) if shares else None


def eta(scene: Scene) -> str:
    """The time left, in words."""
    status = scene.status
    if status is None or status.project.token_budget <= 0:
        return "not known"
    swarm, budget = status.swarm, status.project.token_budget
    if swarm.is_ended:
        return "done"
    if swarm.is_ending or swarm.tokens >= budget:
        return "finishing"
    if swarm.tokens == 0:
        return "not known"  # Nobody has begun, so nothing stands still.
    if swarm.owner_paused_at_s is not None:
        return "paused by the owner"
    if isinstance(status, NodeStatus) and status.state == "adrift":
        return "not known"
    if scene.is_stalled(status):
        return "stalled"
    pace = swarm.pace
    if pace is not None:
        return fmt.between(*pace.left_s) if pace.left_s is not None else "not known yet"
    rate = scene.history.committed_per_s(status.key, scene.now_s)
    if rate is None:
        return "not known"
    if rate <= 0:
        return "stalled"
    return fmt.duration((budget - swarm.tokens) / rate)
