"""The parts of a status snapshot that every daemon has: project, swarm, network."""

from __future__ import annotations

from host.transport import Transport
from protocol.log.state import SwarmState
from protocol.project import Charter, Genesis
from protocol.status import BulkRow, NetworkStatus, ProjectStatus, SwarmStatus


def project_status(
    project: bytes, genesis: Genesis, parameters: int, charter: Charter | None
) -> ProjectStatus:
    """The project in numbers."""
    return ProjectStatus(
        id=project.hex(),
        name=genesis.name,
        fragments=genesis.fragments,
        parameters=parameters,
        token_budget=charter.limits.tokens if charter else 0,
        local_steps=charter.rounds.local_steps if charter else 0,
        quorum=charter.rounds.quorum if charter else 0,
    )


def swarm_status(state: SwarmState, charter: Charter | None) -> SwarmStatus:
    """What the log says."""
    budget = charter.limits.tokens if charter else 0
    best = state.best
    return SwarmStatus(
        log_index=state.index,
        epoch=state.epoch,
        term=state.term,
        leader=state.leader.hex(),
        global_step=state.global_step,
        tokens=state.tokens,
        progress=min(1.0, state.tokens / budget) if budget else 0.0,
        curve=[(point.global_step, point.tokens, point.loss) for point in state.curve],
        best_checkpoint=best.checkpoint if best else None,
        best_loss=best.loss if best else None,
        is_ending=state.is_ending,
        is_ended=state.ended is not None,
    )


BULK_ROWS_MAX = 1024


def bulk_rows(transport: Transport) -> list[BulkRow]:
    """The way of bulk data to each peer that it matters for."""
    channels = transport.bulk.channels
    rows = []
    for peer in channels.known[:BULK_ROWS_MAX]:
        carried = channels.traffic.get(peer)
        count = len(channels.to(peer))
        rows.append(
            BulkRow(
                key=peer.hex(),
                way="direct" if count else "streams",
                detail=channels.reason(peer),
                connections=count,
                bytes_up=carried.up_bytes if carried else 0,
                bytes_down=carried.down_bytes if carried else 0,
            )
        )
    return rows


def network_status(transport: Transport, split: str = "") -> NetworkStatus:
    """The network engine. split: what is wrong with the swarm as a whole, if anything is."""
    state = transport.state
    return NetworkStatus(
        state="up" if state.is_up else "down",
        detail=state.reason,
        addresses=transport.addresses(),
        peers=len(transport.peers()),
        bytes_up=transport.traffic.up_bytes,
        bytes_down=transport.traffic.down_bytes,
        bulk_port=transport.bulk.channels.port,
        bulk=bulk_rows(transport),
        reach=transport.reachability.verdict,
        reach_detail=transport.reachability.sentence,
        split=split,
        carrying=transport.relay.open,
        carried_bytes=transport.relay.carried_bytes,
    )


def all_faults(transport: Transport, machine: dict[str, int]) -> dict[str, int]:
    """Peers' offences by reason, whether the streams or the machine noticed them."""
    return {
        reason: transport.faults.get(reason, 0) + machine.get(reason, 0)
        for reason in sorted(transport.faults.keys() | machine.keys())
    }
