"""View 5: the seat, the log, rounds, checkpoints and traffic of the syncer."""

from __future__ import annotations

from rich.text import Text

from protocol.snapshot import SyncerStatus
from tui import lines, parts, rows, words
from tui.lines import Pair
from tui.scene import Scene

TWO_COLUMNS = 110


def render(scene: Scene, width: int, height: int) -> list[Text]:
    """The view."""
    status, paint = scene.syncer, scene.paint
    if status is None:
        return lines.wrap(Text(_absent(scene), style=paint.quiet), width)
    if width >= TWO_COLUMNS:
        half = (width - 1) // 2
        rest = width - half - 1
        left = _box("seat", _seat(scene, status), half, scene)
        left += _box("rounds", _rounds(scene, status), half, scene)
        right = _box("checkpoints", _checkpoints(status), rest, scene)
        right += _box("pushes and wire", _traffic(scene, status), rest, scene)
        return parts.aged(scene, status, width, lines.beside(left, right, half))
    body = []
    for title, pairs in (
        ("seat", _seat(scene, status)),
        ("rounds", _rounds(scene, status)),
        ("checkpoints", _checkpoints(status)),
        ("pushes and wire", _traffic(scene, status)),
    ):
        body += _box(title, pairs, width, scene)
    return parts.aged(scene, status, width, body)


def _absent(scene: Scene) -> str:
    node = scene.node
    if node is None:
        return "No syncer runs on this machine, or none has answered yet."
    heard = "never" if node.heard_s is None else f"{words.duration(node.heard_s)} ago"
    return (
        f"No syncer runs on this machine. The learner {words.clean(node.name, 20)} follows "
        f"{words.clean(node.swarm.leader, 16) or 'nobody'} (link: {words.clean(node.link, 20)}, "
        f"heard {heard}); epoch {node.swarm.epoch}, term {node.swarm.term}, "
        f"log index {node.swarm.log_index:,}."
    )


def _box(title: str, pairs: list[Pair], width: int, scene: Scene) -> list[Text]:
    body = lines.pairs(pairs, width - 4, scene.paint, label=12)
    return lines.panel(title, body, width, scene.paint)


def _seat(scene: Scene, status: SyncerStatus) -> list[Pair]:
    swarm = status.swarm
    seat = parts.seat(status)
    return [
        ("seat", seat),
        ("epoch, term", f"{swarm.epoch}, {swarm.term}"),
        ("log index", f"{swarm.log_index:,}"),
        ("phase", f"{words.clean(status.phase, 20)}, up {words.duration(status.uptime_s)}"),
        ("faults", parts.faults(status, scene.paint)),
        ("name", words.clean(status.name)),
        ("key", words.clean(status.key, 80)),
        ("program", f"version {words.clean(status.version, 20)}, process {status.pid}"),
    ]


def _rounds(scene: Scene, status: SyncerStatus) -> list[Pair]:
    ordered = sorted(status.rounds, key=lambda one: one.number)
    flying: list[Pair] = [
        ("in flight" if number == 0 else "", parts.round_text(one, scene.paint))
        for number, one in enumerate(ordered)
    ]
    means = ""
    if status.merges_here:
        means = (
            f"{status.participants_mean:.1f} learners, {status.effective_h:.1f} local steps a "
            f"push (H is {status.project.local_steps})"
        )
    return [
        *(flying or [("in flight", "none")]),
        ("quorum", f"a round needs {words.plural(status.project.quorum, 'push', 'pushes')}"),
        ("grace", parts.grace(status, scene.paint)),
        ("last merge", parts.last_merge(status)),
        ("merges", f"{status.merges_here:,} since this start"),
        ("on average", means),
    ]


def _checkpoints(status: SyncerStatus) -> list[Pair]:
    swarm = status.swarm
    best = "none evaluated yet"
    if swarm.best_checkpoint is not None:
        best = f"at global step {swarm.best_checkpoint:,}, loss {words.loss(swarm.best_loss)}"
    last = f"at global step {swarm.curve[-1][0]:,}" if swarm.curve else "none yet"
    return [
        ("evaluated", f"{last}, {words.plural(len(swarm.curve), 'measurement')}"),
        ("best", best),
        ("held-out", rows.heldout(swarm)),
        ("kept in", words.clean(status.checkpoint_dir, 300)),
    ]


def _traffic(scene: Scene, status: SyncerStatus) -> list[Pair]:
    return [
        ("outcomes", words.tally(status.outcomes) or "no push settled yet"),
        ("received", f"{words.bytes_of(status.push_bytes)} in merged pushes"),
        ("published", words.bytes_of(status.payload_bytes)),
        ("wire", rows.wire(
            (status.push_bytes, status.push_params),
            (status.payload_bytes, status.payload_params),
        )),
        ("network", rows.network(status.network)),
        ("addresses", ", ".join(words.clean(one, 120) for one in status.network.addresses[:4])),
        ("join with", "press : and type link" if status.join_link else ""),
    ]  # fmt: skip
