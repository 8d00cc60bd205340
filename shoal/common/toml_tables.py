"""Tables of a project file as typed values, and one clear line for whatever is wrong in them.

The types in `protocol.project` say what is allowed, once; the checks and the words for people are
both derived from them here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, inspect

from protocol import decoders
from protocol.errors import UserError

_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file a value stands."""

    file: str
    path: str = ""

    def below(self, key: str) -> Place:
        """The place of a key in the table at this place."""
        return Place(self.file, f"{self.path}.{key}" if self.path else key)

    def error(self, text: str) -> UserError:
        """The error whose one line names file and key."""
        return UserError(
            f"{self.file}: {self.path} {text}" if self.path else f"{self.file}: {text}"
        )


def read_table(
    value: object,
    kind: type[Struct],
    place: Place,
    *,
    omit: Collection[str] = (),
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """The value of every field of `kind` but those in `omit`, converted strictly.

    optional: fields that files from before they came do not say; without a value here then.
    UserError for a missing, unknown or wrong key.
    """
    table = as_table(value, place)
    fields = [name for name in kind.__struct_fields__ if name not in omit]
    wanted = [name for name in fields if name not in optional]
    check_keys(table, wanted, place, optional=optional)
    return read_fields(table, kind, place, *(name for name in fields if name in table))


def read_fields(
    table: Mapping[str, object], kind: type[Struct], place: Place, *names: str
) -> dict[str, Any]:
    """The values of these fields of `kind`, converted strictly. UserError for a wrong one."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {name: read_value(table[name], types[name], place.below(name)) for name in names}


def as_table(value: object, place: Place) -> dict[str, Any]:
    """`value` if it is a table, otherwise UserError."""
    if isinstance(value, dict):
        return value
    raise place.error(f"must be a table, written as [{place.path}], not {shown(value)}")


def check_keys(
    table: Mapping[str, object],
    wanted: Collection[str],
    place: Place,
    *,
    optional: Collection[str] = (),
) -> None:
    """UserError unless `table` has exactly the wanted keys, and perhaps optional ones."""
    known = [*wanted, *optional]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise place.below(key).error(f"is not a known key; {advice}")
    for key in wanted:
        if key not in table:
            raise place.below(key).error(
                "is missing; `shoal project create` writes a file with every key"
            )


def read_value(value: object, annotation: Any, place: Place) -> Any:
    """`value` as `annotation` says, without any conversion but whole numbers to real ones."""
    try:
        return decoders.convert(value, annotation, strict=True)
    except msgspec.ValidationError as error:
        raise place.error(f"must be {allowed(annotation)}, not {shown(value)}") from error


def allowed(annotation: Any) -> str:
    """What a field of this type may hold, in words."""
    kind = plain_kind(annotation)
    match kind:
        case inspect.LiteralType(values=values):
            quoted = [shown(value) for value in sorted(map(str, values))]
            return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"
        case inspect.IntType():
            return _bounded("an integer", kind)
        case inspect.FloatType():
            return _bounded("a number", kind)
        case inspect.StrType(min_length=least, max_length=most):
            return f"text of {least or 0} to {most} characters" if most else "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType(item_type=inspect.StrType()):
            return "a list of texts"
        case inspect.DictType(value_type=inspect.LiteralType(values=values)):
            quoted = [shown(value) for value in sorted(map(str, values))]
            return f"a table with values out of {', '.join(quoted)}"
        case _:
            return "a number, text, true, false, or a list or table of them"


def plain_kind(annotation: Any) -> inspect.Type:
    """The type without its description, and without None where that means unset."""
    kind = inspect.type_info(annotation)
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        rest = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        kind = rest[0] if len(rest) == 1 else kind
    return kind


def _bounded(noun: str, kind: inspect.IntType | inspect.FloatType) -> str:
    """The noun with its range; whole numbers count from the first allowed one."""
    low, high = kind.ge, kind.le
    if kind.gt is not None:
        noun += f" above {kind.gt:g}"
    if kind.lt is not None and isinstance(kind, inspect.IntType):
        high = kind.lt - 1
    elif kind.lt is not None:
        high_words = f"below {kind.lt:g}"
        return f"{noun} of at least {low:g} and {high_words}" if low is not None else high_words
    if low is not None and high is not None:
        return f"{noun} from {_number(low)} to {_number(high)}"
    if high is not None:
        return f"{noun} and at most {_number(high)}" if kind.gt is not None else noun
    return f"{noun} of at least {_number(low)}" if low is not None else noun


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(value: object) -> str:
    """The value as the file wrote it, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
