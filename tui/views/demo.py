"""What `shoal demo` shows: the swarm while it trains, and what was measured at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from protocol.status import NodeStatus, PeerRow, SyncerStatus
from tui.frames.frame import Frame
from tui.frames.history import History
from tui.frames.scene import Scene
from tui.frames.traffic import Packet
from tui.text import fmt, layout, status_rows
from tui.views import picture

BAR_CELLS = 28
SPARK_CELLS = 24


@dataclass(frozen=True, slots=True)
class LearnerLine:
    """One learner of the demo."""

    name: str
    note: str = ""
    """What is special about it, such as its throttle."""
    state: str = ""
    """A word that goes before what its status says, such as killed."""
    status: NodeStatus | None = None


@dataclass(frozen=True, slots=True)
class DemoNow:
    """The demo at one moment."""

    elapsed_s: float
    sentence: str
    """What is happening."""
    why: str = ""
    """Why that matters."""
    syncer: SyncerStatus | None = None
    learners: Sequence[LearnerLine] = field(default_factory=tuple)
    tokens_per_s: float | None = None
    """Committed by the swarm, where that can be told."""
    history: History = field(default_factory=History)
    moving: tuple[Packet, ...] = ()
    """What is under way between learners and syncer."""


def render(now: DemoNow, *, width: int) -> RenderableType:
    """The whole view for a terminal of `width` columns."""
    clock = fmt.duration(now.elapsed_s)
    sentence = fmt.clean(now.sentence, max(20, width - len(clock) - 2))
    gap = max(2, width - len(sentence) - len(clock))
    parts: list[RenderableType] = [
        Text.assemble((sentence, "bold"), " " * gap, (clock, "dim"), no_wrap=True)
    ]
    if now.why:
        parts += layout.wrap(Text(now.why, style="dim"), width)
    if now.syncer is not None:
        parts += [Text(), *_picture(now, now.syncer, width), Text()]
        parts.append(status_rows.grid(_facts(now.syncer, now.tokens_per_s)))
    return Group(*parts)


def _picture(now: DemoNow, syncer: SyncerStatus, width: int) -> list[Text]:
    """The swarm, each learner with what the demo itself knows of it."""
    known = {peer.name: peer for peer in syncer.peers}
    told = [_peer(line, known.get(line.name)) for line in now.learners]
    named = {line.name for line in now.learners}
    told += [peer for peer in syncer.peers if peer.name not in named]
    shown = msgspec.structs.replace(syncer, peers=told)
    scene = Scene(Frame(at_s=0.0, statuses=(shown,)), now.history, moving=now.moving)
    return picture.render(scene, width, picture.rows_wanted(scene, width))


def _peer(line: LearnerLine, known: PeerRow | None) -> PeerRow:
    status = line.status
    row = known or PeerRow(key=line.name, name=line.name, device="", state="to come", heard_s=0.0)
    device = row.device or (status.device if status is not None else "")
    return msgspec.structs.replace(
        row,
        state=line.state or (status.state if known is None and status is not None else row.state),
        device=", ".join(one for one in (device, line.note) if one),
    )


def _facts(syncer: SyncerStatus, tokens_per_s: float | None) -> list[status_rows.Row]:
    return [
        ("tokens", _progress(syncer, tokens_per_s)),
        ("held-out", _heldout(syncer)),
        ("merges", _merges(syncer)),
    ]


def _progress(syncer: SyncerStatus, tokens_per_s: float | None) -> str:
    swarm, budget = syncer.swarm, syncer.project.token_budget
    if budget <= 0:
        return ""
    share = swarm.tokens / budget
    text = (
        f"{fmt.bar(share, BAR_CELLS)}  {fmt.percent(share)}  "
        f"{fmt.count(swarm.tokens)} of {fmt.count(budget)}"
    )
    if tokens_per_s and swarm.tokens < budget:
        text += f", {fmt.duration((budget - swarm.tokens) / tokens_per_s)} left"
    return text


def _heldout(syncer: SyncerStatus) -> str:
    losses = [loss for _, _, loss in syncer.swarm.curve]
    if not losses:
        return "not measured yet"
    text = fmt.loss(losses[0])
    if len(losses) > 1:
        text += f" → {fmt.loss(losses[-1])}  {fmt.sparkline(losses, SPARK_CELLS)}"
    return text


def _merges(syncer: SyncerStatus) -> str:
    text = f"{syncer.swarm.global_step:,}"
    if syncer.merges_here:
        text += (
            f", of {syncer.participants_mean:.1f} learners and {syncer.effective_h:.1f} local "
            "steps each on average"
        )
    return text


def line(now: DemoNow) -> str:
    """The same in one line, for output that is no terminal."""
    parts = [f"{fmt.duration(now.elapsed_s):>11}  {fmt.clean(now.sentence, 60)}"]
    if now.syncer is not None and now.syncer.swarm.tokens and not now.syncer.swarm.is_ended:
        swarm = now.syncer.swarm
        losses = [loss for _, _, loss in swarm.curve]
        parts = [
            f"{fmt.duration(now.elapsed_s):>11}  "
            f"{fmt.percent(swarm.tokens / max(1, now.syncer.project.token_budget))}",
            f"held-out {fmt.loss(losses[-1] if losses else None)}",
            f"{fmt.plural(swarm.global_step, 'merge')}",
            *(_word(learner) for learner in now.learners),
        ]
    return "  ".join(parts)


def _word(learner: LearnerLine) -> str:
    state = learner.state or (learner.status.state if learner.status else "to come")
    return f"{fmt.clean(learner.name)} {fmt.clean(state)}"


def results(table: Sequence[tuple[str, str]], *, sample: str, note: str) -> RenderableType:
    """What was measured, and text that the trained model made."""
    parts: list[RenderableType] = []
    if sample:
        parts += [Text("what the exported model writes", style="bold"), Text()]
        parts += [Text(f"  {fmt.clean(text, 200)}", style="italic") for text in _lines(sample)]
        parts.append(Text())
    return Group(*parts, status_rows.grid(table), Text(), Text(note, style="dim"))


def _lines(sample: str) -> list[str]:
    return [text.rstrip() for text in sample.expandtabs(4).strip().splitlines()]
