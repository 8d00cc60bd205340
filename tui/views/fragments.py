"""View 3: one cell for each fragment, and who took part in the last merges."""

from __future__ import annotations

from rich.text import Text

from protocol.status import Status, SyncerStatus
from tui.frames.scene import Scene
from tui.text import fmt, layout, status_rows
from tui.text.paint import Paint
from tui.views import facts

MERGES_SHOWN = 40
LEGEND = "■ newest  □ one behind  ▶ in flight  ! two or more behind"


def _style(state: str, paint: Paint) -> str:
    return {"newest": paint.good, "in flight": paint.accent, "stale": paint.bad}.get(
        state, paint.quiet
    )


def strip(status: Status, paint: Paint, width: int) -> Text:
    """All fragments in one line of cells, wrapped by whoever shows it."""
    found = status_rows.fragment_states(status)
    if not found:
        return Text("no weights yet", style=paint.quiet)
    text = Text()
    shown = found[: max(width - 16, 8)]
    for state in shown:
        text.append(status_rows.CELL[state], style=_style(state, paint))
    left = len(found) - len(shown)
    if left:
        text.append(f" and {left:,} more", style=paint.quiet)
    word = status_rows.versions(status)
    if text.cell_len + len(word) + 2 <= width:
        text.append(f"  {word}", style=paint.quiet)
    return text


def render(scene: Scene, width: int, height: int) -> list[Text]:
    """The view: the map of fragments, then rounds in flight, then the last merges."""
    status = scene.best
    paint = scene.paint
    if status is None:
        return [Text("No daemon has answered yet.", style=paint.quiet)]
    body = _map(status, width, paint)
    if isinstance(status, SyncerStatus):
        body += _rounds(status, width, paint)
        body += _merges(status, width, paint)
    else:
        body += layout.pairs(
            [
                ("held", f"{status.weights_held} of "
                         f"{fmt.plural(status.project.fragments, 'fragment')} verified"),
                ("fetched", f"{status.weights_from_peers} from learners, "
                            f"{status.weights_from_syncer} from the syncer"),
            ],
            width,
            paint,
        )  # fmt: skip
    return facts.aged(scene, status, width, body)


def _map(status: Status, width: int, paint: Paint) -> list[Text]:
    """Cells with number and version: number, mark, version."""
    found = status_rows.fragment_states(status)
    versions = status_rows.fragment_versions(status)
    digits = len(str(max(len(found) - 1, 0)))
    wide = max((len(str(one)) for one in versions), default=1)
    cell = digits + wide + 4
    across = max((width - 4) // cell, 1)
    made = []
    for start in range(0, len(found), across):
        line = Text()
        for number in range(start, min(start + across, len(found))):
            line.append(f"{number:>{digits}} ", style=paint.quiet)
            line.append(status_rows.CELL[found[number]], style=_style(found[number], paint))
            line.append(f"{versions[number]:<{wide}}  ")
        made.append(line)
    if not made:
        made = [Text("no weights yet", style=paint.quiet)]
    parameters = fmt.count(status.project.parameters)
    note = f"{fmt.plural(len(found), 'fragment')}, {parameters} parameters"
    framed = layout.panel("fragments: number, state, version", made, width, paint, note=note)
    return [*framed, *layout.wrap(Text(LEGEND, style=paint.quiet), width)]


def _rounds(status: SyncerStatus, width: int, paint: Paint) -> list[Text]:
    ordered = sorted(status.rounds, key=lambda one: one.number)
    body = [
        line for one in ordered for line in layout.wrap(facts.round_text(one, paint), width - 4)
    ]
    if not body:
        body = [Text("no round in flight", style=paint.quiet)]
    return layout.panel("rounds in flight", body, width, paint)


def _merges(status: SyncerStatus, width: int, paint: Paint) -> list[Text]:
    body = []
    most = max((one.participants for one in status.merges), default=1)
    for one in reversed(status.merges[-MERGES_SHOWN:]):
        line = Text(f"{one.global_step:>9,}  fragment {one.fragment:>3}  ")
        line.append(fmt.bar(one.participants / most, 8), style=paint.chart)
        line.append(
            f" {fmt.plural(one.participants, 'learner')}, {one.mean_steps:.0f} local steps, "
            f"{fmt.duration(one.seconds)}"
        )
        body.append(layout.fit(line, width - 4))
    if not body:
        body = [Text("nothing merged since this daemon started", style=paint.quiet)]
    return layout.panel("last merges by global step, newest first", body, width, paint)
