"""A syncer's status as text: the swarm as a whole, then each learner."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.status import PeerRow, RoundRow, SyncerStatus
from tui.text import election, fmt, snapshots, status_rows
from tui.text.election import alive, leads

PEERS_SHOWN_MAX = 24
WIDE = 110
"""From this many columns on the table has room for the reasons of refusal."""

LEGEND = "■ newest  □ due  ▶ in flight  ! behind"


def render(
    status: SyncerStatus,
    *,
    width: int,
    tokens_per_s: float | None,
    names: election.Names,
    said: str = "",
) -> RenderableType:
    """The whole view. names: what daemons of this machine are called, by key; said: the verdict."""
    if tokens_per_s is None:
        reported = sum(peer.tokens_per_s for peer in alive(status))
        tokens_per_s = reported or None
    parts: list[RenderableType] = [
        status_rows.heading(status.project, "syncer", status.name, pid=status.pid, width=width),
        Text(said or _sentence(status), style="bold"),
        Text(),
        status_rows.grid(_facts(status, tokens_per_s, names)),
        Text(),
    ]
    if status.peers:
        parts.append(_peers(status.peers, is_wide=width >= WIDE))
        if width < WIDE:
            parts += [Text(line) for line in _refused_lines(status.peers)]
    elif leads(status):
        parts.append(Text("No learner has joined yet."))
    else:
        parts.append(Text("The learners are at the leader."))
    return Group(*parts)


def seen(status: SyncerStatus, *, age_s: float, width: int, said: str = "") -> RenderableType:
    """What a learner here was told of the swarm `age_s` ago, below what it says of itself."""
    who = fmt.clean(status.key, 64)[: election.KEY_CHARS]
    more = f", and {status.peers_unnamed:,} more" if status.peers_unnamed else ""
    parts: list[RenderableType] = [
        Text(f"the swarm, as its leader {who} said {fmt.whole(age_s)} ago", style="dim"),
        Text(said or _sentence(status), style="bold"),
        status_rows.grid(
            [
                ("quorum", f"{_quorum(status)}{more}"),
                *(("round", _round(one)) for one in status.rounds),
            ]
        ),
    ]
    if status.peers:
        parts += [Text(), _peers(status.peers, is_wide=width >= WIDE)]
    return Group(*parts)


def _sentence(status: SyncerStatus) -> str:
    """The daemon's own sentence, or the least that is true without it."""
    if status.sentence:
        return fmt.clean(status.sentence, 500)
    return f"{fmt.plural(len(alive(status)), 'learner')} here; phase {status.phase}."


def _seat(status: SyncerStatus, names: election.Names) -> list[status_rows.Row]:
    """The election in one line, and a line for each voter that somebody should look after."""
    seat = status.seat
    if seat is None:
        return []
    wrong = [row for row in seat.voters if election.is_wrong(row)]
    return [
        ("election", election.line(seat, names)),
        *(("voter", election.voter_line(row, names)) for row in wrong),
        ("trouble", fmt.clean(seat.trouble, 500)),
    ]


def _facts(
    status: SyncerStatus, tokens_per_s: float | None, names: election.Names
) -> list[status_rows.Row]:
    swarm, project = status.swarm, status.project
    phase = f"{fmt.clean(status.phase)} · up {fmt.duration(status.uptime_s)}"
    merges = fmt.plural(swarm.global_step, "global step")
    merges += f", {status.merges_here:,} since this start"
    if status.merges:
        merges += f", the last in {fmt.duration(status.merges[-1].seconds)}"
    return [
        ("phase", phase),
        *_seat(status, names),
        ("progress", status_rows.progress(project, swarm, tokens_per_s)),
        ("held-out", status_rows.heldout(swarm)),
        ("guard", status_rows.guard(swarm)),
        ("merges", merges),
        ("on average", status_rows.means(status)),
        ("quorum", _quorum(status) if leads(status) else ""),
        *(("round", _round(one)) for one in status.rounds),
        ("grace", _grace(status)),
        ("snapshot", snapshots.last(status.snapshots)),
        ("restored", snapshots.restored(status.snapshots)),
        ("fragments", _strip(status)),
        ("", LEGEND if status.fragments else ""),
        ("pushes", fmt.tally(status.outcomes)),
        ("faults", status_rows.faults(status.faults)),
        ("network", status_rows.network(status.network)),
        ("reached", status_rows.reached(status.network)),
        ("wire", status_rows.wire(status)),
    ]


def _quorum(status: SyncerStatus) -> str:
    wanted, here = status.project.quorum, len(alive(status))
    needs = f"a round needs {fmt.plural(wanted, 'push', 'pushes')}"
    if here < wanted:
        there = "none is alive" if not here else f"{here} alive"
        return f"{needs}; {there}, so it will settle for fewer"
    return f"{needs}; {fmt.plural(here, 'learner is', 'learners are')} alive"


def _round(one: RoundRow) -> str:
    text = (
        f"{one.number:,} on fragment {one.fragment}: {fmt.clean(one.state, 20)}, "
        f"{one.arrived} of {one.asked} arrived, needs {one.quorum}, {fmt.duration(one.age_s)} old"
    )
    if one.waiting_for:
        text += f"; waiting for {fmt.enumerate_names(one.waiting_for)}"
    return text


def _grace(status: SyncerStatus) -> str:
    if not status.grace_s and status.slack_s is None:
        return ""
    text = f"{fmt.duration(status.grace_s)} after the quorum"
    if status.slack_s is not None:
        text += f"; slack {fmt.duration(status.slack_s)}"
    return text


def _strip(status: SyncerStatus) -> Text:
    """One cell per fragment: where its version is, and whether a round is under way."""
    if not status.fragments:
        return Text()
    cells = "".join(status_rows.CELL[state] for state in status_rows.fragment_states(status))
    return Text(f"0 {cells} {len(cells) - 1}  {status_rows.versions(status)}")


def _peers(peers: Sequence[PeerRow], *, is_wide: bool) -> Table:
    """A row for each learner, by name, so that rows stay where they are."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("learner", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("device", no_wrap=True, overflow="ellipsis", max_width=24 if is_wide else 8)
    table.add_column("state", no_wrap=True)
    for name in ("local step", "lag", "tok/s", "loss", "merges", "goodput"):
        table.add_column(name, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("heard", justify="right", no_wrap=True)
        table.add_column("not counted", overflow="fold")
    ordered = sorted(peers, key=lambda peer: (peer.name, peer.key))
    for peer in ordered[:PEERS_SHOWN_MAX]:
        # As Text: a plain string would be read as markup, and names are not ours.
        cells = _cells(peer, is_wide=is_wide)
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    left = len(ordered) - PEERS_SHOWN_MAX
    if left > 0:
        table.add_row(f"… {left} more")
    return table


def _cells(peer: PeerRow, *, is_wide: bool) -> list[str | Text]:
    cells: list[str | Text] = [
        fmt.clean(peer.name),
        fmt.clean(peer.device),
        status_rows.styled_state(peer.state),
        f"{peer.local_step:,}",
        str(peer.lag),
        fmt.count(peer.tokens_per_s),
        fmt.loss(peer.loss),
        f"{peer.merges:,}",
        "–" if peer.goodput is None else fmt.percent(peer.goodput),
    ]
    if is_wide:
        cells += [f"{fmt.duration(peer.heard_s)} ago", fmt.tally(peer.refused)]
    return cells


def _refused_lines(peers: Sequence[PeerRow]) -> list[str]:
    """Where the table is too narrow for them: who had what refused."""
    lines = [
        f"not counted from {fmt.clean(peer.name, 20)}: {fmt.tally(peer.refused)}"
        for peer in sorted(peers, key=lambda peer: (peer.name, peer.key))
        if fmt.tally(peer.refused)
    ]
    return lines[:PEERS_SHOWN_MAX]
