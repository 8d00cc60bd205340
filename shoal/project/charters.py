"""What separates one charter from the next, and how a person names a voter or a setting of it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from protocol import project as specs
from protocol.errors import UserError
from protocol.ids import NodeKey, short
from shoal.common.toml_tables import Place, read_fields, read_value, shown
from shoal.project.template import toml_value

SECTIONS: dict[str, tuple[str, type[Struct]]] = {
    "training": ("inner", specs.InnerSpec),
    "outer": ("outer", specs.OuterSpec),
    "rounds": ("rounds", specs.RoundSpec),
    "limits": ("limits", specs.LimitSpec),
}
"""Sections of a project file: the charter's field, and its type."""

DURABILITY = "seat.durability"
ADMISSION = "admission.rule"
GUARD = "guard.rule"
ABOUT = "page.about"
_SINGLE = {
    DURABILITY: ("durability", specs.Durability),
    ADMISSION: ("admission", specs.AdmissionRule),
    GUARD: ("guard", specs.GuardRule),
}
"""Settings that are no part of a section: the charter's field, and its type."""
_SHORT = {"durability": DURABILITY, "admission": ADMISSION, "guard": GUARD, "about": ABOUT}
KEY_DIGITS_MIN = 8
"""As many as screens show."""

NOBODY_HERE: Final[Mapping[NodeKey, str]] = {}

_IDENTITY = ("project", "model", "data")


def full_key(text: str) -> NodeKey:
    """The key that these 64 hex digits write. UserError if they are not that."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32 or len(text) != 64:
        raise UserError(
            f"{shown(text)} is not a key of 64 hex digits. `shoal syncer key` and `shoal witness "
            "key` print the key of the host they are run on; `shoal status --json` has the keys of "
            "learners."
        )
    return key


def find_key(text: str, known: list[NodeKey], what: str) -> NodeKey:
    """The one of these keys that begins so. UserError if none does, or several do."""
    wanted = text.strip().rstrip("…").lower()
    fitting = [key for key in known if key.hex().startswith(wanted)]
    if len(wanted) >= KEY_DIGITS_MIN and len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(key.hex()[:16] + "…" for key in known) or "there is none"
    if len(wanted) < KEY_DIGITS_MIN:
        raise UserError(f"Give at least {KEY_DIGITS_MIN} digits of the key. {what}: {listed}.")
    raise UserError(f"{shown(text)} is not the key of one of them. {what}: {listed}.")


# Voters.


def find_voter(
    text: str, voters: Sequence[specs.Voter], here: Mapping[NodeKey, str] = NOBODY_HERE
) -> NodeKey:
    """The key of the voter that is meant: by its key's first digits, or as status calls it.

    here: what voters of this machine are called, such as "syncer default". UserError where nobody
    fits, or several do.
    """
    word = text.strip().rstrip("…")
    role, _, rest = word.rpartition(" ")
    digits = rest.lower()
    is_hex = bool(digits) and all(char in "0123456789abcdef" for char in digits)
    is_prefix = is_hex and len(digits) >= KEY_DIGITS_MIN
    fitting = [
        one
        for one in voters
        if role in ("", one.role)
        and (
            (is_prefix and one.key.hex().startswith(digits))
            or here.get(one.key) == f"{one.role} {rest}"
        )
    ]
    if len(fitting) == 1:
        return fitting[0].key
    listed = ", ".join(_as_known(one, here) for one in fitting or voters)
    if fitting:
        raise UserError(
            f"{shown(text)} may be any of these: {listed}. Name one by the first digits of its key."
        )
    if is_hex and not is_prefix:
        raise UserError(
            f"Give at least {KEY_DIGITS_MIN} digits of the key. The voters are: {listed}."
        )
    what = "the key of one of them" if is_hex else "the name or the key of one of them"
    raise UserError(f"{shown(text)} is not {what}. The voters are: {listed}.")


def _as_known(voter: specs.Voter, here: Mapping[NodeKey, str]) -> str:
    name = here.get(voter.key)
    return f"{voter.role} {voter.key.hex()[:16]}…" + (f" ({name}, here)" if name else "")


def named(voter: specs.Voter) -> str:
    """The voter as people see it on every screen."""
    return f"{voter.role} {short(voter.key)}"


def voter_changes(former: specs.Charter, charter: specs.Charter) -> list[str]:
    """Who was added, removed or readmitted, in words."""
    before = {voter.key: voter for voter in former.voters}
    after = {voter.key: voter for voter in charter.voters}
    return [
        *(f"added {named(one)}" for key, one in after.items() if key not in before),
        *(f"removed {named(one)}" for key, one in before.items() if key not in after),
        *(
            f"readmitted {named(one)}"
            for key, one in after.items()
            if key in before and one.disk != before[key].disk
        ),
    ]


def check_one_voter(former: specs.Charter, charter: specs.Charter, file: str) -> None:
    """UserError if more than one voter differs: their majorities might not meet."""
    changes = voter_changes(former, charter)
    if former.epoch != charter.epoch or len(changes) <= 1:
        return
    signed = file.replace(".toml", ".shoal")
    raise UserError(
        f"{file}: change one voter at a time: against the signed revision {former.revision}, the "
        f"file has {'; '.join(changes)}. If the file is behind, put the signed voters into it: "
        f"`shoal project show {signed}` lists them. If not, go step by step with `shoal project "
        "add-syncer`, `add-witness` and `remove-voter`, each once `shoal status` says that the one "
        "before is in force. If the project has never run, delete the signed file and sign again."
    )


def check_enough_votes(voters: tuple[specs.Voter, ...]) -> str:
    """What is to be said about this number of voters. UserError if it has no syncer."""
    if all(voter.role != "syncer" for voter in voters):
        raise UserError(
            "A project needs a syncer among its voters. Add another one first: "
            "shoal project add-syncer KEY PROJECT"
        )
    if len(voters) == 2:
        return (
            "note: two voters cannot outvote each other, so nothing is merged while one is away; "
            "add a third one soon"
        )
    if len(voters) % 2 == 0:
        return f"note: {len(voters)} voters survive no more losses than {len(voters) - 1}"
    return ""


def voter_tables(charter: specs.Charter) -> list[str]:
    """The voters as a project file writes them."""
    lines: list[str] = []
    for voter in charter.voters:
        lines += [
            "[[voters]]",
            f'key = "{voter.key.hex()}"',
            f'role = "{voter.role}"',
            f"priority = {voter.priority}",
        ]
    return lines


# Settings.


def settings(charter: specs.Charter) -> dict[str, Any]:
    """Every value that the owner may change, by its name in the project file."""
    found: dict[str, Any] = {
        f"{section}.{name}": getattr(getattr(charter, at), name)
        for section, (at, kind) in SECTIONS.items()
        for name in kind.__struct_fields__
    }
    single = {name: getattr(charter, at) for name, (at, _) in _SINGLE.items()}
    return found | single | {ABOUT: charter.about or ""}


def with_setting(charter: specs.Charter, name: str, text: str, file: str) -> specs.Charter:
    """The charter with another value, written as in the project file; bare words are texts.

    UserError for a name that is none, and for a value that is not allowed.
    """
    known = settings(charter)
    name = _SHORT.get(name, name)
    if name not in known:
        raise UserError(f"{file}: {_unknown(name, list(known))}")
    place = Place(file, name)
    value = read_setting(text)
    if name == ABOUT:
        return msgspec.structs.replace(charter, about=read_value(value, specs.Text, place) or None)
    if name in _SINGLE:
        at, word = _SINGLE[name]
        return msgspec.structs.replace(charter, **{at: read_value(value, word, place)})
    section, _, key = name.partition(".")
    at, kind = SECTIONS[section]
    read = read_fields({key: value}, kind, Place(file, section), key)
    changed = msgspec.structs.replace(getattr(charter, at), **read)
    return msgspec.structs.replace(charter, **{at: changed})


def _unknown(name: str, known: list[str]) -> str:
    if name.partition(".")[0] in _IDENTITY:
        return (
            f"{name} is part of the project's identity and cannot change. Another value makes "
            "another project: edit the project file under another name and sign that."
        )
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:
        last = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
        near = last or difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    advice = f"did you mean {near[0]}?" if near else "`shoal project create` explains them all"
    return f"{name} is not a setting that can be changed; {advice}"


def read_setting(text: str) -> object:
    """A value as the project file has it; bare words are texts."""
    if "\n" not in text:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            pass  # A bare word, as a shell makes of a quoted one.
    return text


LISTED_MAX: Final = 8
"""Keys that are named one by one; of more of them it is said how many there are."""


def _listed(word: str, keys: Iterable[bytes], without: Container[bytes]) -> Iterator[str]:
    told = [key for key in keys if key not in without]
    yield from (f"{word} {short(key)}" for key in told[:LISTED_MAX])
    if len(told) > LISTED_MAX:
        yield f"{word} {len(told) - LISTED_MAX:,} more"


def differences(former: specs.Charter, charter: specs.Charter) -> Iterator[str]:
    """What is new in a charter, one line each."""
    yield from voter_changes(former, charter)
    before = {voter.key: voter for voter in former.voters}
    for voter in charter.voters:
        old = before.get(voter.key)
        if old is not None and (old.role, old.priority) != (voter.role, voter.priority):
            yield f"{named(old)}, priority {old.priority}, is {voter.role}, priority " + str(
                voter.priority
            )
    for word, keys, others in (
        ("banned", charter.banned, former.banned),
        ("not banned any more:", former.banned, charter.banned),
        ("allowed", charter.allowed, former.allowed),
        ("not allowed any more:", former.allowed, charter.allowed),
    ):
        yield from _listed(word, keys, without=frozenset(others))
    yield from (
        f"{short(one.learner)} is suspended no more"
        for one in charter.reinstated
        if one not in former.reinstated
    )
    yield from (
        f"revoked invite {one.hex()[:8]}" for one in charter.revoked if one not in former.revoked
    )
    if charter.resumed != former.resumed and charter.resumed is not None:
        yield "merging goes on from the pause of the guard"
    if (charter.paused_at_s is None) != (former.paused_at_s is None):
        yield "the run goes on" if charter.paused_at_s is None else "the run is paused"
    old_values = settings(former)
    for name, value in settings(charter).items():
        if value != old_values[name]:
            yield f"{name} = {toml_value(value)}, was {toml_value(old_values[name])}"
