"""`shoal project reset-seat`: going on after a majority of the voters is lost for good.

The owner says which record is the last that counts, and who votes from now on: a new epoch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from host.addresses import parse_peer
from host.files import keystore
from host.files.home import DEFAULT_INSTANCE
from host.files.keystore import Identity
from host.join_link import parse_link
from host.nat.peer_file import places_known
from protocol.errors import ShoalError, UserError
from protocol.ids import NodeKey, short
from protocol.log.records import majority, record_hash
from protocol.project import Origin, Voter
from protocol.status import DaemonStatus
from shoal.common import daemons
from shoal.common.choices import HomeHere, Instance, ProjectPath, option, switch
from shoal.project import charter_commands, charters
from shoal.project.charter_commands import Case
from shoal.project.restore_command import UNCONFIRMED

if TYPE_CHECKING:
    from shoal.project.recover_from_learners import Rescued
    from syncer_node.storage.voter_files import VoterFiles

KNOWN_MAX = 16
"""Hosts met before that are tried, besides those of the link."""


def reset_seat(
    project: ProjectPath,
    *,
    keep: Annotated[
        tuple[str, ...],
        Parameter(
            help="Key of a voter that stays; repeatable. This host's syncer alone otherwise.",
            negative="",
        ),
    ] = (),
    yes: Annotated[bool, switch("Do it; by default only say what would happen.")] = False,
    force: Annotated[bool, switch("Even if a majority of the voters is here.")] = False,
    from_learners: Annotated[
        str | None,
        option(
            "A join link, or the address of a learner: go on from what learners can prove, "
            "where no syncer's disk is left. Daemons of this home, and hosts that they know, are "
            "asked too."
        ),
    ] = None,
    learner: Annotated[
        str | None,
        option("Key of the learner to go on from, where learners prove two histories."),
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> list[str]:
    """Begin a new epoch behind the last certified record of this host's syncer.

    Without a confirmation nothing changes, and the warning is printed. UserError if a majority is
    here, or if this host has no records.
    """
    case = charter_commands.open_case(project, home)
    own = _identity(case, instance)
    voters = _voters(case, own.key, keep)
    note = charters.check_enough_votes(voters)
    if from_learners is not None:
        _refuse_while_running(case, own.key)
    if not force:
        _refuse_while_alive(case)
    rescued = None
    if from_learners is not None:
        rescued = _rescued(case, from_learners, learner)
        origin = Origin(rescued.record.index, rescued.summary.head)
    else:
        origin = last_certified(case, own, instance)
    if not yes:
        return [*_warning(case, voters, origin), UNCONFIRMED]
    if rescued is not None:
        _keep_rescued(case, instance, rescued)
    return [*begin_epoch(case, origin, voters), *([note] if note else [])]


def _addresses(case: Case, link: str) -> tuple[str, ...]:
    """Where the swarm may be found: by the link or address, at daemons of this home, and at hosts
    that they met before."""
    given = (parse_peer(link).text,) if link.startswith("/") else parse_link(link).addresses
    statuses: list[DaemonStatus] = []
    with contextlib.suppress(ShoalError):  # Who cannot tell it here may still be met otherwise.
        statuses, _ = daemons.ask_all(daemons.fitting(case.home, None, None))
    here = [
        text
        for status in statuses
        if status.project.id == case.project.id.hex()
        for text in status.network.addresses
    ]
    known = places_known(case.home, case.project.id, KNOWN_MAX)
    return tuple(dict.fromkeys((*given, *here, *known)))


def _rescued(case: Case, link: str, learner: str | None) -> Rescued:
    from shoal.project.recover_from_learners import find_newest

    found = find_newest(case.project, _addresses(case, link), learner)
    print("\n".join(found.lines))
    return found.newest


def _keep_rescued(case: Case, instance: str, rescued: Rescued) -> None:
    """Begin this host's store behind the state; the weights come from learners when it runs."""
    from syncer_node.storage.voter_files import VoterFiles

    files = VoterFiles(case.home.syncer_store(case.project.id, instance))
    try:
        if _has(files, rescued):
            raise UserError(
                f"The store {files.root} already reaches record {files.last}, and the learners "
                f"prove {rescued.record.index}. Leave --from-learners out to go on from the store."
            )
        files.boot()
        files.begin_behind(rescued.entry, rescued.summary, rescued.origins)
    finally:
        files.close()


def _has(files: VoterFiles, rescued: Rescued) -> bool:
    """Whether the store has the learners' newest record, or may have: then it is to be gone on
    from. Another record at its place is one of a younger history, however long that is."""
    index, floor = rescued.record.index, files.floor
    if files.last < index:
        return False
    if index <= floor.index:
        return index < floor.index or floor.head == rescued.summary.head
    return record_hash(files.record(index)) == rescued.summary.head


def begin_epoch(case: Case, origin: Origin, voters: tuple[Voter, ...]) -> list[str]:
    """Sign the charter that lets the swarm go on behind this record, with these voters."""
    epoch = case.project.charter.epoch + 1
    charter = msgspec.structs.replace(
        case.project.charter, epoch=epoch, origin=origin, voters=voters
    )
    lines = charter_commands.revise(case, charter)
    return [
        f"epoch {epoch} begins behind record {origin.index:,}",
        *lines,
        *charter_commands.to_paste(
            case,
            ["# in place of every [[voters]] table in the file", *charters.voter_tables(charter)],
        ),
    ]


def last_certified(case: Case, own: Identity, instance: str) -> Origin:
    """The last record in this host's store that is proven to be committed."""
    from syncer_node.storage.recovery import recertify, scan
    from syncer_node.storage.voter_files import VoterFiles

    stores = {root.name: root for root in case.home.voter_stores(case.project.id)}
    root = stores.get(f"syncer-{instance}")
    if root is None:
        raise UserError(
            f"Syncer {instance} of {case.home.root} has no store for {case.project.genesis.name}, "
            "so there is nothing here to go on from. Run this on a host whose syncer's store is "
            "left, with its --home and --instance; the owner's key must be there too."
        )
    files = VoterFiles(root)
    try:
        view = scan(files, case.project.charter, own)
        index = view.certified
        if index == 0:
            raise UserError(
                f"The store {root} has no certified record yet, so nothing can be lost: delete "
                f"{case.target} and sign the project again with other voters."
            )
        # What a new epoch rests on stays provable.
        for at in range(files.certified + 1, index + 1):
            entry = recertify(files.record(at), None, own, view.charter.voters)
            if entry is not None:
                files.keep_certificate(entry.certificate)
        files.certificates.flush()
        if index == files.floor.index:
            return Origin(index, files.floor.head)
        return Origin(index, record_hash(files.record(index)))
    finally:
        files.close()


def _identity(case: Case, instance: str) -> Identity:
    path = case.home.identity("syncer", instance)
    if not path.is_file():
        raise UserError(
            f"Syncer {instance} of {case.home.root} has no key. Run this on a host whose syncer "
            "has worked for this project, with its --home and --instance."
        )
    return keystore.load_or_create(path)


def _voters(case: Case, own: NodeKey, keep: tuple[str, ...]) -> tuple[Voter, ...]:
    """Who votes in the new epoch: this host's syncer, or the voters that were named."""
    former = case.project.charter.voters
    here = case.project.charter.voter(own) or Voter(own, "syncer", 10)
    if not keep:
        return (here,)
    kept = {charters.find_voter(key, former) for key in keep}
    if own not in kept:
        raise UserError(
            f"--keep must also name this host's syncer {short(own)}: its store is what the new "
            f"epoch goes on from. Add --keep {own.hex()}"
        )
    return tuple(voter for voter in former if voter.key in kept)


def _refuse_while_running(case: Case, own: NodeKey) -> None:
    for seat in charter_commands.seats(case):
        if any(row.is_self and row.key == own.hex() for row in seat.voters):
            raise UserError(
                "The syncer whose store is to be replaced is running. Stop it first: shoal stop "
                "--role syncer, then repeat the command, and start it again afterwards."
            )


def _refuse_while_alive(case: Case) -> None:
    for seat in charter_commands.seats(case):
        here = [row for row in seat.voters if row.is_here]
        if len(here) >= majority(len(seat.voters)):
            raise UserError(
                f"A majority of the voters is here ({len(here)} of {len(seat.voters)}), so the "
                "swarm can go on without this. To take a lost voter out: shoal project "
                "remove-voter KEY PROJECT. If you must: --force."
            )


def _warning(case: Case, voters: tuple[Voter, ...], origin: Origin) -> list[str]:
    names = ", ".join(charters.named(voter) for voter in voters)
    gone = [voter for voter in case.project.charter.voters if voter not in voters]
    lines = [
        f"This begins epoch {case.project.charter.epoch + 1} of {case.project.genesis.name}:",
        f"  - it goes on behind record {origin.index:,}, the last certified one in this store;",
        "    whatever other voters certified behind it is void, and merges in it are lost;",
        f"  - from then on these vote, and all of them must come once: {names};",
    ]
    if gone:
        lost = ", ".join(charters.named(voter) for voter in gone)
        lines.append(f"  - these no longer vote, and can be added again later: {lost};")
    lines.append("  - learners follow by themselves; what they had not handed in is not lost.")
    if not charter_commands.seats(case):
        lines.append(
            "No voter of this project runs in this home, so Shoal cannot tell whether the others "
            "can still be reached. Be sure that they cannot: two halves must not both go on."
        )
    return lines
