"""View 5: the election, the voters, rounds, checkpoints and traffic of the syncer."""

from __future__ import annotations

from rich.text import Text

from protocol.status import SeatStatus, SyncerStatus, WitnessStatus
from tui.frames.scene import Scene
from tui.text import election, fmt, layout, snapshots, status_rows
from tui.text.election import leads
from tui.text.layout import Pair
from tui.text.theme import Paint
from tui.views import facts

TWO_COLUMNS = 110
TABLE_CELLS = 72
"""The table of voters with names of this machine."""

VOTER_COLUMNS = (
    ("role", 7, False),
    ("prio", 4, True),
    ("state", 11, False),
    ("heard", 9, True),
    ("behind", 7, True),
)
"""Title, cells, and whether it stands at the right."""


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
    rest = sum(cells + 1 for _, cells, is_right in VOTER_COLUMNS)
    first = min(max(width - rest, 12), 28)
    head = [layout.fit_plain("voter", first)]
    head += [layout.fit_plain(name, cells, is_right=at) for name, cells, at in VOTER_COLUMNS]
    made = [Text(" ".join(head).rstrip(), style=paint.quiet)]
    for row in seat.voters:
        state = election.voter_state(row)
        name = election.name(row.key, names) + (" (this)" if row.is_self else "")
        heard = "–" if row.heard_s is None else fmt.ago(row.heard_s)
        cells = (row.role, f"{row.priority}", state, heard, election.lag(row))
        line = Text(layout.fit_plain(name, first))
        for (title, wide, at), value in zip(VOTER_COLUMNS, cells, strict=True):
            style = paint.state(state) if title == "state" else ""
            line.append(" ")
            line.append(layout.fit_plain(fmt.clean(value, 40), wide, is_right=at), style=style)
        made.append(line)
        if row.trouble:
            told = Text(fmt.clean(row.trouble, 400), style=paint.warn)
            for part in layout.wrap(told, width - 2):
                indented = Text("  ")
                indented.append_text(part)
                made.append(indented)
    return made


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
        best = f"at global step {swarm.best_checkpoint:,}, loss {fmt.loss(swarm.best_loss)}"
    last = f"at global step {swarm.curve[-1][0]:,}" if swarm.curve else "none yet"
    return [
        ("evaluated", f"{last}, {fmt.plural(len(swarm.curve), 'measurement')}"),
        ("best", best),
        ("held-out", status_rows.heldout(swarm)),
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
