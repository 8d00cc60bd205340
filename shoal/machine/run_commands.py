"""The verbs that start learners and stop daemons; the daemons themselves are elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Parameter, validators

from host.control import client
from host.files import memberships
from host.files.home import DEFAULT_INSTANCE, Home, checked_instance
from host.files.local_settings import OwnerSettings
from host.join_link import parse_link
from host.options import DONATE_MBPS, LEARNER_TAPE_MIB_MAX, MonitorAt, TapeOptions, bulk_at
from protocol import limits
from protocol.errors import TransientError, UserError
from protocol.ids import short
from protocol.peers.project_code import is_code
from shoal.common import choices, daemons, durations, failures, settings_file
from shoal.common.exit_codes import ExitCode

OnlyLearner = Annotated[
    str | None, choices.option("Only learners with this name.", known="instances")
]

OwnTrainer = Annotated[
    str | None,
    choices.option("Training code of yours, PACKAGE:CLASS; that of the project by default."),
]

BaseFolder = Annotated[
    str | None,
    Parameter(
        name="--from",
        help="Folder of the published model that the project's adapter stands beside, if you have "
        "it; it comes from other hosts otherwise.",
    ),
]

STOP_S = 30.0
"""Every kind of daemon says goodbye and frees everything well before."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainerFlags:
    """What overrides the owner's settings of these names in [learner]."""

    threads: Annotated[
        int | None, choices.option("CPU threads for training.", choices.AtLeastOne)
    ] = None
    micro_batch: Annotated[
        int | None,
        choices.option("Sequences at once on the device; measured by default.", choices.AtLeastOne),
    ] = None
    batch_sequences: Annotated[
        int | None,
        choices.option(
            "Sequences in a local step, where the project lets learners choose.",
            choices.AtLeastOne,
        ),
    ] = None
    evaluate: Annotated[
        bool | None, choices.option("Measure loss for the swarm when asked (--no-evaluate: never).")
    ] = None
    moments: Annotated[
        bool | None,
        choices.option(
            "Share optimizer state with other learners where the project wants it "
            "(--no-moments: neither take nor give)."
        ),
    ] = None
    device: Annotated[
        str | None,
        choices.option("cpu, cuda, cuda:1 ..., or several: cuda:0,cuda:1; the best by default."),
    ] = None
    ranks: Annotated[
        int | None,
        choices.option(
            "Devices that train as one, a process each; as many as --device names.",
            validators.Number(gte=1, lte=64),
        ),
    ] = None
    sharded: Annotated[
        bool | None,
        choices.switch("These devices hold the model together, each of them a part of it."),
    ] = None
    compile: Annotated[
        bool | None, choices.switch("Let torch.compile speed up the model, where it can.")
    ] = None


AS_SET = TrainerFlags()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LearnerNetwork:
    """How a learner finds others, and is reached."""

    nearby: Annotated[
        bool,
        choices.switch(
            "Look for projects on this network; with the four words that the host's screen shows "
            "in place of the link, join that one."
        ),
    ] = False
    port: choices.Port = 0
    bulk_port: choices.BulkPort = None
    listen: choices.Listen = "0.0.0.0"
    donate_mbps: Annotated[
        float,
        choices.option(
            "Megabits per second at which others may fetch weights here.", choices.AtLeastOne
        ),
    ] = DONATE_MBPS


ANYWHERE = LearnerNetwork()


def join(
    link: Annotated[
        str | None,
        choices.option("The join link, from `shoal:` to its end; with --nearby, four words."),
    ] = None,
    *,
    name: Annotated[
        str | None, choices.option("The name that others see; part of your key by default.")
    ] = None,
    instance: choices.Instance = DEFAULT_INSTANCE,
    network: LearnerNetwork = ANYWHERE,
    duty: Annotated[
        float,
        choices.option(
            "Share of the time in which training may run.", validators.Number(gt=0, lte=1)
        ),
    ] = 1.0,
    training: TrainerFlags = AS_SET,
    data: Annotated[
        str | None,
        choices.option("Where the project's text is on this machine, if you have it in files."),
    ] = None,
    trainer: OwnTrainer = None,
    base: BaseFolder = None,
    tape: choices.TapeAt = "on",
    monitor: choices.MonitorPlace = None,
    log_json: choices.LogJson = None,
    anyway: Annotated[
        bool, choices.switch("Join even if this machine is too small or too slow.")
    ] = False,
    home: choices.HomeHere,
) -> int:
    """Runs a learner in the foreground and returns its exit code; `run` can repeat it later."""
    meant = _meant(link, network)
    if meant is None:
        return ExitCode.DONE
    return _join(
        meant,
        home,
        instance=instance,
        flags={
            "learner.name": name,
            "learner.bulk_port": network.bulk_port,
            **{f"learner.{key}": value for key, value in asdict(training).items()},
        },
        port=network.port,
        listen_host=network.listen,
        donate_mbps=network.donate_mbps,
        duty_frac=duty,
        data=data,
        trainer=trainer,
        base=base,
        tape=choices.tape_options(tape, LEARNER_TAPE_MIB_MAX),
        monitor=choices.monitor_at(monitor),
        log_json=log_json,
        anyway=anyway,
    )


def _meant(link: str | None, network: LearnerNetwork) -> str | None:
    """The join link; None where somebody only looked what there is. UserError where it lacks."""
    if network.nearby:
        from shoal.machine import nearby

        return nearby.chosen_link(link, listen_host=network.listen)
    if link is None:
        raise UserError(
            "Which project? Give its join link: shoal join 'shoal:...'; or look around on this "
            "network: shoal join --nearby"
        )
    code = is_code(link)
    if code is not None:
        raise UserError(f"This is a code, for the same network: shoal join --nearby {code}")
    return link


def _join(
    link: str,
    home: Home,
    *,
    instance: str,
    flags: Mapping[str, object],
    anyway: bool = False,
    **wishes: Any,
) -> int:
    """Runs a learner, and remembers it with its options once nothing speaks against it.

    flags: what the command line says of the owner's settings, by key; None where it says nothing.
    anyway: also where this machine is too small or too slow for the project.
    """
    from host.options import NodeOptions
    from node.trainer.devices import ranks_wanted
    from shoal.doctor.suitability import judge_of

    settings = settings_file.load(flags=flags).values
    learner = settings.learner
    if wishes.get("data") is not None:
        wishes["data"] = os.path.abspath(wishes["data"])
    if wishes.get("base") is not None:
        wishes["base"] = os.path.abspath(wishes["base"])
    parsed = parse_link(link)
    given = {**flags, **wishes, "log_json": None, "tape": _tape_text(wishes["tape"])}
    given["anyway"] = anyway or None
    given["monitor"] = _monitor_text(wishes["monitor"])
    options = NodeOptions(
        home=home,
        link=parsed,
        instance=checked_instance(instance),
        name=_name(learner.name, home, instance),
        threads=learner.threads,
        micro_batch=learner.micro_batch,
        batch_sequences=learner.batch_sequences,
        device=learner.device,
        ranks=ranks_wanted(learner.device, learner.ranks, is_sharded=learner.sharded),
        evaluates=learner.evaluate,
        shares_moments=learner.moments,
        bulk=bulk_at(learner.bulk_port),
        settings=OwnerSettings(lambda: settings_file.load(flags=flags).values),
        judge=None if anyway else judge_of(home, parsed.project, settings, wishes.get("data")),
        on_accepted=lambda: _remember(home, memberships.now_joined(link, instance, given)),
        **wishes,
    )
    try:
        from node.daemon import learner_daemon

        return learner_daemon.run(options)
    except KeyboardInterrupt:
        return ExitCode.DONE  # Ctrl-C is how a foreground daemon is stopped


def _remember(home: Home, joined: memberships.Joined) -> None:
    """Keeps it for `shoal run`, and says which options of the former join it lacks."""
    project = joined.parsed().project
    former = [
        one.joined.options
        for one in memberships.memberships(home, instance=joined.instance)
        if one.link.project == project
    ]
    memberships.remember(home, joined)
    gone = [name for options in former for name in options if name not in joined.options]
    if gone:
        names = ", ".join(sorted(gone))
        print(
            f"`shoal run` repeats this join from now on, without {names} of the former", flush=True
        )


def run(
    project: Annotated[
        str | None,
        choices.option(
            "Name of a project joined here, or how its id begins; the last one by default.",
            known="projects",
        ),
    ] = None,
    *,
    instance: choices.Instance = DEFAULT_INSTANCE,
    log_json: choices.LogJson = None,
    home: choices.HomeHere,
) -> int:
    """Joins again what this learner joined last, or the project that is named, as it was then.

    UserError where nothing fits.
    """
    found = memberships.named(memberships.memberships(home, instance=instance), project)
    chosen, others = found[0], found[1:]
    print(f"learner {instance} goes on with {chosen.called}", flush=True)
    for one in others:
        print(f"joined earlier: {one.called}; shoal run {one.link.project.hex()[:8]}")
    options: dict[str, Any] = dict(chosen.joined.options)
    options["tape"] = choices.tape_options(str(options.get("tape", "on")), LEARNER_TAPE_MIB_MAX)
    monitor = options.get("monitor") or os.environ.get(choices.MONITOR_VARIABLE)
    options["monitor"] = choices.monitor_at(monitor)
    flags = {name: options.pop(name) for name in list(options) if "." in name}
    return _join(
        chosen.joined.link, home, instance=instance, flags=flags, log_json=log_json, **options
    )


def _monitor_text(place: MonitorAt | None) -> str | None:
    """What `--monitor` said."""
    return None if place is None else f"[{place.host}]:{place.port}"


def _tape_text(tape: TapeOptions) -> str:
    """What `--tape` said."""
    return str(tape.folder or "on") if tape.is_on else "off"


def _name(name: str | None, home: Home, instance: str) -> str:
    """The name others see. Not the host name by default: that is nobody's business unasked."""
    if name is None:
        from host.files import keystore

        key = keystore.load_or_create(home.identity("learner", instance)).key
        return f"learner-{short(key)}"
    if not 1 <= len(name) <= limits.NAME_CHARS_MAX or not name.isprintable():
        raise UserError(
            f"The name {name!r} cannot be used. Use 1 to {limits.NAME_CHARS_MAX} printable "
            "characters."
        )
    return name


def stop(
    *, instance: choices.OnlyInstance = None, role: choices.OnlyRole = None, home: choices.HomeHere
) -> int:
    """Stops the daemons that fit; NOT_REACHABLE if one of them does not answer or stays."""
    code = ExitCode.DONE
    for daemon in daemons.find_daemons(home, role=role, instance=instance):
        called = f"{daemon.role} {daemon.instance}"
        try:
            if daemons.stop_and_wait(daemon, timeout_s=STOP_S):
                print(f"{called} has stopped")
                continue
            failures.complain(f"{called} was asked to stop and still runs after {STOP_S:g} s.")
        except TransientError as error:
            failures.complain(f"{called}: {error}")
        code = ExitCode.NOT_REACHABLE
    return code


def pause(
    length: Annotated[
        str | None, choices.option("How long: 90s, 15m, 2h, 1d; until resumed by default.")
    ] = None,
    *,
    instance: OnlyLearner = None,
    home: choices.HomeHere,
) -> int:
    """Asks learners to hold their local steps; NOT_REACHABLE if one does not answer."""
    seconds = None if length is None else durations.seconds(length)
    said = "until `shoal resume`" if length is None else f"for {length}"
    return _tell_learners(home, instance, "pause", f"pauses {said}", seconds=seconds)


def resume(*, instance: OnlyLearner = None, home: choices.HomeHere) -> int:
    """Asks learners to go on."""
    return _tell_learners(home, instance, "resume", "goes on")


def finish(*, instance: OnlyLearner = None, home: choices.HomeHere) -> int:
    """Asks learners to hand in what they did and to stop."""
    return _tell_learners(home, instance, "finish", "pushes what it has and then stops")


def _tell_learners(home: Home, instance: str | None, verb: str, words: str, **fields: Any) -> int:
    code = ExitCode.DONE
    for daemon in daemons.find_daemons(home, role="learner", instance=instance):
        try:
            because = client.call(daemon.socket, verb, **fields).get("because")
            still = f", but not yet: it is paused because {because}" if because else ""
            print(f"learner {daemon.instance} {words}{still}")
        except TransientError as error:
            failures.complain(f"learner {daemon.instance}: {error}")
            code = ExitCode.NOT_REACHABLE
    return code
