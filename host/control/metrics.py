"""A daemon's status as Prometheus metrics. Names end in their unit; ratios are from 0 to 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from protocol.messages import LearnerState

Fields = Mapping[str, Any]

LEARNERS_SHOWN: Final = 256
"""A series each; of larger swarms the busiest are shown."""

COMMON: Final = {
    "uptime_s": ("uptime_seconds", "Since this daemon started."),
    "network.peers": ("network_connections", "Connected hosts."),
    "swarm.log_index": ("log_records", "Newest certified record."),
    "swarm.term": ("term", "In which the leader was elected."),
    "swarm.progress": ("progress_ratio", "Of the token budget."),
    "swarm.pause.at_s": (
        "guard_paused_since_timestamp_seconds",
        "Since when the guard pauses merging: Unix time.",
    ),
    "swarm.restored.at_s": (
        "guard_went_back_timestamp_seconds",
        "When the guard last went back to the best checkpoint by itself: Unix time.",
    ),
    "swarm.guard_above": ("guard_loss_limit", "Held-out loss above which the guard acts."),
    "swarm.best_loss": ("held_out_loss_best", "Nats per token, of the best checkpoint."),
    "project.parameters": ("parameters", "Of the model."),
    "project.token_budget": ("token_budget", "Tokens that the run is to merge."),
}
COMMON_SUMS: Final = {
    "network.bytes_up": ("network_sent_bytes", "Sent by this daemon."),
    "network.bytes_down": ("network_received_bytes", "Received by this daemon."),
    "swarm.global_step": ("global_steps", "Merges committed by the swarm."),
    "swarm.tokens": ("committed_tokens", "Tokens merged by the swarm."),
}
LEARNER: Final = {
    "tokens_per_s": ("tokens_per_second", "Trained here, over the last steps."),
    "step_s": ("local_step_seconds", "Of one local step."),
    "loss": ("train_loss", "Nats per token, of the last local steps."),
    "goodput": ("goodput_ratio", "Time in local steps divided by time alive."),
    "lag": ("lag_versions", "Versions that the oldest fragment is behind."),
    "heard_s": ("leader_heard_seconds", "Since the leader was last heard."),
    "rtt_s": ("leader_rtt_seconds", "Shortest of its latest answers."),
    "weights_held": ("fragments_held", "Fragments held in a verified version."),
    "guest.duty_frac": ("duty_ratio", "Share of the time in which the trainer may work."),
    "guest.is_held": ("is_held", "1: training is paused for this machine's owner."),
    "guest.is_parked": ("is_parked", "1: the trainer's memory is free."),
}
LEARNER_SUMS: Final = {
    "local_step": ("local_steps", "Local steps done here."),
    "tokens": ("trained_tokens", "Tokens trained on here."),
    "work_s": ("work_seconds", "In local steps of this trainer."),
    "pushed": ("pushes", "Displacements handed in."),
    "merged": ("pushes_merged", "Displacements that counted."),
    "discarded_steps": ("discarded_steps", "Local steps overwritten before they were handed in."),
    "lost_steps": ("lost_steps", "Local steps that died with a trainer."),
    "trainer_restarts": ("trainer_restarts", "Trainers started again."),
    "evaluations": ("evaluations", "Checkpoints measured for the swarm."),
    "probes": ("probes", "Pushes of other learners measured for the leader."),
}
SYNCER: Final = {
    "participants_mean": ("participants_mean", "Learners per merge of the run."),
    "effective_h": (
        "local_steps_per_push",
        "Mean local steps in a merged push, since this daemon started.",
    ),
    "grace_s": ("grace_seconds", "Grace of the newest round."),
    "slack_s": ("slack_seconds", "Estimated slack of a round."),
}
SYNCER_SUMS: Final = {
    "merges_here": ("merges", "Merges since this daemon started."),
    "push_bytes": ("push_bytes", "Received in merged pushes."),
    "payload_bytes": ("payload_bytes", "Of published versions."),
}
OF_LEARNERS: Final = {
    "tokens_per_s": ("learner_tokens_per_second", "As reported by that learner."),
    "lag": ("learner_lag_versions", "Versions that its oldest fragment is behind."),
    "heard_s": ("learner_heard_seconds", "Since it was last heard."),
    "goodput": ("learner_goodput_ratio", "Its time in local steps divided by its time alive."),
    "load": ("learner_device_load_ratio", "Share of the last half minute in which it computed."),
}
LEARNER_STATES: Final = (*get_args(LearnerState), "adrift", "ended")


class StatusCollector(Collector):
    """Asks the daemon at each scrape; a daemon that does not answer is down."""

    def __init__(self, ask: Callable[[], Fields]) -> None:
        """ask: the status as the control socket gives it. Raises ShoalError if it is silent."""
        self._ask = ask

    def describe(self) -> Iterable[Metric]:
        """Nothing before the first scrape: the daemon need not be up yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        yield from metrics_of(self._ask())


def metrics_of(told: Fields) -> Iterator[Metric]:
    """The metrics of a status, by what kind of daemon it is of."""
    yield InfoMetricFamily(
        "shoal",
        "What runs here.",
        value={
            "role": "learner" if told["type"] == "node" else str(told["type"]),
            "version": str(told.get("version", "")),
            "name": str(told.get("name", "")),
            "key": str(told.get("key", "")),
            "project": str(_at(told, "project.name") or ""),
            "project_id": str(_at(told, "project.id") or ""),
        },
    )
    is_up = _at(told, "network.state") == "up"
    yield _gauge("network_up", "1: the network engine runs.", is_up)
    yield from _plain(told, COMMON, COMMON_SUMS)
    yield from _labelled("faults", "Misbehaviour of others, by kind.", "kind", told.get("faults"))
    if lag := told.get("loop_lag"):
        late = GaugeMetricFamily(
            "shoal_loop_lag_seconds",
            "How late timers of this daemon were in the last minute.",
            labels=["quantile"],
        )
        for quantile, field in (("0.5", "p50_s"), ("0.99", "p99_s"), ("1", "max_s")):
            late.add_metric([quantile], float(lag[field]))
        yield late
    curve = _at(told, "swarm.curve")
    if curve:
        yield _gauge("held_out_loss", "Nats per token, as measured last.", curve[-1][2])
    if (swarm := told.get("swarm")) is not None:
        is_paused = swarm.get("pause") is not None
        yield _gauge("guard_paused", "1: the guard pauses merging.", is_paused)
        is_paused = swarm.get("owner_paused_at_s") is not None
        yield _gauge("owner_paused", "1: the project's owner pauses the run.", is_paused)
    match told["type"]:
        case "node":
            yield from _learner(told)
        case "syncer":
            yield from _syncer(told)
        case "witness":
            yield from _seat(told.get("seat"))


def _learner(told: Fields) -> Iterator[Metric]:
    yield from _plain(told, LEARNER, LEARNER_SUMS)
    yield _state("learner_state", "1 for the state that it is in.", LEARNER_STATES, told["state"])
    yield from _labelled("push_outcomes", "Pushes by outcome.", "outcome", told.get("outcomes"))
    guest = told.get("guest") or {}
    taken = GaugeMetricFamily(
        "shoal_limit_used", "Taken now, in the unit of the limit.", labels=["setting", "unit"]
    )
    ceiling = GaugeMetricFamily("shoal_limit", "What the owner allows.", labels=["setting", "unit"])
    for row in guest.get("limits", ()):
        labels = [row["key"], row["unit"]]
        if row.get("used") is not None:
            taken.add_metric(labels, float(row["used"]))
        if row.get("ceiling") is not None:
            ceiling.add_metric(labels, float(row["ceiling"]))
    yield from (taken, ceiling)


def _syncer(told: Fields) -> Iterator[Metric]:
    yield from _plain(told, SYNCER, SYNCER_SUMS)
    yield _gauge("rounds_open", "Rounds in flight.", len(told["rounds"]))
    yield from _labelled("push_outcomes", "Pushes by outcome.", "outcome", told.get("outcomes"))
    counted = Counter(peer["state"] for peer in told["peers"])
    states = GaugeMetricFamily("shoal_learners", "Learners by state.", labels=["state"])
    for state, number in sorted(counted.items()):
        states.add_metric([state], number)
    yield states
    busiest = sorted(told["peers"], key=lambda peer: -peer.get("tokens", 0))[:LEARNERS_SHOWN]
    for field, (name, words) in OF_LEARNERS.items():
        family = GaugeMetricFamily(f"shoal_{name}", words, labels=["learner", "key"])
        for peer in busiest:
            if peer.get(field) is not None:
                family.add_metric([peer["name"], peer["key"][:8]], float(peer[field]))
        yield family
    merges = CounterMetricFamily(
        "shoal_learner_merges", "Pushes of that learner that counted.", labels=["learner", "key"]
    )
    for peer in busiest:
        merges.add_metric([peer["name"], peer["key"][:8]], float(peer.get("merges", 0)))
    yield merges
    yield from _seat(told.get("seat"))


def _seat(seat: Fields | None) -> Iterator[Metric]:
    """The election."""
    if seat is None:
        return
    voters = seat.get("voters", ())
    here = sum(bool(voter.get("is_here") or voter.get("is_self")) for voter in voters)
    yield _gauge("is_leader", "1: this host leads.", seat.get("role") == "leading")
    yield _gauge("voters", "Voters of the charter.", len(voters))
    yield _gauge("voters_here", "Voters that are connected.", here)
    yield _gauge("standbys", "Standbys that are up to date.", seat.get("standbys", 0))
    if seat.get("leaderless_s") is not None:
        yield _gauge("leaderless_seconds", "Since a leader was last heard.", seat["leaderless_s"])


def _plain(
    told: Fields, gauges: Mapping[str, tuple[str, str]], sums: Mapping[str, tuple[str, str]]
) -> Iterator[Metric]:
    """One metric for each field that has a value."""
    for field, (name, words) in gauges.items():
        if (value := _at(told, field)) is not None:
            yield _gauge(name, words, value)
    for field, (name, words) in sums.items():
        if (value := _at(told, field)) is not None:
            yield CounterMetricFamily(f"shoal_{name}", words, value=float(value))


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"shoal_{name}", words, value=float(value))


def _labelled(
    name: str, words: str, label: str, counts: Mapping[str, int] | None
) -> Iterator[Metric]:
    family = CounterMetricFamily(f"shoal_{name}", words, labels=[label])
    for key, count in (counts or {}).items():
        family.add_metric([str(key)], float(count))
    yield family


def _state(name: str, words: str, known: Iterable[str], now: str) -> Metric:
    family = GaugeMetricFamily(f"shoal_{name}", words, labels=["state"])
    for state in sorted({*known, now}):
        family.add_metric([state], float(state == now))
    return family


def _at(told: Fields, path: str) -> Any:
    """The field at a dotted path; None where a part of it is missing."""
    value: Any = told
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
