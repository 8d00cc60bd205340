"""View 5: the election, the voters, rounds, checkpoints and traffic of the syncer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from protocol.status import PeerRow, SeatStatus, SyncerStatus, WitnessStatus
from tui.frames.scene import Scene
from tui.text import election, fmt, layout, snapshots, status_rows
from tui.text.election import leads
from tui.text.layout import Pair
from tui.text.paint import Paint
from tui.views import facts

TWO_COLUMNS = 110
TABLE_CELLS = 72
"""The table of voters with names of this machine."""

Column = tuple[str, int, bool]
"""Title, cells, and whether it stands at the right."""

VOTER_COLUMNS: Sequence[Column] = (
    ("role", 7, False),
    ("prio", 4, True),
    ("state", 11, False),
    ("heard", 9, True),
    ("behind", 7, True),
)

TRUST_COLUMNS: Sequence[Column] = (
    ("share", 6, True),
    ("clipped", 7, True),
    ("direction", 9, True),
    ("probes", 11, True),
    ("counts", 18, False),
)

TRUST_LINES_MAX = 12
"""Learners that are shown: those that count least."""


def render(scene: Scene, width: int, height: int) -> list[Text]:
    voter = scene.voter
    if voter is None:
        return layout.wrap(Text(_absent(scene), style=scene.paint.quiet), width)
    if width >= TWO_COLUMNS:
        room = max((width - 1) // 2, TABLE_CELLS)
        left, right = _boxes(scene, voter, room, width - room - 1)
        return facts.aged(scene, voter, width, layout.beside(left, right, room))
    left, right = _boxes(scene, voter, width, width)
    return facts.aged(scene, voter, width, left + right)


def _boxes(
    scene: Scene, voter: SyncerStatus | WitnessStatus, left_width: int, right_width: int
) -> tuple[list[Text], list[Text]]:
    """What stands on the left and on the right, or above and below."""
    seat = voter.seat
    left = _box(_title(voter), _seat(scene, voter), left_width, scene)
    if seat is not None:
        left += layout.panel(
            "voters",
            voters(seat, scene.names, left_width - 4, scene.paint),
            left_width,
            scene.paint,
            note=f"{election.majority(seat)} of {len(seat.voters)} elect",
        )
    if isinstance(voter, WitnessStatus):
        return left, _box("log and wire", _witness(scene, voter), right_width, scene)
    if leads(voter):
        left += _box("rounds", _rounds(scene, voter), left_width, scene)
    if any(peer.direction is not None or peer.probes for peer in voter.peers):
        left += _trust(voter, left_width, scene.paint)
    right = _box("checkpoints", _checkpoints(voter), right_width, scene)
    right += _box("pushes and wire", _traffic(scene, voter), right_width, scene)
    right += _box("program", _program(scene, voter), right_width, scene)
    return left, right


def _title(voter: SyncerStatus | WitnessStatus) -> str:
    role = "witness" if isinstance(voter, WitnessStatus) else "syncer"
    return f"election, as {role} {fmt.clean(voter.name, 20)} sees it"


def _absent(scene: Scene) -> str:
    node = scene.node
    if node is None:
        return "No syncer runs on this machine, or none has answered yet."
    heard = "never" if node.heard_s is None else f"{fmt.duration(node.heard_s)} ago"
    return (
        f"No syncer runs on this machine. The learner {fmt.clean(node.name, 20)} follows "
        f"{fmt.clean(node.swarm.leader, 16) or 'nobody'} (link: {fmt.clean(node.link, 20)}, "
        f"heard {heard}{fmt.way(node.path, node.rtt_s)}); epoch {node.swarm.epoch}, "
        f"term {node.swarm.term}, log index {node.swarm.log_index:,}."
    )


def _box(title: str, pairs: list[Pair], width: int, scene: Scene) -> list[Text]:
    return layout.box(title, pairs, width, scene.paint, label=12)


def seat_pairs(scene: Scene, seat: SeatStatus) -> list[Pair]:
    """The election in short, for those who do not lead."""
    missing = election.away_words(seat, scene.names)
    said = Text(missing, style=scene.paint.warn)
    return [
        ("leader", _leader(scene, seat)),
        ("heartbeat", clock(seat, scene.paint)),
        ("voters", said if missing else f"{len(seat.voters)}, all here"),
    ]


def _seat(scene: Scene, status: SyncerStatus | WitnessStatus) -> list[Pair]:
    seat, paint = status.seat, scene.paint
    if seat is None:  # a recording of before there were elections
        assert isinstance(status, SyncerStatus)
        swarm = status.swarm
        return [
            ("leader", facts.leader(scene, status)),
            ("epoch, term", f"{swarm.epoch}, {swarm.term}"),
            ("log index", f"{swarm.log_index:,}"),
            ("phase", _phase(status)),
        ]
    place = f"{election.role(seat)}, epoch {seat.epoch}, term {seat.term}"
    adopts = seat.newest_charter_revision > seat.charter_revision
    return [
        ("this one", Text(place, style=paint.good if seat.leader else paint.bad)),
        ("leader", _leader(scene, seat)),
        ("heartbeat", clock(seat, paint)),
        ("standbys", _standbys(seat, paint)),
        ("durability", election.durability(seat)),
        ("charter", Text(election.charter(seat), style=paint.warn if adopts else "")),
        ("phase", _phase(status) if isinstance(status, SyncerStatus) else ""),
        (
            "trouble",
            Text(fmt.clean(seat.trouble, 400), style=paint.bad) if seat.trouble else "",
        ),
    ]


def _phase(status: SyncerStatus) -> str:
    up = f"up {fmt.duration(status.uptime_s)}"
    return f"{fmt.clean(status.phase, 20)}, {up}, log at record {status.swarm.log_index:,}"


def _leader(scene: Scene, seat: SeatStatus) -> Text:
    if not seat.leader:
        lasts = "" if seat.leaderless_s is None else f" for {fmt.whole(seat.leaderless_s)}"
        return Text(f"none{lasts}", style=scene.paint.bad)
    if seat.role == election.LEADING:
        return Text("this one")
    heard = "" if seat.leader_heard_s is None else f", heard {fmt.duration(seat.leader_heard_s)}"
    return Text(f"{election.name(seat.leader, scene.names)}{heard}{' ago' if heard else ''}")


def clock(seat: SeatStatus, paint: Paint) -> Text:
    """A bar that shrinks until the next beat, or until this host stands for election."""
    due = election.clock(seat)
    if due is None:
        return Text(election.no_clock(seat), style=paint.quiet)
    share, said = due
    text = Text()
    style = paint.good if seat.leader else paint.warn
    text.append(fmt.bar(share, facts.GAUGE_CELLS), style=style)
    text.append(f" {said}")
    if seat.is_drained:
        text.append("; drained", style=paint.warn)
    return text


def _standbys(seat: SeatStatus, paint: Paint) -> Text:
    style = paint.warn if election.lacks_standby(seat) else ""
    return Text(election.standbys(seat) or ("drained" if seat.is_drained else ""), style=style)


def voters(seat: SeatStatus, names: election.Names, width: int, paint: Paint) -> list[Text]:
    """A line for each voter, and one more where it has a trouble to tell."""
    made = [_line("voter", VOTER_COLUMNS, [title for title, _, _ in VOTER_COLUMNS], width)]
    made[0].stylize(paint.quiet)
    for row in seat.voters:
        state = election.voter_state(row)
        name = election.name(row.key, names) + (" (this)" if row.is_self else "")
        heard = "–" if row.heard_s is None else fmt.ago(row.heard_s)
        cells = (row.role, f"{row.priority}", state, heard, election.lag(row))
        made.append(_line(name, VOTER_COLUMNS, cells, width, {"state": paint.state(state)}))
        if row.trouble:
            told = Text(fmt.clean(row.trouble, 400), style=paint.warn)
            for part in layout.wrap(told, width - 2):
                indented = Text("  ")
                indented.append_text(part)
                made.append(indented)
    return made


def _line(
    name: str,
    columns: Sequence[Column],
    cells: Sequence[str],
    width: int,
    styles: Mapping[str, str] | None = None,
) -> Text:
    """A line of a table: a name in what room is left, then a cell for each column.

    styles: of cells, by the title of their column.
    """
    rest = sum(wide + 1 for _, wide, _ in columns)
    line = Text(layout.fit_plain(fmt.clean(name, 40), min(max(width - rest, 12), 28)))
    for (title, wide, at), value in zip(columns, cells, strict=True):
        fitted = layout.fit_plain(fmt.clean(value, 40), wide, is_right=at)
        line.append(" ").append(fitted, style=(styles or {}).get(title, ""))
    line.rstrip()
    return line


def _trust(status: SyncerStatus, width: int, paint: Paint) -> list[Text]:
    """A line for each learner, those that count least first: what its pushes are worth, and why."""
    peers = sorted(status.peers, key=lambda peer: (peer.trust, peer.name, peer.key))
    lines = [_line("learner", TRUST_COLUMNS, [title for title, _, _ in TRUST_COLUMNS], width - 4)]
    lines[0].stylize(paint.quiet)
    for peer in peers[:TRUST_LINES_MAX]:
        styles = {"counts": _trust_style(peer, paint)}
        lines.append(_line(peer.name, TRUST_COLUMNS, _trust_cells(peer), width - 4, styles))
    left = len(peers) - TRUST_LINES_MAX
    if left > 0:
        lines.append(Text(f"… {left:,} more", style=paint.quiet))
    doubted = sum(peer.trust < 1 for peer in peers)
    lines += _suspended(peers, width - 4, paint)
    note = f"{doubted:,} of {len(peers):,} doubted" if doubted else "all count"
    suspended = sum(peer.standing == "suspended" for peer in peers)
    if suspended:
        note = f"{suspended:,} of {len(peers):,} suspended" + (
            f", {doubted - suspended:,} doubted" if doubted > suspended else ""
        )
    return layout.panel("trust", lines, width, paint, note=note)


def _suspended(peers: Sequence[PeerRow], width: int, paint: Paint) -> list[Text]:
    """Below the table: who is suspended, and why."""
    made: list[Text] = []
    for peer in peers[:TRUST_LINES_MAX]:
        if peer.suspended:
            said = f"{fmt.clean(peer.name, 20)}: {fmt.clean(peer.suspended, 300)}"
            made += layout.wrap(Text(said, style=paint.bad), width)
    return made


def _trust_cells(peer: PeerRow) -> tuple[str, ...]:
    return (
        "–" if peer.share is None else fmt.percent(peer.share),
        f"{peer.clipped:,}",
        "–" if peer.direction is None else f"{peer.direction:+.2f}",
        _probes(peer),
        status_rows.counts(peer),
    )


def _probes(peer: PeerRow) -> str:
    """How many pushes of it were probed, and what they gained on their own text."""
    if not peer.probes:
        return "–"
    return f"{peer.probes:,}" + ("" if peer.contrast is None else f" {peer.contrast:+.1f}")


def _trust_style(peer: PeerRow, paint: Paint) -> str:
    if peer.trust < 1:
        return paint.bad if not peer.trust else paint.warn
    return paint.quiet if peer.is_new else ""


def _witness(scene: Scene, status: WitnessStatus) -> list[Pair]:
    return [
        ("log", status_rows.certified(status)),
        ("faults", facts.faults(status, scene.paint)),
        ("network", status_rows.network(status.network)),
        (
            "addresses",
            ", ".join(fmt.clean(one, 120) for one in status.network.addresses[:4]),
        ),
        ("name", f"{fmt.clean(status.name)}, up {fmt.duration(status.uptime_s)}"),
        *facts.identity(status),
    ]


def _program(scene: Scene, status: SyncerStatus) -> list[Pair]:
    return [
        ("faults", facts.faults(status, scene.paint)),
        ("name", fmt.clean(status.name)),
        *facts.identity(status),
    ]


def _rounds(scene: Scene, status: SyncerStatus) -> list[Pair]:
    ordered = sorted(status.rounds, key=lambda one: one.number)
    flying: list[Pair] = [
        ("in flight" if number == 0 else "", facts.round_text(one, scene.paint))
        for number, one in enumerate(ordered)
    ]
    return [
        *(flying or [("in flight", "none")]),
        ("quorum", f"a round needs {fmt.plural(status.project.quorum, 'push', 'pushes')}"),
        ("grace", facts.grace(status, scene.paint)),
        ("last merge", facts.last_merge(status)),
        ("merges", f"{status.merges_here:,} since this start"),
        ("on average", status_rows.means(status)),
    ]


def _checkpoints(status: SyncerStatus) -> list[Pair]:
    swarm = status.swarm
    best = "none evaluated yet"
    if swarm.best_checkpoint is not None:
        step = swarm.best_global_step
        when = f", at global step {step:,}" if step is not None else ""
        best = f"checkpoint {swarm.best_checkpoint:,}{when}, loss {fmt.loss(swarm.best_loss)}"
    last = f"at global step {swarm.curve[-1][0]:,}" if swarm.curve else "none yet"
    return [
        ("evaluated", f"{last}, {fmt.plural(len(swarm.curve), 'measurement')}"),
        ("best", best),
        ("held-out", status_rows.heldout(swarm)),
        ("guard", status_rows.guard(swarm)),
        ("kept in", fmt.clean(status.checkpoint_dir, 300)),
        ("snapshot", snapshots.last(status.snapshots)),
        ("restored", snapshots.restored(status.snapshots)),
    ]


def _settled(status: SyncerStatus) -> list[Pair]:
    return [
        ("outcomes", fmt.tally(status.outcomes) or "no push settled yet"),
        ("received", f"{fmt.bytes_of(status.push_bytes)} in merged pushes"),
        ("published", fmt.bytes_of(status.payload_bytes)),
    ]


def _traffic(scene: Scene, status: SyncerStatus) -> list[Pair]:
    return [
        *(_settled(status) if leads(status) or status.merges_here else []),
        ("wire", status_rows.wire(status)),
        ("network", status_rows.network(status.network)),
        ("addresses", ", ".join(fmt.clean(one, 120) for one in status.network.addresses[:4])),
        ("join with", "press : and type link" if status.join_link else ""),
    ]
