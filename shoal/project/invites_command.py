"""The `project invites` verb: which invites there are, whom they brought, and revoking one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from protocol import limits
from protocol.errors import UserError
from protocol.ids import NodeKey
from protocol.log.accounts import printable
from shoal.common.choices import HomeHere, ProjectPath, option, switch
from shoal.project import charter_commands, issued_invites
from shoal.project.charter_commands import Case
from shoal.project.issued_invites import Issued
from shoal.project.learners_here import KnownLearner, called, known_learners, ledger_here


def invites(
    project: ProjectPath,
    *,
    revoke: Annotated[
        str | None,
        option("Let this one bring nobody any more, by its name; whom it brought stays."),
    ] = None,
    as_json: Annotated[bool, switch("Print them as JSON.", name="--json")] = False,
    home: HomeHere,
) -> list[str]:
    """List the invites of a project: uses left, expiry, and whom they brought."""
    case = charter_commands.open_case(project, home)
    if revoke is not None:
        return _revoke(case, revoke)
    ledger = ledger_here(home, case.project)
    brought = dict(ledger.invites) if ledger is not None else {}
    made = {one.id: one for one in issued_invites.issued(home, case.project.id)}
    known = known_learners(home, case.project)
    rows = [_row(case, one, brought.get(one.id, []), known) for one in made.values()]
    rows += [_foreign(case, id, keys, known) for id, keys in brought.items() if id not in made]
    if as_json:
        return [json.dumps(rows)]
    lines = [line for row in rows for line in _told(row, is_counted=ledger is not None)]
    if not rows:
        lines.append(f"no invite yet: shoal invite {case.target}")
    elif ledger is None:
        lines.append(
            "uses are not known here: no syncer of this project keeps its log in this home"
        )
    return lines


def _row(
    case: Case, one: Issued, keys: list[str], known: Mapping[NodeKey, KnownLearner]
) -> dict[str, Any]:
    state = "open"
    if bytes.fromhex(one.id) in case.project.charter.revoked:
        state = "revoked"
    elif one.expires_s <= time.time():
        state = "expired"
    elif len(keys) >= one.uses:
        state = "used up"
    return {
        "name": one.name,
        "id": one.id,
        "state": state,
        "uses": one.uses,
        "uses_left": max(0, one.uses - len(keys)),
        "expires_s": one.expires_s,
        "key": one.key,
        "brought": keys,
        "names": [called(bytes.fromhex(key), known) for key in keys],
    }


def _foreign(
    case: Case, id: str, keys: list[str], known: Mapping[NodeKey, KnownLearner]
) -> dict[str, Any]:
    """An invite that the log knows and this home does not: made with the owner's key elsewhere."""
    is_revoked = bytes.fromhex(id) in case.project.charter.revoked
    return {
        "name": id[:8],
        "id": id,
        "state": "revoked" if is_revoked else "made elsewhere",
        "uses": None,
        "uses_left": None,
        "expires_s": None,
        "key": "",
        "brought": keys,
        "names": [called(bytes.fromhex(key), known) for key in keys],
    }


def _told(row: dict[str, Any], *, is_counted: bool) -> list[str]:
    parts = [] if row["state"] == "open" else [row["state"]]
    if row["uses"] is not None:
        left = f"{row['uses_left']} of {row['uses']} uses left" if is_counted else ""
        parts.append(left or f"for {row['uses']} uses")
        parts.append(time.strftime("until %Y-%m-%d %H:%M UTC", time.gmtime(row["expires_s"])))
    if row["key"]:
        parts.append(f"for the key {row['key'][:16]}… alone")
    lines = [f"{printable(row['name'])}: {', '.join(parts)}"]
    if row["names"]:
        lines.append(f"    brought: {', '.join(row['names'])}")
    return lines


def _revoke(case: Case, name: str) -> list[str]:
    """Sign a revision in which this invite brings nobody any more."""
    charter = case.project.charter
    wanted = _find(case, name)
    if wanted in charter.revoked:
        return [f"{name} is revoked already"]
    # Whatever has expired brings nobody anyway: it need not be in every charter for ever.
    over = {
        bytes.fromhex(one.id)
        for one in issued_invites.issued(case.home, case.project.id)
        if one.expires_s <= time.time()
    }
    revoked = (*(one for one in charter.revoked if one not in over), wanted)
    if len(revoked) > limits.INVITES_REVOKED_MAX:
        raise UserError(
            f"{limits.INVITES_REVOKED_MAX:,} invites are revoked, the most that a charter holds. "
            "Wait until some of them expire, or ban the keys that you do not want."
        )
    lines = charter_commands.revise(case, msgspec.structs.replace(charter, revoked=revoked))
    return [*lines, "whom it brought stays; to put a key out: shoal project ban"]


def _find(case: Case, name: str) -> bytes:
    """The id of the invite of this name, or whose id begins so. UserError if there is none."""
    made = issued_invites.issued(case.home, case.project.id)
    ledger = ledger_here(case.home, case.project)
    elsewhere = ledger.invites if ledger is not None else {}
    named = [one.id for one in made if one.name == name]
    if named:
        return bytes.fromhex(named[-1])  # An earlier one of that name has expired.
    ids = {*(one.id for one in made), *elsewhere}
    found = sorted(one for one in ids if len(name) >= 8 and one.startswith(name.lower()))
    if len(found) == 1:
        return bytes.fromhex(found[0])
    listed = ", ".join(one.name for one in made) or "none made here"
    raise UserError(f"There is no invite {name!r}. Invites: {listed}.")
