"""View 1: is the swarm well, how far is it, what is it waiting for."""

from __future__ import annotations

from rich.text import Text

from protocol.status import NodeStatus, SeatStatus, Status, SyncerStatus
from tui.frames.scene import Scene, goodput
from tui.text import fmt, layout, status_rows
from tui.text.election import alive, leads
from tui.text.layout import Pair
from tui.text.paint import Paint
from tui.views import charts, facts, syncer
from tui.views.fragments import strip

TWO_COLUMNS = 90
"""From this width on there are charts; below it sparklines."""

ROUND_ROWS_NARROW, ROUND_ROWS, ROUND_ROOMY = 2, 4, 66


def render(scene: Scene, width: int, height: int) -> list[Text]:
    """The view, at most `width` wide; it may be higher than `height`, which is what there is."""
    status = scene.best
    if status is None and scene.told is not None:
        return syncer.render(scene, width, height)
    if status is None:
        return layout.wrap(Text(_nothing(scene), style=scene.paint.quiet), width)
    height -= 1 if scene.stale(status) else 0
    draw = _narrow if width < TWO_COLUMNS else _wide
    return facts.aged(scene, status, width, draw(scene, status, width, height))


def _nothing(scene: Scene) -> str:
    if scene.frame.attached():
        return "Nothing to show yet: no daemon has answered."
    return (
        "No daemon is known here. Start one with `shoal join LINK` or `shoal syncer run PROJECT`; "
        "it appears by itself."
    )


def _narrow(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    paint, swarm = scene.paint, status.swarm
    cells = max(width - layout.LABEL_CELLS - 34, 12)
    losses = [loss for _, loss in charts.loss_points(swarm.curve)]
    speeds = [y for _, y in _rates(scene, status)]
    loss = f"{_loss_now(status):<30} " if losses else "not measured yet"
    body: list[Pair] = [
        ("progress", _progress(status)),
        (
            "held-out",
            layout.join([loss, Text(fmt.sparkline(losses, cells), style=paint.chart)]),
        ),
        (
            "tokens/s",
            layout.join(
                [f"{_speed(scene, status):<30} ", Text(_spark0(speeds, cells), style=paint.chart)]
            ),
        ),
        *_round_pairs(scene, status, width),
        ("fragments", strip(status, paint, width - layout.LABEL_CELLS)),
        *_tail_pairs(scene, status),
    ]
    made = layout.pairs(body, width, paint)
    left_over = height - len(made) - 1
    if left_over < 2:
        return made
    events = facts.event_lines(facts.news(scene), width, left_over, paint)
    return [*made, Text("latest events, all with 6", style=paint.quiet), *events]


def _wide(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    paint = scene.paint
    left = width * 54 // 100
    right = width - left - 1
    foot = layout.pairs(
        [
            ("progress", _progress(status)),
            ("fragments", strip(status, paint, width - layout.LABEL_CELLS)),
        ],
        width,
        paint,
    )
    room = max(height - len(foot), 18)
    loss_rows = max(room * 11 // 20, 9)
    rate_rows = max(room - loss_rows, 8)
    charts_column = [
        *_loss_panel(status, left, loss_rows, paint),
        *_rate_panel(scene, status, left, rate_rows),
    ]
    title = "round" if isinstance(status, SyncerStatus) else "this learner"
    if isinstance(status, SyncerStatus) and not leads(status):
        title = "this syncer"
    here = layout.pairs(_round_pairs(scene, status, right - 4), right - 4, paint)
    swarm = layout.pairs(_tail_pairs(scene, status), right - 4, paint)
    words_column = layout.panel(title, here, right, paint) + layout.panel(
        "swarm", swarm, right, paint
    )
    left_over = len(charts_column) - len(words_column)
    if left_over >= 3:
        words_column += layout.panel(
            "latest events",
            facts.event_lines(facts.news(scene), right - 4, left_over - 2, paint),
            right,
            paint,
            height=left_over,
            note="press 6",
        )
    return layout.beside(charts_column, words_column, left) + foot


def _loss_panel(status: Status, width: int, height: int, paint: Paint) -> list[Text]:
    drawn = charts.chart(
        charts.loss_points(status.swarm.curve),
        width - 4,
        height - 2,
        paint,
        say_x=charts.say_tokens,
        say_y=charts.say_loss,
    )
    title = "held-out loss over tokens"
    return layout.panel(title, drawn, width, paint, height=height, note=_loss_now(status))


def _rate_panel(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    drawn = charts.chart(
        _rates(scene, status),
        width - 4,
        height - 2,
        scene.paint,
        say_x=charts.say_ago,
        say_y=charts.say_tokens,
        is_from_zero=True,
    )
    note = _speed(scene, status)
    return layout.panel("tokens/s", drawn, width, scene.paint, height=height, note=note)


def _rates(scene: Scene, status: Status) -> list[charts.Point]:
    if isinstance(status, SyncerStatus) and not leads(status):
        return []  # What learners report, only the leader hears.
    readings = scene.history.readings(status.key)
    return charts.rate_points(readings, scene.now_s, charts.span_s(readings, scene.now_s))


def _spark0(values: list[float], cells: int) -> str:
    """A sparkline whose bottom is zero, so that a small dip looks small."""
    return fmt.sparkline([0.0, *values], cells + 1)[1:] if len(values) > 1 else ""


def _loss_now(status: Status) -> str:
    swarm = status.swarm
    if not swarm.curve:
        return ""
    best = f", best {fmt.loss(swarm.best_loss)}" if swarm.best_loss is not None else ""
    return f"now {fmt.loss(swarm.curve[-1][2])}{best}"


def _speed(scene: Scene, status: Status) -> str:
    if scene.silent_s(status) is not None:
        return "not known"
    match status:
        case SyncerStatus() if not leads(status):
            share = None
            rate = scene.history.committed_per_s(status.key, scene.now_s)
            speed = "not known yet" if rate is None else f"{fmt.count(rate)} committed"
        case SyncerStatus():
            here = [one for one in status.peers if one.state == "training"]
            share = goodput(status)
            speed = f"{fmt.count(sum(one.tokens_per_s for one in here))} reported"
        case NodeStatus():
            share = status.goodput
            is_at_work = status.state in ("training", "adrift")
            speed = f"{fmt.count(status.tokens_per_s if is_at_work else 0)} here"
    return speed if share is None else f"{speed}, goodput {fmt.percent(share)}"


def _progress(status: Status) -> str:
    project, swarm = status.project, status.swarm
    if project.token_budget <= 0:
        return ""
    share = swarm.tokens / project.token_budget
    return (
        f"{fmt.bar(share, 24)}  {fmt.percent(share)}  {fmt.count(swarm.tokens)} of "
        f"{fmt.count(project.token_budget)} tokens"
    )


def _flying(status: SyncerStatus, paint: Paint, width: int) -> list[Text]:
    """The rounds in flight, the oldest first, on always as many lines: they come and go many
    times a second, and nothing below may move."""
    rows = ROUND_ROWS_NARROW if width >= ROUND_ROOMY else ROUND_ROWS
    ordered = sorted(status.rounds, key=lambda one: one.number)
    made = [
        line
        for one in ordered
        for line in layout.wrap(facts.round_text(one, paint), width - layout.LABEL_CELLS)
    ]
    if not made:
        made = [Text("no round in flight just now", style=paint.quiet)]
    return (made + [Text(" ")] * rows)[:rows]


def _round_pairs(scene: Scene, status: Status, width: int) -> list[Pair]:
    paint = scene.paint
    match status:
        case SyncerStatus(seat=SeatStatus() as seat) if not leads(status):
            return syncer.seat_pairs(scene, seat)
        case SyncerStatus():
            pairs: list[Pair] = [("quorum", _needs(status, paint))]
            pairs += [("", line) for line in _flying(status, paint, width)]
            return [
                *pairs,
                ("grace", facts.grace(status, paint)),
                ("last", facts.last_merge(status)),
            ]
        case NodeStatus():
            return [
                ("state", Text(fmt.clean(status.state, 20), style=paint.state(status.state))),
                ("syncer", status_rows.link(status)),
                ("trainer", facts.trainer(status)),
                ("pushes", f"{fmt.plural(status.pushed, 'push', 'pushes')}, "
                              f"{status.merged:,} merged"),
                ("lag", "current" if not status.lag else fmt.plural(status.lag, "version")),
            ]  # fmt: skip


def _needs(status: SyncerStatus, paint: Paint) -> Text:
    """The quorum rule against who is here: gauge and words."""
    here, wanted = len(alive(status)), status.project.quorum
    share = min(here / wanted, 1.0) if wanted else 1.0
    style = paint.good if here >= wanted else paint.warn
    text = Text()
    text.append(fmt.bar(share, facts.GAUGE_CELLS), style=style)
    known = sum(one.state != "left" for one in status.peers)
    text.append(f" {here:,} of {fmt.plural(known, 'learner')} here; a round needs {wanted}")
    return text


def _tail_pairs(scene: Scene, status: Status) -> list[Pair]:
    paint = scene.paint
    pairs: list[Pair] = []
    if isinstance(status, SyncerStatus):
        pairs.append(("peers", facts.tally(status, paint)))
    swarm = status.swarm
    term = status.seat.term if isinstance(status, SyncerStatus) and status.seat else swarm.term
    leader = f"{facts.leader(scene, status)}; epoch {swarm.epoch}, term {term}, "
    leader += f"log index {swarm.log_index:,}"
    return [
        *pairs,
        ("leader", leader),
        ("faults", facts.faults(status, paint)),
        ("network", status_rows.network(status.network)),
        ("you", _you(scene) if isinstance(status, SyncerStatus) else ""),
    ]


def _you(scene: Scene) -> Text:
    here = scene.nodes_here
    said = facts.you(scene)
    if len(here) != 1:
        return said
    return layout.join([fmt.clean(here[0].name, 24), said, f"({here[0].merged:,} merged)"], " ")
