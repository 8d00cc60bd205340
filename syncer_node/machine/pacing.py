"""When the next round may open: after H local steps, spread evenly, on any network.

Without pacing a fast network merges as often as it can and the measured H collapses. A fragment's
round opens once learners holding `pace_share` of the live rate have H steps on its newest version,
and H / P steps since the opening before. A learner's rate is that of its merged work: what it only
claims holds up nobody, and one that is late by `patience_s` is not waited for. Where fewer than K
learners can be counted on, `patience_s` passes now and then, and not before every round.

In its first cycle fragment i needs only its own offset, (i + 1) * H / P, so that fragments start
staggered instead of all at once.

With `eligible = "step"` one step on the newest version is enough, and with `pace_share = 0` only K
learners must be ready: that is the published eligibility. The H / P steps between two openings stay
even then; for P = H they are one, the published schedule of one fragment per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from protocol.peers.membership import Session
from protocol.project import RoundSpec
from protocol.quorum import effective_quorum

RATE_MIN = 1e-9
"""Steps per second booked for a learner of which nothing was merged yet."""


IMPATIENT_FACTOR = 10.0
"""Once patience has run out with fewer than K learners, K is not waited for so many times as long;
twice that the next time."""

IMPATIENT_S_MAX = 3600.0

SLACK_SHARE = 0.5
"""While K is not waited for, a learner is late after so much more time than its work takes it."""


def median_step_s(sessions: list[Session], now_s: float) -> float:
    """Step time of the learner in the middle of the live rate; 0 without any."""
    rates = sorted((s.proven_steps_per_s(now_s) for s in sessions), reverse=True)
    rates = [rate for rate in rates if rate > RATE_MIN]
    half, seen = sum(rates) / 2, 0.0
    for rate in rates:
        seen += rate
        if seen >= half:
            return 1 / rate
    return 0.0


def _most_steps(fragment: int, version: int, needed: int, live: list[Session]) -> str:
    """How far the learner is that is nearest; computed when somebody asks."""
    most = max(session.steps_on(fragment, version) for session in live)
    return f"fragment {fragment}: {min(most, needed)} of {needed} local steps"


@dataclass(slots=True)
class _Rates:
    """Proven local steps per second, at least `RATE_MIN` each."""

    ready: list[float] = field(default_factory=list)
    """Of learners that are ready."""
    awaited: list[float] = field(default_factory=list)
    """Of the others that are awaited."""
    has_proven: bool = False
    """Whether anything of anybody who is awaited was merged, ready or not."""
    counted: int = 0
    """Learners that a quorum may count on: they bring what they are asked for, and are ready, or
    no later than their merged work lets expect."""

    @property
    def share(self) -> float:
        """What the ready ones have of the rate of all, ready or awaited."""
        part = math.fsum(self.ready)
        return part / (part + math.fsum(self.awaited)) if part else 0.0


@dataclass(slots=True)
class Pace:
    """Local-step credit of each session, and why the next round does not open yet."""

    spec: RoundSpec
    fragments: int
    next_step: dict[tuple[bytes, int], float] = field(default_factory=dict)
    waiting_since_s: float | None = None
    """Since when enough of the rate is ready, and K learners are not."""
    unproven_since_s: float | None = None
    """Since when somebody is ready, and nobody has ever handed anything in."""
    leaving_opened_s: dict[int, float] = field(default_factory=dict)
    """Fragment -> when its last round was opened for learners about to leave."""
    impatient_s: float = 0.0
    """For how long K was not waited for when patience ran out last; 0 once K were there again."""
    patient_from_s: float = 0.0
    """From when on K is waited for."""
    _words: str = "no learner is training yet"
    _behind: tuple[int, int, int, list[Session]] | None = None
    """Fragment, version, local steps needed, and who is training: put in words when asked for."""

    @property
    def waiting(self) -> str:
        """Why the next round does not open, as it is now; empty when one just opened."""
        return self._words if self._behind is None else _most_steps(*self._behind)

    @property
    def spacing(self) -> float:
        """Local steps between two openings: H / P."""
        return self.spec.local_steps / self.fragments

    def needed(self, fragment: int, version: int) -> int:
        """Local steps a learner must have on a fragment before its round opens."""
        if self.spec.eligible == "step":
            return 1
        if version == 0:
            return max(1, math.ceil((fragment + 1) * self.spacing))
        return self.spec.local_steps

    def live(
        self, training: list[Session], starved: list[Session], fragment: int, version: int
    ) -> list[Session]:
        """Whose local steps count when it is asked whether the round of a fragment may open.

        Whoever trains, and of those that ran out of text whoever has the local steps already: it
        can be ready, and never holds up others.
        """
        needed = self.needed(fragment, version)
        able = [one for one in starved if one.steps_on(fragment, version) >= needed]
        return [*training, *able] if able else training

    def may_open(self, fragment: int, version: int, live: list[Session], now_s: float) -> bool:
        """Whether the round of this fragment may open now; keeps the reason when it may not."""
        self._behind = None
        if not live:
            self._words, self.waiting_since_s = "no learner is training", None
            return False
        needed = self.needed(fragment, version)
        found = self._look_at(live, fragment, version, now_s)
        if found.share < self.spec.pace_share and not self._is_over(found, now_s):
            self._behind = (fragment, version, needed, live)
            self.waiting_since_s = None
            return False
        self.unproven_since_s = None
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s
        waited_s = now_s - self.waiting_since_s
        is_patient = self.is_patient(now_s)
        patience_s = self.spec.patience_s if is_patient else 0.0
        quorum = effective_quorum(self.spec.quorum, found.counted, waited_s, patience_s)
        if len(found.ready) < quorum:
            self._words = f"{len(found.ready)} of {quorum} learners ready, {len(live)} alive"
            return False
        self._words, self.waiting_since_s = "", None
        if is_patient and len(found.ready) >= self.spec.quorum:
            self.impatient_s = 0.0
        else:
            self.ran_out(now_s)
        return True

    def is_patient(self, now_s: float) -> bool:
        """Whether K is waited for, and not only those that can be counted on."""
        return now_s >= self.patient_from_s

    def ran_out(self, now_s: float) -> None:
        """Patience has, before a round opened or in it: there is none for a while."""
        if self.is_patient(now_s):
            first_s = IMPATIENT_FACTOR * self.spec.patience_s
            self.impatient_s = min(IMPATIENT_S_MAX, max(first_s, 2 * self.impatient_s))
            self.patient_from_s = now_s + self.impatient_s

    def quorum(self, fragment: int, version: int, live: list[Session], now_s: float) -> int:
        """Pushes that a round needs which opens now: K, or as many as learners can be counted on.

        For the others patience has run out, before this round opened or when they were asked. Where
        nobody can be counted on it is K, and the round's own patience is left.
        """
        counted = self._look_at(live, fragment, version, now_s).counted
        return min(self.spec.quorum, counted) or self.spec.quorum

    def could_open(self, fragment: int, version: int, live: list[Session], now_s: float) -> bool:
        """Whether the round of another fragment than the next one may open; what is waited for is
        still the next one."""
        kept = self._words, self._behind, self.waiting_since_s, self.unproven_since_s
        is_open = self.may_open(fragment, version, live, now_s)
        self._words, self._behind, self.waiting_since_s, self.unproven_since_s = kept
        return is_open

    def opened(self, live: list[Session]) -> None:
        """Book H / P steps against everybody who is training.

        Nobody owes more than H: when faster learners leave, those who stay open rounds again within
        one cycle of their own. Nobody is owed more than what its last heartbeat brought, or one
        opening if that is more: steps come several at a time, and those of one heartbeat may be
        enough for several rounds.
        """
        spacing = self.spacing
        kept = {}
        for session in live:
            done = float(session.beat.local_step) if session.beat else 0.0
            owed = max(spacing, min(session.stride, self.spec.local_steps))
            due = max(self.next_step.get(session.key, done), done - owed)
            kept[session.key] = min(due + spacing, done + self.spec.local_steps)
        self.next_step = kept

    def deadline_s(self, now_s: float) -> float | None:
        """When patience runs out; None when that is not what is waited for."""
        waits = (self.waiting_since_s, self.unproven_since_s)
        ends = [since_s + self.spec.patience_s for since_s in waits if since_s is not None]
        return min((end_s for end_s in ends if end_s > now_s), default=None)

    def _look_at(self, live: list[Session], fragment: int, version: int, now_s: float) -> _Rates:
        """Who is ready, and the rates of them and of whoever is awaited.

        One loop over all learners, which a syncer takes several times a second. Ready is who has
        credit, or no text to earn any with, and the local steps. Awaited is who does not let the
        time pass in which it would be ready: one that claims to train and never has anything to
        hand in must not hold up others.
        """
        needed, patience_s, found = self.needed(fragment, version), self.spec.patience_s, _Rates()
        is_patient = self.is_patient(now_s)
        for session in live:
            beat, rate = session.beat, session.proven_steps_per_s(now_s)
            is_ready = (
                beat is not None
                and (
                    session.is_starved or beat.local_step >= self._due(session.key, beat.local_step)
                )
                and session.steps_on(fragment, version) >= needed
            )
            if is_ready:
                found.ready.append(max(RATE_MIN, rate))
                found.counted += session.is_reliable
            if rate > 0 and now_s > session.due_s(fragment, needed, rate) + patience_s:
                continue
            found.has_proven = found.has_proven or rate > 0
            if not is_ready:
                found.awaited.append(max(RATE_MIN, rate))
                found.counted += session.is_reliable and self._is_expected(
                    session, fragment, needed, now_s, is_patient=is_patient
                )
        return found

    def _is_expected(
        self, session: Session, fragment: int, needed: int, now_s: float, *, is_patient: bool
    ) -> bool:
        """Whether a learner that is not ready yet is no later than its merged work lets expect.

        By what is seen of it lately one that stands still would be due later and later.
        """
        rate = session.merged_rate_per_s
        if rate <= 0:
            return False
        slack_s = self.spec.patience_s
        if not is_patient:
            slack_s = min(slack_s, SLACK_SHARE * needed / rate)
        return now_s <= session.due_s(fragment, needed, rate) + slack_s

    def _due(self, key: tuple[bytes, int], done: int) -> float:
        """The local step from which it has credit.

        Never more than H ahead: a new trainer counts from zero again, and owes nothing of what
        the former one did.
        """
        due = self.next_step.get(key, 0.0)
        if due > done + self.spec.local_steps:
            due = self.next_step[key] = float(done + self.spec.local_steps)
        return due

    def _is_over(self, found: _Rates, now_s: float) -> bool:
        """Whether patience with learners of whom nothing was merged yet has run out.

        While no work is proven, all of them count alike, also those who only say that they train.
        """
        if not found.ready or found.has_proven:
            self.unproven_since_s = None
            return False
        if self.unproven_since_s is None:
            self.unproven_since_s = now_s
        return now_s >= self.unproven_since_s + self.spec.patience_s
