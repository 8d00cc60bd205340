"""The verbs by which an owner changes a project that runs: voters, bans, rules, the seat.

Each makes the next revision of the charter, signs it, writes it in one piece and hands it to the
daemons of this home. From any one voter it spreads to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from host.files import keystore
from host.files.home import Home
from host.files.keystore import Identity
from host.files.signed_project import (
    SUFFIX,
    OpenedProject,
    newest_of,
    open_project,
    read_signed,
    seal_project,
    write_signed,
)
from protocol import limits
from protocol.errors import TransientError, UserError
from protocol.ids import NodeKey, short
from protocol.log.records import majority
from protocol.project import Charter, Voter
from protocol.status import SeatStatus
from shoal.common.toml_tables import Place
from shoal.project import charter_delivery, charters, file_commands
from shoal.project.project_file import check_together
from shoal.project.template import toml_value


@dataclass(frozen=True, slots=True)
class Case:
    """A project in its owner's hand."""

    target: Path
    """The signed file."""
    home: Home
    owner: Identity
    project: OpenedProject
    """Under the newest charter that this machine knows."""
    file_revision: int


# The verbs.


def add_voter(path: Path, home: Home, *, key: str, role: str, priority: int) -> list[str]:
    """One voter more."""
    case = open_case(path, home)
    voter = msgspec.convert((charters.full_key(key), role, priority), Voter)
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


def remove_voter(path: Path, home: Home, *, key: str) -> list[str]:
    """One voter less."""
    case = open_case(path, home)
    wanted = _voter_key(case, key)
    _check_enough_here(case, wanted)
    lines = _change_voters(case, lambda voters: tuple(one for one in voters if one.key != wanted))
    return [*lines, "its daemon can be stopped once that revision is in force"]


def readmit(path: Path, home: Home, *, key: str) -> list[str]:
    """Let a voter vote again whose disk was wiped, replaced or put back."""
    case = open_case(path, home)
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


def ban(path: Path, home: Home, *, key: str) -> list[str]:
    """Ban a learner from now on."""
    case = open_case(path, home)
    wanted = charters.full_key(key)
    if wanted in case.project.charter.banned:
        return [f"{short(wanted)} is banned already"]
    if case.project.charter.voter(wanted) is not None:
        raise UserError(
            f"{short(wanted)} is the key of a voter. Take its vote away: "
            f"shoal project remove-voter {wanted.hex()} {case.target}"
        )
    return _ban(case, (*case.project.charter.banned, wanted))


def unban(path: Path, home: Home, *, key: str) -> list[str]:
    """Let a learner take part again."""
    case = open_case(path, home)
    banned = case.project.charter.banned
    wanted = charters.find_key(key, list(banned), "Banned are")
    return _ban(case, tuple(one for one in banned if one != wanted))


def _ban(case: Case, banned: tuple[NodeKey, ...]) -> list[str]:
    lines = revise(case, msgspec.structs.replace(case.project.charter, banned=banned))
    listed = ", ".join(f'"{one.hex()}"' for one in banned)
    return [*lines, *to_paste(case, ["[admission]", f"banned = [{listed}]"])]


def set_values(path: Path, home: Home, *, settings: list[str]) -> list[str]:
    """Other values of what a charter may change."""
    case = open_case(path, home)
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
        charter.inner,
        charter.rounds,
        charter.limits,
        fragments=genesis.fragments,
        sequence_tokens=genesis.data.sequence_tokens,
        place=Place(case.target.name),
    )
    if charter == case.project.charter:
        return [f"nothing to change: revision {charter.revision} already says so"]
    lines = revise(case, charter)
    return [*lines, *to_paste(case, _tables(case.project.charter, charter))]


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
    target = path.with_suffix(SUFFIX)
    if path.suffix not in (".toml", SUFFIX):
        raise UserError(
            f"{path} is neither a signed project ({SUFFIX}) nor a project file (.toml)."
        )
    if path.suffix == ".toml" and not target.is_file():
        raise UserError(f"{path} is not signed yet. Sign it with: shoal project sign {path}")
    project = read_signed(target)
    owner = _owner(home, project)
    newest = newest_of(project, *charter_delivery.kept_charters(home, project))
    return Case(target, home, owner, newest, project.charter.revision)


def _owner(home: Home, project: OpenedProject) -> Identity:
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


def _write(case: Case, charter: Charter) -> OpenedProject:
    """The signed project in its place; edits of the project file still count as unsigned."""
    sealed = seal_project(case.project.genesis, charter, case.owner)
    source = case.target.with_suffix(".toml")
    stamp = case.target.stat()
    is_edited = source.is_file() and source.stat().st_mtime > stamp.st_mtime
    write_signed(case.target, sealed)
    if is_edited:
        os.utime(case.target, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    file_commands.keep_copy(case.target, case.home)
    return open_project(sealed.genesis, sealed.charter)


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
    return charters.find_key(
        text, [voter.key for voter in case.project.charter.voters], "The voters are"
    )


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
