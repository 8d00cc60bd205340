"""`shoal contributions --all`: everybody who gave to a project, by share, and their teams.

A syncer of this home has it all; a learner asks the leader, who tells those that gave most. A team
is what names say: `team/name`. Nobody checks that, so it is for honour and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from host.files.home import Home
from protocol.errors import UserError
from protocol.log.accounts import printable
from protocol.status import ContributorRow, DaemonStatus, NodeStatus, SyncerStatus
from shoal.common import daemons, failures, writing
from shoal.common.exit_codes import ExitCode
from shoal.page.shares import permille, team_of

if TYPE_CHECKING:
    from rich.table import Table

    from syncer_node.storage.ledger import Ledger

SWARM_WAIT_S: Final = 3.0
"""How long a learner may take to hear how the swarm is."""

ROWS_MAX: Final = 100
"""On a screen; --json has all."""

TEAMS_MAX: Final = 1024
"""Of one project; members of further ones count as without a team."""


class Place(Struct, kw_only=True):
    """One contributor; times are Unix seconds, 0 where nobody knows."""

    key: str
    name: str
    team: str
    """Empty: none."""
    share: float
    """Percent of all tokens; of everybody together, the others included, 100."""
    tokens: int
    merges: int
    since_s: float
    merged_at_s: float
    is_here: bool


class Team(Struct, kw_only=True):
    """Contributors with the same team in their names."""

    team: str
    share: float
    tokens: int
    merges: int
    members: int
    since_s: float


class Others(Struct, kw_only=True):
    """Those that the leader does not tell one by one."""

    contributors: int
    share: float
    tokens: int
    merges: int


class Board(Struct, kw_only=True):
    """One project."""

    project: str
    project_name: str
    told_by: str
    """`log`: a syncer of this home; `leader`: what the leading syncer told a learner."""
    tokens: int
    merges: int
    contributors: list[Place]
    """Those that gave most first."""
    teams: list[Team]
    others: Others


def split_name(name: str) -> tuple[str, str]:
    """Team and name in `team/name`; without a team where either would be empty."""
    team = team_of(name)
    return (team, name.partition("/")[2].strip()) if team else ("", name)


def shares(tokens: Sequence[int]) -> list[float]:
    """Percents with one decimal that add up to 100; all zero where nothing was given."""
    return [part / 10 for part in permille(tokens)]


def board(
    project: str,
    project_name: str,
    told_by: str,
    rows: Sequence[ContributorRow],
    *,
    all_contributors: int,
    all_tokens: int,
    all_merges: int,
) -> Board:
    """The board of a project. rows: those that are told one by one; all_: with the others."""
    gave = sorted(
        (row for row in rows if row.merges), key=lambda row: (-row.tokens, -row.merges, row.key)
    )
    rest_tokens = max(0, all_tokens - sum(row.tokens for row in gave))
    rest = all_contributors - len(rows)
    *told, left = shares([*(row.tokens for row in gave), rest_tokens if rest > 0 else 0])
    places = [_place(row, share) for row, share in zip(gave, told, strict=True)]
    others = Others(
        contributors=max(0, rest),
        share=left,
        tokens=rest_tokens if rest > 0 else 0,
        merges=max(0, all_merges - sum(row.merges for row in gave)) if rest > 0 else 0,
    )
    return Board(
        project=project,
        project_name=printable(project_name),
        told_by=told_by,
        tokens=sum(row.tokens for row in gave) + others.tokens,
        merges=sum(row.merges for row in gave) + others.merges,
        contributors=places,
        teams=_teams(places),
        others=others,
    )


def _place(row: ContributorRow, share: float) -> Place:
    team, name = split_name(printable(row.name))
    return Place(
        key=row.key,
        name=name,
        team=team,
        share=share,
        tokens=row.tokens,
        merges=row.merges,
        since_s=row.first_at_s,
        merged_at_s=row.merged_at_s,
        is_here=row.is_here,
    )


def _teams(places: Sequence[Place]) -> list[Team]:
    members: dict[str, list[Place]] = {}
    for place in places:
        if place.team and (place.team in members or len(members) < TEAMS_MAX):
            members.setdefault(place.team, []).append(place)
    found = [
        Team(
            team=team,
            share=sum(round(one.share * 10) for one in those) / 10,
            tokens=sum(one.tokens for one in those),
            merges=sum(one.merges for one in those),
            members=len(those),
            since_s=min((one.since_s for one in those if one.since_s), default=0.0),
        )
        for team, those in members.items()
    ]
    return sorted(found, key=lambda one: (-one.tokens, one.team))


# Where it comes from.


def boards_of(home: Home) -> list[Board]:
    """Of every project that a syncer of this home has the log of, or that a learner works for.

    UserError where there is none.
    """
    found = {one.project: one for one in map(_of_ledger, _ledgers(home))}
    learners = [daemon for daemon in daemons.fitting(home, None, None) if daemon.role == "learner"]
    statuses, silent = daemons.ask_all(learners, swarm_wait_s=SWARM_WAIT_S)
    for line in silent:
        failures.complain(line)
    for status in statuses:
        told = _of_leader(status)
        if told is not None:
            found.setdefault(told.project, told)
    if not found:
        raise UserError(
            "Nobody here knows who gave what: no syncer has a log in this home, and no learner "
            "that runs here has heard from a leader. Start one, or watch: shoal tui --link LINK"
        )
    return list(found.values())


def _ledgers(home: Home) -> list[Ledger]:
    from shoal.machine.ledger_command import read_ledgers

    names = [daemon.instance for daemon in daemons.fitting(home, "syncer", None)]
    found: list[Ledger] = []
    for instance in dict.fromkeys((*names, "default")):
        if home.socket("syncer", instance).exists() or home.hosted_projects(instance):
            found += read_ledgers(home, instance)
    return found


def _of_ledger(ledger: Ledger) -> Board:
    return board(
        ledger.project,
        ledger.project_name,
        "log",
        ledger.contributors,
        all_contributors=len(ledger.contributors),
        all_tokens=ledger.fragment_tokens // max(1, ledger.fragments),
        all_merges=ledger.merges,
    )


def _of_leader(status: DaemonStatus) -> Board | None:
    seen = status.swarm_seen if isinstance(status, NodeStatus) else None
    leader: SyncerStatus | None = seen.status if seen is not None else None
    if leader is None:
        return None
    return board(
        leader.project.id,
        leader.project.name,
        "leader",
        leader.contributors,
        all_contributors=leader.contributors_all,
        all_tokens=leader.contributor_fragment_tokens // max(1, leader.project.fragments),
        all_merges=leader.contributor_merges,
    )


# What people see.


def show(home: Home, *, as_json: bool) -> int:
    """Prints it; the exit code."""
    found = boards_of(home)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return ExitCode.DONE
    from rich.text import Text

    from tui.text import fmt

    console = writing.console()
    for one in found:
        console.print(Text(f"{fmt.clean(one.project_name)} {one.project[:8]}", style="bold"))
        count = len(one.contributors) + one.others.contributors
        console.print(
            f"{fmt.plural(count, 'contributor')}: {one.tokens:,} tokens in "
            f"{fmt.plural(one.merges, 'merge')}",
            highlight=False,
        )
        if one.teams:
            console.print(_team_table(one.teams[:ROWS_MAX]))
            console.print()
        if one.contributors:
            console.print(_table(one))
    return ExitCode.DONE


def _new_table(*titles: str, words: int) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, title in enumerate(titles):
        is_name = 1 <= at <= words
        table.add_column(
            title,
            no_wrap=True,
            overflow="ellipsis",
            max_width=24 if is_name else None,
            justify="left" if is_name or at == len(titles) - 1 else "right",
        )
    return table


def _date(at_s: float) -> str:
    from tui.text import fmt

    return fmt.date(at_s) if at_s else ""


def _team_table(teams: Sequence[Team]) -> Table:
    from rich.text import Text

    from tui.text import fmt

    table = _new_table("#", "team", "share", "tokens", "merges", "members", "since", words=1)
    for at, one in enumerate(teams, start=1):
        cells = (
            f"{at}",
            fmt.clean(one.team),
            f"{one.share:.1f} %",
            f"{one.tokens:,}",
            f"{one.merges:,}",
            f"{one.members}",
            _date(one.since_s),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _table(one: Board) -> Table:
    from rich.text import Text

    from tui.text import fmt

    titles = ("#", "name", "team", "share", "tokens", "merges", "key", "since")
    table = _new_table(*titles, words=2)
    shown, hidden = one.contributors[:ROWS_MAX], one.contributors[ROWS_MAX:]
    for at, place in enumerate(shown, start=1):
        cells = (
            f"{at}",
            fmt.clean(place.name),
            fmt.clean(place.team),
            f"{place.share:.1f} %",
            f"{place.tokens:,}",
            f"{place.merges:,}",
            place.key[:8],
            _date(place.since_s),
        )
        table.add_row(*(Text(cell) for cell in cells))
    rest = len(hidden) + one.others.contributors
    if rest:
        share = (
            sum(round(place.share * 10) for place in hidden) + round(one.others.share * 10)
        ) / 10
        tokens = sum(place.tokens for place in hidden) + one.others.tokens
        merges = sum(place.merges for place in hidden) + one.others.merges
        table.add_row(
            "",
            fmt.plural(rest, "other"),
            "",
            f"{share:.1f} %",
            f"{tokens:,}",
            f"{merges:,}",
            "",
            "",
        )
    return table
