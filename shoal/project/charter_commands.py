"""The verbs by which an owner changes a project that runs: voters, bans, rules, the seat.

Each makes the next revision of the charter, signs it, writes it in one piece and hands it to the
daemons of this home. From any one voter it spreads to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import validators

from host.files import keystore, signed_project
from host.files.home import Home, VoterRole
from host.files.keystore import Identity
from protocol import decoders, limits
from protocol.errors import TransientError, UserError
from protocol.ids import NodeKey, short
from protocol.log.records import majority
from protocol.project import Charter, Voter
from protocol.status import SeatStatus
from shoal.common.choices import HomeHere, Key, ProjectPath, WholeKey, option, switch
from shoal.common.toml_tables import Place
from shoal.project import charter_delivery, charters, file_commands, learners_here
from shoal.project.file_commands import project_app
from shoal.project.project_file import check_together
from shoal.project.template import toml_value


@dataclass(frozen=True, slots=True)
class Case:
    """A project in its owner's hand."""

    target: Path
    """The signed file."""
    home: Home
    owner: Identity
    project: signed_project.OpenedProject
    """Under the newest charter that this machine knows."""
    file_revision: int


# The verbs.

project_app.command(
    "shoal.project.invite_command:invite",
    help="The same as `shoal invite`.",
)
project_app.command(
    "shoal.project.invites_command:invites",
    help="List the invites of a project: uses left, expiry, and whom they brought; or revoke one.",
)
for verb, about in (
    ("allow", "List a key: it takes part without an invite."),
    ("disallow", "Take a key off that list."),
    ("ban", "Ban a learner from now on: its session ends within seconds."),
    ("unban", "Let a banned learner take part again."),
    ("reinstate", "Let a learner take part again that was suspended for what probes said."),
):
    project_app.command(f"shoal.project.admission_commands:{verb}", name=verb, help=about)
project_app.command(
    "shoal.project.reset_seat_command:reset_seat",
    help="Continue from this host's records after most voters are lost for good, in a new epoch.",
)
project_app.command(
    "shoal.project.restore_command:restore",
    name="restore-snapshot",
    help="Go back to a snapshot of the whole swarm: a new epoch, in which learners go on from "
    "theirs.\n\nA damaged snapshot gives way to the good one before it, which is named.",
)


project_app.command(
    "shoal.project.undo_command:undo",
    help="Take back what was merged since the best checkpoint; or since a time, with the newest "
    "snapshot from before it.\n\nWithout --yes it only says where that is, and what would be lost.",
)
project_app.command(
    "shoal.project.resume_command:pause",
    help="Pause the whole run, until `shoal project resume`: learners rest and free their memory.",
)
project_app.command(
    "shoal.project.resume_command:resume",
    help="Go on with a run that its owner or the guard paused, with the model as it is.\n\n"
    "`shoal project undo` goes back to the best checkpoint instead.",
)


@project_app.command
def add_syncer(
    key: WholeKey,
    project: ProjectPath,
    *,
    priority: Annotated[
        int,
        option(
            "Of several syncers the highest leads when it can.", validators.Number(gte=0, lte=100)
        ),
    ] = 5,
    home: HomeHere,
) -> list[str]:
    """Add a syncer that stands by, ready to lead; `shoal syncer key` prints its key there."""
    return _add_voter(key, "syncer", priority, open_case(project, home))


@project_app.command
def add_witness(key: WholeKey, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Add a witness that votes; `shoal witness key` prints its key there."""
    return _add_voter(key, "witness", 0, open_case(project, home))


def _add_voter(key: str, role: VoterRole, priority: int, case: Case) -> list[str]:
    voter = decoders.convert((charters.full_key(key), role, priority), Voter)
    known = case.project.charter.voter(voter.key)
    if known is not None:
        raise UserError(
            f"{charters.named(known)} is a voter already, with priority {known.priority}. If its "
            f"disk is new: shoal project readmit {known.key.hex()} {case.target}"
        )
    if len(case.project.charter.voters) == limits.VOTERS_MAX:
        raise UserError(f"There are {limits.VOTERS_MAX} voters already, the most allowed.")
    lines = _change_voters(case, lambda voters: (*voters, voter))
    return [
        *lines,
        f"next: copy {case.target} to the new host, and run it there with the project's join link:",
        f"    shoal {role} run {case.target.name} --join LINK",
    ]


@project_app.command(name=["remove-voter", "remove-syncer", "remove-witness"])
def remove_voter(key: Key, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Take a syncer's or a witness's vote away."""
    case = open_case(project, home)
    wanted = _voter_key(case, key)
    _check_enough_here(case, wanted)
    lines = _change_voters(case, lambda voters: tuple(one for one in voters if one.key != wanted))
    return [*lines, "its daemon can be stopped once that revision is in force"]


@project_app.command
def readmit(key: Key, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Readmit a voter whose disk was wiped, replaced, or restored from a copy."""
    case = open_case(project, home)
    wanted = _voter_key(case, key)
    if len(case.project.charter.voters) == 1:
        raise UserError(
            "The only voter cannot be readmitted: nobody else has its records. Restore its store "
            f"from a backup, or begin a new epoch: shoal project reset-seat {case.target}"
        )

    if len(case.project.charter.voters) == 2:
        raise UserError(
            "Of two voters, one that lost its disk cannot be readmitted: the other one alone is no "
            f"majority. On the other one's host: shoal project reset-seat {case.target}; then add "
            "this one again: shoal project add-syncer KEY, or add-witness."
        )

    def renewed(voters: tuple[Voter, ...]) -> tuple[Voter, ...]:
        return tuple(
            msgspec.structs.replace(one, disk=one.disk + (one.key == wanted)) for one in voters
        )

    return _change_voters(case, renewed, is_in_file=False, is_remedy=True)


@project_app.command(name="set")
def set_values(
    project: ProjectPath,
    *settings: Annotated[
        str,
        option(
            "NAME=VALUE as in the project file, such as rounds.quorum=2 or "
            "seat.durability=majority."
        ),
    ],
    yes: Annotated[bool, switch("Also where that puts out learners that are here.")] = False,
    home: HomeHere,
) -> list[str]:
    """Change rules of a project: [training], [outer], [rounds], [limits], [seat], [admission]."""
    case = open_case(project, home)
    pairs: list[tuple[str, str]] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"{setting!r} is not NAME=VALUE. Write, for example, rounds.quorum=2.")
        pairs.append((name.strip(), text.strip()))
    charter = case.project.charter
    for name, text in pairs:
        charter = charters.with_setting(charter, name, text, case.target.name)
    genesis = case.project.genesis
    check_together(
        charter,
        fragments=genesis.fragments,
        sequence_tokens=genesis.data.sequence_tokens,
        place=Place(case.target.name),
    )
    if charter == case.project.charter:
        return [f"nothing to change: revision {charter.revision} already says so"]
    if charter.admission != case.project.charter.admission and not yes:
        _check_nobody_is_put_out(case, charter)
    lines = revise(case, charter)
    return [*lines, *to_paste(case, _tables(case.project.charter, charter))]


def _check_nobody_is_put_out(case: Case, charter: Charter) -> None:
    """UserError if the rule puts out learners that are here: they would not come back."""
    leaving = learners_here.put_out_by(case.home, case.project, charter)
    if leaving:
        raise UserError(
            f"That puts out who is here and not admitted by it: {learners_here.listed(leaving)}. "
            f"Let those in that should stay: shoal project allow NAME {case.target}. Then repeat "
            "the command, with --yes for the others. Nothing was changed."
        )


def _tables(former: Charter, charter: Charter) -> list[str]:
    """The changed values as a project file writes them."""
    old, lines, section = charters.settings(former), list[str](), ""
    for name, value in charters.settings(charter).items():
        if value == old[name]:
            continue
        if name.partition(".")[0] != section:
            section = name.partition(".")[0]
            lines.append(f"[{section}]")
        lines.append(f"{name.partition('.')[2]} = {toml_value(value)}")
    return lines


# One revision.


def open_case(path: Path, home: Home) -> Case:
    """The project at `path` under the newest charter known here, and its owner's key.

    UserError if it is not signed, or the owner's key is not in this home.
    """
    target = file_commands.signed_beside(path)
    project = signed_project.read_signed(target)
    owner = _owner(home, project)
    newest = signed_project.newest_of(project, *charter_delivery.kept_charters(home, project))
    return Case(target, home, owner, newest, project.charter.revision)


def _owner(home: Home, project: signed_project.OpenedProject) -> Identity:
    path = home.identity("owner")
    remedy = "Run this with the owner's --home, or put the owner's key file back."
    if not path.is_file():
        raise UserError(
            f"Only the owner may change {project.genesis.name}, and there is no owner's key in "
            f"{home.root}. {remedy}"
        )
    owner = keystore.load_or_create(path)
    if owner.key != project.genesis.owner:
        raise UserError(
            f"Only the owner may change {project.genesis.name}, and the owner's key in {home.root} "
            f"is another one ({short(owner.key)}, not {short(project.genesis.owner)}). {remedy}"
        )
    return owner


def revise(case: Case, charter: Charter) -> list[str]:
    """Sign and write this charter as the next revision, hand it over, and say so."""
    former = case.project.charter
    charter = msgspec.structs.replace(charter, revision=former.revision + 1)
    project = _write(case, charter)
    lines = [f"revision {charter.revision} of {project.genesis.name}, in {case.target}:"]
    lines += [f"    {line}" for line in charters.differences(former, charter)]
    if case.file_revision < former.revision:
        lines.append(
            f"it goes on from revision {former.revision}, which this machine knew from its "
            f"daemons; the file was at revision {case.file_revision}"
        )
    return [*lines, *charter_delivery.hand_over(case.home, project, case.target)]


def _write(case: Case, charter: Charter) -> signed_project.OpenedProject:
    """The signed project in its place; edits of the project file still count as unsigned."""
    sealed = signed_project.seal_project(case.project.genesis, charter, case.owner)
    source = case.target.with_suffix(".toml")
    stamp = case.target.stat()
    is_edited = source.is_file() and source.stat().st_mtime > stamp.st_mtime
    signed_project.write_signed(case.target, sealed)
    if is_edited:
        os.utime(case.target, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    file_commands.keep_copy(case.target, case.home)
    return signed_project.open_project(sealed.genesis, sealed.charter)


def seats(case: Case) -> list[SeatStatus]:
    """The election as each voter of this home sees it."""
    return [status for _, status in charter_delivery.voters_here(case.home, case.project, [])]


def to_paste(case: Case, lines: list[str]) -> list[str]:
    """What the project file should say now, for a person to put there."""
    source = case.target.with_suffix(".toml")
    if not lines or not source.is_file():
        return []
    return ["", f"{source} is yours, so nothing was changed in it. Change it to:", "", *lines, ""]


# Voters.


def _voter_key(case: Case, text: str) -> NodeKey:
    here = {
        bytes.fromhex(row.key): f"{daemon.role} {daemon.instance}"
        for daemon, seat in charter_delivery.voters_here(case.home, case.project, [])
        for row in seat.voters
        if row.is_self
    }
    return charters.find_voter(text, case.project.charter.voters, here)


def _change_voters(
    case: Case,
    change: Callable[[tuple[Voter, ...]], tuple[Voter, ...]],
    *,
    is_in_file: bool = True,
    is_remedy: bool = False,
) -> list[str]:
    """Sign other voters. `is_remedy`: what is on its way may wait for just this."""
    former = case.project.charter
    charter = msgspec.structs.replace(former, voters=change(former.voters))
    note = charters.check_enough_votes(charter.voters)
    if not is_remedy:
        _check_settled(case, charter)
    lines = revise(case, charter)
    if note:
        lines.append(note)
    source = case.target.with_suffix(".toml")
    if len(charter.voters) == 2 and is_in_file and source.is_file():
        lines.append(f"{source} stays as it is: a file with two voters cannot be signed")
    elif is_in_file:
        heading = "# in place of every [[voters]] table in the file"
        lines += to_paste(case, [heading, *charters.voter_tables(charter)])
    return lines


def _check_enough_here(case: Case, leaving: NodeKey) -> None:
    """UserError if those who stay could not go on: the removal would never be in force."""
    for seat in seats(case):
        staying = [row for row in seat.voters if row.key != leaving.hex()]
        away = [row for row in staying if not row.is_here]
        if not staying or len(staying) - len(away) >= majority(len(staying)):
            continue
        row = next((one for one in away if one.trouble), away[0])
        what = f"{row.role} {row.key[:8]}"
        if row.trouble:
            remedy = f"Readmit it first ({row.trouble}): shoal project readmit {row.key}"
        else:
            remedy = f"Start it first, or if its disk is lost: shoal project readmit {row.key}"
        raise UserError(
            f"Without that voter the others would be too few: {what} is not here, and "
            f"{len(staying) - len(away)} of {len(staying)} are no majority. {remedy} {case.target}"
        )


def _check_settled(case: Case, charter: Charter) -> None:
    """TransientError while an earlier revision is on its way: one voter changes at a time."""
    former = case.project.charter
    for seat in seats(case):
        if seat.charter_revision >= former.revision:
            continue
        in_force = {row.key for row in seat.voters}
        if in_force == {voter.key.hex() for voter in charter.voters}:
            continue  # It takes back what is on its way.
        raise TransientError(
            f"Revision {former.revision} is not in force yet (that is {seat.charter_revision}), "
            "and voters are changed one at a time. `shoal status` says who is missing; try again "
            "once it is in force, or take its change back first."
        )
