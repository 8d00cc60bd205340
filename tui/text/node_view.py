"""A learner's status as text: what this machine does for the project, and what came of it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.status import NodeStatus, ShardStatus
from tui.text import fmt, owner_limits, status_rows


def render(
    status: NodeStatus, *, width: int, tokens_per_s: float | None, said: str = ""
) -> RenderableType:
    sentence = said or status.sentence or f"This learner's state is {status.state}."
    return Group(
        status_rows.heading(status.project, "learner", status.name, pid=status.pid, width=width),
        Text(fmt.clean(sentence, 500), style="bold"),
        Text(),
        status_rows.grid(_facts(status, tokens_per_s)),
        *(Text(f"note: {fmt.clean(notice, 500)}", style="yellow") for notice in status.notices),
    )


def _facts(status: NodeStatus, tokens_per_s: float | None) -> list[status_rows.Row]:
    state = status_rows.styled_state(status.state)
    state.append(f" · up {fmt.duration(status.uptime_s)}", style="default")
    return [
        ("state", state),
        ("progress", status_rows.progress(status.project, status.swarm, tokens_per_s)),
        ("held-out", status_rows.heldout(status.swarm)),
        ("guard", status_rows.guard(status.swarm)),
        ("syncer", status_rows.link(status)),
        ("weights", _weights(status)),
        ("trainer", _trainer(status)),
        ("speed", _speed(status)),
        ("loss", status_rows.loss(status)),
        ("sample", status_rows.sample(status)),
        ("machine", owner_limits.machine(status.guest) if status.guest else ""),
        ("limits", owner_limits.summary(status.guest) if status.guest else ""),
        ("pushes", status_rows.pushes(status)),
        ("receipt", fmt.receipt(status.receipt)),
        ("text", shards(status.shards)),
        ("discarded", status_rows.discarded(status)),
        ("measured", _measured(status)),
        ("faults", status_rows.faults(status.faults)),
        ("network", status_rows.network(status.network)),
        ("reached", status_rows.reached(status.network)),
        ("wire", status_rows.wire(status)),
    ]


def shards(status: ShardStatus | None) -> str:
    """What of published data is here, and what it cost."""
    if status is None:
        return ""
    said = f"{fmt.plural(status.held, 'shard')} of {status.total:,} here"
    if status.fed_bytes:
        said += (
            f"; fetched {fmt.bytes_of(status.fetched_bytes)} to read"
            f" {fmt.bytes_of(status.fed_bytes)}"
        )
    return f"{said}; {fmt.clean(status.waiting, 200)}" if status.waiting else said


def _weights(status: NodeStatus) -> str:
    held = f"{status.weights_held} of {fmt.plural(status.project.fragments, 'fragment')} held"
    sources = [
        f"{number} from {source}"
        for number, source in (
            (status.weights_from_peers, "learners"),
            (status.weights_from_syncer, "the syncer"),
        )
        if number
    ]
    fetched = f"; fetched {', '.join(sources)}" if sources else ""
    givers = len(status.weights_sources)
    if givers > 1:
        total = fmt.bytes_of(sum(status.weights_sources.values()))
        fetched += f" ({total} from {givers} hosts)"
    return f"{held}{_arriving(status)}{fetched}; {status_rows.lag(status)}"


def _arriving(status: NodeStatus) -> str:
    """What is being fetched now."""
    now = status.download
    if now is None or not now.total_bytes:
        return ""
    left = "" if now.left_s is None else f", {fmt.duration(now.left_s)} left"
    return (
        f"; fetching {fmt.percent(now.done_bytes / now.total_bytes)} of "
        f"{fmt.bytes_of(now.total_bytes)} at {fmt.bytes_of(now.rate)}/s{left}"
    )


def _trainer(status: NodeStatus) -> str:
    text = fmt.clean(status.trainer, 20)
    if status.trainer_detail:
        text += f" ({fmt.clean(status.trainer_detail, 200)})"
    text += status_rows.device(status)
    if status.ranks > 1:
        text += f", {status.ranks} ranks"
        text += " with a part of the model each" if status.is_sharded else ""
    if status.batch_sequences:
        text += f", {fmt.plural(status.batch_sequences, 'sequence')} a step"
    if status.micro_batch is not None:
        text += f", micro-batch {status.micro_batch}"
    if status.trainer_restarts:
        text += f", restarted {fmt.plural(status.trainer_restarts, 'time')}"
    return text


def _speed(status: NodeStatus) -> str:
    if not status.local_step:
        return ""
    text = (
        f"{fmt.count(status.tokens_per_s)} tokens/s, {fmt.duration(status.step_s)} per local "
        f"step; {status.local_step:,} local steps, {fmt.count(status.tokens)} tokens so far"
    )
    if status.goodput is not None:
        text += f"; goodput {fmt.percent(status.goodput)}"
    return text


def _measured(status: NodeStatus) -> str:
    done = []
    if status.evaluations:
        done.append(f"held-out loss of {fmt.plural(status.evaluations, 'checkpoint')}")
    if status.probes:
        pushes = fmt.plural(status.probes, "push", "pushes")
        done.append(f"effect of {pushes} of other learners on the loss")
    return f"{', '.join(done)}, for the swarm" if done else ""
