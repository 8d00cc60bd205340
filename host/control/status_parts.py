"""The parts of a status snapshot that every daemon has: project, swarm, network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from host.control.pace_meter import PaceMeter
from host.transport import Transport
from protocol.log import guard, restoring
from protocol.log.heldout import believed, disputed_words, measured_by
from protocol.log.state import SwarmState
from protocol.project import Charter, Genesis
from protocol.status import (
    BulkRow,
    NetworkStatus,
    PaceStatus,
    PauseStatus,
    ProjectStatus,
    RestoredStatus,
    SwarmStatus,
)

PACE_EVERY_S: Final = 1.0


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
        admission=charter.admission if charter else "open",
    )


def _pace(state: SwarmState, budget: int, meter: PaceMeter) -> PaceStatus:
    now_s = time.monotonic()
    meter.observe(state.global_step, state.tokens, now_s)
    return meter.told(budget - state.tokens if budget else None, now_s)


async def keep_pace(meter: PaceMeter, state: Callable[[], SwarmState]) -> None:
    """Lets the meter see the log every second, for ever."""
    while True:
        now = state()
        meter.observe(now.global_step, now.tokens, time.monotonic())
        await asyncio.sleep(PACE_EVERY_S)


def swarm_status(
    state: SwarmState, charter: Charter | None, meter: PaceMeter | None = None
) -> SwarmStatus:
    """What the log says. meter: how fast it moved."""
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
        curve=[(one.global_step, one.tokens, one.loss) for one in believed(state.curve)],
        best_checkpoint=best.checkpoint if best else None,
        best_loss=best.loss if best else None,
        best_measured=measured_by(best, state.accounts) if best else "",
        best_is_agreed=best is not None and best.is_agreed,
        best_global_step=best.global_step if best else None,
        disputed=disputed_words(state.curve, state.accounts),
        guard=state.guard,
        guard_above=_guard_above(state),
        pause=_pause(state),
        restored=_restored(state),
        owner_paused_at_s=state.owner_paused_at_s,
        is_ending=state.is_ending,
        is_ended=state.ended is not None,
        pace=_pace(state, budget, meter) if meter is not None else None,
    )


def _guard_above(state: SwarmState) -> float | None:
    """From which held-out loss on the guard acts; None while it does not."""
    best = guard.reference(state.curve, state.guarded_from) if state.guard != "off" else None
    return guard.far_above(best.loss) if best is not None else None


def _pause(state: SwarmState) -> PauseStatus | None:
    """Of the guard, if merging is paused."""
    pause = state.pause
    if pause is None:
        return None
    return PauseStatus(
        at_s=pause.at_s,
        global_step=pause.measured.global_step,
        loss=pause.measured.loss,
        best_loss=pause.best.loss,
        best_global_step=pause.best.global_step,
        best_checkpoint=pause.best.checkpoint,
        words=guard.pause_words(pause, state.accounts),
        record=pause.record.hex(),
        goes_back=state.restoring is not None,
        outlook=state.outlook,
    )


def _restored(state: SwarmState) -> RestoredStatus | None:
    """The last time that the guard went back by itself."""
    restored = state.restored
    if restored is None:
        return None
    pause = restored.pause
    return RestoredStatus(
        at_s=restored.at_s,
        paused_s=pause.at_s,
        global_step=restored.global_step,
        loss=pause.measured.loss,
        best_loss=pause.best.loss,
        best_global_step=pause.best.global_step,
        best_checkpoint=pause.best.checkpoint,
        words=restoring.restored_words(restored, state.accounts),
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
        router=transport.reachability.of_router(),
    )


def all_faults(transport: Transport, machine: dict[str, int]) -> dict[str, int]:
    """Peers' offences by reason, whether the streams or the machine noticed them."""
    return {
        reason: transport.faults.get(reason, 0) + machine.get(reason, 0)
        for reason in sorted(transport.faults.keys() | machine.keys())
    }
