"""The owner's own settings of this machine: file, environment and flags, and who said what.

    flag > SHOAL_SECTION_KEY > settings.toml > default

The file lies in the platform's folder for configuration, so that everything Shoal runs here obeys
it; $SHOAL_CONFIG names another one.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

import msgspec
from msgspec import inspect

from host.files.local_settings import Settings
from host.files.weekly_hours import Schedule
from host.options import bulk_at
from protocol import decoders
from protocol.errors import UserError
from shoal.common.choices import address_and_port
from shoal.common.toml_tables import Place, allowed, as_table, plain_kind, shown

CONFIG_VARIABLE: Final = "SHOAL_CONFIG"
FILE_NAME: Final = "settings.toml"
FILE_BYTES_MAX: Final = 1 << 20
BULK_PORT: Final = "learner.bulk_port"
PORTS: Final[dict[str, Callable[[str], object]]] = {
    BULK_PORT: bulk_at,
    "page.at": partial(address_and_port, what="the page", port="8080"),
}
"""Keys that name a port, which may be written as a number, and what reads them."""

Origin = Literal["flag", "environment", "file", "default"]

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)(?:/s)?", re.IGNORECASE)
_DEVICE = re.compile(r"cpu|gpu|mps|(cuda|xpu)(:\d{1,3})?")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that the owner may decide."""

    name: str
    """`section.key`."""
    annotation: Any
    default: object
    about: str
    unit: str
    """Empty where there is none."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"SHOAL_{self.name.replace('.', '_').upper()}"

    @property
    def allowed(self) -> str:
        """What it may hold, in words."""
        words = allowed(self.annotation)
        return f"{words}, or text such as '8 GiB'" if self.is_amount else words

    @property
    def is_amount(self) -> bool:
        """Whether it counts bytes, which may be written with a unit."""
        return self.unit.startswith("bytes")


@dataclass(frozen=True, slots=True)
class Source:
    """Who decided a value."""

    origin: Origin
    detail: str = ""
    """The flag, the variable, or the file."""

    def __str__(self) -> str:
        return f"{self.origin} {self.detail}".strip()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Values and, for each key, who decided it."""

    values: Settings
    path: Path
    """The file that was looked for; it need not exist."""
    sources: Mapping[str, Source] = field(default_factory=dict)

    def value(self, name: str) -> object:
        """The value in force of a key. UserError for an unknown one."""
        section, _, key = known(name).name.partition(".")
        return getattr(getattr(self.values, section), key)

    def source(self, name: str) -> Source:
        """Who decided it. UserError for an unknown one."""
        return self.sources.get(known(name).name, Source("default"))


@cache
def keys() -> Mapping[str, Key]:
    """Every key by its name, in the order of the file."""
    found = {}
    for section in msgspec.structs.fields(Settings):
        hints = get_type_hints(section.type, include_extras=True)
        for one in msgspec.structs.fields(section.type):
            default = one.default
            if one.default_factory is not msgspec.NODEFAULT:
                default = one.default_factory()
            words, unit = _described(hints[one.name])
            name = f"{section.name}.{one.name}"
            found[name] = Key(name, hints[one.name], default, words, unit)
    return found


def known(name: str) -> Key:
    """The key of this name. UserError, with the nearest ones, where there is none."""
    key = keys().get(name)
    if key is not None:
        return key
    near = difflib.get_close_matches(name, keys(), n=3, cutoff=0.4)
    advice = f"Did you mean {' or '.join(near)}?" if near else f"Known are {', '.join(keys())}."
    raise UserError(f"There is no setting {name!r}. {advice}")


def settings_path(environ: Mapping[str, str] | None = None) -> Path:
    """$SHOAL_CONFIG, or settings.toml in the user's folder for configuration."""
    if named := (os.environ if environ is None else environ).get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("shoal", appauthor=False)) / FILE_NAME


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a daemon that is to be as it comes, whatever the owner set."""
    own = {key.variable for key in keys().values()}
    kept = {name: text for name, text in environ.items() if name not in own}
    return {**kept, CONFIG_VARIABLE: os.devnull}


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> LocalSettings:
    """All settings in force. A file that does not exist says nothing.

    flags: `section.key` -> value, None for a flag that was not given. UserError, naming place and
    key, for whatever is unknown or not allowed.
    """
    environ = os.environ if environ is None else environ
    path = settings_path(environ) if path is None else path
    values: dict[str, object] = {}
    sources: dict[str, Source] = {}
    for name, value in _in_file(path).items():
        values[name], sources[name] = value, Source("file", str(path))
    for name, text in _in_environment(environ).items():
        variable = known(name).variable
        values[name] = read_text(name, text, Place(variable))
        sources[name] = Source("environment", variable)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = read(name, value, Place("the command line", name))
            sources[name] = Source("flag")
    return LocalSettings(_assembled(values), path, sources)


def read(name: str, value: object, place: Place) -> object:
    """The value of a key as TOML has it, checked and converted. UserError if it is not allowed."""
    key = known(name)
    if key.is_amount and isinstance(value, str):
        value = _amount(value, place)
    if isinstance(value, list):
        value = tuple(value)
    if name in PORTS and type(value) is int:
        value = str(value)
    try:
        result = decoders.convert(value, key.annotation, strict=True)
    except msgspec.ValidationError as error:
        raise place.error(f"must be {key.allowed}, not {shown(value)}") from error
    _check_words(name, result, place)
    return result


def read_text(name: str, text: str, place: Place) -> object:
    """The value of a key from a word of the command line or the environment.

    Lists are separated by `;`, tables written as `name=value;name=value`. UserError as in `read`.
    """
    key = known(name)
    kind = plain_kind(key.annotation)
    text = text.strip()
    value: object = text
    match kind:
        case inspect.BoolType():
            value = {"true": True, "false": False}.get(text.lower(), text)
        case inspect.IntType() | inspect.FloatType() if not key.is_amount:
            value = _number(
                text.removesuffix("%").strip(), is_whole=isinstance(kind, inspect.IntType)
            )
        case inspect.VarTupleType():
            value = tuple(part.strip() for part in text.split(";") if part.strip())
        case inspect.DictType():
            pairs = (part.partition("=") for part in text.split(";") if part.strip())
            value = {name.strip(): mode.strip() for name, _, mode in pairs}
    return read(name, value, place)


def as_text(name: str, value: object) -> str:
    """A value as `read_text` takes it; `unset` for none."""
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case tuple():
            return "; ".join(map(str, value))
        case dict():
            return "; ".join(f"{one}={mode}" for one, mode in value.items())
        case int() if known(name).is_amount:
            return amount_text(value)
        case float():
            return f"{value:g}"
    return str(value)


def amount_text(count: int) -> str:
    """So many bytes, exactly, as the smallest whole number that a unit leaves: 2 GiB, or 2 GB."""
    sizes = [
        (base**power, unit + mark)
        for base, mark in ((1024, "iB"), (1000, "B"))
        for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K" if mark == "iB" else "k"))
    ]
    whole = [(count // size, f"{count // size} {unit}") for size, unit in sizes if not count % size]
    return min(whole)[1] if count and whole else f"{count}"


def _check_words(name: str, value: object, place: Place) -> None:
    """What a type cannot say: hours that can be read, devices and ports that may exist."""
    if name in PORTS:
        try:
            PORTS[name](str(value))
        except UserError as error:
            raise place.error(f"cannot be {shown(value)}: {error}") from error
    if name == "when.hours" and isinstance(value, tuple):
        try:
            Schedule(value)
        except UserError as error:
            raise place.error(f"cannot be read: {error}") from error
    if name == "network.bootstrap" and isinstance(value, tuple):
        from host.addresses import parse_peer

        for text in value:
            try:
                parse_peer(text)
            except UserError as error:
                raise place.error(f"names no host: {error}") from error
    if name == "when.devices" and isinstance(value, dict):
        for device in value:
            if not _DEVICE.fullmatch(device):
                raise place.error(
                    f"knows no device {shown(device)}; write cpu, gpu, cuda:0, mps or xpu:0"
                )


def _in_file(path: Path) -> dict[str, object]:
    """What the file says, by key."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(
            f"The settings {path} cannot be read ({error.strerror}). Correct its permissions, or "
            f"name another file with {CONFIG_VARIABLE}."
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise UserError(
            f"The settings {path} are longer than {FILE_BYTES_MAX} bytes. Shorten them."
        )
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"The settings {path} are not valid TOML ({error}). Correct that line."
        ) from error
    found = {}
    for section, table in tables.items():
        place = Place(str(path), section)
        for key, value in as_table(table, place).items():
            name = f"{section}.{key}"
            try:
                known(name)
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
            found[name] = read(name, value, place.below(key))
    return found


def _in_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment says, by key. A variable of one of our sections must be known."""
    named = {key.variable: name for name, key in keys().items()}
    prefixes = tuple(f"SHOAL_{section.name.upper()}_" for section in _sections())
    found = {}
    for variable, text in environ.items():
        if variable in named:
            found[named[variable]] = text
        elif variable.startswith(prefixes):
            near = difflib.get_close_matches(variable, named, n=1, cutoff=0.4)
            advice = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"There is no setting for the variable {variable}.{advice}")
    return found


def _assembled(values: Mapping[str, object]) -> Settings:
    tables: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        tables.setdefault(section, {})[key] = value
    made = {section.name: section.type(**tables.get(section.name, {})) for section in _sections()}
    return Settings(**made)


def _sections() -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(Settings)


def _described(annotation: Any) -> tuple[str, str]:
    kind = inspect.type_info(annotation)
    assert isinstance(kind, inspect.Metadata), "every key says what it is for"
    words = (kind.extra_json_schema or {}).get("description", "")
    return words, (kind.extra or {}).get("unit", "")


def _number(text: str, *, is_whole: bool) -> object:
    try:
        return int(text) if is_whole else float(text)
    except ValueError:
        return text  # Refused with words where it is read.


def _amount(text: str, place: Place) -> int:
    """Bytes; units of 1024 with an i, of 1000 without."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise place.error(f"must be a number of bytes or text such as '8 GiB', not {shown(text)}")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** _POWER[found[2].lower()])
