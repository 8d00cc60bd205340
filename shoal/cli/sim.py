"""The verbs of `shoal sim`: what a cluster would do, computed here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from shoal.common.choices import TRY_OUT, AtLeastOne, HomeHere

sim_app = App(
    name="sim",
    help="Simulate: clusters under failures, links, mixed speeds, borrowing.",
    group=TRY_OUT,
)

Positive = validators.Number(gt=0)
NotNegative = validators.Number(gte=0)
JsonFile = Annotated[Path | None, Parameter(name="--json", help="Also write the rows as JSON.")]
CsvFile = Annotated[Path | None, Parameter(name="--csv", help="Also write the rows as CSV.")]
PlotFile = Annotated[Path | None, Parameter(name="--plot", help="Also draw them, as a PNG.")]
Seed = Annotated[int, Parameter(help="Same seed, same rows.", validator=NotNegative)]
Slices = Annotated[
    int | None,
    Parameter(help="Groups of chips per learner that fail as one.", validator=AtLeastOne),
]
NoticeS = Annotated[
    float | None, Parameter(help="From a failure to the stop.", validator=NotNegative)
]
ShrinkS = Annotated[
    float | None, Parameter(help="Stop to go on with fewer slices.", validator=NotNegative)
]
GrowS = Annotated[
    float | None, Parameter(help="Stop to take slices back in.", validator=NotNegative)
]
ReturnS = Annotated[
    float | None, Parameter(help="Until a failed slice is back.", validator=NotNegative)
]
AdmitS = Annotated[
    float | None, Parameter(help="Wait for more slices to come back.", validator=NotNegative)
]
RestartS = Annotated[
    float | None, Parameter(help="Restart without elasticity.", validator=NotNegative)
]
Codec = Literal["bf16", "int8", "int4", "int2", "int1"]


@sim_app.command
def goodput(
    *,
    chips: Annotated[
        tuple[int, ...],
        Parameter(help="Cluster sizes.", validator=AtLeastOne, negative="", consume_multiple=True),
    ] = (150_000, 300_000, 600_000, 1_200_000, 2_400_000),
    learners: Annotated[
        tuple[int, ...],
        Parameter(
            help="Numbers of learners.", validator=AtLeastOne, negative="", consume_multiple=True
        ),
    ] = (1, 2, 4, 8, 16),
    mtbi_days: Annotated[
        float, Parameter(help="Mean days between failures of one chip.", validator=Positive)
    ] = 365.25,
    slices: Slices = None,
    notice_s: NoticeS = None,
    shrink_s: ShrinkS = None,
    grow_s: GrowS = None,
    return_s: ReturnS = None,
    admit_s: AdmitS = None,
    restart_s: RestartS = None,
    checkpoint_s: Annotated[
        float | None,
        Parameter(
            help="Between checkpoints; work since is lost without elasticity.",
            validator=NotNegative,
        ),
    ] = None,
    quorum: Annotated[
        int, Parameter(help="Learners that must step to count as up.", validator=AtLeastOne)
    ] = 1,
    seed: Seed = 0,
    json: JsonFile = None,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> int:
    """Goodput and uptime under failures, beside the paper's table 1."""
    from dataclasses import replace

    from shoal.sim import scale
    from simulator.scale.failures import FITTED

    given: dict[str, Any] = {
        "slices": slices,
        "notice_s": notice_s,
        "shrink_s": shrink_s,
        "grow_s": grow_s,
        "return_s": return_s,
        "admit_s": admit_s,
        "restart_s": restart_s,
        "checkpoint_s": checkpoint_s,
    }
    costs = replace(FITTED, **{name: value for name, value in given.items() if value is not None})
    return scale.goodput(
        chips, learners, mtbi_days * 86_400, costs, quorum, seed, scale.Files(json, csv, plot)
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
        Parameter(help="Formats on the wire.", negative="", consume_multiple=True),
    ] = ("bf16", "int8", "int4"),
    utilisation: Annotated[
        tuple[float, ...],
        Parameter(
            help="Shares of time that must be work.",
            validator=validators.Number(gt=0, lt=1),
            negative="",
            consume_multiple=True,
        ),
    ] = (0.5, 0.75, 0.9, 0.95, 0.99),
    link_gbps: Annotated[
        float | None, Parameter(help="Your link: what fits is marked.", validator=Positive)
    ] = None,
    json: JsonFile = None,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> int:
    """The link that each method needs, beside the paper's table 13."""
    from shoal.sim import scale
    from simulator.scale.bandwidth import Link

    link = Link(parameters, learners, step_s, sync_every, fragments, overlap)
    return scale.bandwidth(link, codecs, utilisation, link_gbps, scale.Files(json, csv, plot))


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
    json: JsonFile = None,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> int:
    """Learners of two speeds: K = M, K = 1, K = 1 with grace."""
    from shoal.sim import scale
    from simulator.scale.heterogeneous import Mix

    mix = Mix(fast, slow, gap, variance, grace)
    return scale.heterogeneous(mix, seed, scale.Files(json, csv, plot))


@sim_app.command
def scavenge(
    *,
    extra: Annotated[
        tuple[float, ...],
        Parameter(
            help="Extra machines; 1 is as many again.",
            validator=NotNegative,
            negative="",
            consume_multiple=True,
        ),
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
    json: JsonFile = None,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> int:
    """Training time with borrowed machines."""
    from shoal.sim import scale
    from simulator.scale.scavenge import Borrowing

    return scale.scavenge(
        Borrowing(share, change_s, stop_s, notice_s), extra, scale.Files(json, csv, plot)
    )


Algorithms = Annotated[
    tuple[str, ...],
    Parameter(help="Which ones; all by default. A wrong name lists them.", negative=""),
]
Budget = Annotated[
    int, Parameter(help="Local steps of each learner: the budget.", validator=AtLeastOne)
]
Devices = Annotated[
    int, Parameter(help="Learners, or devices.", validator=validators.Number(gte=1, lte=64))
]
ClockParameters = Annotated[
    float,
    Parameter(
        help="Parameters of the model that the virtual clock sends; the one that is trained is "
        "far smaller.",
        validator=AtLeastOne,
    ),
]
Interruptions = Annotated[
    float,
    Parameter(
        help="Seconds between two interruptions of a learner, for algorithms that fail; 0: none.",
        validator=NotNegative,
    ),
]
Away = Annotated[float, Parameter(help="Seconds until it is back.", validator=Positive)]
Link = Annotated[float, Parameter(help="Megabits per second of every link.", validator=Positive)]
Latency = Annotated[
    float, Parameter(help="Milliseconds, one way, between any two.", validator=NotNegative)
]
StepTime = Annotated[float, Parameter(help="Virtual seconds of a local step.", validator=Positive)]
ProjectHere = Annotated[
    Path | None, Parameter(help="A project file to compare on, instead of the built-in one.")
]
Changes = Annotated[
    tuple[str, ...],
    Parameter(
        help="KEY=VALUE: change the built-in project, as in rounds.local_steps=8; repeatable.",
        negative="",
    ),
]
Results = Annotated[
    Path, Parameter(help="Folder of finished runs; those in it are not done again.")
]


@sim_app.command
def compare(
    algorithms: Algorithms = (),
    *,
    seeds: Annotated[int, Parameter(help="Paired seeds.", validator=AtLeastOne)] = 3,
    seed: Annotated[int, Parameter(help="The first of them.", validator=NotNegative)] = 1,
    learners: Devices = 4,
    steps: Budget = 600,
    link_mbps: Link = 1000.0,
    latency_ms: Latency = 30.0,
    step_s: StepTime = 1.0,
    clock_parameters: ClockParameters = 1e8,
    mtbi: Interruptions = 600.0,
    away: Away = 60.0,
    project: ProjectHere = None,
    set: Changes = (),
    results: Results = Path("comparison"),
    json: JsonFile = None,
    csv: CsvFile = None,
    plot: PlotFile = None,
    home: HomeHere,
) -> int:
    """Train one real model in several ways: loss, bytes and virtual time side by side.

    Same text, same inner loop, equal tokens, paired seeds. Every finished run is kept: after an
    interruption, the same command goes on.
    """
    from shoal.sim import compare_command, scale
    from simulator.compare.setting import Setting

    setting = Setting(
        seed=seed,
        learners=learners,
        steps=steps,
        step_s=step_s,
        link_mbps=link_mbps,
        latency_s=latency_ms / 1000,
        clock_parameters=round(clock_parameters),
        mtbi_s=mtbi,
        away_s=away,
    )
    asked = compare_command.Comparison(
        algorithms=algorithms,
        seeds=seeds,
        setting=setting,
        project=project,
        changes=set,
        results=results,
        files=scale.Files(json, csv, plot),
    )
    return compare_command.run(asked, home)
