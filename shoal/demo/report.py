"""What the demo measured, as a file for programs, a table for people and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from protocol.status import NodeStatus, SyncerStatus
from shoal.demo.project import HELDOUT_SEQUENCES
from tui.text import fmt

Row = tuple[str, str]


class Scored(Struct):
    """What `node.trainer.tools.score` wrote, as far as it is used here."""

    eval_loss: float
    sample: str = ""


class Alone(Struct):
    """What `node.trainer.tools.alone` wrote, as far as it is used here."""

    eval_loss: float
    steps: int
    tokens: int


@dataclass(slots=True)
class Comeback:
    """The learner that was killed, and what became of it."""

    name: str
    daemon_pid: int
    trainer_pid: int
    at_progress: float
    merged_before: int
    trainer_gone_s: float | None = None
    """Seconds from the kill until its trainer was gone; None if that took too long."""
    merged_again_s: float | None = None
    """Seconds from the kill until a push of its second life was merged."""
    first_life: NodeStatus | None = None


@dataclass(slots=True)
class Succession:
    """The leader that was killed, and who came after it."""

    leader: str
    at_progress: float
    merges_told: int
    """What the leader said last: as many merges must be known to whoever follows."""
    follower: str | None = None
    elected_s: float | None = None
    """Seconds from the kill until another one led; None if nobody did."""
    merges_kept: int = 0
    """Merges in the log of the follower as it began to lead."""
    merged_again_s: float | None = None
    """Seconds from the kill until it had merged."""


@dataclass(slots=True)
class Evidence:
    """Everything that a report is made from."""

    leaders: Sequence[SyncerStatus]
    """The last status of each syncer that led, in the order in which they did."""
    learners: Mapping[str, NodeStatus]
    """The last status of the newest life of each learner."""
    comeback: Comeback | None
    succession: Succession | None
    scored: Scored
    alone: Alone
    wall_s: float
    memory_bytes: int
    version: str
    left_behind: Sequence[str] = field(default_factory=list)


class Report(Struct, kw_only=True):
    """One demo in numbers. The first eleven names are promised; others may come and go."""

    eval_loss_start: float
    eval_loss_end: float
    eval_loss_alone: float
    merges: int
    participants_mean: float
    effective_h: float
    bytes_up_per_param: float
    bytes_down_per_param: float
    goodput: dict[str, float]
    wall_s: float
    killed_and_rejoined: bool
    version: str
    eval_start_global_step: int
    eval_loss_end_in_swarm: float | None
    """The same model as a learner measured it during the run."""
    parameters: int
    fragments: int
    tokens: int
    local_steps_configured: int
    quorum: int
    local_steps: dict[str, int]
    """Per learner, both lives of the killed one together."""
    merged_pushes: dict[str, int]
    busiest: str
    alone_steps: int
    alone_tokens: int
    killed: str
    killed_at_progress: float | None
    trainer_gone_s: float | None
    merged_again_s: float | None
    merged_after_rejoin: int
    weights_from_peers: int
    weights_from_syncer: int
    weights_held: int
    leader_killed: str
    leader_killed_at_progress: float | None
    elected: str
    elected_s: float | None
    merges_told: int
    merges_kept: int
    merged_again_after_election_s: float | None
    left_behind: list[str]
    memory_peak_mib: int
    sample: str


def local_steps(learners: Mapping[str, NodeStatus], comeback: Comeback | None) -> dict[str, int]:
    """Local steps per learner; those of a life that was cut short count too."""
    steps = {name: status.local_step for name, status in learners.items()}
    if comeback is not None and comeback.first_life is not None:
        steps[comeback.name] = steps.get(comeback.name, 0) + comeback.first_life.local_step
    return steps


def busiest(steps: Mapping[str, int]) -> tuple[str, int]:
    """The learner with most local steps, and how many."""
    name = max(sorted(steps), key=lambda one: steps[one])
    return name, steps[name]


def has_rejoined(comeback: Comeback | None, now: NodeStatus | None) -> bool:
    """Whether all held: its trainer went with it, it took its weights from other learners, and
    what it trained afterwards was merged."""
    return (
        comeback is not None
        and comeback.trainer_gone_s is not None
        and now is not None
        and now.pid != comeback.daemon_pid
        and now.weights_from_peers > 0
        and now.weights_held == now.project.fragments
        and now.merged > 0
    )


def make_report(found: Evidence) -> Report:
    """The report of a demo that came to its end."""
    syncer, comeback, change = found.leaders[-1], found.comeback, found.succession
    steps = local_steps(found.learners, comeback)
    name, _ = busiest(steps)
    back = found.learners.get(comeback.name) if comeback is not None else None
    has_begun_anew = back is not None and comeback is not None and back.pid != comeback.daemon_pid
    second = back if has_begun_anew else None
    merged = {one: status.merged for one, status in found.learners.items()}
    if comeback is not None and second is not None:
        merged[comeback.name] += comeback.merged_before
    return Report(
        eval_loss_start=syncer.swarm.curve[0][2],
        eval_loss_end=found.scored.eval_loss,
        eval_loss_alone=found.alone.eval_loss,
        merges=syncer.swarm.global_step,
        participants_mean=syncer.participants_mean,
        effective_h=_effective_h(found.leaders),
        bytes_up_per_param=_ratio(found.leaders, "push_bytes", "push_params"),
        bytes_down_per_param=_ratio(found.leaders, "payload_bytes", "payload_params"),
        goodput={one: status.goodput or 0.0 for one, status in found.learners.items()},
        wall_s=round(found.wall_s, 1),
        killed_and_rejoined=has_rejoined(comeback, back),
        version=found.version,
        eval_start_global_step=syncer.swarm.curve[0][0],
        eval_loss_end_in_swarm=syncer.swarm.best_loss,
        parameters=syncer.project.parameters,
        fragments=syncer.project.fragments,
        tokens=syncer.swarm.tokens,
        local_steps_configured=syncer.project.local_steps,
        quorum=syncer.project.quorum,
        local_steps=steps,
        merged_pushes=merged,
        busiest=name,
        alone_steps=found.alone.steps,
        alone_tokens=found.alone.tokens,
        killed=comeback.name if comeback is not None else "",
        killed_at_progress=comeback.at_progress if comeback is not None else None,
        trainer_gone_s=comeback.trainer_gone_s if comeback is not None else None,
        merged_again_s=comeback.merged_again_s if comeback is not None else None,
        merged_after_rejoin=second.merged if second is not None else 0,
        weights_from_peers=second.weights_from_peers if second is not None else 0,
        weights_from_syncer=second.weights_from_syncer if second is not None else 0,
        weights_held=second.weights_held if second is not None else 0,
        leader_killed=change.leader if change is not None else "",
        leader_killed_at_progress=change.at_progress if change is not None else None,
        elected=(change.follower or "") if change is not None else "",
        elected_s=change.elected_s if change is not None else None,
        merges_told=change.merges_told if change is not None else 0,
        merges_kept=change.merges_kept if change is not None else 0,
        merged_again_after_election_s=change.merged_again_s if change is not None else None,
        left_behind=list(found.left_behind),
        memory_peak_mib=found.memory_bytes >> 20,
        sample=found.scored.sample,
    )


def _ratio(leaders: Sequence[SyncerStatus], above: str, below: str) -> float:
    """Of sums over the merges of each."""
    total = sum(getattr(one, below) for one in leaders)
    return float(sum(getattr(one, above) for one in leaders) / max(1, total))


def _effective_h(leaders: Sequence[SyncerStatus]) -> float:
    """The mean over all pushes, whoever merged them."""
    weights = [one.push_params for one in leaders]
    total = sum(one.effective_h * weight for one, weight in zip(leaders, weights, strict=True))
    return total / max(1, sum(weights))


def failures(report: Report) -> list[str]:
    """One sentence for each thing that the demo set out to show and did not; empty is success."""
    said = []
    end = fmt.loss(report.eval_loss_end)
    # Written so that a loss which is no number fails too.
    if not report.eval_loss_end < report.eval_loss_start:
        start = fmt.loss(report.eval_loss_start)
        said.append(f"The held-out loss at the end, {end}, is not below the {start} at the start.")
    if not report.eval_loss_end < report.eval_loss_alone:
        alone = fmt.loss(report.eval_loss_alone)
        said.append(
            f"The held-out loss of the swarm, {end}, is not below the {alone} of one learner alone."
        )
    if not report.killed_and_rejoined:
        said.append(_why_not_rejoined(report))
    return said + _why_not_elected(report)


def _why_not_elected(report: Report) -> list[str]:
    if not report.leader_killed:
        return ["No leader was killed: the run was over too soon."]
    if not report.elected:
        return [f"Nobody was elected after {report.leader_killed} was killed."]
    if report.merges_kept < report.merges_told:
        return [
            f"{report.elected} was elected with {report.merges_kept:,} merges, and "
            f"{report.leader_killed} had told of {report.merges_told:,}."
        ]
    if report.merged_again_after_election_s is None:
        return [f"Nothing was merged after {report.elected} was elected."]
    return []


def _why_not_rejoined(report: Report) -> str:
    if not report.killed:
        return "No learner was killed: the run was over too soon."
    if report.trainer_gone_s is None:
        return f"The trainer of {report.killed} outlived its daemon."
    if not report.weights_held:
        return f"The learner {report.killed} was not back before the run was over."
    if not report.weights_from_peers:
        return f"The learner {report.killed} came back without weights from another learner."
    if report.weights_held < report.fragments:
        return (
            f"The learner {report.killed} came back with {report.weights_held} of "
            f"{report.fragments} fragments."
        )
    return f"Nothing that {report.killed} trained after it came back was merged."


def rows(report: Report) -> list[Row]:
    """The table at the end: what was measured, and what the number is."""
    shares = [f"{name} {fmt.percent(share)}" for name, share in report.goodput.items()]
    steps = [f"{name} {count:,}" for name, count in report.local_steps.items()]
    return [
        (
            "held-out loss, start",
            f"{fmt.loss(report.eval_loss_start)}  at global step {report.eval_start_global_step}",
        ),
        (
            "held-out loss, end",
            f"{fmt.loss(report.eval_loss_end)}  the exported model, loaded by transformers",
        ),
        (
            "held-out loss, alone",
            f"{fmt.loss(report.eval_loss_alone)}  one learner, no swarm, {report.alone_steps:,} "
            f"local steps: as many as {report.busiest}, the busiest, did",
        ),
        (
            "tokens",
            f"{fmt.count(report.tokens)} merged; alone {fmt.count(report.alone_tokens)}",
        ),
        ("local steps", ", ".join(steps)),
        ("merges", f"{report.merges:,}"),
        (
            "learners per merge",
            f"{report.participants_mean:.2f} of {len(report.local_steps)}; "
            f"a round needs {report.quorum}",
        ),
        (
            "effective H",
            f"{report.effective_h:.1f} local steps per merged push; configured "
            f"{report.local_steps_configured}",
        ),
        ("bytes per parameter", _wire(report)),
        ("goodput", f"{', '.join(shares)}; a throttled learner's rest counts as work"),
        ("killed and rejoined", _comeback(report)),
        ("leader killed", _succession(report)),
        ("memory", f"{fmt.bytes_of(report.memory_peak_mib << 20)} at most, all processes"),
        ("wall clock", fmt.duration(report.wall_s)),
    ]


def _wire(report: Report) -> str:
    return (
        f"{report.bytes_up_per_param:.2f} up in each push, "
        f"{report.bytes_down_per_param:.2f} down for each merge"
    )


def _comeback(report: Report) -> str:
    if not report.killed or report.killed_at_progress is None:
        return "no: nobody was killed"
    text = (
        f"{'yes' if report.killed_and_rejoined else 'no'}: {report.killed}, by SIGKILL at "
        f"{fmt.percent(report.killed_at_progress)}"
    )
    if report.trainer_gone_s is not None:
        text += f"; its trainer was gone {fmt.duration(report.trainer_gone_s)} later"
    if report.weights_held:
        text += (
            f"; back with {report.weights_from_peers} fragments from learners and "
            f"{report.weights_from_syncer} from the syncer"
        )
    if report.merged_again_s is not None:
        text += (
            f"; merged again {fmt.duration(report.merged_again_s)} after the kill, "
            f"{fmt.plural(report.merged_after_rejoin, 'push', 'pushes')} since"
        )
    return text


def _succession(report: Report) -> str:
    if report.leader_killed_at_progress is None:
        return "no: no leader was killed"
    text = f"{report.leader_killed}, by SIGKILL at {fmt.percent(report.leader_killed_at_progress)}"
    if report.elected_s is None:
        return f"{text}; nobody was elected"
    kept = "no merge lost" if report.merges_kept >= report.merges_told else "merges were lost"
    text += f"; {report.elected} led {fmt.duration(report.elected_s)} later, {kept}"
    if report.merged_again_after_election_s is not None:
        text += (
            f"; merged again {fmt.duration(report.merged_again_after_election_s)} after the kill"
        )
    return text


NEXT_STEPS: tuple[Row, ...] = (
    ("shoal host FOLDER --name NAME", "train on a text of your own, and let friends join"),
    ("shoal join LINK", "take part in a run of somebody else"),
    ("shoal demo --liar", "one of four lies, and changes nothing"),
    ("shoal demo --chaos all", "three syncers, three learners and eight faults"),
)
"""What to type after the demo, and what it does."""


def held_out_note() -> str:
    """What a held-out loss is here."""
    return f"Losses are nats per token over {HELDOUT_SEQUENCES} held-out sequences."
