"""The `config` and `init` verbs: the owner's settings, read, explained, and changed in their file.

A change keeps what its owner wrote around it: comments, order, spacing.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Annotated, Final

import msgspec
import tomlkit
from cyclopts import Parameter
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item

from host.runtime import atomic_files
from protocol.errors import UserError
from shoal.common import settings_file
from shoal.common.choices import HomeHere, area, switch
from shoal.common.settings_file import Key, LocalSettings
from shoal.common.toml_tables import Place

WIDTH: Final = 80
EXAMPLES: Final = {
    "learner.name": '"osprey"',
    "learner.device": '"cpu"',
    "learner.ranks": "2",
    "learner.threads": "4",
    "learner.micro_batch": "8",
    "learner.batch_sequences": "32",
    "when.devices": '{ cpu = "never", "cuda:0" = "idle" }',
    "when.hours": '["mon-fri 22:00-07:00", "sat,sun 00:00-24:00"]',
    "when.temperature_c_max": "80",
    "page.at": '"0.0.0.0:8080"',
    "network.bootstrap": '["/dns4/example.org/tcp/4100/p2p/'
    '12D3KooWCZW8nTcJDJK39j2VsZwfsyhPDe2TucYBWAkz85bG1h6k"]',
    "network.nearby": "true",
    "network.map_port": "true",
    "when.busy_programs": '["blender", "steam"]',
}
"""What could stand where the default is nothing."""

AT_START: Final = ("learner.", "limits.nice", "limits.gpu_memory_percent")
"""Keys that a running learner does not read again."""


config_app = area("config")
Name = Annotated[str, Parameter(name="KEY", help="Such as limits.cpu_percent.")]
AsJson = Annotated[bool, switch("Print JSON.")]


@config_app.command
def get(name: Name) -> list[str]:
    """Print the value in force of a setting."""
    return [settings_file.as_text(name, settings_file.load().value(name))]


@config_app.command
def path() -> list[str]:
    """Print where your settings file is, or would be."""
    return [str(settings_file.settings_path())]


@config_app.command(name="list")
def show(
    *,
    set_only: Annotated[bool, switch("Only settings that differ from the default.")] = False,
    json: AsJson = False,
) -> list[str]:
    """Print all settings in force, and where each comes from."""
    settings, every = settings_file.load(), settings_file.keys()
    names = [name for name in every if not set_only or settings.source(name).origin != "default"]
    if json:
        table = {
            name: {
                "value": settings.value(name),
                "source": settings.source(name).origin,
                "from": settings.source(name).detail,
            }
            for name in names
        }
        return [msgspec.json.encode(table).decode()]
    if not names:
        return [f"every setting has its default; {_place(settings)}"]
    width = max(map(len, names))
    room = min(40, max(len(settings_file.as_text(one, settings.value(one))) for one in names))
    lines = []
    for name in names:
        value = settings_file.as_text(name, settings.value(name)) or "(none)"
        source = settings.source(name)
        who = source.detail if source.origin == "environment" else source.origin
        lines.append(f"{name:<{width}}  {value:<{room}}  {who}".rstrip())
    return [*lines, "", _place(settings)]


def _place(settings: LocalSettings) -> str:
    there = "" if settings.path.exists() else " (there is none yet)"
    return f"file: {settings.path}{there}"


@config_app.command
def explain(name: Name, *, json: AsJson = False) -> list[str]:
    """Print what a setting means, its value and origin, and what it may be."""
    key = settings_file.known(name)
    settings = settings_file.load()
    source = settings.source(name)
    facts = {
        "value": settings_file.as_text(name, settings.value(name)) or "(none)",
        "source": _source_in_words(settings, name),
        "meaning": key.about,
        "unit": key.unit,
        "allowed": key.allowed,
        "default": settings_file.as_text(name, key.default) or "(none)",
        "variable": key.variable,
        "file": f"{settings.path}, [{name.partition('.')[0]}] {name.partition('.')[2]}",
        "in force": "from the next start" if name.startswith(AT_START) else "within seconds",
    }
    if json:
        told = {**facts, "name": name, "source": source.origin, "from": source.detail}
        return [msgspec.json.encode(told).decode()]
    lines = [name]
    for word, text in facts.items():
        if text:
            lines += _folded(word, text)
    return lines


def _folded(word: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - 12, break_long_words=False, break_on_hyphens=False)
    first, *others = wrapped
    return [f"  {word:<10}{first}", *(" " * 12 + line for line in others)]


def _source_in_words(settings: LocalSettings, name: str) -> str:
    source = settings.source(name)
    match source.origin:
        case "environment":
            return f"the environment, {source.detail}; it overrides the file"
        case "file":
            return f"the file {source.detail}"
        case "default":
            return "this is the default"
    return str(source)


@config_app.command(name="set")
def change(
    name: Name,
    text: Annotated[
        str | None,
        Parameter(
            name="VALUE",
            help="Lists as 'a; b', tables as 'a=x; b=y', bytes as '8 GiB'. KEY=VALUE will do too.",
            allow_leading_hyphen=True,
        ),
    ] = None,
) -> list[str]:
    """Write a setting into your file; comments in it are kept."""
    if text is None:
        name, is_joined, text = name.partition("=")
        if not is_joined:
            raise UserError(f"No value for {name}: shoal config set {name} VALUE")
    key = settings_file.known(name)
    path = settings_file.settings_path()
    value = settings_file.read_text(name, text, Place("shoal config set", name))
    if value is None:
        return drop(name)
    document = _document(path)
    section, _, word = name.partition(".")
    table = document.get(section)
    if table is None:
        table = document[section] = tomlkit.table()
    table[word] = _item(key, text, value)
    _write(path, tomlkit.dumps(document))
    return [f"{name} = {settings_file.as_text(name, value)}", *_aftermath(name, path)]


@config_app.command(name="unset")
def drop(name: Name) -> list[str]:
    """Remove a setting from your file, so that the default applies again."""
    settings_file.known(name)
    path = settings_file.settings_path()
    document = _document(path)
    section, _, word = name.partition(".")
    table = document.get(section)
    if table is None or word not in table:
        return [f"{path} does not set {name}", *_overruling(name)]
    del table[word]
    _write(path, tomlkit.dumps(document))
    now = settings_file.as_text(name, settings_file.load().value(name)) or "(none)"
    return [f"{name} = {now}, as {settings_file.load().source(name)}", *_aftermath(name, path)]


def _aftermath(name: str, path: Path) -> list[str]:
    when = (
        "a learner reads it at its next start"
        if name.startswith(AT_START)
        else "running learners obey it within seconds"
    )
    return [f"in {path}; {when}", *_overruling(name)]


def _overruling(name: str) -> list[str]:
    variable = settings_file.known(name).variable
    return [f"but {variable} in this environment overrides it"] if variable in os.environ else []


def _item(key: Key, text: str, value: object) -> Item:
    """The value as the file has it; amounts stay as their owner wrote them."""
    if key.is_amount and not text.strip().isdigit():
        return tomlkit.item(text.strip())
    if isinstance(value, tuple):
        array = tomlkit.array()
        array.extend(value)
        return array
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    if isinstance(value, float) and value.is_integer():
        return tomlkit.item(int(value))
    item: Item = tomlkit.item(value)
    return item


def _document(path: Path) -> tomlkit.TOMLDocument:
    """The file as it is. UserError if it is no settings file, for then nothing may be lost."""
    settings_file.load(path, environ={})
    try:
        return tomlkit.parse(path.read_text())
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UserError(f"The settings {path} cannot be read ({error}).") from error


def _write(path: Path, text: str) -> None:
    """Replaces the file in one step."""
    target = path.resolve()  # A link to a file elsewhere stays a link.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        atomic_files.replace_file(target, text.encode())
        target.chmod(mode)
    except OSError as error:
        raise UserError(
            f"The settings {path} cannot be written ({error.strerror}). Name another file with "
            f"{settings_file.CONFIG_VARIABLE}."
        ) from error


def begin(*, home: HomeHere) -> list[str]:
    """Makes what is missing of home, key and settings file, and says what there is."""
    from host.files import keystore

    place = home.identity("learner")
    word = "there already" if place.exists() else "made"
    key = keystore.load_or_create(place).key
    lines = [f"home      {home.root}", f"key       {key.hex()[:16]}..., {word}"]
    path = settings_file.settings_path()
    if path.exists():
        settings_file.load(path)
        lines.append(f"settings  {path}, there already")
    else:
        _write(path, template())
        lines.append(f"settings  {path}, created; every setting has its default")
    return [
        *lines,
        "",
        "next: shoal doctor              is this machine up to it?",
        "      shoal join 'shoal:...'    take part, with a project's link",
    ]


def template() -> str:
    """A settings file in which every key is explained and commented out."""
    lines = [
        "# What Shoal may do on this machine. You alone decide; no project sees this file.",
        "# Each line that is commented out shows the default, or an example where there is none.",
        "# `shoal config explain KEY` says more. `shoal config set KEY VALUE` writes here and",
        "# keeps your comments. Precedence: flag, environment, this file, project, default.",
    ]
    section = ""
    for name, key in settings_file.keys().items():
        head, _, word = name.partition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        unit = f" In {key.unit}." if key.unit else ""
        lines += [f"# {line}" for line in textwrap.wrap(f"{key.about}{unit}", WIDTH)]
        lines.append(f"# {word} = {_example(key)}")
    return "\n".join(lines) + "\n"


def _example(key: Key) -> str:
    """The default as the file would have it, or something else that could stand there."""
    if key.default is None or key.default in ((), {}):
        return EXAMPLES.get(key.name) or _usual_example(key)
    return _item(key, "0", key.default).as_string()


def _usual_example(key: Key) -> str:
    """By the kind of value, for keys that have no example of their own."""
    if key.is_amount:
        return '"2 MiB"' if "second" in key.unit else '"8 GiB"'
    return "50" if key.unit.startswith("%") else "1"
