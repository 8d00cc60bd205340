"""The verbs of the `shoal` command: names, options, help. What they do lives elsewhere.

Anything heavy is imported inside the verb that needs it: `shoal --help` and `shoal status` must
answer at once. Nothing here asks a question: every choice is an option or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Group, Parameter, validators

from host.files.home import DEFAULT_INSTANCE, HOME_VARIABLE, DaemonRole, Home
from host.options import DONATE_MBPS, LEARNER_TAPE_MIB_MAX
from host.runtime import kernel_cache
from host.runtime.log_lines import Level
from protocol.errors import UserError
from shoal.cli.config import config_app
from shoal.cli.contributions import contributions_app
from shoal.cli.hosting import syncer_app, witness_app
from shoal.cli.identity import identity_app
from shoal.cli.project import project_app
from shoal.cli.service import service_app
from shoal.cli.sim import sim_app
from shoal.common import extras, failures, versions
from shoal.common.choices import (
    HOST,
    TAKE_PART,
    THIS_MACHINE,
    TRY_OUT,
    AtLeastOne,
    BulkPort,
    HomeHere,
    Instance,
    Listen,
    LogJson,
    MonitorPlace,
    Port,
    TapeAt,
    monitor_at,
    say,
    switch,
    tape_options,
)
from shoal.common.exit_codes import ExitCode, epilogue


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainerFlags:
    """What overrides the owner's settings of these names in [learner]."""

    threads: Annotated[
        int | None, Parameter(help="CPU threads for training.", validator=AtLeastOne)
    ] = None
    micro_batch: Annotated[
        int | None,
        Parameter(
            help="Sequences at once on the device; measured by default.", validator=AtLeastOne
        ),
    ] = None
    evaluate: Annotated[
        bool | None, Parameter(help="Measure held-out loss when asked (--no-evaluate: never).")
    ] = None
    moments: Annotated[
        bool | None,
        Parameter(
            help="Share optimizer state with other learners where the project wants it "
            "(--no-moments: neither take nor give)."
        ),
    ] = None
    device: Annotated[
        str | None,
        Parameter(help="cpu, cuda, cuda:1 ..., or several: cuda:0,cuda:1; the best by default."),
    ] = None
    ranks: Annotated[
        int | None,
        Parameter(
            help="Devices that train as one, a process each; as many as --device names.",
            validator=validators.Number(gte=1, lte=64),
        ),
    ] = None
    compile: Annotated[
        bool | None, switch("Let torch.compile speed up the model, where it can.")
    ] = None


AS_SET = TrainerFlags()

Chaos = Literal[
    "kill-leader",
    "kill-learners",
    "stop-leader",
    "partition",
    "slow-link",
    "flapping-node",
    "disk-full",
    "storm",
    "all",
]

app = App(
    name="shoal",
    help="Train neural networks together on volunteered machines.",
    help_epilogue=epilogue(),
    help_format="plaintext",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
app.command(project_app)
app.command(contributions_app)
app.command(identity_app)
app.command(config_app)
app.command(service_app)
app.command(sim_app)
app.command(syncer_app)
app.command(witness_app)
app.register_install_completion_command(help="Install completion for this shell.")
EVERYWHERE = Group("Everywhere", sort_key=9)
app.meta.group_parameters = app.meta.group_commands = app.group_commands = EVERYWHERE


def run(arguments: Sequence[str]) -> int:
    """The exit code of the verb that these arguments name. Errors of verbs are raised."""
    try:
        code = app.meta(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from shoal.common import refusals

        failures.complain(refusals.words(error))
        return ExitCode.WRONG_INPUT
    return code if isinstance(code, int) else ExitCode.DONE


def check(words: Sequence[str]) -> None:
    """UserError if the command would not understand these words."""
    try:
        app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from shoal.common import refusals

        raise UserError(refusals.words(error)) from error


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    home: Annotated[
        Path | None,
        Parameter(
            help="Directory for keys, sockets, caches and logs.",
            env_var=HOME_VARIABLE,
            show_env_var=True,
        ),
    ] = None,
) -> object:
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    here = Home(home)
    failures.use_home(here)
    kernel_cache.use(here.kernels())
    extras.require_for(tokens)
    given = {"home": here, "check": check}
    return command(*bound.args, **bound.kwargs, **{name: given[name] for name in ignored})


app.version = versions.line


@app.command(group=TAKE_PART)
def join(
    link: Annotated[str, Parameter(help="The join link, from `shoal:` to its end.")],
    *,
    name: Annotated[
        str | None,
        Parameter(help="The name that others see; part of your key by default."),
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    port: Port = 0,
    bulk_port: BulkPort = None,
    listen: Listen = "0.0.0.0",
    duty: Annotated[
        float,
        Parameter(
            help="Share of the time in which training may run.",
            validator=validators.Number(gt=0, lte=1),
        ),
    ] = 1.0,
    trainer: TrainerFlags = AS_SET,
    donate_mbps: Annotated[
        float,
        Parameter(
            help="Megabits per second at which others may fetch weights here.",
            validator=AtLeastOne,
        ),
    ] = DONATE_MBPS,
    data: Annotated[
        str | None,
        Parameter(help="Where the project's text is on this machine, if you have it in files."),
    ] = None,
    tape: TapeAt = "on",
    monitor: MonitorPlace = None,
    log_json: LogJson = None,
    anyway: Annotated[bool, switch("Join even if this machine is too small or too slow.")] = False,
    home: HomeHere,
) -> int:
    """Lend this machine to a project, until it is done, Ctrl-C or `shoal stop`."""
    from shoal.machine import run_commands

    return run_commands.join(
        link,
        home,
        instance=instance,
        flags={
            "learner.name": name,
            "learner.bulk_port": bulk_port,
            **{f"learner.{key}": value for key, value in asdict(trainer).items()},
        },
        port=port,
        listen_host=listen,
        duty_frac=duty,
        donate_mbps=donate_mbps,
        data=data,
        tape=tape_options(tape, LEARNER_TAPE_MIB_MAX),
        monitor=monitor_at(monitor),
        log_json=log_json,
        anyway=anyway,
    )


@app.command(group=TAKE_PART)
def status(
    *,
    json: Annotated[bool, switch("Print one JSON list; with --watch one per line.")] = False,
    watch: Annotated[bool, switch("Look again every second.")] = False,
    instance: Annotated[str | None, Parameter(help="Only daemons with this name.")] = None,
    home: HomeHere,
) -> int:
    """Show the status of the daemons on this machine."""
    from shoal.machine import status_command

    return status_command.status(home, instance=instance, as_json=json, is_watching=watch)


@app.command(group=TAKE_PART)
def tui(
    *,
    host: Annotated[
        tuple[str, ...],
        Parameter(help="An instance or a control socket; repeatable."),
    ] = (),
    link: Annotated[str | None, Parameter(help="Watch a swarm by its join link.")] = None,
    replay: Annotated[Path | None, Parameter(help="Show a recording.")] = None,
    record: Annotated[
        Path | None, Parameter(help="Also write what is shown to a recording.")
    ] = None,
    serve: Annotated[bool, switch("Show it in a browser on this machine, read-only.")] = False,
    port: Annotated[int, Parameter(help="Port for --serve.")] = 8000,
    once: Annotated[bool, switch("Print one screen as text.")] = False,
    readonly: Annotated[bool, switch("Refuse commands to daemons.")] = False,
    ascii: Annotated[bool, switch("Use plain characters only.")] = False,
    home: HomeHere,
) -> int:
    """Watch the swarm in the terminal."""
    from shoal.machine import tui_command

    options = tui_command.TuiOptions(
        hosts=host,
        link=link,
        replay=replay,
        record=record,
        is_once=once,
        is_readonly=readonly,
        is_ascii=ascii,
    )
    return tui_command.serve(home, options, port=port) if serve else tui_command.look(home, options)


@app.command(group=TAKE_PART)
def stop(
    *,
    instance: Annotated[str | None, Parameter(help="Only daemons with this name.")] = None,
    role: Annotated[DaemonRole | None, Parameter(help="Only daemons of this role.")] = None,
    home: HomeHere,
) -> int:
    """Ask the daemons on this machine to stop cleanly, and wait until they have."""
    from shoal.machine import run_commands

    return run_commands.stop(home, role=role, instance=instance)


@app.command(group=TAKE_PART)
def pause(
    length: Annotated[
        str | None, Parameter(help="How long: 90s, 15m, 2h, 1d; until resumed by default.")
    ] = None,
    *,
    instance: Annotated[str | None, Parameter(help="Only learners with this name.")] = None,
    home: HomeHere,
) -> int:
    """Stop local steps for a while; weights stay current, nothing is lost."""
    from shoal.machine import run_commands

    return run_commands.pause(home, length, instance=instance)


@app.command(group=TAKE_PART)
def resume(
    *,
    instance: Annotated[str | None, Parameter(help="Only learners with this name.")] = None,
    home: HomeHere,
) -> int:
    """Go on after a pause."""
    from shoal.machine import run_commands

    return run_commands.resume(home, instance=instance)


@app.command(group=TAKE_PART)
def finish(
    *,
    instance: Annotated[str | None, Parameter(help="Only learners with this name.")] = None,
    home: HomeHere,
) -> int:
    """Push what is done, then stop, within a minute."""
    from shoal.machine import run_commands

    return run_commands.finish(home, instance=instance)


@app.command(group=HOST)
def export(
    project: Annotated[
        Path | None,
        Parameter(help="A signed project; not needed where the syncer has served only one."),
    ] = None,
    *,
    to: Annotated[Path, Parameter(help="Directory for the model; must not hold one yet.")],
    checkpoint: Annotated[
        str, Parameter(help="best, latest, or the log index of a checkpoint.")
    ] = "best",
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Write a syncer's checkpoint as a model that `transformers` loads."""
    from shoal.machine import export_command

    return say(
        export_command.export(project, home, to=to, checkpoint=checkpoint, instance=instance)
    )


@app.command(group=TRY_OUT)
def replay(
    tape: Annotated[Path, Parameter(help="A tape, or a directory with those of several daemons.")],
    *,
    until: Annotated[
        int | None, Parameter(help="Ignore everything after this round.", validator=AtLeastOne)
    ] = None,
    explain: Annotated[
        int | None,
        Parameter(
            help="Explain this round: who took part, with which weight, who was late and why.",
            validator=AtLeastOne,
        ),
    ] = None,
    level: Annotated[
        Literal["audit", "merge", "retrain"], Parameter(help="Go up to this level.")
    ] = "retrain",
    project: Annotated[
        Path | None, Parameter(help="A signed project that the tapes must belong to.")
    ] = None,
    json: Annotated[Path | None, Parameter(help="Write the figures to this file.")] = None,
    home: HomeHere,
) -> int:
    """Run a tape again, and say whether the result is the same.

    Exit code 0: all that was tried came out as recorded. 1: something did not; the first event
    is named. 2: the tape cannot be read, or is another project's.
    """
    from shoal.sim import replay_command

    return replay_command.run(
        tape,
        home,
        project=project,
        until=until,
        explain=explain,
        level=level,
        json=json,
    )


@app.command(group=TRY_OUT)
def demo(
    *,
    report: Annotated[Path | None, Parameter(help="Write what was measured to this file.")] = None,
    chaos: Annotated[
        Chaos | None,
        Parameter(help="Three syncers instead of one, and this fault; a verdict at the end."),
    ] = None,
    json: Annotated[
        Path | None, Parameter(help="With --chaos: write the verdict to this file.")
    ] = None,
    minutes: Annotated[
        float | None,
        Parameter(
            help="End after this long at the latest; a storm lasts nearly until then.",
            validator=validators.Number(gt=0),
        ),
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of a storm: the same faults in the same order.")] = 0,
    keep: Annotated[bool, switch("Keep the temporary directory.")] = False,
) -> int:
    """Train a small model here with a syncer and several learners, and show how it goes.

    With --chaos: inject faults into a swarm, and judge how it recovers. Exit code 1: a
    scenario failed.
    """
    if chaos is not None:
        if report is not None:
            raise UserError("--report is for the demo without --chaos; use --json.")
        from shoal.chaos import command as disturbance

        return disturbance.run(chaos, json=json, minutes=minutes, seed=seed, keep=keep)
    if json is not None:
        raise UserError("--json is for --chaos; use --report.")
    from shoal.demo import command as demonstration

    return demonstration.run(report=report, minutes=minutes, keep=keep)


@app.command(group=THIS_MACHINE)
def init(*, home: HomeHere) -> int:
    """Create what is missing here: home, key, and a settings file that explains itself."""
    from shoal.machine import config_command

    return say(config_command.begin(home))


@app.command(group=THIS_MACHINE)
def doctor(
    project: Annotated[
        str | None,
        Parameter(help="A join link, a signed project, or the name of one joined here."),
    ] = None,
    *,
    device: Annotated[str | None, Parameter(help="Try this one: cpu, cuda, cuda:1 ...")] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="Port to check; a syncer's by default.",
            validator=validators.Number(gte=1, lte=65535),
        ),
    ] = None,
    quick: Annotated[bool, switch("Skip network engine, swarm and training.")] = False,
    json: Annotated[bool, switch("Print one JSON object.")] = False,
    home: HomeHere,
) -> int:
    """Check this machine and, before joining a project, whether it can take part.

    Exit code 0: it can. 1: something is in trouble; the line says what to do.
    """
    from shoal.doctor import command as examination

    return examination.run(home, project, device=device, port=port, is_quick=quick, as_json=json)


@app.command(group=TAKE_PART, name="run")
def run_again(
    project: Annotated[
        str | None,
        Parameter(
            help="Name of a project joined here, or how its id begins; the last one by default."
        ),
    ] = None,
    *,
    instance: Instance = DEFAULT_INSTANCE,
    log_json: LogJson = None,
    home: HomeHere,
) -> int:
    """Continue with what was joined here before: no link needed, same options."""
    from shoal.machine import run_commands

    return run_commands.run(home, project, instance=instance, log_json=log_json)


@app.command(group=TAKE_PART)
def leave(
    project: Annotated[
        str | None,
        Parameter(help="Name of a project joined here, or how its id begins."),
    ] = None,
    *,
    purge: Annotated[bool, switch("Also remove its text, tape and logs; never the key.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Leave a project: push what is done, stop, and forget that it was joined."""
    from shoal.machine import leave_command

    return leave_command.leave(home, project, instance=instance, is_purging=purge)


@app.command(group=THIS_MACHINE)
def version(
    *,
    json: Annotated[bool, switch("Print one JSON object.")] = False,
) -> int:
    """Print what is installed: Shoal, its protocol, the network engine, PyTorch."""
    from shoal.common import versions

    return say(versions.shown(as_json=json))


@app.command(group=TAKE_PART)
def logs(
    *,
    follow: Annotated[bool, switch("Keep printing new lines.", name=["--follow", "-f"])] = False,
    lines: Annotated[
        int,
        Parameter(
            name=["--lines", "-n"],
            help="How many of the newest lines.",
            validator=validators.Number(gte=0),
        ),
    ] = 50,
    level: Annotated[Level, Parameter(help="Skip less important lines.")] = "info",
    role: Annotated[DaemonRole | None, Parameter(help="Only daemons of this role.")] = None,
    instance: Annotated[str | None, Parameter(help="Only daemons with this name.")] = None,
    json: Annotated[
        bool | None,
        Parameter(
            help="Print JSON lines, or text; text on a terminal, JSON otherwise.",
            negative="--text",
        ),
    ] = None,
    home: HomeHere,
) -> int:
    """Print what the daemons of this machine wrote to their logs, also after they ended."""
    from shoal.machine import logs_command

    return logs_command.show(
        home,
        role=role,
        instance=instance,
        level=level,
        lines=lines,
        is_following=follow,
        is_json=json,
    )
