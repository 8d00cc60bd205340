"""View 2: every learner as the syncer sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from protocol.peers.membership import BARRED
from protocol.status import PeerRow, SyncerStatus
from tui.filters import matches
from tui.frames.history import COURSE_GAP_S, History
from tui.frames.scene import Scene
from tui.text import election, fmt, layout, status_rows
from tui.text.election import LOST, leads
from tui.text.paint import Paint
from tui.views import charts
from tui.views.roster import Column

SPARK = 8
TRUST_CELLS = 14


@dataclass(slots=True, eq=False)
class PeerLine:
    """A learner and what its share is measured against. Light: there may be a thousand."""

    peer: PeerRow
    merges_all: int
    age_s: float | None = None
    """How old the syncer's word on it is, if the syncer does not answer."""
    history: History | None = None

    @property
    def heard_s(self) -> float:
        """Seconds since it was heard, as far as is known."""
        return self.peer.heard_s + (self.age_s or 0.0)

    @property
    def state(self) -> str:
        """Its state; with a question mark where that may have changed since."""
        return self.peer.state if self.age_s is None else f"{self.peer.state}?"

    @property
    def share(self) -> float:
        """Its part of all merged pushes."""
        return self.peer.merges / self.merges_all if self.merges_all else 0.0

    @property
    def refused(self) -> int:
        """How many of its pushes and messages did not count."""
        return sum(self.peer.refused.values())

    @property
    def is_fault(self) -> bool:
        """Lost, with something refused, or not counted in full."""
        return self.peer.state in LOST or self.refused > 0 or self.peer.trust < 1.0


def key_of(line: PeerLine) -> str:
    return line.peer.key


def peer_lines(scene: Scene) -> list[PeerLine]:
    """A line for each learner; none where no syncer is known."""
    status = scene.leader
    if status is None:
        return []
    age_s = scene.silent_s(status)
    merges_all = sum(peer.merges for peer in status.peers)
    return [PeerLine(peer, merges_all, age_s, scene.history) for peer in status.peers]


def text_of(line: PeerLine) -> str:
    """What a filter looks at."""
    peer = line.peer
    return (
        f"{peer.name} {peer.key} {peer.device} {peer.state} {peer.path} {peer.left} "
        f"{' '.join(peer.refused)}"
    )


def pick(found: Sequence[PeerLine], wanted: str, *, is_faults: bool) -> list[PeerLine]:
    """Those that pass the filter."""
    return [
        line
        for line in found
        if (not is_faults or line.is_fault) and (not wanted or matches(wanted, text_of(line)))
    ]


def _state_style(line: PeerLine, paint: Paint) -> str:
    return paint.state(line.peer.state) if line.age_s is None else paint.quiet


def _refused(line: PeerLine) -> str:
    """What did not count; for one that left, first why it did."""
    told = fmt.tally(line.peer.refused)
    if not line.peer.left:
        return told or "–"
    return f"left: {fmt.clean(line.peer.left, 80)}" + (f"; {told}" if told else "")


def _rtt(line: PeerLine) -> str:
    return "" if line.peer.rtt_s is None else fmt.rtt(line.peer.rtt_s)


def _speeds(line: PeerLine) -> str:
    """The course of its speed."""
    return "" if line.history is None else fmt.course(line.history.speeds(line.peer.key), SPARK)


def _losses(line: PeerLine) -> str:
    """The course of its training loss, the highest on top."""
    losses = [] if line.history is None else line.history.losses(line.peer.key)
    return fmt.sparkline(losses, SPARK)


def _trust_word(line: PeerLine) -> str:
    """How far it is trusted, as briefly as that can be said."""
    peer = line.peer
    if peer.suspended or 0 < peer.trust < 1 or not peer.trust:
        return status_rows.counts(peer)
    return peer.standing.split(",")[0] if len(peer.standing) <= TRUST_CELLS else "unproven"


def _trust_style(line: PeerLine, paint: Paint) -> str:
    peer = line.peer
    if peer.suspended:
        return paint.bad
    return paint.warn if peer.trust < 1 else paint.quiet


def _refused_style(line: PeerLine, paint: Paint) -> str:
    return paint.warn if line.peer.refused else paint.quiet


def _lag_style(line: PeerLine, paint: Paint) -> str:
    return paint.warn if line.peer.lag > 1 else ""


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


def _percent(share: float | None) -> str:
    return "–" if share is None else fmt.percent(share)


def _column(
    key: str,
    title: str,
    width: int,
    say: Callable[[PeerLine], str],
    *,
    rank: Callable[[PeerLine], object],
    importance: int,
) -> Column[PeerLine]:
    """A column of numbers: to the right, greatest first."""
    return Column(
        key=key,
        title=title,
        width=width,
        say=say,
        rank=rank,
        importance=importance,
        is_right=True,
        is_falling=True,
    )


COLUMNS: tuple[Column[PeerLine], ...] = (
    Column(
        key="name", title="learner", width=13, importance=100, is_flexible=True,
        say=lambda one: fmt.clean(one.peer.name), rank=lambda one: one.peer.name.casefold(),
    ),
    Column(
        key="key", title="key", width=9, importance=10,
        say=lambda one: fmt.clean(one.peer.key, 64)[:8], rank=lambda one: one.peer.key,
    ),
    Column(
        key="device", title="device", width=11, importance=20,
        say=lambda one: fmt.clean(one.peer.device), rank=lambda one: one.peer.device.casefold(),
    ),
    Column(
        key="state", title="state", width=9, importance=99, style=_state_style,
        say=lambda one: fmt.clean(one.state, 12), rank=lambda one: one.peer.state,
    ),
    _column("step", "local step", 10, lambda one: f"{one.peer.local_step:,}",
            rank=lambda one: one.peer.local_step, importance=60),
    Column(
        key="lag", title="lag", width=4, importance=58, is_right=True, is_falling=True,
        say=lambda one: str(one.peer.lag), rank=lambda one: one.peer.lag, style=_lag_style,
    ),
    _column("speed", "tok/s", 7, lambda one: fmt.count(one.peer.tokens_per_s),
            rank=lambda one: one.peer.tokens_per_s, importance=90),
    Column(
        key="speeds", title="", width=SPARK, importance=89, say=_speeds,
        style=lambda one, paint: paint.chart,
    ),
    _column("load", "load", 5, lambda one: _percent(one.peer.load),
            rank=lambda one: _number(one.peer.load), importance=55),
    _column("loss", "loss", 6, lambda one: fmt.loss(one.peer.loss),
            rank=lambda one: _number(one.peer.loss), importance=70),
    Column(
        key="losses", title="", width=SPARK, importance=48, say=_losses,
        style=lambda one, paint: paint.chart,
    ),
    _column("merges", "merges", 7, lambda one: f"{one.peer.merges:,}",
            rank=lambda one: one.peer.merges, importance=75),
    _column("share", "share", 6, lambda one: _percent(one.share),
            rank=lambda one: one.share, importance=40),
    _column("weight", "weight", 6, lambda one: _percent(one.peer.share),
            rank=lambda one: _number(one.peer.share), importance=42),
    Column(
        key="trust", title="trust", width=TRUST_CELLS, importance=57, style=_trust_style,
        say=_trust_word, rank=lambda one: (one.peer.trust, one.peer.standing),
    ),
    _column("goodput", "goodput", 8, lambda one: _percent(one.peer.goodput),
            rank=lambda one: _number(one.peer.goodput), importance=50),
    Column(
        key="heard", title="heard", width=11, importance=95, is_right=True, is_falling=True,
        say=lambda one: fmt.ago(one.heard_s), rank=lambda one: one.heard_s,
        style=lambda one, paint: paint.bad if one.peer.state in LOST else "",
    ),
    Column(
        key="path", title="path", width=7, importance=47,
        say=lambda one: fmt.clean(one.peer.path, 8), rank=lambda one: one.peer.path,
        style=lambda one, paint: paint.warn if one.peer.path == "relayed" else "",
    ),
    _column("rtt", "rtt", 6, _rtt, rank=lambda one: _number(one.peer.rtt_s), importance=45),
    Column(
        key="refused", title="refused", width=22, importance=30, is_falling=True,
        is_flexible=True,
        say=_refused, rank=lambda one: one.refused,
        style=_refused_style,
    ),
)  # fmt: skip
"""All of them; where there is no room, the least important are left out."""


def heading(column: Column[PeerLine]) -> str:
    """The column's title, as wide as its cells."""
    return layout.fit_plain(column.title, column.width, is_right=column.is_right)


def cell(column: Column[PeerLine], line: PeerLine) -> str:
    """One cell, as wide as the column."""
    return layout.fit_plain(column.say(line), column.width, is_right=column.is_right)


def note(shown: int, found: int, wanted: str, *, is_faults: bool) -> str:
    """What the table leaves out, in words."""
    why = [f"filter {wanted!r}"] if wanted else []
    why += ["faults only"] if is_faults else []
    return f"{shown:,} of {found:,} shown: {' and '.join(why)}" if why else ""


def unnamed_note(status: SyncerStatus | None) -> str:
    """How many learners the leader did not name."""
    if status is None or not status.peers_unnamed:
        return ""
    return (
        f"{len(status.peers):,} of {len(status.peers) + status.peers_unnamed:,} learners: a leader "
        "names no more to a learner; shoal tui --link shows all"
    )


def left_note(found: Sequence[PeerLine]) -> str:
    """Who left on purpose or was put out, and why, in a line of its own; empty if nobody did."""
    gone = [line.peer for line in found if line.peer.left]
    put_out = [one for one in gone if one.left.startswith(BARRED)]
    left = [one for one in gone if not one.left.startswith(BARRED)]
    parts = [
        f"{words}: {_named(peers)}"
        for words, peers in (("left on purpose", left), (BARRED.rstrip(": "), put_out))
        if peers
    ]
    return "; ".join(parts)


def _named(peers: Sequence[PeerRow]) -> str:
    """Names and reasons of the first of them."""
    told = [
        f"{fmt.clean(one.name, 20)} ({fmt.clean(one.left.removeprefix(BARRED), 60)})"
        for one in peers[:4]
    ]
    more = f" and {len(peers) - 4} more" if len(peers) > 4 else ""
    return f"{', '.join(told)}{more}"


def empty_note(scene: Scene) -> str:
    """Why there is no table."""
    status = scene.leader
    if status is None:
        return (
            "The leading syncer knows all learners, and has not told any daemon here yet. "
            "Without a daemon: shoal tui --link 'LINK'"
        )
    if leads(status):
        return ""
    assert status.seat is not None, "one without a seat counts as leading"
    if not status.seat.leader:
        return "Only the leader knows the learners, and none is elected."
    leader = election.name(status.seat.leader, scene.names)
    return f"Only the leader knows the learners: {leader}, which is not on this machine."


def _trust(peer: PeerRow) -> str:
    """How far its pushes count, and why."""
    if peer.direction is None:
        return "counts in full; nothing was compared yet"
    doubted = f", doubted in {fmt.plural(peer.doubted, 'merge')}" if peer.doubted else ""
    taken = f", {fmt.count(peer.taken_back)} tokens taken back" if peer.taken_back else ""
    return (
        f"{status_rows.counts(peer)}; its pushes point {peer.direction:+.2f} along the others'"
        f"{doubted}{taken}"
    )


def _load(peer: PeerRow) -> str:
    """How busy this run keeps its device; nothing where that is not known."""
    return "" if peer.load is None else f"{_percent(peer.load)} of the last half minute"


def details(line: PeerLine, width: int, paint: Paint) -> list[Text]:
    """Everything known of one learner."""
    peer = line.peer
    refused = fmt.tally(peer.refused)
    return layout.pairs(
        [
            ("name", fmt.clean(peer.name)),
            ("key", fmt.clean(peer.key, 80)),
            ("state", Text(fmt.clean(line.state, 20), style=paint.state(peer.state))),
            ("left", fmt.clean(peer.left, 200)),
            ("heard", fmt.ago(line.heard_s)),
            ("link", fmt.way(peer.path, peer.rtt_s).removeprefix(", ")),
            ("bulk data", fmt.bulk_way(peer.bulk, peer.bulk_detail)),
            ("device", fmt.clean(peer.device)),
            ("local step", f"{peer.local_step:,}, {fmt.duration(peer.step_s)} each"),
            (
                "tokens",
                f"{fmt.count(peer.tokens)}, {fmt.count(peer.tokens_per_s)} a second",
            ),
            ("loss", fmt.loss(peer.loss)),
            ("lag", "current" if not peer.lag else fmt.plural(peer.lag, "version")),
            ("merges", f"{peer.merges:,}, {_percent(line.share)} of all merged pushes"),
            ("weight", "" if peer.share is None else f"{_percent(peer.share)} of its newest merge"),
            ("goodput", _percent(peer.goodput)),
            ("device load", _load(peer)),
            ("trust", Text(_trust(peer), style=paint.warn if peer.trust < 1 else "")),
            ("refused", Text(refused or "nothing", style=paint.warn if refused else "")),
        ],
        width,
        paint,
        label=12,
    )


def pane(lines: Sequence[PeerLine], key: str, width: int, height: int, paint: Paint) -> list[Text]:
    """The learner of this key, or the first, in full: what it says now, and its last minute."""
    line = next((one for one in lines if key_of(one) == key), None) or next(iter(lines), None)
    if line is None:
        return []
    name = fmt.clean(line.peer.name, 40)
    made = layout.panel(name, details(line, width - 4, paint), width, paint, note="Enter: alone")
    if line.history is None:
        return made
    for title, values, is_zero in (
        ("tokens/s, the last minute", line.history.speeds(line.peer.key), True),
        ("training loss", line.history.losses(line.peer.key), False),
    ):
        rows = (height - len(made)) if not is_zero else min((height - len(made)) // 2, 9)
        if rows < 6 or len(values) < 2:
            break
        points = [((at + 1 - len(values)) * COURSE_GAP_S, value) for at, value in enumerate(values)]
        drawn = charts.chart(
            points,
            width - 4,
            min(rows, 9) - 2,
            paint,
            say_x=charts.say_ago,
            say_y=charts.say_tokens if is_zero else charts.say_loss,
            is_from_zero=is_zero,
        )
        made += layout.panel(title, drawn, width, paint, height=min(rows, 9))
    return made
