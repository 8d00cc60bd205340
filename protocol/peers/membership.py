"""Who is in the swarm right now: sessions, what they last said, and how long ago.

Identity is not session: a key with a higher incarnation replaces its former session at once. A
silent session is suspected, then gone; a broken stream is gone at once. The dead may come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol import limits
from protocol.messages import Cursor, Heartbeat, Hello

RATE_FACTOR = 0.2
"""Weight of the newest measurement of a learner's rate."""

BARRED = "put out: "
"""How the reason begins for which a session ended that the owner's rules ended."""

MISSES_MAX = 2
"""Payloads in a row that may fail to come before a learner is asked last."""

MISS_PAUSE_S = 30.0
"""How long it is asked last then; each further miss doubles that."""

MISS_DOUBLINGS_MAX = 5

UNANSWERED_MAX = 2
"""Pulls in a row that may bring nothing before no quorum counts on a learner."""

LOAD_OVER_S, LOAD_EVERY_S = 30.0, 5.0
"""How long the load of a device is looked at for, and how often."""

IDLE_STEPS = 3.0
"""Local steps that may fail to come before a learner counts as slower than it was."""


@dataclass(slots=True)
class Session:
    """One learner as its syncer knows it."""

    peer: bytes
    incarnation: int
    name: str
    evaluates: bool
    since_s: float
    heard_s: float
    is_connected: bool = True
    beat: Heartbeat | None = None
    is_news: bool = False
    """The last heartbeat said something that the one before did not."""
    merges: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """Pushes that did not count, under this leader."""
    rate_per_s: float = 0.0
    """Local steps per second as seen here, whatever the learner says of itself."""
    stepped_s: float = 0.0
    """When a local step was last seen."""
    stride: int = 0
    """Local steps that came with the newest heartbeat that told of any."""
    merged_steps: dict[int, int] = field(default_factory=dict)
    """Local steps merged since this session opened, by fragment."""
    asked: dict[int, int] = field(default_factory=dict)
    """The newest round of each fragment that asked it."""
    merged_s: dict[int, float] = field(default_factory=dict)
    """When something of it was last merged into each fragment."""
    merged_rate_per_s: float = 0.0
    """Local steps per second by what was merged; 0 before the first merge."""
    training_s: float | None = None
    """When it was first heard to train."""
    misses: int = 0
    """Pushes in a row that it announced and whose payload did not come."""
    missed_s: float = 0.0
    """When the newest of them failed."""
    unanswered: int = 0
    """Pulls in a row that brought no push which could count."""
    wrong: str = ""
    """Why a push of it was refused last, if one was false or malformed."""
    wrong_s: float = 0.0
    """When that was."""
    share: float | None = None
    """What its newest push added of a merge; None before the first."""
    lost_s: float = 0.0
    """When it ended, whenever it was heard last."""
    lost_reason: str = ""
    has_left: bool = False
    """It said goodbye, or the project's owner put it out: no fault of anybody's."""
    network: str = ""
    """Where it connects from, of `machine.PeerUp`."""
    arrived_s: float = 0.0
    """When its key came, whatever connections and daemons it has had since."""
    is_suspended: bool = False
    """Others measured that its pushes are not trained: it is here, and takes no part."""
    faults: dict[str, int] = field(default_factory=dict)
    """Messages of it that were refused, by reason."""
    stood_still: bool = True
    """It was away, or its inner loop stood, since its speed was last measured."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """When it was heard lately, and the seconds that its device had computed by then."""
    is_brief: bool = False
    """The log is told to it in brief."""
    told_index: int = 0
    """The newest record that it was told."""
    key: tuple[bytes, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.peer, self.incarnation)

    @property
    def is_training(self) -> bool:
        """Whether its inner loop steps, for the swarm: a suspended one steps for nobody."""
        is_stepping = self.beat is not None and self.beat.state == "training"
        return self.is_connected and is_stepping and not self.is_suspended

    @property
    def can_hand_in(self) -> bool:
        """Whether it answers pulls: it trains, or stands still with what it has not handed in."""
        if not self.is_connected or self.beat is None or self.is_suspended:
            return False
        return self.beat.state in ("training", "starved", "paused", "finishing")

    @property
    def is_starved(self) -> bool:
        """Whether its inner loop would step for the swarm, and has no text."""
        return self.can_hand_in and self.beat is not None and self.beat.state == "starved"

    @property
    def device(self) -> str:
        return self.beat.device if self.beat else ""

    @property
    def step_s(self) -> float:
        """Seconds of one local step as the learner reports it; 0 before the first."""
        return self.beat.step_s if self.beat else 0.0

    @property
    def cursor(self) -> Cursor:
        return self.beat.cursor if self.beat else Cursor(0, 0)

    def hear(self, beat: Heartbeat, now_s: float) -> None:
        """Take a heartbeat, and measure how fast this learner steps."""
        former = self.beat
        self.beat = beat
        self._keep_busy(beat.busy_s, now_s)
        if self.training_s is None and beat.state == "training":
            self.training_s = now_s
        self.stood_still = self.stood_still or beat.state != "training"
        self.is_news = former is None or (
            (beat.state, beat.local_step, beat.steps, beat.versions)
            != (former.state, former.local_step, former.steps, former.versions)
        )
        done = beat.local_step - former.local_step if former is not None else 0
        if former is None or done < 0:
            self.rate_per_s, self.stepped_s, self.stride = 0.0, now_s, 0
        elif done > 0 and now_s > self.stepped_s:
            seen = done / (now_s - self.stepped_s)
            weight = RATE_FACTOR if self.rate_per_s else 1.0
            self.rate_per_s += weight * (seen - self.rate_per_s)
            self.stepped_s, self.stride = now_s, done

    def _keep_busy(self, busy_s: float, now_s: float) -> None:
        """What the load of the device is told from, and no more."""
        if self.busy and busy_s < self.busy[-1][1]:
            self.busy.clear()  # A new trainer counts from 0.
        if not self.busy or now_s - self.busy[-1][0] >= LOAD_EVERY_S:
            self.busy.append((now_s, busy_s))
            while len(self.busy) > 1 and now_s - self.busy[1][0] >= LOAD_OVER_S:
                del self.busy[0]

    @property
    def load(self) -> float | None:
        """Share of the last half minute in which its device computed; None before that is known."""
        if self.beat is None or not self.beat.busy_s or len(self.busy) < 2:
            return None
        (since_s, before_s), (until_s, after_s) = self.busy[0], self.busy[-1]
        return min(1.0, (after_s - before_s) / (until_s - since_s))

    def steps_per_s(self, now_s: float) -> float:
        """The measured rate, falling while no local step is seen: a hung one holds up nobody."""
        idle_s = now_s - self.stepped_s
        if self.rate_per_s * idle_s <= IDLE_STEPS:
            return self.rate_per_s
        return IDLE_STEPS / idle_s

    def merged(self, fragment: int, steps: int, now_s: float) -> None:
        """A push of it went into a version of this fragment: the only proof of work there is."""
        self.merges += 1
        self.merged_steps[fragment] = self.merged_steps.get(fragment, 0) + steps
        took_s = now_s - self._began_s(fragment)
        self.merged_s[fragment] = now_s
        if took_s > 0:
            weight = RATE_FACTOR if self.merged_rate_per_s else 1.0
            self.merged_rate_per_s += weight * (steps / took_s - self.merged_rate_per_s)

    def tokens_per_step(self, fewest: int, most: int) -> float:
        """What a local step of it reads, as it says, within these bounds."""
        beat = self.beat
        if beat is None or not beat.local_step:
            return fewest
        return min(max(beat.tokens / beat.local_step, fewest), most)

    def proven_steps_per_s(self, now_s: float) -> float:
        """The rate that merged work proves, and no more than what is seen; 0 before any merge.

        Heartbeats cost nothing, so what they claim can only lower it.
        """
        return min(self.merged_rate_per_s, self.steps_per_s(now_s))

    def due_s(self, fragment: int, steps: int, rate: float) -> float:
        """When it should have so many local steps on a fragment. rate: per second, above 0."""
        return self._began_s(fragment) + steps / rate

    def _began_s(self, fragment: int) -> float:
        """When it began with what it hands in next for this fragment."""
        began_s = self.since_s if self.training_s is None else self.training_s
        return self.merged_s.get(fragment, began_s)

    def missed(self, now_s: float) -> None:
        """A payload that it announced did not come."""
        self.misses += 1
        self.missed_s = now_s

    @property
    def is_reliable(self) -> bool:
        """Whether a quorum may count on it: one that brings nothing is asked on, but not waited
        for."""
        return self.unanswered < UNANSWERED_MAX

    def did_wrong(self, reason: str, now_s: float) -> None:
        """A push of it was refused for that."""
        self.wrong, self.wrong_s = reason, now_s

    def keeps_word(self, now_s: float) -> bool:
        """Whether it may be asked like any other: payloads that it announces do come.

        After two in a row that did not, it is asked last for a while, and longer each time.
        """
        if self.misses < MISSES_MAX:
            return True
        pause_s = MISS_PAUSE_S * 2.0 ** min(self.misses - MISSES_MAX, MISS_DOUBLINGS_MAX)
        return now_s >= self.missed_s + pause_s

    def steps_on(self, fragment: int, version: int) -> int:
        """Local steps not handed in, counted only if they stand on this very version."""
        beat = self.beat
        if beat is None or fragment >= len(beat.steps) or fragment >= len(beat.versions):
            return 0  # What the heartbeat says of fragments is a stranger's claim.
        return beat.steps[fragment] if beat.versions[fragment] == version else 0

    def can_push(self, fragment: int, version: int) -> bool:
        """Whether a pull of this fragment would bring something that counts."""
        beat = self.beat
        if not self.can_hand_in or beat is None:
            return False
        if fragment >= len(beat.steps) or fragment >= len(beat.versions):
            return False
        lag = version - beat.versions[fragment]
        return beat.steps[fragment] >= 1 and 0 <= lag <= limits.PUSH_LAG_MAX


@dataclass(slots=True)
class Membership:
    """All sessions, keyed by learner."""

    sessions: dict[bytes, Session] = field(default_factory=dict)
    changes: int = 0
    """Grows when a session begins or is forgotten, or says that its text is another one."""
    claims: dict[bytes, dict[int, float]] = field(default_factory=dict)
    """By key and fragment, until when the time of a learner is used up by local steps that counted,
    whichever of its sessions they came from."""
    _quiet_since_s: float = -1e9
    """No connected session was heard before."""

    def open(self, peer: bytes, hello: Hello, now_s: float, network: str = "") -> Session | None:
        """The session this hello starts, and None when a newer incarnation is already here."""
        former = self.sessions.get(peer)
        if former is not None and former.incarnation > hello.incarnation:
            return None
        session = Session(
            peer=peer,
            incarnation=hello.incarnation,
            name=hello.name,
            evaluates=hello.evaluates,
            since_s=now_s,
            heard_s=now_s,
            network=network,
            arrived_s=now_s if former is None else former.arrived_s,
        )
        if former is not None:
            # Who comes back over another connection has not become another one.
            session.merges, session.rejected = former.merges, former.rejected
            session.faults = former.faults
            session.misses, session.missed_s = former.misses, former.missed_s
            session.unanswered = former.unanswered
            session.wrong, session.wrong_s = former.wrong, former.wrong_s
            if former.incarnation == hello.incarnation:
                # The same life over another connection: what it has handed in still counts.
                session.merged_steps = former.merged_steps
                session.merged_s, session.training_s = former.merged_s, former.training_s
                session.merged_rate_per_s = former.merged_rate_per_s
        self.sessions[peer] = session
        self.changes += 1
        if former is None:
            # In key order, so that nothing depends on arrival and nobody has to sort again.
            ordered = sorted(self.sessions.items())
            self.sessions.clear()
            self.sessions.update(ordered)
        return session

    def hear(self, session: Session, beat: Heartbeat, now_s: float) -> None:
        """Take a heartbeat of one of them."""
        had_other_text = session.beat is not None and session.beat.has_other_text
        session.hear(beat, now_s)
        self.changes += beat.has_other_text != had_other_text

    def live(self) -> Iterator[Session]:
        """Connected sessions, in key order."""
        return (session for session in self.sessions.values() if session.is_connected)

    def training(self) -> list[Session]:
        """Connected sessions whose inner loop is stepping, without suspended ones."""
        return [session for session in self.sessions.values() if session.is_training]

    def starved(self) -> list[Session]:
        """Connected sessions that stand still for want of text, without suspended ones."""
        return [session for session in self.sessions.values() if session.is_starved]

    def handing_in(self) -> list[Session]:
        """Connected sessions that answer pulls, in key order."""
        return [session for session in self.sessions.values() if session.can_hand_in]

    def leaving(self) -> list[Session]:
        """Connected sessions that hand in what they have and then go."""
        return [s for s in self.live() if s.beat is not None and s.beat.state == "finishing"]

    def silent(self, now_s: float) -> list[Session]:
        """Connected sessions that were not heard for so long that they count as gone."""
        if now_s - self._quiet_since_s <= limits.GONE_AFTER_S:
            return []
        # Whoever speaks or comes later was heard later than all of these.
        self._quiet_since_s = min((s.heard_s for s in self.live()), default=now_s)
        return [s for s in self.live() if now_s - s.heard_s > limits.GONE_AFTER_S]

    def lost(self, now_s: float, after_s: float) -> list[Session]:
        """Sessions gone for longer than `after_s`; their leases fall back."""
        return [
            session
            for session in self.sessions.values()
            if not session.is_connected and now_s - session.lost_s > after_s
        ]

    def close(self, peer: bytes, reason: str, *, has_left: bool = False) -> Session | None:
        """The session that ended, if it was connected; has_left: it said goodbye."""
        session = self.sessions.get(peer)
        if session is None or not session.is_connected:
            return None
        session.is_connected = False
        session.lost_reason = reason
        session.has_left = has_left
        return session

    def worked(
        self, peer: bytes, fragment: int, *, since_s: float, asked_s: float, work_s: float
    ) -> None:
        """A hand-in that was asked for then counts, and its local steps take so long at least.

        since_s: before, its session had no text to train on.
        """
        claims = self.claims.setdefault(peer, {})
        begin_s = max(since_s, claims.get(fragment, -math.inf))
        # What it did not do before it was asked, it cannot claim later.
        claims[fragment] = max(begin_s + work_s, asked_s)
        if len(self.claims) > 2 * len(self.sessions):
            # A later session of these begins later than that.
            self.claims = {
                key: used
                for key, used in self.claims.items()
                if key in self.sessions or max(used.values()) > asked_s
            }

    def free_s(self, peer: bytes, fragment: int, *, since_s: float) -> float:
        """From when on the time of a learner is free for the next hand-in of this fragment."""
        return max(since_s, self.claims.get(peer, {}).get(fragment, -math.inf))

    def forget(self, peer: bytes) -> None:
        self.sessions.pop(peer, None)
        self.changes += 1
