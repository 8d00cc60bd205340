"""View 4: what this machine does for the project, and why it does not when it does not."""

from __future__ import annotations

from rich.text import Text

from protocol.status import NodeStatus
from tui.frames.scene import Scene
from tui.text import fmt, layout, status_rows
from tui.text.layout import Pair
from tui.text.status_rows import label_of
from tui.views import facts, machine

TWO_COLUMNS = 110
EVENTS_SHOWN_MIN = 6


def render(scene: Scene, width: int, height: int) -> list[Text]:
    node, paint = scene.node, scene.paint
    if node is None:
        return layout.wrap(
            Text(
                "No learner runs on this machine, or none has answered yet. "
                "Start one with `shoal join LINK`.",
                style=paint.quiet,
            ),
            width,
        )
    if width >= TWO_COLUMNS:
        half = (width - 1) // 2
        left = layout.box("work", _work(scene, node), half, paint)
        left += layout.box("trainer", _trainer(node), half, paint)
        left += layout.box("syncer and weights", _weights(node), half, paint)
        rest = width - half - 1
        right = _machine(scene, node, rest)
        right += layout.box("wire", _wire(node), rest, paint)
        body = layout.beside(left, right, half)
    else:
        body = layout.box(fmt.clean(label_of(node), 40), _work(scene, node), width, paint)
        body += _machine(scene, node, width)
        body += layout.box("trainer", _trainer(node) + _weights(node) + _wire(node), width, paint)
    notices = [
        part
        for notice in node.notices
        for part in layout.wrap(Text(f"note: {fmt.clean(notice, 500)}", style=paint.warn), width)
    ]
    if node.guest is not None and (node.guest.trainer_log or width >= TWO_COLUMNS):
        said = machine.log(node.guest, width - 4, scene.paint)
        body += layout.panel("the trainer's log", said, width, scene.paint)
    room = max(height - len(notices) - len(body) - 2, EVENTS_SHOWN_MIN)
    made = notices + body + _events(scene, node, width, room)
    return facts.aged(scene, node, width, made)


def _machine(scene: Scene, node: NodeStatus, width: int) -> list[Text]:
    """Devices, and ceilings with what is taken."""
    if node.guest is None:
        return []
    told = machine.devices(node.guest, width - 4, scene.paint)
    held = machine.limits(node.guest, width - 4, scene.paint)
    made = layout.panel("this machine", told, width, scene.paint)
    return made + layout.panel("limits", held, width, scene.paint) if held else made


def _work(scene: Scene, node: NodeStatus) -> list[Pair]:
    state = Text(fmt.clean(node.state, 20), style=scene.paint.state(node.state))
    state.append(f", up {fmt.duration(node.uptime_s)}", style="default")
    why = "" if node.state == "training" else fmt.clean(node.sentence, 300)
    return [
        ("state", state),
        ("why idle", Text(why, style=scene.paint.warn) if why else ""),
        ("pushes", status_rows.pushes(node)),
        ("receipt", fmt.receipt(node.receipt)),
        ("discarded", status_rows.discarded(node)),
        ("measured", f"{fmt.plural(node.evaluations, 'held-out loss', 'held-out losses')}"),
        ("faults", facts.faults(node, scene.paint)),
    ]


def _batch(node: NodeStatus) -> str:
    whole = fmt.plural(node.batch_sequences, "sequence") if node.batch_sequences else ""
    part = f"micro-batch {node.micro_batch}" if node.micro_batch is not None else ""
    return ", ".join(filter(None, (whole, part)))


def _trainer(node: NodeStatus) -> list[Pair]:
    speed = ""
    if node.local_step:
        speed = f"{fmt.count(node.tokens_per_s)} tokens/s, {fmt.duration(node.step_s)} a step"
    restarts = fmt.plural(node.trainer_restarts, "time") if node.trainer_restarts else ""
    return [
        ("trainer", facts.trainer(node)),
        ("process", f"{node.trainer_pid}" if node.trainer_pid else "none runs"),
        ("batch", _batch(node)),
        ("restarted", restarts),
        ("speed", speed),
        ("goodput", "" if node.goodput is None else fmt.percent(node.goodput)),
        ("loss", status_rows.loss(node)),
        ("sample", status_rows.sample(node)),
        ("steps", f"{node.local_step:,} local steps, {fmt.count(node.tokens)} tokens"),
    ]


def _weights(node: NodeStatus) -> list[Pair]:
    held = f"{node.weights_held} of {fmt.plural(node.project.fragments, 'fragment')}"
    fetched = f"{node.weights_from_peers} from learners, {node.weights_from_syncer} from the syncer"
    return [
        ("syncer", status_rows.link(node)),
        ("weights", f"{held} held, {status_rows.lag(node)}"),
        ("fetched", fetched),
        ("held-out", status_rows.heldout(node.swarm)),
        ("guard", status_rows.guard(node.swarm)),
    ]


def _wire(node: NodeStatus) -> list[Pair]:
    return [
        ("network", status_rows.network(node.network)),
        ("wire", status_rows.wire(node)),
        *facts.identity(node),
    ]


def _events(scene: Scene, node: NodeStatus, width: int, room: int) -> list[Text]:
    attached = next((one for one in scene.frame.attached() if one.key == node.key), None)
    own = [one for one in scene.history.events if attached and one.daemon == attached.label]
    body = facts.event_lines(own, width - 4, room, scene.paint)
    return layout.panel("its events, newest first", body, width, scene.paint)
