"""[data] of a project file: one source or several, checked as far as the file alone says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

from protocol import limits
from protocol import project as specs
from shoal.common import toml_tables as toml

MIXTURE = "mixture"


def read(value: object, place: toml.Place, path: Path) -> dict[str, Any]:
    """The fields of a `ProjectFile` that this section says, by name.

    path: of the project file, beside which paths start. UserError for whatever is wrong.
    """
    table = dict(toml.as_table(value, place))
    found: dict[str, Any] = {"image_size": None, "masked_frac": None}
    for key, kind, field in (
        ("image_size", specs.ImageSpec, "height"),
        ("masked_frac", specs.MaskedSpec, "frac"),
    ):
        if key in table:
            said = toml.read_fields({field: table.pop(key)}, kind, place, field)
            found[key] = said[field]
    words = Literal["joined", "separate"]
    rule = toml.read_value(table.pop("documents", "joined"), words, place.below("documents"))
    found["documents"] = None if rule == "joined" else rule
    found["publish"] = _publish(table, place)
    several = table.pop("sources", None)
    is_images = table.get("source") == "images"
    values = toml.read_table(
        table,
        specs.DataSpec,
        place,
        omit=("blocks", "digest"),
        optional=("text_field", "tokenizer") if is_images else (),
    )
    if is_images:
        values = {"text_field": "text", "tokenizer": "bytes"} | values
    values["location"] = _location(values["source"], values["location"], place, path)
    beside = path.absolute().parent
    if (beside / values["tokenizer"]).is_file():
        values["tokenizer"] = str(beside / values["tokenizer"])
    found["data"] = specs.DataSpec(**values, blocks=1, digest=bytes(32))
    found["mixture"] = _mixture(several, found, place, path)
    return found


def _publish(table: dict[str, Any], place: toml.Place) -> bool:
    publish = table.pop("publish", False)
    if not isinstance(publish, bool):
        raise place.below("publish").error(f"must be true or false, not {toml.shown(publish)}")
    if publish and table.get("source") == "own":
        raise place.below("publish").error(
            "must be false for data of one's own training code: only text, chats and images are "
            "published"
        )
    return publish


def _location(source: str, location: str, place: toml.Place, path: Path) -> str:
    """The same, with paths made absolute, or the one error in it."""
    at = place.below("location")
    if source in ("python-stdlib", MIXTURE) and location:
        raise at.error(f'must be "" for the source {source}, not {toml.shown(location)}')
    if source not in ("python-stdlib", "own", MIXTURE) and not location:
        raise at.error(f"must not be empty: name what {source} is to read")
    named = specs.on_hub(source, location)
    if named is not None and specs.hub_data(named) is None:
        before = location.removesuffix(named)
        raise at.error(
            f"must be {before}OWNER/NAME or {before}OWNER/NAME:CONFIGURATION, perhaps with "
            f"@REVISION, not {toml.shown(location)}"
        )
    if specs.is_files(source, location) and not location.startswith("~"):
        return str(path.absolute().parent / location)
    return location


def _mixture(
    several: object, found: dict[str, Any], place: toml.Place, path: Path
) -> tuple[specs.MixedSource, ...] | None:
    """The sources of a mixture, not counted yet; None where there is one."""
    at, data = place.below("sources"), found["data"]
    if data.source != MIXTURE:
        if several is not None:
            raise at.error(f'are read only with source = "{MIXTURE}" under [data]')
        return None
    most = limits.MIXTURE_SOURCES_MAX
    if not isinstance(several, list) or not 2 <= len(several) <= most:
        raise at.error(f"must be 2 to {most} tables, each written as [[{at.path}]]")
    mixture = tuple(
        _source(one, data.text_field, at.below(str(number)), path)
        for number, one in enumerate(several, 1)
    )
    if not found["publish"]:
        _require_names(mixture, at)
    return mixture


def _source(value: object, text_field: str, place: toml.Place, path: Path) -> specs.MixedSource:
    table = dict(toml.as_table(value, place))
    said = table.get("source")
    if said in ("images", "own", MIXTURE):
        known = ", ".join(sorted(get_args(specs.TextKind)))
        raise place.below("source").error(
            f"cannot be a part of a mixture: {toml.shown(said)}; text and chats can, by {known}"
        )
    table.setdefault("text_field", text_field)
    table.setdefault("location", "")
    values = toml.read_table(table, specs.MixedSource, place, omit=("sequences", "digest"))
    values["location"] = _location(values["source"], values["location"], place, path)
    return specs.MixedSource(**values, sequences=1, digest=bytes(32))


def _require_names(mixture: tuple[specs.MixedSource, ...], place: toml.Place) -> None:
    """UserError where copies could not lie in one folder by their names."""
    files = [one for one in mixture if specs.is_files(one.source, one.location)]
    for name, count in Counter(Path(one.location).name for one in files).items():
        if count > 1:
            raise place.error(
                f"name {count} files or folders {toml.shown(name)}; learners keep copies in one "
                "folder by their names, so rename one, or set publish = true"
            )
