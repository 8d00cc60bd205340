"""What a learner daemon tells people: a status for programs, sentences for people."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from host.control.status_parts import all_faults, network_status, project_status, swarm_status
from host.runtime import software
from node.governor.status_rows import owner_limits_status
from node.machine.learner import LearnerMachine
from node.machine.syncer_link import Link
from node.machine.trainer_states import TrainerState
from node.trainer.link.messages import Ready
from protocol import limits, standing
from protocol.ids import short
from protocol.log.accounts import suspended_words
from protocol.log.guard import owner_pause_words, pause_words
from protocol.status import DownloadStatus, GuestStatus, NodeStatus

if TYPE_CHECKING:
    from node.daemon.learner_daemon import LearnerDaemon


def node_state(machine: LearnerMachine) -> str:
    """One word: what this learner is doing."""
    if machine.link is Link.ENDED:
        return "ended"
    state = machine.trainer_control.state
    if state == "training" and machine.link is not Link.FOLLOWING:
        return "adrift"
    if state in ("starting", "syncing") and machine.trainer_control.unfit:
        return "unfit"
    return state


def words_s(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def fetching(download: DownloadStatus) -> str:
    """A download as people say it."""
    sources = []
    if download.learners:
        sources.append(f"{download.learners} learner{'s' if download.learners > 1 else ''}")
    if download.is_from_syncer:
        sources.append("the syncer")
    left = f", {words_s(download.left_s)} left" if download.left_s is not None else ""
    return (
        f"Fetching weights: {100 * download.done_bytes // download.total_bytes} % of "
        f"{download.total_bytes / 1e6:,.1f} MB from {' and '.join(sources) or 'nobody yet'}, "
        f"{download.rate / 1e6:.1f} MB/s{left}."
    )


def sentence(machine: LearnerMachine, now_s: float, download: DownloadStatus | None = None) -> str:
    """How things are, in words that are true now."""
    trainer_control, fragment_sync = machine.trainer_control, machine.fragment_sync
    state = node_state(machine)
    link = _with_detail(machine.link.value, machine.link_detail)
    if machine.younger and machine.link is not Link.FOLLOWING and state != "paused":
        goes_on = "Training without a syncer. " if state == "adrift" else ""
        return f"{goes_on}{machine.younger}"
    if state == "adrift":
        return f"Training without a syncer: {link}. Local steps continue; nothing is lost."
    if state in ("training", "starved"):
        return suspended(machine) or _at_work(machine, state, now_s)
    if state == "paused":
        return _paused(machine, now_s)
    if state == "finishing":
        return trainer_control.graceful_leave.in_words
    if state == "ended":
        return "The run is complete."
    if state == "unfit":
        return _unfit(machine)
    if trainer_control.trainer is TrainerState.DOWN and trainer_control.detail:
        return f"The trainer stopped: {trainer_control.detail}. It will restart soon."
    if state == "syncing":
        held = sum(local.held >= 0 for local in fragment_sync.local_fragments)
        if machine.link is not Link.FOLLOWING:
            return f"Not in the swarm yet: {link}."
        if download is not None:
            return fetching(download)
        return (
            f"Fetching weights: {held} of {len(fragment_sync.local_fragments)} fragments verified."
        )
    return _before_steps(machine)


def _unfit(machine: LearnerMachine) -> str:
    """What keeps the trainer from starting, and what its owner can do; the same until the next try
    has ended."""
    control = machine.trainer_control
    remedy = "Update Shoal, or ask the project's owner which release fits."
    if control.unfit == "data":
        remedy = "Name a copy of the project's text with `shoal join --data PATH`; its host has it."
        if machine.context.setup.genesis.data.source in ("chats", "own"):
            remedy = "Name data of your own with `shoal join --data PATH`."
    return (
        f"This machine cannot train: {control.unfit_words} {remedy} `shoal resume` tries at once, "
        f"and the daemon tries {words_s(control.next_try_s)} after the last time."
    )


def _at_work(machine: LearnerMachine, state: str, now_s: float) -> str:
    if state == "starved":
        has_read = machine.context.stepped is not None
        why = "all text leased to this host is read" if has_read else "no text is here yet"
        if machine.link is Link.FOLLOWING:
            return f"Idle: {why}; {'more' if has_read else 'it'} is asked for."
        return f"Idle: {why}. It goes on once a syncer answers."
    return _training(now_s - machine.heard_s, machine.context.tally.trust)


def suspended(machine: LearnerMachine) -> str:
    """Why nothing of this learner counts, and what to do; empty if it is not suspended."""
    context = machine.context
    key = context.setup.signer.key
    account = context.state.accounts.get(key)
    if account is None or not account.is_suspended:
        return ""
    return (
        f"Suspended: nothing that it hands in counts, because {suspended_words(account)}. Check "
        "the machine's memory and device with `shoal doctor`, and that `--data` names the "
        "project's text; then ask the project's owner to run "
        f"`shoal project reinstate {short(key)}`."
    )


def _before_steps(machine: LearnerMachine) -> str:
    """What is still to come once all weights are here."""
    trainer_control = machine.trainer_control
    if trainer_control.trainer in (
        TrainerState.WAKING,
        TrainerState.SUSPENDED,
        TrainerState.SUSPENDING,
    ):
        if trainer_control.trainer is TrainerState.SUSPENDED and trainer_control.detail:
            return (
                "The trainer will be woken again soon, with its full state: "
                f"{trainer_control.detail}"
            )
        return "The trainer is restarting where it left off."
    if trainer_control.trainer is TrainerState.LOADING and machine.moments_client.is_open:
        return f"Weights are here; optimizer state: {machine.moments_client.state.value}."
    return "Weights are here; the trainer is starting."


def _paused(machine: LearnerMachine, now_s: float) -> str:
    """Who paused it, until when, and what would not end with that."""
    trainer_control = machine.trainer_control
    until_s, because = trainer_control.paused_until_s, trainer_control.held_because
    state, rest = machine.context.state, trainer_control.memory_rest
    run_paused_at_s = machine.context.run_paused_at_s
    if until_s is None and not because and run_paused_at_s is not None:
        return (
            f"{owner_pause_words(run_paused_at_s)}. This machine rests, and goes on by itself once "
            "the owner resumes the run; the weights stay current."
        )
    if until_s is None and not because and rest.words:
        return (
            f"Paused for want of memory: {rest.words} `shoal resume` tries at once, and the daemon "
            f"tries {words_s(rest.next_try_s)} after the last time. The weights stay current."
        )
    if until_s is None and not because and state.pause is not None:
        said = uncapitalised(pause_words(state.pause, state.accounts))
        until = "the guard has gone back to it"
        if state.restoring is None:
            until = "the project's owner goes back or goes on"
        return (
            f"Paused by the guard: {said}. This machine rests until {until}; the weights stay "
            "current."
        )
    if until_s is None:
        return f"Paused because {because}. The weights stay current."
    for_s = "until resumed" if until_s == math.inf else f"for {words_s(until_s - now_s)} more"
    also = f" It could not train anyway, because {because}." if because else ""
    if run_paused_at_s is not None:
        also += f" {owner_pause_words(run_paused_at_s)}, too."
    return f"Paused by its owner {for_s}. The weights stay current.{also}"


def uncapitalised(sentence: str) -> str:
    """A sentence as the rest of another one."""
    return sentence[:1].lower() + sentence[1:]


def _training(silent_s: float, trust: float) -> str:
    if silent_s > limits.LEADER_SUSPECT_AFTER_S:
        return (
            f"Training. The syncer was not heard for {silent_s:.0f} s; "
            "looking for it, or for its successor."
        )
    if trust < standing.DOUBTED_BELOW:
        return (
            "Training, but what it hands in does not count: it points elsewhere than what others "
            "hand in, or only repeats what was merged. Check the machine's memory and device with "
            "`shoal doctor`, and the text with the project's host."
        )
    return "Training."


def _with_detail(words: str, detail: str) -> str:
    return f"{words} ({detail})" if detail else words


def _versions(machine: LearnerMachine) -> tuple[list[int], int]:
    """What the inner loop stands on in each fragment, and how far behind the worst is."""
    versions = [local.standing for local in machine.fragment_sync.local_fragments]
    newest = [fragment.version for fragment in machine.context.state.fragments]
    return versions, max((n - old for n, old in zip(newest, versions, strict=False)), default=0)


def _with_less(said: str, limits_status: GuestStatus | None) -> str:
    """The sentence, with the reason why less is done than the owner allows at best."""
    if limits_status is None or not limits_status.is_beside or said != "Training.":
        return said
    return f"Training at reduced limits, because {limits_status.because}."


def _ranks(ready: Ready | None) -> dict[str, Any]:
    """How many processes train, and whether they hold the model together."""
    if ready is None:
        return {}
    return {"ranks": ready.ranks, "is_sharded": ready.is_sharded}


@dataclass(slots=True)
class PayloadCounts:
    """What was pushed and what was merged, in bytes and in parameters."""

    push_bytes: int = 0
    push_params: int = 0
    payload_bytes: int = 0
    payload_params: int = 0


@dataclass(frozen=True, slots=True)
class StatusReporter:
    """Asks the parts of a learner how they are."""

    daemon: LearnerDaemon
    started_s: float = field(default_factory=time.monotonic)

    def status(self) -> NodeStatus:
        """Everything a screen could want."""
        daemon, machine, trainer = self.daemon, self.daemon.machine, self.daemon.trainer
        control = machine.trainer_control
        context, tally, charter = machine.context, machine.context.tally, machine.context.charter
        versions, lag = _versions(machine)
        now_s, download, owner_limits = time.monotonic(), self._download(), self._owner_limits()
        fragments = machine.fragment_sync.local_fragments
        return NodeStatus(
            key=machine.setup.signer.key.hex(),
            name=machine.setup.name,
            pid=os.getpid(),
            version=software.version(),
            uptime_s=now_s - self.started_s,
            state=node_state(machine),
            sentence=_with_less(self._sentence(now_s, download), owner_limits),
            link=machine.link.value,
            link_detail=machine.link_detail,
            heard_s=now_s - machine.heard_s if machine.heard_s else None,
            **self._way(),
            trainer=control.trainer.value,
            trainer_detail=control.detail,
            trainer_pid=trainer.pid,
            device=control.device,
            **self._batch(),
            project=project_status(
                machine.setup.project, daemon.genesis, daemon.layout.parameters, charter
            ),
            swarm=swarm_status(context.state, charter, daemon.pace),
            network=network_status(daemon.transport, daemon.partition_monitor.trouble),
            **self._inner_loop(),
            pushed=tally.pushed,
            merged=tally.merged,
            outcomes=dict(tally.outcomes),
            discarded_steps=sum(one.discarded_steps for one in fragments) // len(fragments),
            lost_steps=tally.lost_steps,
            trainer_restarts=tally.trainer_restarts,
            versions=versions,
            lag=lag,
            weights_from_peers=tally.states_from_peers,
            weights_from_syncer=tally.states_from_syncer,
            weights_sources={key.hex(): count for key, count in tally.state_bytes.items()},
            download=download,
            weights_held=sum(one.held >= 0 for one in fragments),
            moments=_with_detail(machine.moments_client.state.value, machine.moments_client.detail),
            evaluations=trainer.evaluations,
            **asdict(daemon.counts),
            faults=all_faults(daemon.transport, tally.faults),
            notices=list(daemon.notices),
            trust=tally.trust,
            guest=owner_limits,
            **_ranks(trainer.ready),
            receipt=daemon.contributions.status(len(fragments)),
            sample=daemon.sampler.newest,
            younger=machine.younger,
            suspended=suspended(machine),
            probes=tally.probes,
            probes_declined=tally.probes_declined,
            shards=daemon.published.status(),
        )

    def _sentence(self, now_s: float, download: DownloadStatus | None) -> str:
        machine, waiting = self.daemon.machine, self.daemon.published.waiting()
        if waiting and node_state(machine) == "starved" and not suspended(machine):
            return f"Waiting for text: {waiting}."
        return sentence(machine, now_s, download)

    def progress_line(self) -> str:
        """One line now and then for the terminal of `shoal join`."""
        now, leader = self.status(), self.daemon.machine.context.leader
        if now.state not in ("training", "adrift"):
            return now.sentence
        loss = f"loss {now.loss:.3f}" if now.loss is not None else "no loss yet"
        where = f"following {short(leader)}" if leader else "following nobody"
        if now.state == "adrift":
            wanted = f"{short(leader)} or its successor" if leader else "a syncer"
            where = f"looking for {wanted}"
        return (
            f"{now.state}: local step {now.local_step:,}, {loss}, "
            f"{now.tokens_per_s:,.0f} tokens/s, "
            f"{now.merged} of {now.pushed} pushes merged, global step {now.swarm.global_step:,} "
            f"({now.swarm.progress:.1%}), {where}"
        )

    def _download(self) -> DownloadStatus | None:
        """How far the weights are that are being fetched; a joiner counts what it holds already."""
        progress, machine = self.daemon.fetcher.progress(), self.daemon.machine
        if progress is None:
            return None
        fragment_sync, leader = machine.fragment_sync, machine.context.leader
        done_bytes, total_bytes = progress.done_bytes, progress.total_bytes
        if not fragment_sync.is_held:
            sizes = [8 * fragment.numel for fragment in self.daemon.layout.fragments]
            held = [one.held >= 0 for one in fragment_sync.local_fragments]
            done_bytes += sum(size for size, is_held in zip(sizes, held, strict=True) if is_held)
            total_bytes = sum(sizes)
        left = total_bytes - done_bytes
        return DownloadStatus(
            done_bytes=done_bytes,
            total_bytes=total_bytes,
            rate=progress.rate,
            learners=len(progress.sources - {leader}),
            is_from_syncer=leader in progress.sources,
            left_s=left / progress.rate if progress.rate else None,
        )

    def _way(self) -> dict[str, Any]:
        """How the leader is reached, and how fast it answers; empty and None without one."""
        machine, transport = self.daemon.machine, self.daemon.transport
        leader = machine.context.leader
        if leader is None or machine.link is not Link.FOLLOWING:
            return {"path": "", "rtt_s": None}
        path = transport.paths().get(leader, "")
        return {"path": path, "rtt_s": transport.round_trips.of(leader)}

    def _owner_limits(self) -> GuestStatus | None:
        control, options = self.daemon.machine.trainer_control, self.daemon.options
        return owner_limits_status(
            self.daemon.owner_limits.governor,
            device=control.device,
            is_suspended=control.trainer is TrainerState.SUSPENDED,
            log=options.home.trainer_log(options.instance),
        )

    def _batch(self) -> dict[str, Any]:
        ready = self.daemon.trainer.ready
        return {
            "micro_batch": ready.micro_batch if ready else None,
            "precision": ready.precision if ready else "",
            "batch_sequences": self.daemon.machine.context.batch_sequences,
        }

    def _inner_loop(self) -> dict[str, Any]:
        """What the inner loop last reported; nothing while there is no trainer."""
        context = self.daemon.machine.context
        stepped = context.stepped
        if stepped is None:
            return {}
        step_tokens = context.batch_sequences * self.daemon.genesis.data.sequence_tokens
        return {
            "local_step": stepped.local_step,
            "tokens": stepped.tokens,
            "tokens_per_s": step_tokens / stepped.step_s if stepped.step_s else 0.0,
            "step_s": stepped.step_s,
            "loss": stepped.loss,
            "goodput": stepped.work_s / stepped.alive_s if stepped.alive_s else None,
            "work_s": stepped.work_s,
            "alive_s": stepped.alive_s,
        }
