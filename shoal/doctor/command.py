"""The `doctor` verb: one screen on whether this machine can take part, and what to do if not."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import validators

from host import addresses
from host.files.home import DEFAULT_INSTANCE, Home
from host.files.local_settings import Settings
from host.options import SYNCER_PORT
from node.daemon.swarm_trial_facts import SwarmAnswer
from node.trainer.tools.trial_facts import TrialWish
from protocol.errors import UserError
from shoal.common import settings_file, versions
from shoal.common.choices import HomeHere, Instance, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.doctor import diagnosis, findings, joining, probes, requirements
from shoal.doctor.findings import Finding, Topic, Verdict
from shoal.doctor.joining import UNSAID, Wishes
from shoal.doctor.probes import Named

MARKS: Final[dict[Verdict, str]] = {
    "good": "ok     ",
    "care": "care   ",
    "trouble": "TROUBLE",
    "unknown": "?      ",
}
COLOURS: Final[dict[Verdict, str]] = {
    "good": "32",
    "care": "33",
    "trouble": "1;31",
    "unknown": "2",
}
TOPIC_CHARS: Final = 12
WIDTH: Final = 80
INDENT: Final = " " * (TOPIC_CHARS + len(MARKS["good"]) + 1)


def run(
    project: Annotated[
        str | None, option("A join link, a signed project, or the name of one joined here.")
    ] = None,
    *,
    device: Annotated[str | None, option("Try this one: cpu, cuda, cuda:1 ...")] = None,
    data: Annotated[
        str | None, option("Where the project's text is on this machine, as for `shoal join`.")
    ] = None,
    trainer: Annotated[
        str | None, option("Training code of yours, PACKAGE:CLASS, as for `shoal join`.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    port: Annotated[
        int | None,
        option("Port to check; a syncer's by default.", validators.Number(gte=1, lte=65535)),
    ] = None,
    quick: Annotated[bool, switch("Skip network engine, swarm and training.")] = False,
    json: Annotated[bool, switch("Print one JSON object.")] = False,
    home: HomeHere,
) -> int:
    """Examines this machine and prints what it found; FAILED if something is in trouble."""
    settings = settings_file.load(flags={"learner.device": device}).values
    named = probes.named_project(project, home, instance)
    wishes = Wishes(
        instance=instance,
        data=os.path.abspath(data) if data is not None else named.wishes.data,
        trainer=trainer or named.wishes.trainer,
    )
    is_progress_shown = sys.stderr.isatty() and not json

    def tell(text: str) -> None:
        """Says on a terminal what is being tried, in place of what was said before."""
        if is_progress_shown:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    found: list[Finding] = []
    for finding in examine(home, named, settings, wishes, port=port, is_quick=quick, tell=tell):
        found.append(finding)
        if not json:
            tell("")
            print("\n".join(shown(finding, has_colour=sys.stdout.isatty())), flush=True)
    verdict = findings.worst(found)
    if json:
        print(msgspec.json.encode({"verdict": verdict, "findings": found}).decode())
    else:
        print("\n" + textwrap.fill(closing(found, named.name), WIDTH))
    return ExitCode.FAILED if verdict == "trouble" else ExitCode.DONE


def examine(
    home: Home,
    named: Named,
    settings: Settings,
    wishes: Wishes = UNSAID,
    *,
    port: int | None,
    is_quick: bool,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    """The findings, one by one, as they are made: quick ones first."""
    torch = dict(versions.table())["torch"]
    version = sys.version_info[:2]
    yield diagnosis.python(version, platform.python_version(), "" if "not" in torch else torch)
    yield diagnosis.disk(*probes.free_disk(home))
    available, total, bound = probes.memory(settings.limits.ram_bytes_max)
    yield diagnosis.memory(available, total, bound)
    yield diagnosis.port(port or SYNCER_PORT, _port_trouble(home, port or SYNCER_PORT))
    swarm = None
    if not is_quick:
        tell("joining the swarm ..." if named.link else "starting the network engine ...")
        swarm = probes.try_swarm(named.link, port=0, map_port=settings.network.map_port)
    yield diagnosis.engine(swarm)
    yield diagnosis.clock(swarm, *probes.kept_clock())
    yield diagnosis.reach(swarm)
    known = probes.learned(named, swarm)
    yield from _joining(home, known, wishes)
    yield from _training(known, swarm, settings, wishes, available, is_quick, tell)


def _joining(home: Home, named: Named, wishes: Wishes) -> Iterator[Finding]:
    """What `shoal join` would refuse. An owner who names the signed file asks of a machine."""
    if named.genesis is None or not named.link:
        return
    from host.join_link import parse_link

    link = parse_link(named.link)
    yield from joining.refusals(home, link, named.genesis, named.charter, wishes)


def _training(
    named: Named,
    swarm: SwarmAnswer | None,
    settings: Settings,
    wishes: Wishes,
    available: int,
    is_quick: bool,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    genesis, charter = named.genesis, named.charter
    if genesis is not None and genesis.trainer is not None and wishes.trainer is None:
        yield diagnosis.training_code(genesis.trainer, probes.lacking(genesis.trainer))
    needs = (
        requirements.needs_of(genesis, charter, settings.learner) if genesis and charter else None
    )
    is_hopeless = needs is not None and needs.training_bytes > probes.most_memory(available)
    trial = None
    if not is_quick and not is_hopeless:
        tell("training a little ...")
        trial = probes.try_training(_wish(named, settings))
    yield diagnosis.accelerator(trial, probes.accelerators_present())
    is_own = genesis is not None and genesis.trainer is not None
    yield diagnosis.speed(trial, "the project's model" if needs and not is_own else "a small model")
    if needs is not None:
        trial = None if is_own else trial
        yield from requirements.against(trial, swarm, needs, available, settings.limits)
    elif named.name:
        yield Topic("project").unknown(
            f"{named.name} cannot be checked: no syncer sent its rules",
            "Try again once its syncer is online.",
        )


def _wish(named: Named, settings: Settings) -> TrialWish:
    """A trial of the project's model, or of the one that `shoal project create` writes."""
    genesis, charter = named.genesis, named.charter
    if genesis is not None and charter is not None and genesis.trainer is None:
        tokens = genesis.data.sequence_tokens
        return probes.wish_for(genesis.model, charter.inner, tokens, settings, genesis)
    from shoal.project import project_file
    from shoal.project.template import create_text

    file = project_file.parse(create_text("trial"), Path("trial.toml"))
    return probes.wish_for(file, file.inner, file.data.sequence_tokens, settings)


def _port_trouble(home: Home, port: int) -> str:
    """Why the port cannot be listened on; empty if it can, or if a daemon of this home does."""
    try:
        addresses.claim_port("0.0.0.0", port)
    except UserError as error:
        from shoal.common import daemons

        statuses, _ = daemons.ask_all(home.daemons())
        ours = any(f"/tcp/{port}" in text for one in statuses for text in one.network.addresses)
        return "" if ours else str(error)
    return ""


def shown(finding: Finding, *, has_colour: bool) -> list[str]:
    """The finding in lines of at most 80 characters."""
    mark = MARKS[finding.verdict]
    if has_colour:
        mark = f"\x1b[{COLOURS[finding.verdict]}m{mark}\x1b[0m"
    room = WIDTH - len(INDENT)
    lines = textwrap.wrap(finding.says, room, break_long_words=True) or [""]
    lines[0] = f"{finding.topic:<{TOPIC_CHARS}}{mark} {lines[0]}"
    lines[1:] = [INDENT + line for line in lines[1:]]
    advice = textwrap.wrap(finding.remedy, room - 2)
    return lines + [INDENT + ("> " if at == 0 else "  ") + one for at, one in enumerate(advice)]


def closing(found: list[Finding], project: str) -> str:
    """The last line: whether to join."""
    bad = [one.topic for one in found if one.verdict == "trouble"]
    what = f"take part in {project}" if project else "take part in a project"
    if bad:
        return f"This machine cannot {what} yet: {', '.join(bad)}."
    if not project:
        return f"This machine can {what}. Check one before joining: shoal doctor 'shoal:...'"
    return f"This machine can {what}."
