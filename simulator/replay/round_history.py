"""What happened in each round, gathered while the machine is re-run: who, when, how heavy, why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from protocol import trace
from protocol.ids import short
from protocol.log.records import FragmentMerged
from protocol.machine import Do, Effect, Emit, Event, Failed, JobDone, Received, Send, Start
from protocol.messages import (
    Decline,
    FetchOrder,
    MergeOrder,
    OrderFailed,
    Pull,
    PushHeader,
    PushHeld,
)
from syncer_node.machine import jobs
from syncer_node.machine.merging.orders import merge_job
from syncer_node.machine.syncer import SyncerMachine

HISTORIES_MAX: Final = 1_000_000
"""Of one life; months of rounds."""

NO_ANSWER: Final = "no answer"
ON_ITS_WAY: Final = "on its way"


@dataclass(slots=True)
class Part:
    """One learner's part in a round."""

    learner: bytes
    name: str
    asked_s: float
    handed_s: float | None = None
    """When its push was announced."""
    arrived_s: float | None = None
    steps: int = 0
    tokens: int = 0
    lag: int = 0
    """Versions that its push stood behind the newest."""
    weight: float | None = None
    """In the merge; None: not in it."""
    fate: str = NO_ANSWER
    why: str = ""


@dataclass(slots=True)
class RoundHistory:
    """One round from its opening to its end."""

    round: int
    fragment: int
    opened_s: float
    quorum: int
    version: int = 0
    quorum_s: float | None = None
    grace_s: float = 0.0
    closed_s: float | None = None
    ended_s: float | None = None
    end: str = "still open where the tape ends"
    global_step: int | None = None
    learning_rate: float = 0.0
    momentum: float = 0.0
    parts: dict[bytes, Part] = field(default_factory=dict)


@dataclass(slots=True)
class RoundHistories:
    """All rounds of one host's terms, newest of each number last."""

    all: list[RoundHistory] = field(default_factory=list)
    names: dict[bytes, str] = field(default_factory=dict)
    _open: dict[int, RoundHistory] = field(default_factory=dict)
    _fetches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    _orders: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Fetches that mergers were asked for."""
    _taken: dict[jobs.PushId, Part] = field(default_factory=dict)
    """Parts in a later round than the one that asked, until their fate is told."""

    def find(self, number: int) -> RoundHistory | None:
        """The round with this number that was committed, else the newest that had it."""
        found = [one for one in self.all if one.round == number]
        committed = [one for one in found if one.global_step is not None]
        for one in reversed(committed or found):
            return one
        return None

    def note(
        self, at_s: float, event: Event | None, effects: list[Effect], machine: SyncerMachine
    ) -> None:
        """Take one handled input into account."""
        for effect in effects:
            if isinstance(effect, Emit) and isinstance(effect.fact, trace.RoundOpened):
                self._opened(at_s, effect.fact, machine)
            if isinstance(effect, Emit) and isinstance(effect.fact, trace.SessionOpened):
                self.names[effect.fact.peer] = effect.fact.name
        if event is not None:
            self._told(at_s, event)
        for effect in effects:
            self._made(at_s, effect)

    def _opened(self, at_s: float, fact: trace.RoundOpened, machine: SyncerMachine) -> None:
        history = RoundHistory(fact.round, fact.fragment, at_s, fact.quorum)
        if machine.leadership is not None:
            current = machine.leadership.rounds.rounds.get(fact.round)
            history.version = current.version if current is not None else 0
        self._open[fact.round] = history
        if len(self.all) < HISTORIES_MAX:
            self.all.append(history)

    def _told(self, at_s: float, event: Event) -> None:
        match event:
            case Received(peer, Decline(round=number, reason=reason)):
                part = self._part(number, peer)
                if part is not None:
                    part.handed_s, part.fate, part.why = at_s, "declined", reason
            case JobDone(id=number, result=result):
                self._fetched(at_s, self._fetches.pop(number, None), result)
            case Received(_, PushHeld(order=order, refusal=refusal, detail=detail)):
                held = jobs.PushRefused(refusal, detail) if refusal else jobs.PushFetched()
                self._fetched(at_s, self._orders.pop(order, None), held)
            case Received(_, OrderFailed(order=order, reason=reason)):
                self._fetched(at_s, self._orders.pop(order, None), Failed(reason))

    def _fetched(self, at_s: float, where: tuple[int, bytes] | None, result: object) -> None:
        part = self._part(*where) if where is not None else None
        if part is None or part.fate in ("late", "stale", "rejected"):
            return
        if isinstance(result, jobs.PushFetched):
            part.arrived_s, part.fate = at_s, "arrived"
        elif isinstance(result, jobs.PushRefused):
            part.fate, part.why = "rejected", result.detail
        elif isinstance(result, Failed):
            part.fate, part.why = "not fetched", result.reason

    def _made(self, at_s: float, effect: Effect) -> None:
        match effect:
            case Send(peer, Pull(round=number)):
                history = self._open.get(number)
                if history is not None:
                    name = self.names.get(peer, short(peer))
                    history.parts.setdefault(peer, Part(peer, name, at_s))
            case Start(id=number, job=jobs.FetchPush() as job):
                self._fetches[number] = (job.round, job.peer)
                self._handed(at_s, job.peer, job.header)
            case Send(_, FetchOrder(order=order, learner=learner, header=header)):
                self._orders[order] = (header.round, learner)
                self._handed(at_s, learner, header)
            case Start(job=jobs.Merge() as job):
                self._merging(at_s, job)
            case Send(_, MergeOrder() as ordered):
                self._merging(at_s, merge_job(ordered))
            case Emit(fact):
                self._fact(at_s, fact)
            case Do(jobs.Adopt(fragment, version, _)):
                history = self._of_version(fragment, version)
                if history is not None:
                    history.ended_s, history.end = at_s, "committed"

    def _handed(self, at_s: float, learner: bytes, header: PushHeader) -> None:
        part = self._part(header.round, learner)
        if part is not None and part.fate in (NO_ANSWER, ON_ITS_WAY):
            part.handed_s, part.fate = at_s, ON_ITS_WAY
            part.steps, part.tokens = header.steps, header.tokens
            part.lag = max(0, self._open[header.round].version - 1 - header.base_version)

    def _merging(self, at_s: float, job: jobs.Merge) -> None:
        history = self._open.get(job.round)
        if history is None:
            return
        history.closed_s = at_s
        history.learning_rate, history.momentum = job.outer.learning_rate, job.outer.momentum
        for former in history.parts.values():
            former.weight = None  # Of a merge that is done again without somebody.
        for one in job.parts:
            part = history.parts.get(one.learner)
            if part is None or one.header.round != job.round:
                part = history.parts[one.learner] = self._late(job, one)
            part.weight, part.fate = one.weight, "in the merge"
        for part in history.parts.values():
            if part.fate in (NO_ANSWER, ON_ITS_WAY):
                part.why = "the round closed before it arrived"

    def _late(self, job: jobs.Merge, one: jobs.MergePart) -> Part:
        """The part of a learner whose push an earlier round had asked for."""
        header = one.header
        asked = self._part(header.round, one.learner)
        if asked is None:  # Before the tape begins.
            asked = Part(one.learner, self.names.get(one.learner, short(one.learner)), 0.0)
        part = replace(asked, steps=header.steps, tokens=header.tokens)
        part.lag = max(0, job.version - 1 - header.base_version)
        part.why = f"asked for in round {header.round}, which did not wait for it"
        asked.fate, asked.why = "late", f"counted in round {job.round}"
        self._taken[one.push] = part
        return part

    def _fact(self, at_s: float, fact: object) -> None:
        match fact:
            case trace.QuorumReached(number, _, waited_s, grace_s):
                history = self._open.get(number)
                if history is not None:
                    history.quorum_s, history.grace_s = history.opened_s + waited_s, grace_s
            case trace.PushSettled(number, learner, incarnation, sequence, outcome, reason):
                taken = self._taken.pop((learner, incarnation, sequence), None)
                for part in (self._part(number, learner), taken):
                    if part is not None:
                        part.fate, part.why = outcome, reason or part.why
                        part.handed_s = at_s if part.handed_s is None else part.handed_s
            case trace.RoundAbandoned(number, _, reason):
                history = self._open.get(number)
                if history is not None:
                    history.ended_s, history.end = at_s, f"abandoned: {reason}"
            case trace.FragmentCommitted():
                history = self._of_version(fact.fragment, fact.version)
                if history is not None:
                    history.global_step = fact.global_step

    def _of_version(self, fragment: int, version: int) -> RoundHistory | None:
        """The newest round that was to make this version."""
        for one in reversed(self.all):
            if (one.fragment, one.version) == (fragment, version):
                return one
        return None

    def _part(self, number: int, peer: bytes) -> Part | None:
        history = self._open.get(number)
        return history.parts.get(peer) if history is not None else None


def history_of(merged: FragmentMerged) -> RoundHistory:
    """What the log alone tells of a round that another host led."""
    history = RoundHistory(merged.round, merged.fragment, 0.0, 0, merged.version, end="committed")
    history.global_step = merged.global_step
    history.learning_rate, history.momentum = merged.learning_rate, merged.momentum
    for one in merged.contributions:
        part = Part(one.learner, short(one.learner), 0.0, weight=one.weight)
        part.steps, part.tokens = one.steps, one.tokens
        part.lag = max(0, merged.version - 1 - one.base_version)
        part.fate = "clipped" if one.scale < 1.0 else "merged"
        history.parts[one.learner] = part
    return history
