"""What `shoal status` shows: the daemons of one machine, readable without colour too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from protocol.limits import LINK_CHARS_MAX
from protocol.status import DaemonStatus, NodeStatus, SwarmSeen, SyncerStatus, WitnessStatus
from tui.text import fmt, node_view, syncer_view, witness_view
from tui.text.status_rows import label_of

NOBODY = "No daemon answers."


def render(
    statuses: Sequence[DaemonStatus],
    *,
    width: int,
    rates: Mapping[str, float] | None = None,
    verdicts: Mapping[str, str] | None = None,
) -> RenderableType:
    """A view of the daemons, one below the other, for a terminal of `width` columns.

    verdicts: what the full screen says of each, by key; without them each speaks for itself.
    rates: committed tokens per second by daemon key, where the caller has watched for a while;
    without it the time left is estimated from what the learners report.
    """
    parts: list[RenderableType] = []
    names = {status.key: label_of(status) for status in statuses}
    for status in statuses:
        if parts:
            parts.append(Text())
        rate = (rates or {}).get(status.key)
        said = (verdicts or {}).get(status.key, "")
        match status:
            case SyncerStatus():
                view = syncer_view.render(
                    status, width=width, tokens_per_s=rate, names=names, said=said
                )
                parts.append(view)
            case WitnessStatus():
                parts.append(witness_view.render(status, width=width, names=names, said=said))
            case NodeStatus():
                parts.append(node_view.render(status, width=width, tokens_per_s=rate, said=said))
                if status.swarm_seen is not None:
                    parts += [Text(), _swarm(status.swarm_seen, width, verdicts)]
    return Group(*parts) if parts else Text(NOBODY)


def _swarm(seen: SwarmSeen, width: int, verdicts: Mapping[str, str] | None) -> RenderableType:
    """What a learner was told of its swarm."""
    if seen.status is None:
        return Text()
    said = (verdicts or {}).get(seen.status.key, "")
    return syncer_view.seen(seen.status, age_s=seen.age_s, width=width, said=said)


NEEDED = {
    "invite": "\na newcomer needs an invite in it: shoal invite",
    "list": "\na newcomer must be listed: shoal project allow KEY PROJECT",
}
"""By admission rule."""


def invitations(statuses: Sequence[DaemonStatus]) -> list[str]:
    """The command that joins each syncer's project, to be printed unwrapped, so that it can be
    copied whole; and below it what a newcomer needs besides."""
    return [
        f"shoal join {fmt.clean(status.join_link, LINK_CHARS_MAX)}"
        + NEEDED.get(status.project.admission, "")
        for status in statuses
        if isinstance(status, SyncerStatus) and status.join_link
    ]
