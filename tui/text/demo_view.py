"""What `shoal demo` shows: the swarm while it trains, and what was measured at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.status import NodeStatus, SyncerStatus
from tui.text import fmt, status_rows

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
    syncer: SyncerStatus | None = None
    learners: Sequence[LearnerLine] = field(default_factory=tuple)
    tokens_per_s: float | None = None
    """Committed by the swarm, where that can be told."""


def render(now: DemoNow, *, width: int) -> RenderableType:
    """The whole view for a terminal of `width` columns."""
    clock = fmt.duration(now.elapsed_s)
    sentence = fmt.clean(now.sentence, max(20, width - len(clock) - 2))
    gap = max(2, width - len(sentence) - len(clock))
    parts: list[RenderableType] = [
        Text.assemble((sentence, "bold"), " " * gap, (clock, "dim"), no_wrap=True)
    ]
    if now.syncer is not None:
        parts += [Text(), status_rows.grid(_facts(now.syncer, now.tokens_per_s))]
    if now.learners:
        parts += [Text(), _learners(now.learners)]
    return Group(*parts)


def _facts(syncer: SyncerStatus, tokens_per_s: float | None) -> list[status_rows.Row]:
    return [
        ("tokens", _progress(syncer, tokens_per_s)),
        ("held-out", _heldout(syncer)),
        ("merges", _merges(syncer)),
        ("quorum", "" if syncer.swarm.is_ended else _quorum(syncer)),
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


def _quorum(syncer: SyncerStatus) -> str:
    training = sum(peer.state == "training" for peer in syncer.peers)
    needs = fmt.plural(syncer.project.quorum, "learner")
    here = sum(peer.state != "left" for peer in syncer.peers)
    return f"a merge needs {needs}; {training} of {here} training"


def _learners(learners: Sequence[LearnerLine]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("learner", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("state", no_wrap=True, min_width=8)
    for name in ("loss", "tok/s", "local step", "merged", "lag", "goodput"):
        table.add_column(name, justify="right", no_wrap=True)
    for learner in learners:
        called = Text(fmt.clean(learner.name))
        if learner.note:
            called.append(f" {fmt.clean(learner.note)}", style="dim")
        state = learner.state or (learner.status.state if learner.status else "")
        table.add_row(called, _state(state), *(Text(cell) for cell in _cells(learner)))
    return table


def _state(word: str) -> Text:
    return Text(word, style="bold red") if word == "killed" else status_rows.styled_state(word)


def _cells(learner: LearnerLine) -> list[str]:
    status = learner.status
    if status is None:
        return []
    return [
        fmt.loss(status.loss),
        fmt.count(status.tokens_per_s),
        f"{status.local_step:,}",
        f"{status.merged:,}",
        str(status.lag),
        "–" if status.goodput is None else fmt.percent(status.goodput),
    ]


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
