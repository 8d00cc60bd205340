"""The verbs of the `shoal` command: where each is, and what help says of it.

A verb is imported once it is asked for: `shoal --help` and `shoal status` must answer at once.
Every choice is an option or a file; the one question, at a terminal alone, is that of
`shoal join --nearby`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Group, Parameter

from host.files.home import HOME_VARIABLE, Home
from host.runtime import kernel_cache
from protocol.errors import UserError
from shoal.common import extras, failures, versions
from shoal.common.choices import HOST, TAKE_PART, THIS_MACHINE, TRY_OUT
from shoal.common.exit_codes import ExitCode, epilogue

VERBS: Final = (
    (TAKE_PART, "finish", "machine.run_commands:finish",
     "Push what is done, then stop, within a minute."),
    (TAKE_PART, "join", "machine.run_commands:join",
     "Lend this machine to a project, until it is done, Ctrl-C or `shoal stop`."),
    (TAKE_PART, "leave", "machine.leave_command:leave",
     "Leave a project: push what is done, stop, and forget that it was joined."),
    (TAKE_PART, "logs", "machine.logs_command:show",
     "Print what the daemons of this machine wrote to their logs, also after they ended."),
    (TAKE_PART, "pause", "machine.run_commands:pause",
     "Stop local steps for a while; weights stay current, nothing is lost."),
    (TAKE_PART, "resume", "machine.run_commands:resume",
     "Go on after a pause."),
    (TAKE_PART, "plot", "machine.plot_command:plot",
     "Draw how a run went: held-out loss, speed, who gave how much."),
    (TAKE_PART, "run", "machine.run_commands:run",
     "Continue with what was joined here before: no link needed, same options."),
    (TAKE_PART, "status", "machine.status_command:status",
     "Show the status of the daemons on this machine."),
    (TAKE_PART, "stop", "machine.run_commands:stop",
     "Ask the daemons on this machine to stop cleanly, and wait until they have."),
    (TAKE_PART, "track", "machine.track_command:track",
     "Follow a run with TensorBoard, Trackio or Weights & Biases."),
    (TAKE_PART, "try", "model.try_command:try_model",
     "Write to the newest weights, while the swarm trains on."),
    (TAKE_PART, "tui", "machine.tui_command:show",
     "Watch the swarm in the terminal."),
    (HOST, "eval", "model.eval_command:evaluate",
     "Score a checkpoint, or an exported model, on tasks of lm-eval."),
    (HOST, "export", "model.export_command:export",
     "Write a syncer's checkpoint as a model that `transformers` loads."),
    (HOST, "host", "machine.host_command:host",
     "Make a project of your own text, and host it: one command, until Ctrl-C.\n\n"
     "It writes the project file, signs it, publishes the text with it, runs the syncer, and "
     "prints the link that others join with. Run again, it goes on."),
    (HOST, "invite", "project.invite_command:invite",
     "Print the join link of the syncer here again, with a QR code.\n\n"
     "In a project that takes invites, the link has one in it: see `shoal project invites`."),
    (HOST, "page", "page.command:page",
     "Serve the page of a project whose syncer runs here, until Ctrl-C.\n\n"
     "`shoal syncer run --page` does so by itself. With --link the syncer may run elsewhere."),
    (HOST, "pages", "page.pages_command:pages",
     "List projects on one page: a file to put on any web server.\n\n"
     "Exit code 3: none of them answers; the file says so."),
    (HOST, "project", "project.charter_commands:project_app",
     "Create, sign and read project files; change rules and voters."),
    (HOST, "syncer", "machine.voter_commands:syncer_app",
     "Host a project: merge what learners push."),
    (HOST, "witness", "machine.voter_commands:witness_app",
     "Vote for a project: keep its log, decide who leads."),
    (THIS_MACHINE, "config", "machine.config_command:config_app",
     "Your settings of this machine: limits, hours, devices."),
    (THIS_MACHINE, "doctor", "doctor.command:run",
     "Check this machine and, before joining a project, whether it can take part.\n\n"
     "Exit code 0: it can. 1: something is in trouble; the line says what to do."),
    (THIS_MACHINE, "identity", "machine.identity_command:identity_app",
     "The keys of this machine: show, back up, restore."),
    (THIS_MACHINE, "init", "machine.config_command:begin",
     "Create what is missing here: home, key, and a settings file that explains itself."),
    (THIS_MACHINE, "service", "machine.service_command:service_app",
     "Have systemd start a daemon and keep it running."),
    (THIS_MACHINE, "version", "common.versions:shown",
     "Print what is installed: Shoal, its protocol, the network engine, PyTorch."),
    (TRY_OUT, "demo", "cli.demo:demo",
     "Train a small model here with a syncer and several learners, and show how it goes.\n\n"
     "With --chaos: inject faults into a swarm, and judge how it recovers. Exit code 1: a "
     "scenario failed."),
    (TRY_OUT, "replay", "sim.replay_command:run",
     "Run a tape again, and say whether the result is the same.\n\n"
     "Exit code 0: all that was tried came out as recorded. 1: something did not; the first event "
     "is named. 2: the tape cannot be read, or is another project's."),
    (TRY_OUT, "sim", "sim.verbs:sim_app",
     "Simulate: clusters under failures, links, mixed speeds, borrowing."),
    (None, "contributions", "machine.contributions_command:contributions_app",
     "Show what this machine contributed."),
)  # fmt: skip
"""Group, name, where it is, and what help says: a verb is imported once it is asked for."""

app = App(
    name="shoal",
    help="Train neural networks together on volunteered machines.",
    help_epilogue=epilogue(),
    help_format="plaintext",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
for group, verb, place, about in VERBS:
    app.command(f"shoal.{place}", name=verb, help=about, group=group)
app.register_install_completion_command(help="Install completion for this shell.")
EVERYWHERE = Group("Everywhere", sort_key=9)
app.meta.group_parameters = app.meta.group_commands = app.group_commands = EVERYWHERE


def run(arguments: Sequence[str]) -> int:
    """The exit code of the verb that these arguments name. Errors of verbs are raised.

    A verb returns its exit code, or the lines to be printed where it went well.
    """
    try:
        answer = app.meta(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from shoal.common import refusals

        failures.complain(refusals.words(error))
        return ExitCode.WRONG_INPUT
    if isinstance(answer, list):
        print("\n".join(answer))
    return answer if isinstance(answer, int) else ExitCode.DONE


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
    extras.require_for(tokens)
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    here = Home(home)
    failures.use_home(here)
    kernel_cache.use(here.kernels())
    given = {"home": here, "check": check}
    return command(
        *bound.args, **bound.kwargs, **{name: given[name] for name in given.keys() & ignored}
    )


app.version = versions.line
