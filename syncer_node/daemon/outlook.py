"""What a voter sees of the swarm as a whole."""

from __future__ import annotations

from host.partition_monitor import Outlook, PartitionMonitor
from host.transport import Transport
from syncer_node.raft.raft import Raft


def voter_vigil(transport: Transport, raft: Raft) -> PartitionMonitor:
    """The watch of a syncer or a witness: it misses the other voters."""
    return PartitionMonitor(
        transport,
        Outlook(voters=lambda: tuple(raft.context.peers), follows=lambda: raft.leader is not None),
    )
