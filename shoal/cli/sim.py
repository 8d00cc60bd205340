"""The verbs of `shoal sim`: what a cluster or a swarm would do, computed here and now."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from shoal.common.choices import (
    TERMINAL_ONLY,
    TRY_OUT,
    AtLeastOne,
    Files,
    HomeHere,
    several,
    switch,
)

if TYPE_CHECKING:
    from simulator.compare.setting import Setting

sim_app = App(
    name="sim",
    help="Simulate: clusters under failures, links, mixed speeds, borrowing.",
    group=TRY_OUT,
)

Positive = validators.Number(gt=0)
NotNegative = validators.Number(gte=0)
Seed = Annotated[int, Parameter(help="Same seed, same rows.", validator=NotNegative)]
Codec = Literal["bf16", "int8", "int4", "int2", "int1"]


@Parameter(name="*")
@dataclass(frozen=True)
class CostFlags:
    """What a failure costs; what is not given is as it was fitted to the paper."""

    slices: Annotated[
        int | None,
        Parameter(help="Groups of chips per learner that fail as one.", validator=AtLeastOne),
    ] = None
    notice_s: Annotated[
        float | None, Parameter(help="From a failure to the stop.", validator=NotNegative)
    ] = None
    shrink_s: Annotated[
        float | None, Parameter(help="Stop to go on with fewer slices.", validator=NotNegative)
    ] = None
    grow_s: Annotated[
        float | None, Parameter(help="Stop to take slices back in.", validator=NotNegative)
    ] = None
    return_s: Annotated[
        float | None, Parameter(help="Until a failed slice is back.", validator=NotNegative)
    ] = None
    admit_s: Annotated[
        float | None, Parameter(help="Wait for more slices to come back.", validator=NotNegative)
    ] = None
    restart_s: Annotated[
        float | None, Parameter(help="Restart without elasticity.", validator=NotNegative)
    ] = None
    checkpoint_s: Annotated[
        float | None,
        Parameter(
            help="Between checkpoints; work since is lost without elasticity.",
            validator=NotNegative,
        ),
    ] = None


FITTED_COSTS = CostFlags()


@sim_app.command
def goodput(
    *,
    chips: Annotated[
        tuple[int, ...],
        several("Cluster sizes.", AtLeastOne),
    ] = (150_000, 300_000, 600_000, 1_200_000, 2_400_000),
    learners: Annotated[
        tuple[int, ...],
        several("Numbers of learners.", AtLeastOne),
    ] = (1, 2, 4, 8, 16),
    mtbi_days: Annotated[
        float, Parameter(help="Mean days between failures of one chip.", validator=Positive)
    ] = 365.25,
    costs: CostFlags = FITTED_COSTS,
    quorum: Annotated[
        int, Parameter(help="Learners that must step to count as up.", validator=AtLeastOne)
    ] = 1,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Goodput and uptime under failures, beside the paper's table 1."""
    from shoal.sim import scale
    from simulator.scale.failures import FITTED

    given = {name: value for name, value in asdict(costs).items() if value is not None}
    return scale.goodput(
        chips, learners, mtbi_days * 86_400, replace(FITTED, **given), quorum, seed, files
    )


@sim_app.command
def bandwidth(
    *,
    parameters: Annotated[
        float, Parameter(help="Parameters of the model.", validator=Positive)
    ] = 5.05e9,
    learners: Annotated[
        int, Parameter(help="How many learners.", validator=validators.Number(gte=2))
    ] = 2,
    step_s: Annotated[float, Parameter(help="Seconds per local step.", validator=Positive)] = 1.0,
    sync_every: Annotated[
        int, Parameter(help="Local steps between merges of a fragment (H).", validator=AtLeastOne)
    ] = 24,
    fragments: Annotated[int, Parameter(help="Fragments (P).", validator=AtLeastOne)] = 24,
    overlap: Annotated[
        int, Parameter(help="Steps in which a fragment may travel (tau).", validator=AtLeastOne)
    ] = 2,
    codecs: Annotated[
        tuple[Codec, ...],
        several("Formats on the wire."),
    ] = ("bf16", "int8", "int4"),
    utilisation: Annotated[
        tuple[float, ...],
        several("Shares of time that must be work.", validators.Number(gt=0, lt=1)),
    ] = (0.5, 0.75, 0.9, 0.95, 0.99),
    link_gbps: Annotated[
        float | None, Parameter(help="Your link: what fits is marked.", validator=Positive)
    ] = None,
    files: Files = TERMINAL_ONLY,
) -> int:
    """The link that each method needs, beside the paper's table 13."""
    from shoal.sim import scale
    from simulator.scale.bandwidth import Link

    link = Link(parameters, learners, step_s, sync_every, fragments, overlap)
    return scale.bandwidth(link, codecs, utilisation, link_gbps, files)


@sim_app.command
def heterogeneous(
    *,
    fast: Annotated[int, Parameter(help="Fast learners.", validator=AtLeastOne)] = 4,
    slow: Annotated[int, Parameter(help="Slow learners.", validator=NotNegative)] = 4,
    gap: Annotated[
        float, Parameter(help="How much longer a slow step takes.", validator=NotNegative)
    ] = 0.18,
    variance: Annotated[
        float,
        Parameter(help="Relative deviation of a step.", validator=validators.Number(gte=0, lte=1)),
    ] = 0.10,
    grace: Annotated[
        float, Parameter(help="Steps that a merge waits for more.", validator=NotNegative)
    ] = 0.9,
    seed: Seed = 0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Learners of two speeds: K = M, K = 1, K = 1 with grace."""
    from shoal.sim import scale
    from simulator.scale.heterogeneous import Mix

    mix = Mix(fast, slow, gap, variance, grace)
    return scale.heterogeneous(mix, seed, files)


@sim_app.command
def scavenge(
    *,
    extra: Annotated[
        tuple[float, ...],
        several("Extra machines; 1 is as many again.", NotNegative),
    ] = (0.0, 0.25, 0.5, 1.0, 3.0),
    share: Annotated[
        float,
        Parameter(
            help="Share of the tokens trained with them.", validator=validators.Number(gte=0, lte=1)
        ),
    ] = 0.5,
    change_s: Annotated[
        float,
        Parameter(help="Seconds between changes, with as many again borrowed.", validator=Positive),
    ] = 7.5,
    stop_s: Annotated[
        float, Parameter(help="Stop of data parallel at a change.", validator=NotNegative)
    ] = 18.4,
    notice_s: Annotated[
        float, Parameter(help="Changes this close share a stop.", validator=NotNegative)
    ] = 10.0,
    files: Files = TERMINAL_ONLY,
) -> int:
    """Training time with borrowed machines."""
    from shoal.sim import scale
    from simulator.scale.scavenge import Borrowing

    return scale.scavenge(Borrowing(share, change_s, stop_s, notice_s), extra, files)


@Parameter(name="*")
@dataclass(frozen=True)
class Cluster:
    """The learners and links of a comparison, and its budget."""

    learners: Annotated[
        int, Parameter(help="Learners, or devices.", validator=validators.Number(gte=1, lte=64))
    ] = 4
    steps: Annotated[
        int, Parameter(help="Local steps of each learner: the budget.", validator=AtLeastOne)
    ] = 600
    link_mbps: Annotated[
        float, Parameter(help="Megabits per second of every link.", validator=Positive)
    ] = 1000.0
    latency_ms: Annotated[
        float, Parameter(help="Milliseconds, one way, between any two.", validator=NotNegative)
    ] = 30.0
    step_s: Annotated[
        float, Parameter(help="Virtual seconds of a local step.", validator=Positive)
    ] = 1.0
    clock_parameters: Annotated[
        float,
        Parameter(
            help="Parameters of the model that the virtual clock sends; the one that is trained is "
            "far smaller.",
            validator=AtLeastOne,
        ),
    ] = 1e8
    mtbi: Annotated[
        float,
        Parameter(
            help="Seconds between two interruptions of a learner, for algorithms that fail; "
            "0: none.",
            validator=NotNegative,
        ),
    ] = 600.0
    away: Annotated[float, Parameter(help="Seconds until it is back.", validator=Positive)] = 60.0

    def setting(self, seed: int) -> Setting:
        """As the simulator takes it."""
        from simulator.compare.setting import Setting

        return Setting(
            seed=seed,
            learners=self.learners,
            steps=self.steps,
            step_s=self.step_s,
            link_mbps=self.link_mbps,
            latency_s=self.latency_ms / 1000,
            clock_parameters=round(self.clock_parameters),
            mtbi_s=self.mtbi,
            away_s=self.away,
        )


AS_USUAL = Cluster()


@sim_app.command
def compare(
    algorithms: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones; all by default. A wrong name lists them.", negative=""),
    ] = (),
    *,
    seeds: Annotated[int, Parameter(help="Paired seeds.", validator=AtLeastOne)] = 3,
    seed: Annotated[int, Parameter(help="The first of them.", validator=NotNegative)] = 1,
    cluster: Cluster = AS_USUAL,
    project: Annotated[
        Path | None, Parameter(help="A project file to compare on, instead of the built-in one.")
    ] = None,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            help="KEY=VALUE: change the built-in project, as in rounds.local_steps=8; repeatable.",
            negative="",
        ),
    ] = (),
    results: Annotated[
        Path, Parameter(help="Folder of finished runs; those in it are not done again.")
    ] = Path("comparison"),
    files: Files = TERMINAL_ONLY,
    home: HomeHere,
) -> int:
    """Train one real model in several ways: loss, bytes and virtual time side by side.

    Same text, same inner loop, equal tokens, paired seeds. Every finished run is kept: after an
    interruption, the same command goes on.
    """
    from shoal.sim import compare_command

    asked = compare_command.Comparison(
        algorithms=algorithms,
        seeds=seeds,
        setting=cluster.setting(seed),
        project=project,
        changes=set,
        results=results,
        files=files,
    )
    return compare_command.run(asked, home)


@sim_app.command
def run(
    scenario: Annotated[
        str, Parameter(help="A name that `shoal sim scenarios` lists, or a TOML file.")
    ],
    *,
    seed: Annotated[int, Parameter(help="Same seed, same run.", validator=NotNegative)] = 0,
    until: Annotated[
        str | None,
        Parameter(
            help="Virtual length, such as 1h, of `voters` how long faults come; else the "
            "scenario's own."
        ),
    ] = None,
    trace: Annotated[
        Path | None, Parameter(help="Also write every fact, routine ones too, to this file.")
    ] = None,
    tape: Annotated[
        Path | None,
        Parameter(help="Also record every daemon in this new folder, for `shoal replay`."),
    ] = None,
    quiet: Annotated[bool, switch("Only the summary.")] = False,
) -> int:
    """Run a swarm in virtual time and check what must hold; exit code 1 if it does not."""
    from shoal.common import durations
    from shoal.sim import run_command

    until_s = None if until is None else durations.seconds(until)
    return run_command.run(
        scenario, seed=seed, until_s=until_s, trace=trace, tape=tape, is_quiet=quiet
    )


@sim_app.command
def scenarios() -> int:
    """List the scenarios that are built in."""
    from shoal.sim import run_command

    return run_command.list_scenarios()


@sim_app.command
def sweep(
    *,
    seeds: Annotated[int, Parameter(help="How many.", validator=AtLeastOne)] = 100,
    first: Annotated[int, Parameter(help="The first of them.", validator=NotNegative)] = 0,
    jobs: Annotated[int, Parameter(help="Processes at a time.", validator=AtLeastOne)] = 2,
    scenario: Annotated[
        str | None,
        Parameter(
            help="Only this one; by default random swarms, and voters alone every fourth seed."
        ),
    ] = None,
) -> int:
    """Run many seeds under faults; exit code 1, and how to see each again, if a promise breaks."""
    from shoal.sim import run_command

    return run_command.sweep(seeds=seeds, first=first, jobs=jobs, scenario=scenario)
