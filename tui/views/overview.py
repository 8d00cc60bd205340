"""View 1: is the swarm well, how far is it, what is it waiting for.

The picture of the swarm stands on top (`tui.views.picture`); here is what lies below and beside it.
"""

from __future__ import annotations

import bisect

from rich.text import Text

from protocol.status import NodeStatus, SeatStatus, Status, SyncerStatus
from tui.frames.scene import Scene, goodput
from tui.text import fmt, layout, status_rows
from tui.text.election import leads
from tui.text.layout import Pair
from tui.text.paint import Paint
from tui.views import charts, facts, picture, syncer
from tui.views.fragments import strip

TWO_COLUMNS = 100
"""From this width on there are charts; below it sparklines."""

EVENT_ROWS = 4
EVENT_ROWS_MIN = 3
SPEED_WORDS = 34
PICTURE_SHARE = 0.46
"""Of the height, at most, for the picture."""


def picture_rows(scene: Scene, width: int, height: int) -> int:
    """Lines for the picture of the swarm in a view of this size; 0 where it has no room."""
    most = int(height * PICTURE_SHARE)
    if most < picture.ROWS_MIN:
        return 0
    return min(picture.rows_wanted(scene, width), most)


def render(scene: Scene, width: int, height: int) -> list[Text]:
    """What lies below the picture, at most `width` wide; it may be higher than `height`."""
    status = scene.best
    if status is None and scene.told is not None:
        return syncer.render(scene, width, height)
    if status is None:
        return layout.wrap(Text(_nothing(scene), style=scene.paint.quiet), width)
    height -= 1 if scene.stale(status) else 0
    draw = _charts if scene.is_wide else _narrow if width < TWO_COLUMNS else _usual
    return facts.aged(scene, status, width, draw(scene, status, width, height))


def side(scene: Scene, width: int, height: int) -> list[Text]:
    """The column beside it on a wide screen: facts, and events down to the last line."""
    status = scene.best
    if status is None:
        return []
    top = layout.panel("swarm", _facts(scene, status, width - 4), width, scene.paint)
    rows = max(height - len(top), EVENT_ROWS_MIN + 2)
    return facts.aged(scene, status, width, [*top, *_events(scene, width, rows)])[:height]


def _nothing(scene: Scene) -> str:
    if scene.frame.attached():
        return "Nothing to show yet: no daemon has answered."
    return (
        "No daemon is known here. Start one with `shoal join LINK` or `shoal syncer run PROJECT`; "
        "it appears by itself."
    )


def _narrow(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    """Sparklines, and as many events as there is room for."""
    paint, swarm = scene.paint, status.swarm
    cells = max(width - layout.LABEL_CELLS - SPEED_WORDS, 12)
    losses = [loss for _, loss in charts.loss_points(swarm.curve)]
    speeds = [y for _, y in _rates(scene, status)]
    body: list[Pair] = [
        ("progress", _progress(status)),
        ("held-out", _beside(_loss_now(status) or "not measured yet", fmt.sparkline(losses, cells),
                             paint)),
        ("tokens/s", _beside(_speed(scene, status), fmt.course(speeds, cells), paint)),
    ]  # fmt: skip
    if isinstance(status, SyncerStatus) and not leads(status):
        body += syncer.seat_pairs(scene, status.seat) if status.seat is not None else []
    elif isinstance(status, NodeStatus):
        body += _own_pairs(status, paint)
    body.append(("fragments", strip(status, paint, width - layout.LABEL_CELLS)))
    made = layout.pairs(body, width, paint)
    rest = layout.pairs(_tail_pairs(scene, status), width, paint)
    left_over = height - len(made) - 1
    if left_over >= len(rest) + EVENT_ROWS_MIN:
        made, left_over = made + rest, left_over - len(rest)
    if left_over < 2:
        return made + rest
    events = facts.event_lines(facts.news_in_words(scene, left_over), width, left_over, paint)
    return [*made, Text("latest events, all with 6", style=paint.quiet), *events]


def _beside(words: str, course: str, paint: Paint) -> Text:
    return layout.join([f"{words:<{SPEED_WORDS - 2}}", Text(course, style=paint.chart)])


def _usual(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    """Loss and facts side by side, events below, progress in the last lines."""
    foot = _foot(scene, status, width)
    left = width * 56 // 100
    right = width - left - 1
    here = _facts(scene, status, right - 4)
    room = height - len(foot)
    rows = min(max(room - EVENT_ROWS - 2, len(here) + 2, 9), 18)
    made = layout.beside(
        _loss_panel(scene, status, left, rows),
        layout.panel("swarm", here, right, scene.paint, height=max(rows, len(here) + 2)),
        left,
    )
    rest = room - len(made)
    if rest >= EVENT_ROWS_MIN + 2:
        made += _events(scene, width, rest)
    return made + foot


def _charts(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    """Loss and speed side by side; facts and events are in the column beside."""
    foot = _foot(scene, status, width)
    left = width * 58 // 100
    rows = max(height - len(foot), 9)
    loss = _loss_panel(scene, status, left, rows)
    return layout.beside(loss, _rate_panel(scene, status, width - left - 1, rows), left) + foot


def _foot(scene: Scene, status: Status, width: int) -> list[Text]:
    cells = width - layout.LABEL_CELLS
    return layout.pairs(
        [("progress", _progress(status)), ("fragments", strip(status, scene.paint, cells))],
        width,
        scene.paint,
    )


def _events(scene: Scene, width: int, rows: int) -> list[Text]:
    """The newest events in a frame, each in full where the frame is high enough."""
    paint = scene.paint
    news = facts.news_in_words(scene, rows)
    if rows > 2 * EVENT_ROWS:
        body = facts.event_blocks(news, width - 4, rows - 2, paint)
    else:
        body = facts.event_lines(news, width - 4, rows - 2, paint)
    return layout.panel("latest events", body, width, paint, height=rows, note="press 6")


def _loss_panel(scene: Scene, status: Status, width: int, height: int) -> list[Text]:
    swarm = status.swarm
    points = charts.loss_points(swarm.curve)
    best = None
    if swarm.best_loss is not None:
        best = next((one for one in points if one[1] == swarm.best_loss), None)
    drawn = charts.chart(
        points,
        width - 4,
        height - 2,
        scene.paint,
        say_x=charts.say_tokens,
        say_y=charts.say_loss,
        best=best,
        moments=_moments(scene, status),
    )
    title = "held-out loss over tokens"
    return layout.panel(title, drawn, width, scene.paint, height=height, note=_loss_now(status))


def _moments(scene: Scene, status: Status) -> list[charts.Moment]:
    """When somebody joined or was elected, by the tokens committed then, as far as was seen."""
    readings = scene.history.readings(status.key)
    if len(readings) < 2:
        return []
    found = []
    for one in facts.news(scene):
        mark = MOMENTS.get(one.kind)
        if mark is None or (one.kind == "RoleChanged" and not one.text.startswith("leading")):
            continue
        place = bisect.bisect_left(readings, one.at_s, key=lambda reading: reading.at_s)
        if 0 < place < len(readings):
            found.append((float(readings[place].tokens), mark))
    return found


MOMENTS = {"SessionOpened": "+", "RoleChanged": "▲"}
"""Marks on the curve, by the kind of event: a learner came, a leader was elected."""


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


def _loss_now(status: Status) -> str:
    swarm = status.swarm
    if not swarm.curve:
        return ""
    now = f"now {fmt.loss(swarm.curve[-1][2])}"
    if swarm.best_loss is None:
        return now
    return f"{charts.BEST} best {fmt.loss(swarm.best_loss)}, {now}"


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


def _facts(scene: Scene, status: Status, width: int) -> list[Text]:
    """Everything in words that the picture does not say."""
    paint = scene.paint
    pairs: list[Pair] = []
    match status:
        case SyncerStatus(seat=SeatStatus() as seat) if not leads(status):
            pairs += syncer.seat_pairs(scene, seat)
        case SyncerStatus():
            pairs += [
                ("last", facts.last_merge(status)),
                ("grace", facts.grace(status, paint)),
            ]
        case NodeStatus():
            pairs += _own_pairs(status, paint)
    speed: list[Pair] = [("tokens/s", _speed(scene, status))]
    if not scene.is_wide:
        speeds = [y for _, y in _rates(scene, status)]
        course = fmt.course(speeds, max(width - layout.LABEL_CELLS, 8))
        speed.append(("", Text(course, style=paint.chart)))
    pairs = speed + pairs
    return layout.pairs([*pairs, *_tail_pairs(scene, status)], width, paint)


def _own_pairs(status: NodeStatus, paint: Paint) -> list[Pair]:
    return [
        ("state", Text(fmt.clean(status.state, 20), style=paint.state(status.state))),
        ("syncer", status_rows.link(status)),
        ("trainer", facts.trainer(status)),
        ("pushes", f"{fmt.plural(status.pushed, 'push', 'pushes')}, {status.merged:,} merged"),
        ("lag", "current" if not status.lag else fmt.plural(status.lag, "version")),
    ]


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
