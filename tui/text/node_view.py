"""A learner's status as text: what this machine does for the project, and what came of it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.status import NodeStatus
from tui.text import fmt, owner_limits, status_rows


def render(status: NodeStatus, *, width: int, tokens_per_s: float | None) -> RenderableType:
    """The whole view."""
    sentence = status.sentence or f"This learner's state is {status.state}."
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
        ("syncer", _link(status)),
        ("weights", _weights(status)),
        ("trainer", _trainer(status)),
        ("speed", _speed(status)),
        ("loss", _loss(status)),
        ("machine", owner_limits.machine(status.guest) if status.guest else ""),
        ("limits", owner_limits.summary(status.guest) if status.guest else ""),
        ("pushes", _handed_in(status)),
        ("receipt", fmt.receipt(status.receipt)),
        ("discarded", _discarded(status)),
        ("measured", _measured(status)),
        ("faults", status_rows.faults(status.faults)),
        ("network", status_rows.network(status.network)),
        ("reached", status_rows.reached(status.network)),
        (
            "wire",
            status_rows.wire(
                (status.push_bytes, status.push_params),
                (status.payload_bytes, status.payload_params),
            ),
        ),
    ]


def _link(status: NodeStatus) -> str:
    detail = f" ({fmt.clean(status.link_detail, 200)})" if status.link_detail else ""
    heard = "" if status.heard_s is None else f", heard {fmt.duration(status.heard_s)} ago"
    way = fmt.way(status.path, status.rtt_s)
    return f"{fmt.clean(status.link, 20)}{detail}{heard}{way}"


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
    current = "current" if not status.lag else f"{fmt.plural(status.lag, 'version')} behind"
    return f"{held}{_arriving(status)}{fetched}; {current}"


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
    if status.device:
        text += f" on {fmt.clean(status.device, 40)}"
    if status.ranks > 1:
        text += f", {status.ranks} ranks"
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


def _loss(status: NodeStatus) -> str:
    return "" if status.loss is None else f"{fmt.loss(status.loss)} at the last local step"


def _handed_in(status: NodeStatus) -> str:
    if not status.pushed:
        return "nothing yet"
    text = f"{fmt.plural(status.pushed, 'push', 'pushes')}, {status.merged:,} merged"
    others = {word: number for word, number in status.outcomes.items() if word != "merged"}
    return f"{text}; {fmt.tally(others)}" if fmt.tally(others) else text


def _discarded(status: NodeStatus) -> str:
    thrown = []
    if status.discarded_steps:
        thrown.append(f"{fmt.plural(status.discarded_steps, 'local step')} overwritten")
    if status.lost_steps:
        thrown.append(f"{fmt.plural(status.lost_steps, 'local step')} lost with a trainer")
    return ", ".join(thrown) or "nothing"


def _measured(status: NodeStatus) -> str:
    if not status.evaluations:
        return ""
    return f"held-out loss of {fmt.plural(status.evaluations, 'checkpoint')} for the swarm"
