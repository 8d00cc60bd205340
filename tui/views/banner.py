"""The top of the screen: which project, how far, and one sentence that is always true."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from protocol.status import NodeStatus, Status, SyncerStatus, WitnessStatus
from tui.frames import scene
from tui.frames.scene import Scene
from tui.frames.verdict import Verdict, judge
from tui.text import fmt, layout
from tui.views import facts

ROOMY = 120
"""From this width on one line usually holds the sentence; below it two are kept free, so that
nothing moves when it grows."""

PHASES = {
    "starting": "making the first weights",
    "training": "training",
    "taking the seat": "taking the lead",
    "standby": "standing by",
    "electing": "electing",
    "syncing": "fetching state",
    "draining": "finishing",
    "ended": "complete",
}


def title(now: Scene, width: int) -> Text:
    """Project, phase, global step, time left, and who is looked at; the least important goes
    where there is no room."""
    paint, status = now.paint, now.status
    right = Text(_focus(now, width), style=paint.quiet)
    if isinstance(now.told, WitnessStatus):
        return _spread(_witness(now, now.told, width), right, width)
    if status is None:
        return _spread(Text("shoal", style=paint.strong), right, width)
    project, swarm = status.project, status.swarm
    is_stale = now.silent_s(status) is not None
    phase = Text("phase " + ("was " if is_stale else "") + _phase(status))
    share = fmt.percent(swarm.tokens / project.token_budget) if project.token_budget > 0 else ""
    left_time = "not known" if is_stale else scene.eta(now)
    pieces: list[tuple[int, Text]] = [
        (
            9,
            Text(
                fmt.clean(project.name, 32 if width >= ROOMY else 18) or "no project yet",
                style=paint.strong,
            ),
        ),
        (1, Text(f"{project.id[:4]}…{project.id[-3:]}", style=paint.quiet)),
        (8, phase),
        (7, Text(f"global step {swarm.global_step:,}")),
        (3, Text(share)),
        (6, Text(f"ETA {left_time}")),
        (2, _you(now)),
    ]
    shown = [piece for piece in pieces if piece[1]]
    while len(shown) > 1 and _wide(shown) + right.cell_len + 2 > width:
        shown.remove(min(shown, key=lambda one: one[0]))
    return _spread(layout.join([piece for _, piece in shown]), right, width)


def _witness(now: Scene, status: WitnessStatus, width: int) -> Text:
    name = fmt.clean(status.project.name, 32 if width >= ROOMY else 18)
    said = f"term {status.seat.term}  log at record {status.log_index:,}"
    return layout.join([Text(name, style=now.paint.strong), said])


def _you(now: Scene) -> Text:
    said = facts.you(now)
    return layout.join([Text("you:"), said], " ") if said else Text()


def _wide(pieces: list[tuple[int, Text]]) -> int:
    return sum(piece.cell_len + 2 for _, piece in pieces)


def _spread(left: Text, right: Text, width: int) -> Text:
    gap = max(width - left.cell_len - right.cell_len, 1)
    text = Text()
    text.append_text(left)
    text.append(" " * gap)
    text.append_text(right)
    text.truncate(width, overflow="ellipsis")
    return text


def _phase(status: Status) -> str:
    match status:
        case SyncerStatus():
            return PHASES.get(status.phase, fmt.clean(status.phase, 20))
        case NodeStatus():
            if status.swarm.is_ended:
                return "complete"
            return "finishing" if status.swarm.is_ending else fmt.clean(status.state, 20)


def _focus(now: Scene, width: int) -> str:
    daemons = now.frame.attached()
    if now.attached is None:
        return "no daemon"
    if width < ROOMY:
        return now.attached.label
    place = [one.label for one in daemons].index(now.attached.label) + 1
    count = f" {place} of {len(daemons)}, Tab for the next" if len(daemons) > 1 else ""
    return f"{'recording: ' if now.is_recording else ''}{now.attached.label}{count}"


def sentence(verdict: Verdict, now: Scene, width: int) -> list[Text]:
    """The verdict's word and sentence, all of it, on as many lines as that takes."""
    style = now.paint.level(verdict.level)
    text = Text()
    text.append(f"[{verdict.level}]", style=f"{style} bold")
    text.append(" ")
    text.append(verdict.sentence, style="" if verdict.level in ("WELL", "DONE") else style)
    return layout.wrap(text, width)


def render(now: Scene, width: int) -> list[Text]:
    """The banner's lines."""
    said = sentence(judge(now), now, width)
    if len(said) < 2 and width < ROOMY:
        said.append(Text())
    return [title(now, width), *said]


class Banner(Widget):
    """Draws the banner, as high as it needs to be."""

    def __init__(self) -> None:
        super().__init__(id="banner")
        self._scene: Scene | None = None
        self._text = Text()

    def show(self, now: Scene) -> None:
        """Draws this scene from now on."""
        self._scene = now
        self._draw()

    def on_resize(self) -> None:
        """The width decides how the sentence is broken."""
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        if self._scene is None or width < 1:
            return
        made = render(self._scene, width)
        text = Text("\n", no_wrap=True).join(made)
        if text == self._text and text.spans == self._text.spans:
            return
        self._text = text
        # Setting a style lays the screen out anew, so only when it is another height.
        if self.styles.height is None or self.styles.height.value != len(made):
            self.styles.height = len(made)
        self.refresh()

    def render(self) -> Text:
        """What `show` prepared."""
        return self._text
