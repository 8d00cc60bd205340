"""The swarm as a picture: the leading syncer, its voters, and the learners around it.

Every learner has a lane to the syncer. A push travels inward along it, a merged fragment outward,
once they are in the log (`tui.frames.traffic`). Where there are more learners than lanes each is a
dot, and lights up as its push comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from protocol.status import NodeStatus, PeerRow, SeatStatus, SyncerStatus
from tui.frames.scene import Scene
from tui.frames.traffic import Packet
from tui.text import election, fmt, layout
from tui.text.election import leads
from tui.text.paint import Paint

ROWS_MIN: Final = 6
"""Below this there is no picture."""

TWO_SIDES: Final = 112
"""From this width on learners stand on both sides of the syncer."""

HUB_CELLS, HUB_CELLS_WIDE = 28, 34
HUB_ROWS: Final = 6
WIDE: Final = 130
LANE_CELLS_MIN: Final = 8
NAME_CELLS, NAME_CELLS_WIDE = 11, 18
SPEED_CELLS, SPARK_CELLS = 7, 12

MARKS = {
    "training": "●",
    "gone": "✖",
    "silent": "✖",
    "unfit": "✖",
    "killed": "✖",
    "paused": "○",
    "finishing": "○",
    "left": "·",
}
"""A learner by its state: the shape says it too, so that nobody needs the colour."""

OTHER_MARK: Final = "◐"
LIT: Final = "◆"
"""A learner whose push is under way, where it has no lane."""

VOTER = {"syncer": "◇", "witness": "○"}
Cell = tuple[int, int]


class Canvas:
    """Cells by row and column, each a character with a style."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._chars = [[" "] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]

    def put(self, row: int, column: int, text: str, style: str = "") -> None:
        """Writes to the right from here; what lies outside is cut off."""
        if not 0 <= row < self.height:
            return
        for char in text:
            cells = cell_len(char)
            if column >= 0 and column + cells <= self.width:
                self._chars[row][column] = char
                self._styles[row][column] = style
                if cells == 2:
                    self._chars[row][column + 1] = ""
                    self._styles[row][column + 1] = style
            column += cells

    def lines(self) -> list[Text]:
        """All rows."""
        made = []
        for chars, styles in zip(self._chars, self._styles, strict=True):
            line = Text(no_wrap=True)
            start = 0
            for column in range(1, self.width + 1):
                if column == self.width or styles[column] != styles[start]:
                    line.append("".join(chars[start:column]), style=styles[start])
                    start = column
            made.append(line)
        return made


@dataclass(slots=True)
class _Side:
    """One column of learners, and how their lanes reach the syncer."""

    is_left: bool
    edge: int
    """Column beside the labels, where lanes begin."""
    bus: int
    """Column in which lanes meet."""
    hub: int
    """Last column before the syncer."""
    rows: list[int] = field(default_factory=list)
    pitch: int = 1
    """Lines from one learner to the next."""

    def path(self, row: int, middle: int) -> list[Cell]:
        """Cells from a learner to the syncer."""
        step = 1 if self.is_left else -1
        lane = [(row, column) for column in range(self.edge, self.bus, step)]
        turn = 1 if middle >= row else -1
        bus = [(at, self.bus) for at in range(row, middle + turn, turn)]
        return lane + bus + [(middle, at) for at in range(self.bus + step, self.hub + step, step)]


def rows_wanted(scene: Scene, width: int) -> int:
    """How many lines the picture would like to have."""
    status = scene.leader
    if status is None or not leads(status):
        voters = 0 if status is None or status.seat is None else len(status.seat.voters)
        return max(voters + 3, ROWS_MIN)
    sides = 2 if width >= TWO_SIDES else 1
    learners = sum(one.state != "left" for one in status.peers)
    each = -(-learners // sides)
    voters = 0 if status.seat is None else len(status.seat.voters) - 1
    return max(2 * each, HUB_ROWS + voters, ROWS_MIN) + 1


def render(scene: Scene, width: int, height: int) -> list[Text]:
    """The picture, exactly `height` lines of at most `width` cells; none below `ROWS_MIN`."""
    if height < ROWS_MIN or width < 40:
        return []
    status = scene.leader
    if status is None or not leads(status):
        return _without(scene, status, width, height)
    peers = sorted(
        (one for one in status.peers if one.state != "left"),
        key=lambda one: (one.name.casefold(), one.key),
    )
    canvas = Canvas(width, height)
    hub = _Hub(scene, status, width, height)
    hub.draw(canvas)
    if not peers:
        words = "Nobody trains here yet."
        canvas.put(hub.middle, max(hub.left - len(words) - 3, 0), words, scene.paint.quiet)
    elif len(peers) <= height * (2 if hub.is_two_sided else 1):
        _draw_lanes(canvas, scene, hub, peers)
    else:
        _draw_field(canvas, scene, hub, peers)
    return _faded(canvas.lines(), scene, status)


def _faded(lines: list[Text], scene: Scene, status: SyncerStatus) -> list[Text]:
    """Without colour where it is not of now."""
    if scene.silent_s(status) is None:
        return lines
    return [Text(line.plain, style=scene.paint.quiet, no_wrap=True) for line in lines]


class _Hub:
    """The leading syncer in its frame, with what it is about to merge, and the voters below."""

    def __init__(self, scene: Scene, status: SyncerStatus, width: int, height: int) -> None:
        self._scene, self._status = scene, status
        self.is_two_sided = width >= TWO_SIDES
        self.width = HUB_CELLS_WIDE if width >= WIDE else HUB_CELLS
        self.left = (width - self.width) // 2 if self.is_two_sided else width - self.width
        self.right = self.left + self.width - 1
        self._voters = self._voter_lines(max(height - 6, 1))
        inside = self._words()[: max(height - 2 - len(self._voters), 1)]
        self._inside = inside
        high = len(inside) + 2
        self.top = max((height - 1 - high - len(self._voters)) // 2, 0)
        self.bottom = self.top + high - 1
        self.middle = self.top + high // 2

    def _words(self) -> list[tuple[str, str]]:
        """What stands in the frame, each line with its style."""
        status, paint = self._status, self._scene.paint
        rounds = sorted(status.rounds, key=lambda one: one.number)
        pace = status.swarm.pace
        made: list[tuple[str, str]] = []
        if status.swarm.is_ended:
            return [("the run is complete", paint.good)]
        if rounds:
            one = rounds[0]
            more = f" +{len(rounds) - 1}" if len(rounds) > 1 else ""
            made.append((f"round {one.number:,} · fragment {one.fragment}{more}", ""))
            share = one.arrived / one.asked if one.asked else 0.0
            is_met = one.arrived >= one.quorum
            count = f" {one.arrived:,} of {one.asked:,}"
            needs = f", needs {one.quorum:,}"
            room = self.width - 4 - len(count) - len(needs)
            gauge = f"{fmt.bar(share, max(min(room, 10), 3))}{count}{needs}"
            made.append((gauge, paint.good if is_met else paint.warn))
        else:
            made.append(("between two rounds", paint.quiet))
            made.append((f"a round needs {fmt.plural(status.project.quorum, 'push', 'pushes')}",
                         paint.quiet))  # fmt: skip
        if status.swarm.owner_paused_at_s is not None:
            made.append(("paused by the owner", paint.warn))
        elif status.swarm.pause is not None:
            made.append(("paused by the guard", paint.bad))
        elif pace is not None and pace.gap_s:
            made.append((_pace(pace.gap_s), ""))
        made.append((f"global step {status.swarm.global_step:,}", ""))
        return made

    def _voter_lines(self, rows_max: int) -> list[tuple[str, str]]:
        seat = self._status.seat
        if seat is None or len(seat.voters) < 2:
            return []
        paint = self._scene.paint
        others = [row for row in seat.voters if not row.is_leader]
        made = []
        for row in others:
            mark = "✖" if election.is_away(row) else VOTER.get(row.role, "○")
            name = election.voter_name(row, self._scene.names)
            style = paint.bad if election.is_wrong(row) else paint.good
            said = " away" if election.is_away(row) else ""
            made.append((f"{mark} {name}{said}", style))
        if len(made) > rows_max:
            away = sum(election.is_away(row) for row in others)
            said = f"◇ {fmt.plural(len(others), 'more voter')}"
            said += f", {away} away" if away else ", all here"
            made = [(said, paint.bad if away else paint.good)]
        return made

    def draw(self, canvas: Canvas) -> None:
        """Frame, words, voters."""
        status, paint = self._status, self._scene.paint
        inner = self.width - 4
        edge = paint.accent
        name = layout.fit_plain(
            election.name(status.key, self._scene.names) if status.pid == 0
            else fmt.clean(f"syncer {status.name}", 40), inner,
        ).rstrip()  # fmt: skip
        term = f"term {_term(status)}"
        head = f"╭─ {name} "
        tail = f" {term} ─╮"
        if len(head) + len(tail) > self.width:
            tail = "─╮"
        canvas.put(self.top, self.left, head, edge)
        canvas.put(self.top, self.left + 3, name, paint.strong)
        fill = "─" * max(self.width - cell_len(head) - len(tail), 0)
        canvas.put(self.top, self.left + cell_len(head), fill + tail, edge)
        for number, (words, style) in enumerate(self._inside, self.top + 1):
            canvas.put(number, self.left, "│", edge)
            canvas.put(number, self.left + 2, layout.fit_plain(words, inner), style)
            canvas.put(number, self.right, "│", edge)
        canvas.put(self.bottom, self.left, "╰" + "─" * (self.width - 2) + "╯", edge)
        for number, (words, style) in enumerate(self._voters, self.bottom + 1):
            joint = "├" if number < self.bottom + len(self._voters) else "╰"
            canvas.put(number, self.left + 2, f"{joint}╌", paint.quiet)
            canvas.put(number, self.left + 5, layout.fit_plain(words, self.width - 5), style)
        if self._voters:
            canvas.put(self.bottom, self.left + 2, "┬", edge)

    def join(self, canvas: Canvas, *, is_left: bool) -> None:
        """Opens the frame where the lanes come in."""
        char = "┤" if is_left else "├"
        canvas.put(
            self.middle, self.left if is_left else self.right, char, self._scene.paint.accent
        )


def _term(status: SyncerStatus) -> int:
    return status.seat.term if isinstance(status.seat, SeatStatus) else status.swarm.term


def _pace(gap_s: float) -> str:
    if gap_s < 1:
        return f"{1 / gap_s:.1f} merges a second"
    return f"a merge every {fmt.duration(gap_s)}"


def _sides(canvas: Canvas, hub: _Hub, label: int) -> list[_Side]:
    left = _Side(is_left=True, edge=label + 1, bus=hub.left - 4, hub=hub.left - 1)
    if not hub.is_two_sided:
        return [left]
    right = _Side(
        is_left=False, edge=canvas.width - label - 2, bus=hub.right + 4, hub=hub.right + 1
    )
    return [left, right]


def _spread(count: int, pitch: int, height: int, middle: int) -> list[int]:
    """Rows for so many learners, around the middle, all of them inside."""
    extent = (count - 1) * pitch
    first = min(max(middle - extent // 2, 0), height - pitch - extent)
    return [first + number * pitch for number in range(count)]


def _draw_lanes(canvas: Canvas, scene: Scene, hub: _Hub, peers: Sequence[PeerRow]) -> None:
    """A lane for each learner."""
    label = min(hub.left - 4 - LANE_CELLS_MIN, _label_cells(canvas.width))
    sides = _sides(canvas, hub, label)
    half = (len(peers) + len(sides) - 1) // len(sides)
    paths: dict[str, list[Cell]] = {}
    for side, members in zip(sides, (peers[:half], peers[half:]), strict=False):
        if not members:
            continue
        side.pitch = 2 if 2 * half <= canvas.height else 1
        side.rows = _spread(len(members), side.pitch, canvas.height, hub.middle)
        _draw_bus(canvas, side, hub.middle, scene.paint)
        hub.join(canvas, is_left=side.is_left)
        for row, peer in zip(side.rows, members, strict=True):
            _draw_label(canvas, scene, side, row, peer, label)
            paths[peer.key] = side.path(row, hub.middle)
    _draw_packets(canvas, scene.moving, paths, scene.paint)


def _label_cells(width: int) -> int:
    """Name, speed, its course, mark."""
    names = NAME_CELLS_WIDE if width >= WIDE else NAME_CELLS
    return names + 1 + SPEED_CELLS + 1 + SPARK_CELLS + 2


def _draw_label(
    canvas: Canvas, scene: Scene, side: _Side, row: int, peer: PeerRow, label: int
) -> None:
    """Beside its lane: what it is called and does; below, where there is room, what it is."""
    paint = scene.paint
    style = paint.state(peer.state)
    is_own = any(one.key == peer.key for one in scene.nodes_here)
    name_cells = label - SPEED_CELLS - SPARK_CELLS - 4
    name = layout.fit_plain(fmt.clean(peer.name), name_cells)
    room = label - name_cells - 3
    if peer.state == "training":
        speed = layout.fit_plain(fmt.count(peer.tokens_per_s), SPEED_CELLS, is_right=True)
        course = fmt.course(scene.history.speeds(peer.key), SPARK_CELLS)
        spark = layout.fit_plain(course, SPARK_CELLS, is_right=True)
        told = [(speed, ""), (spark, paint.chart)]
        if peer.trust < 1.0:
            told[1] = (f"{'counts ' + fmt.percent(peer.trust):>{SPARK_CELLS}}", paint.warn)
            style = paint.warn
    else:
        told = [(layout.fit_plain(_at_rest(peer), room, is_right=True), style)]
    mark = MARKS.get(peer.state, OTHER_MARK)
    canvas.put(row, side.edge - 1 if side.is_left else side.edge + 1, mark, style)
    start = column = 0 if side.is_left else side.edge + 3
    for text, how in [(name, f"{paint.strong} {paint.accent}" if is_own else paint.strong), *told]:
        canvas.put(row, column, text, how)
        column += cell_len(text) + 1
    if side.pitch > 1:
        canvas.put(row + 1, start, _below(peer, label - 2), paint.quiet)


def _below(peer: PeerRow, room: int) -> str:
    """Device and training loss, as far as there is room."""
    device = fmt.clean(peer.device, 40)
    loss = "" if peer.loss is None else f" · loss {fmt.loss(peer.loss)}"
    return layout.fit_plain(device + loss if cell_len(device + loss) <= room else device, room)


def _at_rest(peer: PeerRow) -> str:
    """What a learner does that does not train."""
    if peer.state in election.LOST:
        return f"{peer.state}, heard {fmt.ago(peer.heard_s)} ago"
    return fmt.clean(peer.state, 20)


def _draw_bus(canvas: Canvas, side: _Side, middle: int, paint: Paint) -> None:
    """The lanes and the line in which they meet."""
    style = paint.quiet
    low, high = min(*side.rows, middle), max(*side.rows, middle)
    step = 1 if side.is_left else -1
    for row in range(low, high + 1):
        is_lane, is_middle = row in side.rows, row == middle
        canvas.put(row, side.bus, _joint(side, is_lane, is_middle, row == low, row == high), style)
    for row in side.rows:
        for column in range(side.edge, side.bus, step):
            canvas.put(row, column, "─", style)
    for column in range(side.bus + step, side.hub + step, step):
        canvas.put(middle, column, "─", style)


def _joint(side: _Side, is_lane: bool, is_middle: bool, is_top: bool, is_bottom: bool) -> str:
    """The character in which lane, line and way to the syncer meet."""
    outward, inward = is_lane, is_middle
    up, down = not is_top, not is_bottom
    if not side.is_left:
        outward, inward = inward, outward
    return _JOINTS[(outward, inward, up, down)]


_JOINTS: dict[tuple[bool, bool, bool, bool], str] = {
    # Left, right, up, down.
    (False, False, True, True): "│",
    (True, False, True, True): "┤",
    (False, True, True, True): "├",
    (True, True, True, True): "┼",
    (True, False, False, True): "╮",
    (True, False, True, False): "╯",
    (False, True, False, True): "╭",
    (False, True, True, False): "╰",
    (True, True, False, True): "┬",
    (True, True, True, False): "┴",
    (True, True, False, False): "─",
    (True, False, False, False): "─",
    (False, True, False, False): "─",
    (False, False, True, False): "│",
    (False, False, False, True): "│",
    (False, False, False, False): " ",
}


def _draw_packets(
    canvas: Canvas, moving: Iterable[Packet], paths: dict[str, list[Cell]], paint: Paint
) -> None:
    for packet in moving:
        path = paths.get(packet.lane)
        if path is None:
            continue
        place = packet.place if packet.is_push else 1.0 - packet.place
        at = min(int(place * len(path)), len(path) - 1)
        row, column = path[at]
        near = path[at + 1] if at + 1 < len(path) else path[at - 1]
        ahead = (near[0] - row, near[1] - column)
        if at + 1 >= len(path):
            ahead = (-ahead[0], -ahead[1])
        if not packet.is_push:
            ahead = (-ahead[0], -ahead[1])
        style = f"bold {paint.warn if packet.is_push else paint.chart}"
        canvas.put(row, column, _ARROWS[ahead], style)


_ARROWS: dict[Cell, str] = {(0, 1): "▸", (0, -1): "◂", (1, 0): "▾", (-1, 0): "▴"}


def _draw_field(canvas: Canvas, scene: Scene, hub: _Hub, peers: Sequence[PeerRow]) -> None:
    """A dot for each learner, or for so many of them; a push that comes in lights it up."""
    paint = scene.paint
    rows = canvas.height - 2
    blocks = [(0, hub.left - 8)]
    if hub.is_two_sided:
        blocks.append((hub.right + 8, canvas.width - hub.right - 8))
    cells = sum(wide for _, wide in blocks) * rows
    pitch = 2 if len(peers) * 2 <= cells else 1
    places = [
        (row + 1, start + column)
        for start, wide in blocks
        for row in range(rows)
        for column in range(0, wide, pitch)
    ]
    each = -(-len(peers) // len(places))
    moving = list(scene.moving)
    lit = {one.lane for one in moving if one.is_push}
    for (row, column), first in zip(places, range(0, len(peers), each), strict=False):
        group = peers[first : first + each]
        state = group[0].state
        if each > 1:
            state = Counter(one.state for one in group).most_common(1)[0][0]
        is_lit = any(one.key in lit for one in group)
        mark = LIT if is_lit else MARKS.get(state, OTHER_MARK)
        canvas.put(row, column, mark, f"bold {paint.warn}" if is_lit else paint.state(state))
    _draw_ways(canvas, hub, moving, paint)
    note = f"{len(peers):,} learners"
    note += f", a dot for {each:,}" if each > 1 else ", a dot for each"
    canvas.put(0, 0, note, paint.quiet)


def _draw_ways(canvas: Canvas, hub: _Hub, moving: Sequence[Packet], paint: Paint) -> None:
    """Between a field of dots and the syncer: one way, with whatever is under way on it."""
    for is_left in (True, False) if hub.is_two_sided else (True,):
        cells = [
            (hub.middle, column)
            for column in (
                range(hub.left - 7, hub.left) if is_left else range(hub.right + 7, hub.right, -1)
            )
        ]
        for row, column in cells:
            canvas.put(row, column, "─", paint.quiet)
        hub.join(canvas, is_left=is_left)
        half = moving[::2] if is_left else moving[1::2]
        renamed = [one._replace(lane="way") for one in half[:24]]
        _draw_packets(canvas, renamed, {"way": cells}, paint)


def _without(scene: Scene, status: SyncerStatus | None, width: int, height: int) -> list[Text]:
    """Where no leader is known here: the voters, or this learner alone, in words."""
    paint = scene.paint
    rows: list[tuple[str, str]] = []
    if status is not None and status.seat is not None:
        told = "The leader is another host: learners report to it alone."
        rows.append((told if status.seat.leader else "Waiting for a leader.", paint.warn))
        for row in status.seat.voters:
            mark = "✖" if election.is_away(row) else VOTER.get(row.role, "○")
            style = paint.bad if election.is_wrong(row) else paint.good
            said = election.voter_line(row, scene.names)
            rows.append((f"{mark} {said}", style))
    else:
        node = scene.node
        told = "No syncer has been heard here yet."
        if isinstance(node, NodeStatus):
            told = "The leading syncer has not told this learner of the swarm yet."
        rows.append((told, paint.quiet))
    canvas = Canvas(width, height)
    top = max((height - len(rows)) // 2, 0)
    for number, (words, style) in enumerate(rows[:height], top):
        canvas.put(number, 2, layout.fit_plain(words, width - 4).rstrip(), style)
    return canvas.lines()
