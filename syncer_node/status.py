"""What a syncer daemon tells people: a snapshot for programs, sentences for people."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from node.host.summaries import all_faults, network_status, project_status, swarm_status
from protocol import limits
from protocol.ids import short
from protocol.membership import Session
from protocol.snapshot import PeerRow, RoundRow, SyncerStatus
from syncer_node.syncer import Phase, SyncerMachine

if TYPE_CHECKING:
    from syncer_node.daemon import SyncerDaemon


def sentence(machine: SyncerMachine, now_s: float) -> str:
    """How the swarm is, in words that are true now."""
    state = machine.state
    if machine.phase is Phase.ENDED:
        best = state.ended.best_loss if state.ended else None
        loss = f", best held-out loss {best:.4f}" if best is not None else ""
        return f"The run is complete: {state.global_step:,} global steps{loss}."
    if machine.store_trouble:
        return f"Merging paused: {machine.store_trouble}."
    if machine.merging.stalled and now_s < machine.merging.stalled_until_s:
        return f"Merging paused: {machine.merging.stalled}."
    if machine.phase is Phase.STARTING:
        return "The first weights are being made."
    if machine.phase is Phase.DRAINING:
        return "The token budget is reached; the last rounds are drained and evaluated."
    live = list(machine.members.live())
    training = machine.members.training()
    if not live:
        return "Waiting for learners: hand out the join link."
    if not training:
        return f"{_learners(len(live))} here, none training yet."
    missing = [s for s in machine.members.sessions.values() if not s.is_connected]
    tail = f" Gone: {', '.join(s.name for s in missing)}." if missing else ""
    waiting = machine.merging.pace.waiting
    is_short = "learners ready" in waiting
    wait = f" Waiting: {waiting}." if is_short else ""
    return f"All is well. {_learners(len(training))} training.{tail}{wait}"


def _learners(count: int) -> str:
    return f"{count} learner" if count == 1 else f"{count} learners"


def peer_row(session: Session, newest: list[int], tokens_per_step: int, now_s: float) -> PeerRow:
    """One learner as the syncer sees it."""
    beat = session.beat
    state = beat.state if beat else "greeting"
    if not session.is_connected:
        state_word = "gone"
    elif now_s - session.heard_s > limits.SUSPECT_AFTER_S:
        state_word = "silent"
    else:
        state_word = state
    lag = 0
    if beat is not None:
        lag = max((new - old for new, old in zip(newest, beat.versions, strict=False)), default=0)
    return PeerRow(
        key=session.peer.hex(),
        name=session.name,
        device=session.device,
        state=state_word,
        heard_s=now_s - session.heard_s,
        local_step=beat.local_step if beat else 0,
        step_s=session.step_s,
        tokens=beat.tokens if beat else 0,
        tokens_per_s=tokens_per_step * session.steps_per_s(now_s),
        loss=beat.loss if beat else None,
        lag=lag,
        merges=session.merges,
        goodput=min(1.0, beat.work_s / beat.alive_s) if beat and beat.alive_s > 1e-3 else None,
        refused=dict(session.rejected),
    )


def round_rows(machine: SyncerMachine, now_s: float) -> list[RoundRow]:
    """The rounds in flight."""
    names = {peer: session.name for peer, session in machine.members.sessions.items()}
    return [
        RoundRow(
            number=current.number,
            fragment=current.fragment,
            state=current.state.value,
            arrived=len(current.arrived),
            asked=len(current.tickets),
            quorum=current.required(now_s),
            age_s=now_s - current.opened_s,
            waiting_for=[names.get(peer, short(peer)) for peer in current.pending(now_s)],
        )
        for current in machine.merging.rounds.values()
    ]


def snapshot(daemon: SyncerDaemon) -> SyncerStatus:
    """Everything a screen could want."""
    machine, books = daemon.machine, daemon.books
    now_s = time.monotonic()
    charter, genesis = daemon.project.charter, daemon.project.genesis
    per_step = charter.inner.batch_sequences * genesis.data.sequence_tokens
    newest = [fragment.version for fragment in machine.state.fragments]
    window = machine.merging.window
    return SyncerStatus(
        key=daemon.identity.key.hex(),
        name=daemon.options.instance,
        pid=os.getpid(),
        version=version("shoal"),
        uptime_s=now_s - daemon.started_s,
        phase=machine.phase.value,
        sentence=sentence(machine, now_s),
        join_link=daemon.join_link(),
        project=project_status(daemon.project.id, genesis, daemon.layout, charter),
        swarm=swarm_status(machine.state, charter),
        network=network_status(daemon.transport),
        peers=[
            peer_row(session, newest, per_step, now_s)
            for _, session in sorted(machine.members.sessions.items())
        ],
        rounds=round_rows(machine, now_s),
        merges=list(books.recent),
        merges_here=books.merges,
        participants_mean=books.participants / books.merges if books.merges else 0.0,
        effective_h=books.steps / books.participants if books.participants else 0.0,
        grace_s=books.grace_s,
        slack_s=window.slack_s(),
        outcomes=dict(machine.merging.outcomes),
        faults=all_faults(daemon.transport, machine.faults),
        fragments=newest,
        push_bytes=books.push_bytes,
        push_params=books.push_params,
        payload_bytes=books.payload_bytes,
        payload_params=books.payload_params,
        checkpoint_dir=str(daemon.store.root / "checkpoints"),
    )


PEERS_REPORTED_MAX = 1024


def public(daemon: SyncerDaemon) -> SyncerStatus:
    """The snapshot for strangers: nothing about this machine but what the swarm sees anyway."""
    shown = snapshot(daemon)
    shown.pid = 0
    shown.checkpoint_dir = ""
    shown.network.addresses = []
    shown.peers = shown.peers[:PEERS_REPORTED_MAX]
    return shown


def progress_line(daemon: SyncerDaemon) -> str:
    """One line now and then for the terminal of `shoal syncer run`."""
    now = snapshot(daemon)
    if not now.merges_here or now.phase != "training":
        return now.sentence
    loss = f", held-out loss {now.swarm.curve[-1][2]:.4f}" if now.swarm.curve else ""
    training = sum(peer.state == "training" for peer in now.peers)
    return (
        f"global step {now.swarm.global_step:,} ({now.swarm.progress:.1%} of the tokens){loss}, "
        f"{training} training, {now.participants_mean:.1f} per merge, "
        f"effective H {now.effective_h:.1f}"
    )
