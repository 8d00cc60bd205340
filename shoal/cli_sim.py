"""The verbs of `shoal sim`: what a swarm would do, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from shoal.choices import AtLeastOne, HomeHere

sim_app = App(name="sim", help="Try things out in virtual time, without a network.")

Positive = validators.Number(gt=0)
NotNegative = validators.Number(gte=0)


@sim_app.command
def compare(
    algorithms: Annotated[
        tuple[str, ...],
        Parameter(help="Which ones; all by default. A wrong name lists them.", negative=""),
    ] = (),
    *,
    seeds: Annotated[int, Parameter(help="Paired seeds.", validator=AtLeastOne)] = 3,
    seed: Annotated[int, Parameter(help="The first of them.", validator=NotNegative)] = 1,
    learners: Annotated[
        int, Parameter(help="Learners, or devices.", validator=validators.Number(gte=1, lte=64))
    ] = 4,
    steps: Annotated[
        int, Parameter(help="Local steps of each learner: the budget.", validator=AtLeastOne)
    ] = 600,
    link_mbps: Annotated[
        float, Parameter(help="Megabits per second of every link.", validator=Positive)
    ] = 1000.0,
    latency_ms: Annotated[
        float, Parameter(help="One way, between any two.", validator=NotNegative)
    ] = 30.0,
    step_s: Annotated[
        float, Parameter(help="Virtual seconds of a local step.", validator=Positive)
    ] = 1.0,
    clock_parameters: Annotated[
        float,
        Parameter(
            help="Parameters of the model that the virtual clock sends; the one that is trained is "
            "far smaller.",
            validator=AtLeastOne,
        ),
    ] = 1e8,
    mtbi: Annotated[
        float,
        Parameter(
            help="Seconds between two interruptions of a learner, for algorithms that fail; 0: "
            "none.",
            validator=NotNegative,
        ),
    ] = 600.0,
    away: Annotated[float, Parameter(help="Seconds until it is back.", validator=Positive)] = 60.0,
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
    json: Annotated[Path | None, Parameter(help="Write all rows to this file.")] = None,
    csv: Annotated[Path | None, Parameter(help="Write all rows to this file.")] = None,
    plot: Annotated[Path | None, Parameter(help="Draw a PNG: loss over virtual time.")] = None,
    home: HomeHere,
) -> int:
    """Train one real model in several ways, and compare held-out loss, bytes and virtual time.

    Same text, same inner loop, equal tokens, paired seeds. Every finished run is kept in the folder
    of results: after an interruption, the same command goes on where it was.
    """
    from shoal import comparing
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
    asked = comparing.Comparison(
        algorithms=algorithms,
        seeds=seeds,
        setting=setting,
        project=project,
        changes=set,
        results=results,
        json=json,
        csv=csv,
        plot=plot,
    )
    return comparing.run(asked, home)
