"""A whole replay: every tape that was given, at every level that it has enough for."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from host.tape.tape_file import TapeLife, find_tapes
from protocol.errors import UserError
from protocol.ids import short
from protocol.log.records import FragmentMerged
from simulator.replay.audit import Audit, NothingToBeginFrom, audit
from simulator.replay.divergence import Diverged
from simulator.replay.merges import MergeReplay
from simulator.replay.retraining import Retrained, VersionSpool, retrain
from simulator.replay.round_history import RoundHistory, history_of

Level = Literal["audit", "merge", "retrain"]
LEVELS: tuple[Level, ...] = ("audit", "merge", "retrain")
Tell = Callable[[str], None]


@dataclass(slots=True)
class ReplayReport:
    """What a replay came to."""

    project: bytes
    tapes: list[TapeLife]
    audits: list[Audit] = field(default_factory=list)
    rounds: dict[int, FragmentMerged] = field(default_factory=dict)
    """Every committed round on any tape, by log index."""
    audited: set[int] = field(default_factory=set)
    merged: set[int] = field(default_factory=set)
    retrained: set[int] = field(default_factory=set)
    untried: dict[Level, Counter[str]] = field(default_factory=dict)
    """By level: why rounds, or pushes, were not tried."""
    rounds_before: int = 0
    """Rounds before the first one on any tape."""
    is_beheaded: bool = False
    """Some of them were dropped to make room."""
    pushes: int = 0
    """In committed rounds."""
    pushes_reproduced: int = 0
    """Of them: trained again to the same bits."""
    steps: int = 0
    """Local steps done again."""
    levels: tuple[Level, ...] = LEVELS

    def round_history(self, number: int) -> RoundHistory | None:
        """What happened in this round, from the tape of whoever led it."""
        found = [one for done in self.audits if (one := done.histories.find(number)) is not None]
        committed = [one for one in found if one.global_step is not None]
        if committed or found:
            return (committed or found)[0]
        records = [one for one in self.rounds.values() if one.round == number]
        return history_of(records[-1]) if records else None


def replay(
    place: Path,
    data_cache: Path,
    *,
    project: bytes | None = None,
    until: int | None = None,
    levels: tuple[Level, ...] = LEVELS,
    tell: Tell = lambda _: None,
) -> ReplayReport:
    """Replay all tapes below a place. Raises Diverged, TapeDamaged or UserError.

    project: whose tapes they must be. until: stop after this round. tell: hears what goes on.
    """
    tapes = find_tapes(place)
    report = ReplayReport(_one_project(tapes, project), tapes, levels=levels)
    syncers = [life for life in tapes if life.preface.role == "syncer"]
    learners = [life for life in tapes if life.preface.role == "learner"]
    for life in syncers:
        _audit(report, life, until, tell)
    _compare(report)
    report.rounds_before = min((one.rounds_before for one in report.audits), default=0)
    report.is_beheaded = any(
        one.is_beheaded and one.rounds_before == report.rounds_before for one in report.audits
    )
    if "merge" not in levels:
        return report
    with tempfile.TemporaryDirectory(prefix="shoal-replay-") as folder:
        spool = VersionSpool(Path(folder))
        wants_spool = "retrain" in levels and bool(learners)
        _merge(report, spool if wants_spool else None, tell)
        if wants_spool:
            tell(f"training again what {len(learners)} learners' tapes tell")
            done = retrain(learners, report.audits, spool, data_cache, tell)
            _count_pushes(report, done)
        elif "retrain" in levels:
            _count_pushes(report, Retrained())
    return report


def _one_project(tapes: list[TapeLife], wanted: bytes | None) -> bytes:
    """The project of all tapes. UserError if there are several, or another was asked for."""
    first = tapes[0].preface.project
    for life in tapes:
        project = life.preface.project
        path = next(iter(life.files.values()))[0].path
        if wanted is not None and project != wanted:
            raise UserError(
                f"{path} is a tape of project {short(project)}, not of {short(wanted)}: its "
                "preface, at byte 0, says so."
            )
        if project != first:
            raise UserError(
                f"{path} is a tape of project {short(project)}, others here are of "
                f"{short(first)}. Name the directory of one project."
            )
    return first


def _audit(report: ReplayReport, life: TapeLife, until: int | None, tell: Tell) -> None:
    preface = life.preface
    who = f"{preface.name} ({short(preface.key)})"
    tell(f"running {who} again")
    try:
        done = audit(life, until=until)
    except NothingToBeginFrom:
        words = f"the beginning of a tape of {who} was dropped to make room, with every state on it"
        _untried(report, "audit", words)
        return
    report.audits.append(done)
    report.rounds.update(done.rounds)
    report.audited.update(done.rounds)


def _compare(report: ReplayReport) -> None:
    """Two syncers never certify two records of one index within an epoch's log."""
    seen: dict[int, tuple[bytes, str]] = {}
    for done in report.audits:
        for index, name in done.records.items():
            former = seen.setdefault(index, (name, done.preface.name))
            if former[0] != name:
                raise Diverged(
                    f"record {index}",
                    f"the tapes of {former[1]} and {done.preface.name}",
                    "two different records are certified under one number",
                )


def _settle(report: ReplayReport) -> None:
    """A leader may have gone before it heard that its merge counts: other tapes tell."""
    rounds = {merged.payload: (index, merged) for index, merged in report.rounds.items()}
    for done in report.audits:
        for one in done.merges:
            if one.record is None and one.result is not None and one.result.payload in rounds:
                one.index, one.record = rounds[one.result.payload]


def _merge(report: ReplayReport, spool: VersionSpool | None, tell: Tell) -> None:
    _settle(report)
    by_life = {(one.preface.key, one.preface.life): one for one in report.tapes}
    for done in report.audits:
        if not done.merges:
            continue
        tell(f"merging again what {done.preface.name} merged: {len(done.merges)} rounds")
        keep = spool.keep if spool is not None else (lambda fragment, version: None)
        merges = MergeReplay(by_life[done.preface.key, done.preface.life], done, keep).run()
        report.merged.update(merges.merged)
        for reason, count in merges.untried.items():
            _untried(report, "merge", reason, count)
    led = {one.index for done in report.audits for one in done.merges if one.record is not None}
    others = len(report.rounds.keys() - led)
    if others:
        _untried(report, "merge", "the tape of the syncer that led is not here", others)


def _count_pushes(report: ReplayReport, done: Retrained) -> None:
    report.steps = done.steps
    for index, merged in report.rounds.items():
        pushes = {(one.learner, one.incarnation, one.sequence) for one in merged.contributions}
        again = pushes & done.pushes
        report.pushes += len(pushes)
        report.pushes_reproduced += len(again)
        if pushes == again and index in report.merged:
            report.retrained.add(index)
    for reason, count in done.untried.items():
        _untried(report, "retrain", reason, count)
    told = report.pushes_reproduced + sum(done.untried.values())
    if told < report.pushes:
        _untried(report, "retrain", "no learner's tape here tells of them", report.pushes - told)


def _untried(report: ReplayReport, level: Level, reason: str, count: int = 1) -> None:
    report.untried.setdefault(level, Counter())[reason] += count
