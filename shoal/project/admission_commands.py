"""The verbs by which an owner says who takes part: allow, disallow, ban, unban, reinstate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from protocol import limits
from protocol.errors import UserError
from protocol.ids import NodeKey, short
from protocol.project import Reinstated
from shoal.common.choices import HomeHere, ProjectPath, option
from shoal.project import charter_commands, charters
from shoal.project.charter_commands import Case
from shoal.project.learners_here import find_learner, known_learners

Learner = Annotated[
    str,
    option(
        "The name that status shows, the first 8 digits of the key, or the whole key.",
        known="learners",
    ),
]


def ban(learner: Learner, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Ban a learner from now on: its session ends within seconds, and nothing more of it counts."""
    case = charter_commands.open_case(project, home)
    banned = case.project.charter.banned
    wanted = _find(case, learner)
    if wanted in banned:
        return [f"{short(wanted)} is banned already"]
    if case.project.charter.voter(wanted) is not None:
        raise UserError(
            f"{short(wanted)} is the key of a voter. Take its vote away: "
            f"shoal project remove-voter {wanted.hex()} {case.target}"
        )
    return _revised(case, "banned", (*banned, wanted), limits.BANNED_MAX)


def unban(learner: Learner, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Let a banned learner take part again."""
    case = charter_commands.open_case(project, home)
    banned = case.project.charter.banned
    wanted = _find_in(case, learner, banned, "Banned are")
    kept = tuple(one for one in banned if one != wanted)
    return _revised(case, "banned", kept, limits.BANNED_MAX)


def allow(learner: Learner, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """List a key: it takes part without an invite."""
    case = charter_commands.open_case(project, home)
    allowed = case.project.charter.allowed
    wanted = _find(case, learner)
    if wanted in allowed:
        return [f"{short(wanted)} is allowed already"]
    lines = _revised(case, "allowed", (*allowed, wanted), limits.ALLOWED_MAX)
    if case.project.charter.admission == "open":
        lines.append(
            "note: everybody takes part in this project. To take in listed keys alone: shoal "
            f"project set {case.target} admission=list"
        )
    return lines


def disallow(learner: Learner, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Take a key off the list; where the list alone lets in, its session ends within seconds."""
    case = charter_commands.open_case(project, home)
    allowed = case.project.charter.allowed
    wanted = _find_in(case, learner, allowed, "Allowed are")
    kept = tuple(one for one in allowed if one != wanted)
    return _revised(case, "allowed", kept, limits.ALLOWED_MAX)


def reinstate(learner: Learner, project: ProjectPath, *, home: HomeHere) -> list[str]:
    """Let a suspended learner take part again: what was measured of its pushes counts no more."""
    case = charter_commands.open_case(project, home)
    charter = case.project.charter
    wanted = _find(case, learner)
    kept = [one for one in charter.reinstated if one.learner != wanted]
    # Those of long ago are in force; a charter need not name them for ever.
    kept = kept[max(0, len(kept) + 1 - limits.REINSTATED_MAX) :]
    lifted = Reinstated(wanted, charter.revision + 1)
    return charter_commands.revise(
        case, msgspec.structs.replace(charter, reinstated=(*kept, lifted))
    )


def _find(case: Case, text: str) -> NodeKey:
    return find_learner(text, known_learners(case.home, case.project))


def _find_in(case: Case, text: str, listed: Sequence[NodeKey], what: str) -> NodeKey:
    """One of these keys, by its digits or by the name that the log has for it."""
    known = known_learners(case.home, case.project)
    named = {key: known[key] for key in listed if key in known}
    if any(one.name == text.strip() for one in named.values()):
        return find_learner(text, named)
    return charters.find_key(text, list(listed), what)


def _revised(case: Case, field: str, keys: tuple[NodeKey, ...], most: int) -> list[str]:
    if len(keys) > most:
        raise UserError(
            f"A charter holds {most:,} {field} keys at most. Take some off the list first: `shoal "
            f"project show {case.target}` has them."
        )
    lines = charter_commands.revise(
        case, msgspec.structs.replace(case.project.charter, **{field: keys})
    )
    former = getattr(case.project.charter, field)
    return [
        *lines,
        *charter_commands.to_paste(case, ["[admission]", *_keys_to_paste(field, former, keys)]),
    ]


def _keys_to_paste(field: str, former: Sequence[NodeKey], keys: Sequence[NodeKey]) -> Iterator[str]:
    """The whole list, or of a long one what changes in it."""
    if len(keys) <= charters.LISTED_MAX:
        listed = ", ".join(f'"{one.hex()}"' for one in keys)
        yield f"{field} = [{listed}]"
        return
    known, kept = frozenset(former), frozenset(keys)
    yield from (f'# add to {field}: "{one.hex()}",' for one in keys if one not in known)
    yield from (f'# take out of {field}: "{one.hex()}",' for one in former if one not in kept)
