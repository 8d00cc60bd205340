"""Whether a learner is in touch with a leader, and what is done while it is not."""

from __future__ import annotations

from collections.abc import Callable

from host.addresses import parse_peer
from host.join_link import JoinLink
from host.partition_monitor import PartitionMonitor
from node.download.locator import Locator
from node.machine import jobs
from node.machine.learner import LearnerMachine
from node.machine.syncer_link import Link
from protocol.ids import NodeKey


def leader_watch(
    machine: LearnerMachine, locator: Locator, link: JoinLink, note: Callable[[object], None]
) -> PartitionMonitor:
    """The watch over one learner's swarm, for its daemon to run.

    From now on syncers that are missed are knocked at, and the machine hears of their return.
    """

    def voters() -> set[NodeKey]:
        # Those of the charter, or the hosts that the link names while there is none.
        charter = machine.context.charter
        if charter is None:
            return {parse_peer(text).key for text in link.addresses}
        return {voter.key for voter in charter.voters if voter.role == "syncer"}

    monitor = PartitionMonitor(
        locator.transport,
        voters=voters,
        follows=lambda: machine.link in (Link.FOLLOWING, Link.ENDED),
        heads=locator.heads,
    )
    knocking = locator.transport.knocking
    knocking.missed = monitor.missing
    knocking.on_return = lambda: note(jobs.SyncerAnswers())
    return monitor
