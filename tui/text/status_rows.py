"""The parts that the views of a syncer and of a learner share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from protocol.status import (
    BulkRow,
    DaemonStatus,
    NetworkStatus,
    NodeStatus,
    PeerRow,
    ProjectStatus,
    Status,
    SwarmStatus,
    SyncerStatus,
    WitnessStatus,
)
from tui.text import fmt, standstill

BAR_CELLS = 16
SPARK_CELLS = 24
WORDS_CHARS = 400
Row = tuple[str, str | Text]

STATE_STYLES = {
    "training": "green",
    "up": "green",
    "ended": "green",
    "gone": "red",
    "down": "red",
    "adrift": "red",
    "left": "dim",
}
OTHER_STATE = "yellow"
CELL = {"newest": "■", "due": "□", "in flight": "▶", "stale": "!"}
"""Of a fragment, by its state."""


def device(node: NodeStatus) -> str:
    """Where its trainer computes, and in what, where that is not f32; empty before the first."""
    if not node.device:
        return ""
    rounded = " in bf16" if node.precision == "bf16" else ""
    return f" on {fmt.clean(node.device, 40)}{rounded}"


def label_of(status: DaemonStatus) -> str:
    """How a daemon is called on screen, from its own words."""
    match status:
        case SyncerStatus():
            return f"syncer {status.name}"
        case WitnessStatus():
            return f"witness {status.name}"
        case NodeStatus():
            return f"learner {status.name}"


def styled_state(word: str) -> Text:
    """A state by its word; the colour only repeats it."""
    return Text(fmt.clean(word, 12), style=STATE_STYLES.get(word, OTHER_STATE))


def heading(project: ProjectStatus, role: str, name: str, *, pid: int, width: int) -> Text:
    """One line: the project at the left, who speaks at the right."""
    identity = f"{project.id[:4]}…{project.id[-3:]}" if project.id else "no project yet"
    title = fmt.clean(project.name, max(8, width - 52))
    left = f"shoal  {title} · {identity}" if title else f"shoal  {identity}"
    right = f"{role} {fmt.clean(name, 20)} · pid {pid}"
    gap = max(2, width - Text(left).cell_len - Text(right).cell_len)
    return Text.assemble((left, "bold"), " " * gap, (right, "dim"))


def grid(rows: Sequence[Row]) -> Table:
    """Label and value, one row each; empty values are left out."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    for label, value in rows:
        if value:
            # As Text: a plain string would be read as markup, and names are not ours.
            table.add_row(label, Text(value) if isinstance(value, str) else value)
    return table


def progress(project: ProjectStatus, swarm: SwarmStatus, tokens_per_s: float | None = None) -> str:
    """Bar, share, tokens and the time left.

    tokens_per_s: for daemons that do not measure the pace of their log.
    """
    budget = project.token_budget
    if budget <= 0:
        return "not known yet"
    share = swarm.tokens / budget
    tokens = f"{fmt.count(swarm.tokens)} of {fmt.count(budget)} tokens"
    line = f"{fmt.bar(share, BAR_CELLS)}  {fmt.percent(share)}  {tokens}"
    if swarm.is_ended:
        return f"{line} · done"
    if swarm.is_ending:
        return f"{line} · finishing"
    if swarm.owner_paused_at_s is not None:
        return f"{line} · paused by the owner"
    if swarm.pace is not None:
        left_s = swarm.pace.left_s
        if standstill.stands_still(swarm.pace):
            return f"{line} · standing still"
        return (
            f"{line} · {fmt.between(*left_s)} left"
            if left_s
            else f"{line} · time left not known yet"
        )
    if tokens_per_s is None:
        return line
    if tokens_per_s <= 0:
        return f"{line} · standing still"
    rest_s = max(budget - swarm.tokens, 0) / tokens_per_s
    return f"{line} · {fmt.duration(rest_s)} left"


def heldout(swarm: SwarmStatus) -> str:
    """Where the held-out loss began, where it is, where it was best, and its course."""
    losses = [loss for _, _, loss in swarm.curve]
    if not losses:
        return "not measured yet"
    line = fmt.loss(losses[0])
    if len(losses) > 1:
        line += f" → {fmt.loss(losses[-1])}"
    if swarm.best_loss is not None:
        line += f", best {fmt.loss(swarm.best_loss)}"
        if swarm.best_checkpoint is not None:
            by = f", {fmt.clean(swarm.best_measured, 200)}" if swarm.best_measured else ""
            step = swarm.best_global_step
            which = (
                f"checkpoint {swarm.best_checkpoint}" if step is None else f"global step {step:,}"
            )
            line += f" ({which}{by})"
    return f"{line}  {fmt.sparkline(losses, SPARK_CELLS)}".rstrip()


def guard(swarm: SwarmStatus) -> str:
    """Whether the guard pauses merging, or above which held-out loss it would act; and where it
    last went back by itself."""
    pause, restored = swarm.pause, swarm.restored
    if pause is not None:
        then = "; the guard goes back to it by itself" if pause.goes_back else ""
        return (
            f"merging is paused: held-out loss {fmt.loss(pause.loss)}, best "
            f"{fmt.loss(pause.best_loss)} at global step {pause.best_global_step:,}{then}"
        )
    if swarm.is_ended:
        return ""
    lines = [_guard_rule(swarm)]
    if restored is not None:
        lines.append(fmt.clean(restored.words[:1].lower() + restored.words[1:], WORDS_CHARS))
    return "; ".join(line for line in lines if line)


def _guard_rule(swarm: SwarmStatus) -> str:
    if swarm.guard == "off":
        return ""
    if swarm.guard_above is None:
        return "compares held-out losses once there are a few"
    acts = "goes back to the best checkpoint" if swarm.guard == "restore" else "pauses merging"
    return f"{acts} if the held-out loss exceeds {fmt.loss(swarm.guard_above)}"


def network(status: NetworkStatus) -> str:
    """State, peers and traffic of the network engine."""
    detail = f" ({fmt.clean(status.detail, 200)})" if status.detail else ""
    return (
        f"{fmt.clean(status.state, 12)}{detail} · {fmt.plural(status.peers, 'connection')} · "
        f"sent {fmt.bytes_of(status.bytes_up)}, received {fmt.bytes_of(status.bytes_down)}"
        f"{_bulk(status.bulk)}"
    )


def _bulk(rows: Sequence[BulkRow]) -> str:
    """How many peers bulk data goes to directly, and why not to others."""
    direct = sum(row.way == "direct" for row in rows)
    others = [row for row in rows if row.way != "direct" and row.detail]
    told = []
    if direct:
        told.append(f"direct with {fmt.plural(direct, 'peer')}")
    if others:
        told.append(f"over streams with {len(others)} ({fmt.clean(others[0].detail, 80)})")
    return f" · bulk data {', '.join(told)}" if told else ""


REACHED: Final = {
    "direct": "others can dial this host",
    "relayed": "relayed: nobody outside can dial this host",
    "outward": "not at all: this host can only dial out",
}


def reached(status: NetworkStatus) -> str:
    """How others reach this host, what it carries for them, and whether the swarm is whole."""
    parts = [REACHED.get(status.reach, "not known yet")]
    if status.carrying or status.carried_bytes:
        streams = fmt.plural(status.carrying, "stream")
        parts.append(f"carries {streams} for others, {fmt.bytes_of(status.carried_bytes)} so far")
    if status.split:
        parts.append(fmt.clean(status.split, 300))
    return " · ".join(parts)


def counts(peer: PeerRow) -> str:
    """How far a learner's pushes count, in words."""
    if peer.standing == "suspended":
        return "suspended"
    if not peer.trust:
        return "does not count"
    if peer.trust < 1:
        return f"counts {fmt.percent(peer.trust)}"
    return "new, counts little" if peer.is_new else "counts in full"


def wire(status: NodeStatus | SyncerStatus) -> str:
    """Bytes per parameter that pushes and published versions took."""
    ways = (
        ("up", status.push_bytes, status.push_params),
        ("down", status.payload_bytes, status.payload_params),
    )
    return ", ".join(
        f"{size / parameters:.2f} byte per parameter {way}"
        for way, size, parameters in ways
        if parameters > 0
    )


def fragment_versions(status: Status) -> list[int]:
    """The version of each fragment."""
    return status.fragments if isinstance(status, SyncerStatus) else status.versions


def fragment_states(status: Status) -> list[str]:
    """A word for each fragment: newest, due, in flight, or stale."""
    versions = fragment_versions(status)
    newest = max(versions, default=0)
    rounds = status.rounds if isinstance(status, SyncerStatus) else ()
    busy = {one.fragment for one in rounds}
    return [
        "in flight" if number in busy else {0: "newest", 1: "due"}.get(newest - version, "stale")
        for number, version in enumerate(versions)
    ]


def versions(status: Status) -> str:
    """Which versions of fragments there are, where there is any."""
    low, high = min(fragment_versions(status)), max(fragment_versions(status))
    return f"version {high}" if low == high else f"versions {low} to {high}"


def link(status: NodeStatus) -> str:
    """Whether a learner follows a syncer, when it was heard, and over which way."""
    detail = f" ({fmt.clean(status.link_detail, 200)})" if status.link_detail else ""
    heard = "" if status.heard_s is None else f", heard {fmt.duration(status.heard_s)} ago"
    return f"{fmt.clean(status.link, 20)}{detail}{heard}{fmt.way(status.path, status.rtt_s)}"


def lag(status: NodeStatus) -> str:
    """How far a learner's oldest fragment is behind."""
    return f"{fmt.plural(status.lag, 'version')} behind" if status.lag else "current"


def loss(status: NodeStatus) -> str:
    """A learner's training loss."""
    return "" if status.loss is None else f"{fmt.loss(status.loss)} at the last local step"


def pushes(status: NodeStatus) -> str:
    """What a learner handed in, and what came of it."""
    if not status.pushed:
        return "nothing yet"
    others = fmt.tally(
        {word: number for word, number in status.outcomes.items() if word != "merged"}
    )
    text = f"{fmt.plural(status.pushed, 'push', 'pushes')}, {status.merged:,} merged"
    return f"{text}; {others}" if others else text


def discarded(status: NodeStatus) -> str:
    """Local steps of a learner that never counted."""
    thrown = []
    if status.discarded_steps:
        thrown.append(f"{fmt.plural(status.discarded_steps, 'local step')} overwritten")
    if status.lost_steps:
        thrown.append(f"{fmt.plural(status.lost_steps, 'local step')} lost with a trainer")
    return ", ".join(thrown) or "nothing"


def sample(status: NodeStatus) -> str:
    """What the model wrote lately, if its owner wants to see that."""
    one = status.sample
    if one is None:
        return ""
    said, written = (fmt.clean(text.replace("\n", " "), 400) for text in (one.prompt, one.text))
    return f"“{said}” → “{written}” (global step {one.global_step:,})"


def means(status: SyncerStatus) -> str:
    """An average merge: its learners over the whole run, its steps since the syncer started."""
    if not status.participants_mean:
        return ""
    said = f"{status.participants_mean:.1f} learners"
    if status.effective_h:
        said += f", {status.effective_h:.1f} local steps per push"
    return f"{said} (H is {status.project.local_steps})"


def certified(status: WitnessStatus) -> str:
    """How much of the log a witness has."""
    kept = f", kept from {status.stored_from:,}" if status.stored_from > 1 else ""
    return f"certified to record {status.log_index:,}{kept}"


def faults(counts: Mapping[str, int]) -> Text:
    """Faults that stand out, or the word none."""
    text = fmt.tally(counts)
    return Text(text, style="bold red") if text else Text("none")
