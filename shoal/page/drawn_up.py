"""From what a syncer says of itself to what its page says to strangers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from host.files.signed_project import OpenedProject
from host.join_link import format_link, parse_link
from protocol.limits import NAME_CHARS_MAX, TEXT_CHARS_MAX
from protocol.project import AdmissionRule
from protocol.status import ContributorRow, SampleStatus, SwarmStatus, SyncerStatus
from shoal.page import facts, words
from shoal.page.joining import joining, model_words
from shoal.page.shares import by_team, permille, team_of
from tui.frames.frame import Frame
from tui.frames.history import History
from tui.frames.scene import Scene, eta
from tui.frames.verdict import Verdict
from tui.text.election import alive, away, leads

KEY_DIGITS: Final = 8


def page_facts(
    status: SyncerStatus,
    project: OpenedProject | None,
    verdict: Verdict,
    *,
    at_s: float,
    seen_s: float,
    sample: SampleStatus | None = None,
) -> facts.PageFacts:
    """What the page says now. seen_s: when the syncer said it; both Unix seconds.

    project: None where nothing is known of it but what its syncer says of itself.
    """
    return facts.PageFacts(
        at_s=at_s,
        software=words.line(status.version, NAME_CHARS_MAX),
        project=_project(status, project),
        state=facts.StateFacts(
            level=verdict.level,
            sentence=words.public(verdict.sentence, facts.SENTENCE_CHARS_MAX),
            seen_s=seen_s,
        ),
        run=_run(status, at_s),
        given=_given(status),
        join=_join(status, project),
        sample=_sample(sample),
    )


def _project(status: SyncerStatus, known: OpenedProject | None) -> facts.ProjectFacts:
    about = known.charter.about if known is not None else None
    return facts.ProjectFacts(
        id=status.project.id,
        name=words.line(status.project.name, NAME_CHARS_MAX),
        about=words.paragraphs(about or "", TEXT_CHARS_MAX),
        model=model_words(known.genesis) if known is not None else "",
        parameters=status.project.parameters,
        token_budget=status.project.token_budget,
    )


def _join(status: SyncerStatus, known: OpenedProject | None) -> facts.JoinFacts:
    rule, link = _rule(status, known), _bare(status.join_link)
    if known is None:
        return facts.JoinFacts(admission=rule, link=link if rule == "open" else "")
    charter = msgspec.structs.replace(known.charter, admission=rule)
    return joining(known.genesis, charter, link)


def _rule(status: SyncerStatus, known: OpenedProject | None) -> AdmissionRule:
    """Who may take part: by the charter that is in force, or the newest one where that is narrower,
    so that no link is shown that brings nobody in."""
    match status.project.admission:
        case "open":
            return known.charter.admission if known is not None else "open"
        case "invite":
            return "invite"
        case _:
            return "list"


def _bare(link: str) -> str:
    """A join link without the invite that it may carry: whoever has that could use it up."""
    if not link:
        return ""
    found = parse_link(link)
    return (
        link if found.invite is None else format_link(msgspec.structs.replace(found, invite=None))
    )


def _run(status: SyncerStatus, at_s: float) -> facts.RunFacts:
    swarm, seat = status.swarm, status.seat
    pace = swarm.pace
    rate = pace.tokens_per_s if pace is not None and not swarm.is_ended else None
    knows = leads(status)
    return facts.RunFacts(
        global_step=swarm.global_step,
        tokens=swarm.tokens,
        permille=int(1000 * min(1.0, max(0.0, swarm.progress))),
        tokens_per_s=rate,
        left=words.line(
            eta(Scene(Frame(at_s=at_s, statuses=(status,)), History())), NAME_CHARS_MAX
        ),
        learners_training=sum(one.state == "training" for one in status.peers) if knows else None,
        learners_here=len(alive(status)) if knows else None,
        voters=len(seat.voters) if seat is not None else 0,
        voters_here=len(seat.voters) - len(away(seat)) if seat is not None else 0,
        curve=thinned(swarm),
        best=_best(swarm),
    )


def thinned(swarm: SwarmStatus) -> list[tuple[int, int, float]]:
    """The measurements, evenly thinned out where there are many; first, best and last stay."""
    points, most = swarm.curve, facts.CURVE_MAX
    if len(points) > most:
        kept = {at * (len(points) - 1) // (most - 2) for at in range(most - 1)}
        best = min(range(len(points)), key=lambda at: points[at][2])
        points = [points[at] for at in sorted(kept | {best})]
    return [(step, tokens, loss) for step, tokens, loss in points]


def _best(swarm: SwarmStatus) -> tuple[int, int, float] | None:
    step = swarm.best_global_step
    return next((one for one in reversed(swarm.curve) if one[0] == step), None)


def _given(status: SyncerStatus) -> facts.GivenFacts:
    rows, total = status.contributors, status.contributor_fragment_tokens
    shown = rows[: facts.GIVERS_MAX]
    named = [row.fragment_tokens for row in shown]
    others = max(0, total - sum(named))
    parts = permille([*named, others])
    names = {peer.key: peer.name for peer in status.peers}
    return facts.GivenFacts(
        contributors=status.contributors_all,
        shown=[_giver(row, names, part) for row, part in zip(shown, parts, strict=False)],
        others_permille=parts[-1],
        teams=_teams(rows, names, total, status.project.fragments),
    )


def _called(row: ContributorRow, names: Mapping[str, str]) -> str:
    """As it calls itself: in the log, or before that is written there, in its session."""
    digits = row.key[:KEY_DIGITS]
    said = names.get(row.key, row.name) if row.name == digits else row.name
    return words.line(said, NAME_CHARS_MAX) or digits


def _giver(row: ContributorRow, names: Mapping[str, str], part: int) -> facts.Giver:
    return facts.Giver(
        key=row.key[:KEY_DIGITS],
        name=_called(row, names),
        permille=part,
        tokens=row.tokens,
        merges=row.merges,
        is_here=row.is_here,
    )


def _teams(
    rows: Sequence[ContributorRow], names: Mapping[str, str], total: int, fragments: int
) -> list[facts.Team]:
    """Of those that are named: what each team gave of all tokens."""
    members: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        team = team_of(_called(row, names))
        if team:
            members[team].append(row.fragment_tokens)
    ranked = by_team(members)
    parts = permille([*(tokens for _, tokens in ranked), max(0, total - _sum(ranked))])
    return [
        facts.Team(
            name=team,
            permille=part,
            tokens=tokens // max(1, fragments),
            members=len(members[team]),
        )
        for (team, tokens), part in zip(ranked[: facts.TEAMS_MAX], parts, strict=False)
    ]


def _sum(ranked: Sequence[tuple[str, int]]) -> int:
    return sum(tokens for _, tokens in ranked)


def _sample(sample: SampleStatus | None) -> facts.SampleFacts | None:
    if sample is None:
        return None
    return facts.SampleFacts(
        prompt=words.lines(sample.prompt, facts.SAMPLE_CHARS_MAX),
        text=words.lines(sample.text, facts.SAMPLE_CHARS_MAX),
        global_step=sample.global_step,
        at_s=sample.at_s,
    )
