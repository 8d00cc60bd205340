"""The `demo` verb: a whole project on this machine, undisturbed or under faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import validators

from protocol.errors import UserError
from shoal.common.choices import option, switch

Chaos = Literal[
    "kill-leader",
    "kill-merger",
    "kill-learners",
    "stop-leader",
    "partition",
    "slow-link",
    "flapping-node",
    "disk-full",
    "storm",
    "all",
]


def demo(
    *,
    report: Annotated[Path | None, option("Write what was measured to this file.")] = None,
    chaos: Annotated[
        Chaos | None, option("Three syncers instead of one, and this fault; a verdict at the end.")
    ] = None,
    json: Annotated[Path | None, option("With --chaos: write the verdict to this file.")] = None,
    minutes: Annotated[
        float | None,
        option(
            "End after this long at the latest; a storm lasts nearly until then.",
            validators.Number(gt=0),
        ),
    ] = None,
    seed: Annotated[int, option("Seed of a storm: the same faults in the same order.")] = 0,
    liar: Annotated[
        bool, switch("One learner of four lies: without it, with it, and merged by plain mean.")
    ] = False,
    finetune: Annotated[
        bool, switch("Two learners tune a published chat model on chats, with an adapter.")
    ] = False,
    keep: Annotated[bool, switch("Keep the temporary directory.")] = False,
) -> int:
    """Plays the demo, or with `chaos` disturbs a swarm and judges how it recovers."""
    chosen = {"--liar": liar, "--finetune": finetune, "--chaos": chaos is not None}
    if len(several := [name for name, is_chosen in chosen.items() if is_chosen]) > 1:
        raise UserError(f"{' and '.join(several)} are demos of their own: choose one.")
    if chaos is not None:
        if report is not None:
            raise UserError("--report is for the demo without --chaos; use --json.")
        from shoal.chaos import command as disturbance

        return disturbance.run(chaos, json=json, minutes=minutes, seed=seed, keep=keep)
    if json is not None:
        raise UserError("--json is for --chaos; use --report.")
    if finetune:
        from shoal.demo import finetune_command

        return finetune_command.run(report=report, minutes=minutes, keep=keep)
    if liar:
        from shoal.demo import liar_command

        return liar_command.run(report=report, minutes=minutes, keep=keep)
    from shoal.demo import command as demonstration

    return demonstration.run(report=report, minutes=minutes, keep=keep)
